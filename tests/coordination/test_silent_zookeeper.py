"""Servers of ZooKeeper that fall silent: another one is tried within about a second, in the same session.

One real server stands for several: it is reached through proxies, each of which can swallow everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from polonaise.coordination.backend import Entry
from polonaise.coordination.zookeeper import ZooKeeperBackend
from polonaise.errors import CoordinatorUnavailable
from rigs.proxy import Proxy, proxied
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
