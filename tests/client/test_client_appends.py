"""Appends of a client and their fates, through frames, refusals, flushes, lost connections and moves."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from polonaise import Draft, Group, Log
from polonaise.client.log import partitions_of
from polonaise.client.protocol.draft import Change, Expectation
from polonaise.client.protocol.locks import Lock
from polonaise.errors import (
    AppendFailed,
    AppendUnknown,
    ClientAhead,
    Closed,
    ConsistencyLost,
    DeadlineExceeded,
    ExpectationFailed,
    LockConflict,
    Overloaded,
    PolonaiseError,
    RegistersFull,
    ViewUnfit,
)
from polonaise.terms import FailureReason
from rigs.clients import Memo, World
from rigs.fakeserver import FakeServer
from rigs.waiting import nothing_happens_for, time_passes, wait_until


async def remounted(world: World) -> None:
    """Break all connections, and wait until the client is back."""
    before = len(world.server.heard.mounts)
    world.server.break_connections()
    await wait_until(lambda: len(world.server.heard.mounts) > before)


async def test_an_append_gets_the_next_id(world: World) -> None:
    world.log.fill(b"before")
    client = await world.client()
    receipt = await client.append(b"paid", header=7)
    assert (receipt.id, receipt.committed, receipt.partition, receipt.sequence) == (1, True, 0, 1)
    assert world.log.bodies() == [b"before", b"paid"]
    await receipt.applied()
    assert client.applied() == 1


async def test_appends_of_one_turn_of_the_loop_go_out_in_one_frame(world: World, ready_client: Log) -> None:
    receipts = [ready_client.append(b"%d" % number) for number in range(100)]
    await receipts[-1]
    assert [receipt.id for receipt in receipts] == list(range(100))
    assert len(world.server.heard.appends) == 1


async def test_a_frame_is_bounded_in_count_and_bytes(world: World) -> None:
    client = await world.ready_client(settings={"frame_count_max": 10, "frame_bytes_max": 1_000})
    receipts = [client.append(b"x" * (300 if number < 10 else 1)) for number in range(40)]
    await receipts[-1]
    frames = world.server.heard.appends
    assert all(message.count <= 10 and len(appends.data) <= 1_000 for message, appends in frames)
    assert len(world.log.bodies()) == 40


async def test_appends_made_before_the_mount_wait_and_go_out_in_order(world: World) -> None:
    world.server.not_ready = 3
    client = await world.client()
    receipts = [client.append(b"%d" % number) for number in range(5)]
    assert [(await receipt).id for receipt in receipts] == [0, 1, 2, 3, 4]
    assert [mount.connection_sequence for mount in world.server.heard.mounts] == [1, 1, 1, 1]


async def test_many_may_await_one_receipt_and_giving_up_changes_nothing(world: World, ready_client: Log) -> None:
    world.server.hold = True
    receipt = ready_client.append(b"paid")

    async def wait() -> int:
        return (await receipt).id

    waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
    await wait_until(lambda: world.server.held)
    waiting[0].cancel()
    await asyncio.sleep(0)
    world.server.release()
    assert await asyncio.gather(*waiting[1:]) == [0, 0]
    assert (await receipt).id == 0


async def test_a_lock_conflict_names_the_id_to_have_applied(client: Log) -> None:
    await client.append(b"a", locks=[Lock("account", 1)])
    with pytest.raises(LockConflict) as raised:
        await client.append(b"b", locks=[Lock("account", 1)], high_water_mark=-1)
    assert raised.value.conflict == 0
    assert (await client.append(b"c", locks=[Lock("account", 2)], high_water_mark=-1)).id == 1


async def test_registers_are_expected_and_changed_with_the_append(client: Log) -> None:
    await client.append(b"a", expectations=[Expectation.absent(b"k")], changes=[Change.set(b"k", b"1")])
    assert await client.register(b"k") == b"1"
    with pytest.raises(ExpectationFailed):
        await client.append(b"b", expectations=[Expectation.absent(b"k")])
    await client.append(b"c", expectations=[Expectation.equals(b"k", b"1")], changes=[Change.delete(b"k")])
    assert await client.register(b"k") is None
    with pytest.raises(ExpectationFailed):
        await client.append(b"d", expectations=[Expectation.position(7)])
    assert (await client.append(b"e", expectations=[Expectation.position(2)])).id == 2


@pytest.mark.parametrize(
    ("reason", "error"),
    [(FailureReason.REGISTERS_FULL, RegistersFull), (FailureReason.SESSION_ENDED, AppendFailed)],
)
async def test_a_refusal_is_the_receipts_error(world: World, reason: FailureReason, error: type[Exception]) -> None:
    client = await world.client()
    world.server.refuse = reason
    with pytest.raises(error):
        await client.append(b"paid")
    world.server.refuse = None
    assert (await client.append(b"paid")).id == 0


async def test_an_append_that_the_server_dropped_is_found_by_the_idle_flush(world: World, ready_client: Log) -> None:
    world.server.lose = True
    with pytest.raises(AppendFailed):
        await ready_client.append(b"lost")
    assert world.server.heard.flushes == 1


async def test_an_idle_client_does_not_flush(world: World, client: Log) -> None:
    await client.append(b"paid")
    await nothing_happens_for(0.1)
    assert world.server.heard.flushes == 0


async def test_flush_settles_everything_appended_before_it(world: World) -> None:
    client = await world.client(settings={"idle_flush_s": 30})
    kept = client.append(b"kept")
    await kept
    world.server.lose = True
    lost = client.append(b"lost")
    assert await client.flush() == 0
    assert (kept.done, lost.done, lost.committed) == (True, True, False)


async def test_flush_outlives_a_broken_connection(world: World, ready_client: Log) -> None:
    world.server.hold = True
    receipt = ready_client.append(b"held")
    await wait_until(lambda: world.server.held)
    flushing = asyncio.ensure_future(ready_client.flush(timeout=2))
    world.server.break_connections()
    server = world.server
    await wait_until(lambda: any(connection in server.connections for connection, _, _ in server.held_flushes))
    server.held_flushes = [held for held in server.held_flushes if held[0] in server.connections]
    server.release()
    assert await flushing == 0
    assert (await receipt).id == 0


async def test_outstanding_appends_are_bounded_in_count(world: World) -> None:
    client = await world.ready_client(settings={"outstanding_count_max": 10})
    world.server.hold = True
    for _ in range(10):
        client.append(b"x")
    with pytest.raises(Overloaded):
        client.append(b"one too many")
    waiting = asyncio.ensure_future(client.ready())
    await wait_until(lambda: world.server.held)
    assert not waiting.done()
    world.server.release()
    await waiting
    client.append(b"x")


def _with_locks(tx: Draft) -> None:
    for number in range(112):
        tx.write_lock("a", number)
    tx.append(b"")


def _with_registers(tx: Draft) -> None:
    tx.set(b"k", bytes(600))
    tx.expect(b"k" * 400, absent=True)
    tx.append(b"")


@pytest.mark.parametrize(
    "append",
    [
        lambda log: log.append(bytes(1_000)),
        lambda log: log.append(b"", locks=[Lock("a", number) for number in range(112)]),
        lambda log: log.append(b"", changes=[Change.set(b"k", bytes(999))]),
        lambda log: log.append(b"", expectations=[Expectation.absent(b"k" * 1_000)]),
        lambda log: log.append_group(Group.of([b"", b""]), changes=[Change.set(b"k", bytes(999))]),
        lambda log: log.submit(_with_locks),
        lambda log: log.submit(_with_registers),
    ],
    ids=[
        "a body",
        "locks",
        "changes",
        "expectations",
        "a group's changes",
        "a context's locks",
        "a context's registers",
    ],
)
async def test_bodies_and_what_goes_with_them_count_towards_the_bound(
    world: World, append: Callable[[Log], Any]
) -> None:
    client = await world.ready_client(settings={"outstanding_bytes_max": 1_000})
    world.server.hold = True
    appended = append(client)
    await wait_until(lambda: world.server.held)
    with pytest.raises(Overloaded):
        client.append(b"")
    world.server.release()
    assert (await appended).id == 0
    await client.append(b"")


# ------------------------------------------------------------------ lost connections and moves


async def test_every_stream_connection_has_a_larger_sequence(world: World, client: Log) -> None:
    for number in range(4):
        await client.append(b"%d" % number)
        await remounted(world)
    await client.append(b"last")
    sequences = [mount.connection_sequence for mount in world.server.heard.mounts]
    assert sequences == sorted(set(sequences))
    assert sequences[0] == 1


async def test_a_remount_continues_where_the_feed_was(world: World, client: Log) -> None:
    await client.append(b"0")
    await client.append(b"1")
    await remounted(world)
    await client.append(b"2")
    assert [mount.client_high_water_mark for mount in world.server.heard.mounts] == [-1, 1]


async def test_a_thousand_appends_through_random_breaks_are_each_in_the_log_once(world: World, client: Log) -> None:
    committed: list[bytes] = []

    async def writer(number: int) -> None:
        for turn in range(50):
            body = b"%d/%d" % (number, turn)
            await client.append(body)
            committed.append(body)

    async def breaker() -> None:
        while True:
            await time_passes(0.004)
            world.server.break_connections()

    breaking = asyncio.ensure_future(breaker())
    await asyncio.gather(*[writer(number) for number in range(20)])
    breaking.cancel()
    bodies = world.log.bodies()
    assert len(bodies) == len(set(bodies))
    assert sorted(committed) == sorted(bodies)
    assert len(committed) == 1_000


async def test_no_connection_is_kept_to_addresses_at_which_no_server_is_any_more(world: World, client: Log) -> None:
    """Where each life of a server has an address of its own, a client of many days would keep all of them."""
    for generation in range(2, 12):
        await client.append(b"x")
        await client.register(b"key")
        last = world.server.address
        world.server.crash()
        world.server = FakeServer(world.host, dict(world.logs), f"server:{generation}", generation)
        world.coordinator.assign(0, world.server.address, generation)
    await client.append(b"x")
    await client.register(b"key")
    links = partitions_of(client).parts.links
    assert {*links._streams, *links._bulk} <= {
        last,
        world.server.address,
    }


async def test_a_server_that_does_not_own_the_partition_is_left_for_the_one_that_does(world: World) -> None:
    new = FakeServer(world.host, dict(world.logs), "server:2", generation=2)
    world.server.logs.clear()
    client = await world.client()
    append = asyncio.ensure_future(client.ready(timeout=2))
    await wait_until(lambda: world.server.connections)
    world.coordinator.assign(0, "server:2", 2)
    await append
    assert (await client.append(b"1")).id == 0
    assert new.heard.mounts


async def test_a_mount_of_an_older_generation_is_not_believed(world: World, client: Log) -> None:
    world.server.generation = 3
    await client.append(b"0")
    world.server.generation = 2
    world.server.answers_anybody = True
    await remounted(world)
    with pytest.raises(DeadlineExceeded, match="wrong_generation"):
        await client.ready(timeout=0.05)
    world.server.generation = 3
    assert (await client.append(b"1")).id == 1


@pytest.mark.slow
async def test_a_mount_without_an_answer_is_tried_again(world: World) -> None:
    world.server.silent_mounts = True
    client = await world.client()
    waiting = asyncio.ensure_future(client.ready(timeout=2))
    await wait_until(lambda: len(world.server.heard.mounts) >= 2)
    world.server.silent_mounts = False
    await waiting


async def test_a_partition_that_moves_away_from_a_server_that_hangs_is_followed_at_once(world: World) -> None:
    """Such a server accepts connections, and says nothing: no wait for its hello may hold the client up."""
    client = await world.ready_client(settings={"connect_s_max": 30.0})
    world.server.crash()
    world.host.wires.listening[world.server.address] = asyncio.Protocol
    receipt = client.append(b"0")
    asked = asyncio.ensure_future(client.register(b"key", timeout=30.0))
    await wait_until(lambda: world.host.wires.attempts[-2:] == [world.server.address] * 2)  # a stream, and one for bulk
    FakeServer(world.host, dict(world.logs), "server:2", generation=2)
    world.coordinator.assign(0, "server:2", 2)
    async with asyncio.timeout(2.0):
        assert (await receipt).id == 0
        assert await asked is None


async def test_a_server_that_is_down_is_tried_until_it_is_back(world: World) -> None:
    world.server.crash()
    client = await world.client()
    receipt = client.append(b"0")
    await wait_until(lambda: len(world.host.network.attempts) >= 3)
    world.server.restart()
    assert (await receipt).id == 0


async def test_a_contradicted_fate_stops_the_partition_loudly(world: World) -> None:
    client = await world.ready_client(settings={"idle_flush_s": 30})
    world.server.lose = True
    lost = client.append(b"lost")
    await client.flush()
    assert not lost.committed
    (_, sent), *_ = world.server.heard.appends
    world.log.fill(b"lost", client=client.client_id, sequence=sent.sequences[0])
    world.server.feed_all()
    await wait_until(lambda: client.trouble(0))
    assert isinstance(client.trouble(0), ConsistencyLost)
    with pytest.raises(ConsistencyLost):
        client.append(b"more")


async def test_a_peer_that_does_not_read_holds_appends_back_within_bounds(world: World) -> None:
    client = await world.ready_client(settings={"outstanding_count_max": 100})
    (stream,) = partitions_of(client).parts.links._streams.values()
    stream.connection.pause_writing()
    receipts = [client.append(b"x") for _ in range(100)]
    with pytest.raises(Overloaded):
        client.append(b"x")
    await nothing_happens_for(0.01)
    assert not world.server.heard.appends
    stream.connection.resume_writing()
    await receipts[-1]
    assert len(world.log.bodies()) == 100


# ------------------------------------------------------------------ closing


async def test_closing_settles_what_is_pending(world: World, ready_client: Log) -> None:
    world.server.hold = True
    sent = ready_client.append(b"sent")
    await wait_until(lambda: world.server.held)
    waiting = asyncio.ensure_future(ready_client.wait_applied(5))
    await asyncio.sleep(0)
    unsent = ready_client.append(b"unsent")
    await ready_client.close()
    with pytest.raises(AppendUnknown) as raised:
        await sent
    assert raised.value.receipt is sent
    with pytest.raises(Closed):
        await unsent
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        ready_client.append(b"after")
    await ready_client.close()


class Unusable(Memo):
    """A view whose mark can't be told, or is of another log."""

    def high_water_mark(self, partition: int) -> int:
        if isinstance(self.mark, PolonaiseError):
            raise self.mark
        return self.mark


@pytest.mark.parametrize(("mark", "raises"), [(ViewUnfit("a table is gone"), ViewUnfit), (7, ClientAhead)])
async def test_what_was_not_sent_because_its_partition_has_stopped_fails_as_what_is_called_later(
    world: World, mark: Any, raises: type[PolonaiseError]
) -> None:
    client = await world.client(view=Unusable(mark))
    unsent = [client.append(b"unsent"), client.append(b"unsent, too")]
    with pytest.raises(raises, match=r"^\[[a-z_]+\] append 1 to partition 0 was not sent: (?!\[)") as failed:
        await unsent[0]
    with pytest.raises(raises) as later:
        await client.append(b"later")
    assert later.value.text in failed.value.text
    assert failed.value.retry is later.value.retry
    assert unsent[1].error is not unsent[1].error, "each raise has an object of its own"
    with pytest.raises(raises):
        await unsent[1].applied(timeout=5)
    assert world.log.bodies() == []


async def test_closing_leaves_no_task_and_no_connection(world: World, client: Log) -> None:
    await client.append(b"paid")
    await client.high_water_mark()
    await client.close()
    await wait_until(lambda: not world.host.tasks)
    assert all(connection.closed for connection in world.server.connections)


async def test_a_closed_client_is_forgotten_at_once(world: World) -> None:
    """No timer of its mounts keeps it, and what it was fed, for longer."""
    client = await world.ready_client(settings={"mount_s_max": 3_600.0})
    await client.append(b"paid")
    await client.close()
    world.clients.clear()
    world.server.connections.clear()
    gone = weakref.ref(client)
    del client
    await time_passes(0)
    gc.collect()
    assert gone() is None
