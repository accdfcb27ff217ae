"""Names of hosts that nobody, or nobody yet, knows: what their lookup holds up, and what it does not."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from kazoo.client import KazooClient

import polonaise
from polonaise.coordination import zookeepersession
from polonaise.coordination.values import ClusterDescription
from polonaise.coordination.zookeeperensemble import ensemble_troubles
from polonaise.errors import ConnectionLost, DeadlineExceeded
from polonaise.host.address import HostPort
from polonaise.host.names import Found, NameLookups, names
from polonaise.host.real import RealHost
from polonaise.host.sockets import bind_port, dial
from polonaise.link.connection import connect
from rigs.cluster import unserved
from rigs.names import SilentNameService
from rigs.shell import Shell
from rigs.waiting import wait_until

NAMED = HostPort("name", 1)
WAIT_S = 20.0


class Unusual(OSError):
    """An error that takes other arguments than it has."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentNameService]:
    service = SilentNameService()
    monkeypatch.setattr(socket, "getaddrinfo", service.getaddrinfo)
    yield service
    service.answer()  # or the next test would join what is under way


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_silent_name_service_holds_up_neither_other_work_nor_the_end(
    silent: SilentNameService, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def leave() -> None:
        for _ in range(3):
            asking = [asyncio.create_task(dial(HostPort("name", port))) for port in range(1, 51)]
            asking.append(asyncio.create_task(dial(HostPort("other", 1))))
            asking.append(asyncio.create_task(dial(HostPort("third", 1))))
            await asyncio.to_thread(threading.Event)
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(leave())
    assert silent.answered == [], "the program has ended before"
    assert sorted(silent.asked) == ["name", "other", "third"], "it is asked for each name once at a time"


async def test_all_who_wait_for_a_name_are_told_what_became_of_it(silent: SilentNameService) -> None:
    asking = [asyncio.create_task(dial(NAMED)) for _ in range(3)]
    asking.append(asyncio.create_task(bind_port(HostPort("name", 0))))  # type: ignore[arg-type]
    await wait_until(lambda: len(silent.asked) == 2)
    asking[0].cancel()
    await asyncio.wait(asking[:1])
    silent.answers.set()
    _, *told = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(error) for error in told] == ["[Errno -2] nobody knows it"] * 3
    assert len({id(error) for error in told}) == 3
    assert silent.asked == ["name", "name"], "to listen is another question"
    with pytest.raises(socket.gaierror, match="nobody knows it"):
        await dial(NAMED)
    assert silent.asked == ["name"] * 3, "an answer is not kept"


async def test_who_waits_in_vain_is_told_that_the_name_was_looked_up(silent: SilentNameService, host: RealHost) -> None:
    with pytest.raises(ConnectionLost) as told:
        await connect(host, "name:1", lambda: pytest.fail("nobody is there"), deadline_s=0.1)
    why = "did not answer within 0.1 s: the name service has not answered for 'name'"
    assert told.value.text == f"name:1 {why}"
    assert await ensemble_troubles("name:1", None, 0.1) == {"name:1": why}


async def test_where_a_thread_runs_at_once_nobody_waits_for_ever(
    silent: SilentNameService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where an application has made greenlets of threads, after it had imported the library."""
    silent.answers.set()
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.run)
    with pytest.raises(socket.gaierror, match="nobody knows it"):
        await dial(NAMED)


@pytest.mark.parametrize("error", [MemoryError("none"), LookupError("unknown encoding"), Unusual(1, 2)], ids=repr)
async def test_an_unusual_error_ends_a_lookup_like_any_other(silent: SilentNameService, error: Exception) -> None:
    silent.answers.set()
    silent.errors.append(error)
    with pytest.raises(OSError, match=f"{type(error).__name__}: "):
        await dial(NAMED)
    with pytest.raises(socket.gaierror, match="nobody knows it"):
        await dial(NAMED)


async def test_a_lookup_that_hangs_is_not_joined_for_ever(
    silent: SilentNameService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polonaise.host.names._PATIENCE_S", 0.0)
    lookups = NameLookups()
    told: list[Found] = []
    for number in range(3):
        lookups.ask("name", told.append)
        await wait_until(lambda: len(silent.asked) == number + 1)  # noqa: B023 - called at once
    silent.answers.set()
    await wait_until(lambda: len(told) == 3)


def test_zookeeper_s_names_are_waited_for_no_longer_than_is_asked_for(silent: SilentNameService) -> None:
    with pytest.raises(DeadlineExceeded, match="the name service has not answered for 'name', 'other'"):
        asyncio.run(opened("zookeeper://name:2181,other:2181/bank"))
    assert silent.answered == [], "the program has ended before"


def test_a_zookeeper_whose_name_was_silent_for_long_is_found_where_it_was_said_to_be_last(
    silent: SilentNameService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeepersession, "_NAMES_S", 0.02)
    connections = zookeepersession._Connections(KazooClient("name:2181"), 6.0, lambda _: None)
    for _ in range(5):
        assert connections._expand_client_hosts() == []
    assert connections.troubles == {"": "the name service has not answered for 'name'"}
    silent.answer(name="127.0.0.1")
    assert connections._answers.qsize() == 1, "a question has one answer, however often it was asked"
    silent.answers.clear()
    assert connections._expand_client_hosts() == [("name", "127.0.0.1", 2181)], "it answered late, and counts"
    assert connections.troubles == {}, "what is over is told no more"
    silent.answer(name="127.0.0.2")
    silent.addresses["name"] = "127.0.0.3"
    monkeypatch.setattr(zookeepersession, "_NAMES_S", WAIT_S)
    assert connections._expand_client_hosts() == [("name", "127.0.0.3", 2181)], "the late answer is not the last one"


def test_a_change_goes_on_where_nobody_looks_up_the_names_of_nodes_as_where_these_are_stopped(
    silent: SilentNameService, shell: Shell, tmp_path: Path
) -> None:
    place = unserved(tmp_path / "coordinator", ClusterDescription.new(b"k" * 16, 1, {"a": "name:1"}))
    assert shell.run("topic", "create", "payments", "--coordinator", place).status == 0
    assert silent.answered == [], "the command has ended before"


async def opened(address: str) -> None:
    async with polonaise.connect(address, wait=2.5):
        pytest.fail("nobody is there")


async def test_a_process_that_may_have_no_more_threads_is_told_and_asks_again(
    silent: SilentNameService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    silent.answers.set()
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="no thread to look up 'name': can't start new thread"):
            await dial(NAMED)
    with pytest.raises(socket.gaierror, match="nobody knows it"):
        await dial(NAMED)


def test_a_forked_child_does_not_wait_for_its_parents_lookups(silent: SilentNameService) -> None:
    async def ask() -> int:
        asking = asyncio.create_task(dial(NAMED))
        await wait_until(lambda: bool(silent.asked))
        with names._guard:  # as another thread of the parent may hold it at that moment
            child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(round(WAIT_S))  # this child, too, ends
            silent.answers.set()
            return 0
        asking.cancel()
        return child

    child = asyncio.run(ask())
    if not child:
        status = 1
        try:
            with pytest.raises(socket.gaierror, match="nobody knows it"):
                asyncio.run(dial(NAMED))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
