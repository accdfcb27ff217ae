"""What an application reaches first: the package's face, addresses, options."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise.client.log import Log, partitions_of
from polonaise.client.protocol.locks import Lock
from polonaise.errors import (
    BadOption,
    BodyTooLarge,
    CertificateRefused,
    Closed,
    DeadlineExceeded,
    Forked,
    InvariantViolated,
    NotInitialized,
    PolonaiseError,
    TlsNotSpoken,
    TlsRequired,
    TooManyLocks,
    WrongClusterKey,
    fault,
)
from polonaise.host import broken_off
from polonaise.link.connection import Connection
from polonaise.link.protocol.greeting import hello
from polonaise.node import connecting
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER, ROLE_STORAGE, Hello
from rigs.clients import Memo, SilentDiscovery, World
from rigs.faults import raises_code
from rigs.waiting import nothing_happens_for, time_passes, wait_until


def test_every_public_name_is_there() -> None:
    for name in polonaise.__all__:
        assert getattr(polonaise, name) is not None
    assert set(polonaise.__all__) <= set(dir(polonaise))
    with pytest.raises(AttributeError):
        _ = polonaise.nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize("address", ["", "file:", "etcd://127.0.0.1:2379/bank", "/tmp/bank"])
async def test_an_address_that_is_not_supported_is_refused_and_says_what_is(address: str) -> None:
    with pytest.raises(BadOption, match="file:PATH"):
        async with polonaise.connect(address):
            pass


@pytest.mark.parametrize("call", ["describe", "unique_id", "assignment"])
async def test_a_client_that_is_closed_while_it_starts_says_so_and_leaves_nothing_behind(
    world: World, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, gate, answer = asyncio.Event(), asyncio.Event(), getattr(world.coordinator, call)

    async def held() -> Any:
        asked.set()
        await gate.wait()
        return await answer()

    monkeypatch.setattr(world.coordinator, call, held)
    before = asyncio.all_tasks()
    client = Log(world.host, world.coordinator)
    starting = asyncio.create_task(client.start())
    await asked.wait()
    await client.close()
    gate.set()
    with pytest.raises(Closed):
        await starting
    assert asyncio.all_tasks() <= before


async def test_a_directory_without_a_cluster_is_said_to_be_one(tmp_path) -> None:
    with pytest.raises(NotInitialized):
        async with polonaise.connect(f"file:{tmp_path}"):
            pass


async def test_a_body_over_the_limit_is_refused_before_anything_is_sent(client: Log) -> None:
    with pytest.raises(BodyTooLarge):
        client.append(bytes(1024 * 1024 + 1))
    with pytest.raises(BodyTooLarge):
        await client.run(lambda tx: tx.append(bytes(1024 * 1024 + 1)))
    assert (await client.append(bytes(1024 * 1024))).id == 0


@pytest.mark.parametrize("partition", [True, False, 0.0, 1.0, "0"])
async def test_what_is_no_partition_number_is_refused_also_where_that_partition_is_used(
    two_partitions: World, partition: Any
) -> None:
    """True and 1.0 equal 1, and would be found where it is."""
    client = await two_partitions.client()
    for used in (0, 1):
        await client.append(b"x", used)
    with pytest.raises(BadOption, match="a partition is an integer"):
        client.append(b"x", partition)
    with pytest.raises(BadOption, match="a partition is an integer"):
        client.read(partition)
    with pytest.raises(BadOption, match="a partition is an integer"):
        client.applied(partition)
    with pytest.raises(BadOption, match="a partition is an integer"):
        await client.high_water_mark(partition)


async def test_a_number_of_another_integer_type_is_that_partition(two_partitions: World) -> None:
    client = await two_partitions.client()
    number = IntEnum("Number", {"ONE": 1}).ONE
    receipt = await client.append(b"x", number)
    assert (receipt.partition, type(receipt.partition)) == (1, int)
    await client.append(b"x", 1)


@pytest.mark.parametrize("locks", [False, 0])
async def test_a_false_value_that_is_no_list_of_locks_is_refused(client: Log, locks: Any) -> None:
    with pytest.raises(BadOption, match=r"a list of Lock"):
        client.append(b"x", locks=locks)


async def test_too_many_locks_are_refused_before_anything_is_sent(client: Log) -> None:
    locks = [Lock("account", number) for number in range(1_001)]
    with pytest.raises(TooManyLocks):
        client.append(b"x", locks=locks)

    def context(tx: polonaise.Draft) -> None:
        for number in range(1_001):
            tx.read_lock("account", number)

    with pytest.raises(TooManyLocks):
        await client.run(context)
    assert (await client.append(b"x", locks=locks[:1_000])).id == 0


async def test_a_header_that_does_not_fit_is_refused(client: Log) -> None:
    with pytest.raises(BadOption):
        client.append(b"x", header=2**31)


async def test_a_server_of_another_cluster_is_never_written_to(world: World) -> None:
    from dataclasses import replace

    world.coordinator.description = replace(world.coordinator.description, key=b"another cluster!")
    client = await world.client(settings={"stranger_s_max": 0.0})
    with pytest.raises(WrongClusterKey):
        await client.high_water_mark()
    with pytest.raises(polonaise.PolonaiseError, match="wrong_cluster_key"):
        await client.run(lambda tx: tx.append(b"x"), timeout=0.05)
    assert world.log.bodies() == []


@pytest.mark.parametrize(
    "said",
    [hello(ROLE_SERVER, "theirs", cluster_key=b"another cluster!"), hello(ROLE_STORAGE, "s"), hello(ROLE_CLIENT, "me")],
    ids=["another cluster", "a storage node", "a client"],
)
async def test_who_stands_at_an_owners_address_for_a_while_is_waited_out(world: World, said: Hello) -> None:
    view = Memo()
    client = await world.ready_client(view=view)
    world.server.crash()
    met: list[Connection] = []

    def accept() -> Connection:
        met.append(Connection(world.host, hello=said, peer_roles=(ROLE_CLIENT,), on_message=lambda *_: None))
        return met[-1]

    world.host.network.listening[world.server.address] = accept
    asked, written = asyncio.ensure_future(client.high_water_mark()), client.append(b"x")
    await wait_until(lambda: len(met) >= 6)  # of the stream and of the bulk connection
    assert not asked.done()
    assert not written.done
    with pytest.raises(DeadlineExceeded, match=r"what answers at server:1 is no server of this cluster: \[wrong_"):
        await client.high_water_mark(timeout=0.05)
    world.server.restart()
    assert await asked >= -1
    assert (await written).id == 0
    await wait_until(lambda: view.bodies == [b"x"])


@pytest.mark.parametrize("fault", [TlsNotSpoken("no TLS"), TlsRequired("TLS only"), CertificateRefused("expired")])
async def test_a_wrong_mode_stops_a_client_that_was_never_let_in_and_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: PolonaiseError
) -> None:
    running = await world.ready_client()
    tried = asyncio.Event()
    connect = world.host.network.connect

    async def answers_oddly(address: str, factory: Any) -> Any:
        tried.set()
        raise type(fault)(fault.text)

    monkeypatch.setattr(world.host.network, "connect", answers_oddly)
    late = await world.client()
    with pytest.raises(type(fault)):
        await late.ready()
    tried.clear()
    world.server.break_connections()
    await tried.wait()
    monkeypatch.setattr(world.host.network, "connect", connect)
    await running.run(lambda tx: tx.append(b"x"), timeout=20.0)
    assert world.log.bodies() == [b"x"]


async def test_a_client_that_was_not_started_says_so(world: World) -> None:
    client = polonaise.Log(world.host, world.coordinator)  # type: ignore[arg-type]
    with pytest.raises(Closed, match="start"):
        client.append(b"x")
    await client.close()


async def test_another_thread_and_another_loop_are_refused_and_harm_nothing(world: World, client: Log) -> None:
    receipt = client.append(b"here")
    unsettled = client.append(b"unsettled")
    await receipt
    await client.flush()
    world.server.hold = True
    held = client.append(b"held")

    async def awaited() -> None:
        await held

    calls = (
        lambda: client.append(b"there"),
        lambda: client.run(lambda tx: tx.append(b"there")),
        lambda: client.submit(lambda tx: tx.append(b"there")),
        client.ready,
        client.flush,
        client.high_water_mark,
        lambda: client.read(0),
        lambda: client.wait_applied(5),
        lambda: client.producer("p"),
        awaited,
    )

    async def elsewhere(call: Callable[[], Any]) -> None:
        result = call()
        if hasattr(result, "__await__"):
            await result

    await time_passes(0.01)  # what was appended here has gone out
    for call in calls:
        with raises_code("wrong_event_loop", match="run_coroutine_threadsafe"):
            await asyncio.to_thread(lambda call=call: asyncio.run(elsewhere(call)))
    with raises_code("wrong_event_loop"):
        await asyncio.to_thread(client.append, b"from no loop at all")
    world.server.release()
    await held
    assert unsettled.committed
    assert world.log.bodies() == [b"here", b"unsettled", b"held"]


async def test_an_append_from_elsewhere_is_refused_while_a_sending_is_scheduled(world: World) -> None:
    """Nothing was checked then: the loop's own thread and another one, or a child, appended to the same lists."""
    client = await world.ready_client()
    receipt = client.append(b"here")
    elsewhere: list[str] = []

    def append() -> None:
        try:
            client.append(b"from no loop at all")
        except PolonaiseError as error:
            elsewhere.append(error.code)

    thread = threading.Thread(target=append)
    thread.start()
    thread.join()
    assert elsewhere == ["wrong_event_loop"]
    client.append(b"here, too")
    in_child, told = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            client.append(b"from a child")
        except Forked:
            os.write(told, b"refused")
        finally:
            os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    os.set_blocking(in_child, False)
    assert os.read(in_child, 20) == b"refused"
    os.close(in_child)
    os.close(told)
    await receipt
    await client.flush()
    assert world.log.bodies() == [b"here", b"here, too"]


async def test_a_mistake_of_the_clients_own_is_told_to_its_host_once(
    world: World, ready_client: Log, monkeypatch: pytest.MonkeyPatch
) -> None:

    def mistaken(*_: object) -> None:
        raise InvariantViolated("two and two are five")

    def fail(error: BaseException) -> None:  # an application's host ends the client, or it would mount again
        world.host.failures.append(error)
        ready_client.fail(error)

    monkeypatch.setattr(world.host, "fail", fail)
    partitions_of(ready_client).used[0].mounting.receive = mistaken  # type: ignore[method-assign]
    ready_client.append(b"x")
    await wait_until(lambda: world.host.failures)
    await time_passes(0.05)  # a client that went on would have mounted again by now
    told, world.host.failures = world.host.failures, []
    assert [str(error) for error in told] == ["two and two are five"]
    with pytest.raises(PolonaiseError, match="two and two are five"):
        ready_client.append(b"y")


async def test_a_client_that_failed_says_why_in_partitions_not_used_before(client: Log) -> None:
    """A fault that came before the first use of a partition must not leave that use waiting for ever."""
    client.fail(fault("host_failed", "the nodes stopped"))
    with raises_code("host_failed", match="the nodes stopped"):
        client.append(b"x", partition=0)
    with raises_code("host_failed", match="the nodes stopped"):
        await client.run(lambda tx: tx.append(b"x"), partition=0)


# ------------------------------------------------------------------ a cluster that is not there yet


async def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    directory = tmp_path / "log"

    async def late() -> None:
        async with polonaise.connect(f"embedded:{directory}?host=no", wait=30) as log:
            assert (await log.append(b"late", partition=0)).id == 0

    waiting = asyncio.ensure_future(late())
    await nothing_happens_for(0.1)
    assert not waiting.done()
    async with polonaise.connect(f"embedded:{directory}"):
        await asyncio.wait_for(waiting, 30)


@pytest.mark.parametrize("wait", [0, 0.2])
async def test_a_log_that_does_not_open_in_time_says_what_was_the_matter(tmp_path: Path, wait: float) -> None:
    with pytest.raises(DeadlineExceeded, match="not_initialized") as raised:
        async with polonaise.connect(f"file:{tmp_path}", wait=wait):
            raise AssertionError("there is nothing to be connected to")
    assert isinstance(raised.value.__cause__, NotInitialized)
    assert str(tmp_path) in str(raised.value)


async def test_a_log_that_gives_no_answer_in_time_says_why_as_far_as_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connecting, "ServerDiscovery", lambda *_: SilentDiscovery())
    monkeypatch.setattr(connecting, "_TRY_S", 0.1)
    with pytest.raises(DeadlineExceeded, match=r"no log at polonaise://a:1 within 0.1 s: a:1: it does not reach its"):
        async with polonaise.connect("polonaise://a:1", wait=0.1):
            raise AssertionError("nobody gives an answer")
    with pytest.raises(TimeoutError) as ended:
        async with asyncio.timeout(0.1), polonaise.connect("polonaise://a:1"):
            raise AssertionError("nobody gives an answer")
    assert broken_off(ended.value) == SilentDiscovery.trouble


@pytest.mark.slow
async def test_connect_looks_for_the_log_up_to_the_end_of_the_wait(tmp_path: Path) -> None:
    settings = polonaise.ClientSettings(retry_s_min=0.01, retry_s_max=60)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(DeadlineExceeded):
        async with polonaise.connect(f"file:{tmp_path}", wait=1, settings=settings):
            raise AssertionError("there is nothing to be connected to")
    assert 0.9 < loop.time() - began_s < 10, "no pause between two tries is longer than half of what is left"


async def test_what_waiting_does_not_mend_is_said_at_once(tmp_path: Path) -> None:
    for address in ("nonsense", f"embedded:{tmp_path}/log?host=maybe"):
        with pytest.raises(BadOption):
            await asyncio.wait_for(polonaise.connect(address, wait=60).__aenter__(), 5)
    with pytest.raises(BadOption, match="wait"):
        async with polonaise.connect(f"file:{tmp_path}", wait=-1):
            pass


async def test_what_is_raised_within_is_not_taken_for_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    entered = 0

    async def use() -> None:
        nonlocal entered
        async with polonaise.connect(f"embedded:{tmp_path}/log", wait=30):
            entered += 1
            raise NotInitialized("something of the application's")

    with pytest.raises(NotInitialized):
        await use()
    assert entered == 1


def test_threads_wait_too(tmp_path: Path) -> None:
    with pytest.raises(DeadlineExceeded, match="not_initialized"):
        polonaise.blocking.connect(f"file:{tmp_path}", wait=0.1)
