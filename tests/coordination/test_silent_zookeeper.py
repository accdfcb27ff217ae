"""Servers of ZooKeeper that fall silent, are gone or behind: each is asked by itself, and another one is tried."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from polonaise.coordination.backend import Entry, NotAsked
from polonaise.coordination.zookeeper import ZooKeeperBackend
from polonaise.coordination.zookeeperdata import DataTrial, ServerState, state_in, why_ended
from polonaise.coordination.zookeeperensemble import ensemble_troubles
from polonaise.coordination.zookeepersession import PatientHandler
from polonaise.errors import CoordinatorUnavailable
from polonaise.host.tls import TlsFiles, TlsIdentity
from rigs.descriptors import no_descriptors_left
from rigs.proxy import Proxy, proxied
from rigs.tls import Authority
from rigs.zookeeper import ensemble, new_root

SESSION_S = 6.0
"""That of production: a single silence of that length would cost a server its lease."""


@contextlib.contextmanager
def silent(*, accepting: bool) -> Iterator[str]:
    """Give the address of a server that says nothing; unless it is `accepting`, no connection to it is made either."""
    with contextlib.ExitStack() as closing:
        listening = closing.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(8 if accepting else 0)
        host, port = listening.getsockname()
        if not accepting:  # what is in the queue is never taken: the system answers no further one
            for _ in range(2):
                waiting = closing.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex((host, port))
        yield f"{host}:{port}"


@contextlib.asynccontextmanager
async def backend_at(*hosts: str) -> AsyncIterator[ZooKeeperBackend]:
    backend = ZooKeeperBackend(",".join(hosts), new_root(), session_s=SESSION_S)
    try:
        yield backend
    finally:
        await backend.close()


@contextlib.asynccontextmanager
async def two_ways() -> AsyncIterator[tuple[Proxy, Proxy, ZooKeeperBackend]]:
    """Give two proxies to one server, and a backend that knows both."""
    async with (
        proxied(ensemble().hosts) as one,
        proxied(ensemble().hosts) as other,
        backend_at(one.address, other.address) as backend,
    ):
        yield one, other, backend


def port_of(backend: ZooKeeperBackend) -> int:
    """The port that the backend is connected to."""
    assert backend._session is not None
    port = backend._session._client._connection._socket.getpeername()[1]
    assert isinstance(port, int)
    return port


@pytest.mark.slow
@pytest.mark.parametrize("accepting", [True, False])
async def test_silent_servers_cost_a_second_each_and_the_one_that_answers_is_found(accepting: bool) -> None:
    with silent(accepting=accepting) as one, silent(accepting=accepting) as other:
        async with backend_at(one, other, ensemble().hosts) as backend:
            began_s = time.monotonic()
            assert await backend.read("description") is None
            assert time.monotonic() - began_s < SESSION_S * 2 / 3


@pytest.mark.slow
async def test_who_is_closed_while_the_only_server_is_silent_does_not_wait_for_it() -> None:
    with silent(accepting=True) as one:
        async with backend_at(one) as backend:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(backend.read("description"), 0.5)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < SESSION_S / 2


@pytest.mark.slow
async def test_a_server_that_falls_silent_is_left_for_another_within_the_lease_and_the_session_goes_on() -> None:
    async with two_ways() as (one, other, backend):
        assert await backend.register("members/1", Entry(bytes(16), 0, b"here"))
        assert backend._session is not None
        number = backend._session.number()
        cut, left = (one, other) if port_of(backend) == int(one.address.rpartition(":")[2]) else (other, one)
        cut.cut()
        began_s = time.monotonic()
        with contextlib.suppress(CoordinatorUnavailable):  # the change may have been lost with the connection
            await backend.renew("members/1")
        assert await backend.renew("members/1")
        assert time.monotonic() - began_s < 3.0
        assert port_of(backend) == int(left.address.rpartition(":")[2])
        assert backend._session.number() == number
        cut.heal()


@pytest.mark.slow
async def test_what_is_only_asked_is_answered_by_another_server_and_does_not_fail() -> None:
    async with two_ways() as (one, other, backend):
        assert await backend.read("description") is None
        cut = one if port_of(backend) == int(one.address.rpartition(":")[2]) else other
        cut.cut()
        began_s = time.monotonic()
        assert await backend.read("description") is None
        assert time.monotonic() - began_s < 3.0
        cut.heal()


@pytest.mark.slow
async def test_it_is_said_of_each_server_why_it_does_not_answer() -> None:
    with silent(accepting=True) as mute, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        backend = ZooKeeperBackend(f"{mute},{nobody}", new_root(), session_s=2.5)
        try:
            with pytest.raises(CoordinatorUnavailable) as caught:
                await backend.read("description")
            assert f"{mute} is silent" in str(caught.value)
            assert f"{nobody} refuses connections" in str(caught.value)
            assert f"{nobody} refuses connections" in backend.trouble
        finally:
            await backend.close()


SERVES = b"Zookeeper version: 3.9\nMode: follower\nNode count: 5\n"


@asynccontextmanager
async def server_that_says(answer: bytes | None) -> AsyncIterator[str]:
    """A server that answers this and closes the connection; None: it accepts, and never says a word."""
    end = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == b"srvr"
        if answer is None:
            await end.wait()
        else:
            writer.write(answer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        end.set()
        listening.close()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (SERVES, ""),
        (b"srvr is not executed because it is not in the whitelist.\n", ""),
        (b"This ZooKeeper instance is not currently serving requests\n", "has not joined a majority"),
        (b"", "without an answer"),
        (None, "did not answer within 0.3 s"),
    ],
    ids=["serves", "may not tell", "no majority", "closes", "hangs"],
)
async def test_a_server_is_told_of_by_what_it_answers(answer: bytes | None, told: str) -> None:
    async with server_that_says(answer) as address, server_that_says(SERVES) as well:
        troubles = await ensemble_troubles(f"{address},{well}", None, 0.3)
        assert list(troubles) == [address, well]
        assert troubles[well] == ""
        assert (told in troubles[address]) if told else not troubles[address]


@pytest.mark.slow
async def test_a_server_with_tls_only_is_no_server_that_hangs(tmp_path: Path) -> None:
    context = TlsIdentity(Authority(tmp_path).node()).accepting()
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    async with listening:
        host, port = listening.sockets[0].getsockname()
        (told,) = (await ensemble_troubles(f"{host}:{port}", None, 2.0)).values()
    assert "has TLS only" in told
    assert "hangs" not in told


async def test_a_server_that_is_gone_is_told_of() -> None:
    async with server_that_says(SERVES) as address:
        pass
    assert "can't be reached" in (await ensemble_troubles(address, None, 5.0))[address]
    assert not isinstance((await ensemble_troubles(address, None, 5.0))[address], NotAsked)


async def test_what_keeps_this_process_from_asking_says_nothing_of_a_server(tmp_path: Path) -> None:
    async with server_that_says(SERVES) as address:
        files = TlsFiles(*(str(tmp_path / name) for name in ("ca.pem", "certificate.pem", "key.pem")))
        no_certificate = (await ensemble_troubles(address, files, 5.0))[address]
        with no_descriptors_left():
            no_descriptor = (await ensemble_troubles(address, None, 5.0))[address]
    for why, word in ((no_certificate, "certificate_unusable"), (no_descriptor, "raise its limit of open files")):
        assert isinstance(why, NotAsked)
        assert "can't be asked" in why
        assert word in why


SEEN = 0x30
NOT_SERVING = "This ZooKeeper instance is not currently serving requests\n"
MAY_NOT_TELL = "srvr is not executed because it is not in the whitelist.\n"


def said(mode: str, last: int) -> str:
    return (
        "Zookeeper version: 3.9.4, built on 2025\nLatency min/avg/max: 0/0.0/0\nReceived: 5\nSent: 4\nConnections: 1\n"
        f"Outstanding: 0\nZxid: 0x{last:x}\nMode: {mode}\nNode count: 5\n"
    )


def test_a_server_tells_its_last_transaction_and_whether_it_leads() -> None:
    assert state_in(said("standalone", 0x2F)) == ServerState("standalone", 0x2F)
    assert state_in(said("leader", 0).replace("\n", "\r\n")) == ServerState("leader", 0)
    for answer in ("", NOT_SERVING, MAY_NOT_TELL, "Mode: leader\n", "Zxid: 0x\nMode: leader\n"):
        assert state_in(answer) is None


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            said("standalone", 0),
            "z (standalone) has lost data, or has an older copy of them: its last transaction is 0x0",
        ),
        (said("leader", 0x2F), "has lost data, or has an older copy"),
        (said("follower", 0x2F), "z (follower) is behind"),
        (said("standalone", SEEN), "z serves (standalone), and has ended"),
        (NOT_SERVING, "has not joined a majority"),
        (MAY_NOT_TELL, "z answers, and has ended"),
        ("", ""),
    ],
)
def test_why_a_server_ended_the_connection_is_told_by_what_it_says_and_never_guessed(answer: str, told: str) -> None:
    why = why_ended("z", answer, SEEN)
    assert (told in why) if told else not why


class Refusals:
    """Servers that end this process's connection, each with what it says then."""

    def __init__(self, servers: int) -> None:
        self.trial = DataTrial(anew_s=12.0)
        self.servers = servers

    def first_verdict_s(self, for_s: float, **says: str) -> float | None:
        """Ask all servers in turns; return after how many seconds the session is to be begun anew, None for never."""
        for tenth in range(int(for_s * 10)):
            for server, answer in says.items():
                if self.trial.refused(server, answer, SEEN, self.servers, tenth / 10):
                    return tenth / 10
        return None


@pytest.mark.parametrize("last", [0, SEEN - 1], ids=["empty", "older"])
@pytest.mark.parametrize(("mode", "servers"), [("standalone", 1), ("leader", 3)])
def test_the_only_server_or_a_leader_that_is_behind_proves_lost_data_within_a_second(
    mode: str, servers: int, last: int
) -> None:
    assert Refusals(servers).first_verdict_s(2, a=said(mode, last)) == pytest.approx(0.4)
    assert not Refusals(servers).trial.refused("a", said(mode, last), SEEN, servers, 0.0), "not by one look"


def test_one_server_of_an_ensemble_that_is_behind_only_lags() -> None:
    assert Refusals(3).first_verdict_s(11, a=said("follower", 5), b=said("follower", SEEN), c="") is None
    assert Refusals(3).first_verdict_s(11, a=said("follower", 5)) is None
    assert Refusals(3).first_verdict_s(11, a=said("standalone", 0)) is None, "one that was started alone by mistake"
    assert Refusals(1).first_verdict_s(11, a=said("follower", 5)) is None, "the address names one server of several"


def test_a_majority_that_stays_behind_proves_lost_data() -> None:
    assert Refusals(3).first_verdict_s(11, a=said("follower", 5), b=said("follower", 5)) == pytest.approx(5.0)
    assert Refusals(5).first_verdict_s(11, a=said("follower", 5), b=said("follower", 5)) is None


def test_servers_that_elect_a_leader_prove_nothing_however_long_that_takes() -> None:
    assert Refusals(3).first_verdict_s(60, a=NOT_SERVING, b=NOT_SERVING, c="") is None


def test_a_server_that_has_caught_up_is_not_behind_any_more() -> None:
    refusals = Refusals(3)
    assert refusals.first_verdict_s(4, a=said("follower", 5), b=said("follower", 5)) is None
    refusals.trial.connected()
    assert refusals.first_verdict_s(4, a=said("follower", 5), b=said("follower", 5)) is None


@pytest.mark.parametrize("answer", [MAY_NOT_TELL, said("standalone", SEEN), said("follower", 5)])
def test_whatever_the_reason_a_session_that_is_refused_for_longer_than_it_lives_is_begun_anew(answer: str) -> None:
    assert Refusals(1).first_verdict_s(20, a=answer) == pytest.approx(12.0)


def test_a_connection_that_meets_itself_finds_no_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may give a connecting socket the very port that it connects to, if nobody listens there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = free.getsockname()
    monkeypatch.setattr(socket, "create_connection", partial(socket.create_connection, source_address=place))
    with pytest.raises(ConnectionRefusedError, match="nobody listens there"):
        PatientHandler().create_connection(place, 5.0)
