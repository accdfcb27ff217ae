"""Transaction contexts: run until committed, abandoned, failed or out of time, and never on stale state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polonaise.client.log import Log, partitions_of
from polonaise.client.protocol.draft import Draft
from polonaise.client.protocol.locks import Lock
from polonaise.client.protocol.outcomes import RACES_AT_ONCE
from polonaise.client.running import OutcomeKind
from polonaise.errors import (
    Abandoned,
    AppendExpired,
    AppendUnknown,
    BadOption,
    Closed,
    ExpectationFailed,
    LockConflict,
    Overloaded,
)
from rigs.clients import Memo, World
from rigs.waiting import nothing_happens_for, time_passes, wait_until


def append(tx: Draft, *bodies: bytes) -> None:
    for body in bodies:
        tx.append(body)


async def test_several_appends_of_one_context_are_a_group(world: World, client: Log) -> None:
    receipt = await client.run(append, b"a", b"b", b"c")
    assert (list(receipt.ids), receipt.last_id) == ([0, 1, 2], 2)
    message, appends = world.server.heard.appends[0]
    assert message.count == 3
    assert appends.group_ends is not None
    assert bytes(appends.group_ends) == b"\0\0\1"


async def test_what_is_done_to_a_kept_draft_after_its_context_has_returned_is_not_sent(
    world: World, client: Log
) -> None:
    def spoil(tx: Draft) -> None:
        for name in tx.__slots__:
            if isinstance(collected := getattr(tx, name), list):
                collected += collected

    def context(tx: Draft) -> None:
        tx.set(b"key", b"value")
        append(tx, b"paid")
        asyncio.get_running_loop().call_soon(spoil, tx)  # before the append is sent, at the end of the turn

    await client.run(context)
    message, appends = world.server.heard.appends[0]
    assert (message.count, len(appends.operations)) == (1, 1)


async def test_a_groups_locks_are_carried_by_its_last_transaction(client: Log) -> None:

    def context(tx: Draft) -> None:
        tx.write_lock("account", 1)
        append(tx, b"a", b"b")

    await client.run(context)
    with pytest.raises(LockConflict) as conflict:
        await client.append(b"c", high_water_mark=0, locks=[Lock("account", 1)])
    assert conflict.value.conflict == 1


async def test_the_mark_is_taken_before_the_context_runs(world: World, view: Memo) -> None:
    client = await world.client(view=view)
    other = await world.client()
    await other.append(b"0", locks=[Lock("account", 1)])
    await client.wait_applied(0)
    marks: list[int] = []

    async def context(tx: Draft) -> None:
        tx.write_lock("account", 1)
        marks.append(tx.high_water_mark)
        if len(marks) == 1:
            await other.append(b"1", locks=[Lock("account", 1)])
            await client.wait_applied(1)
        tx.append(b"2")

    receipt = await client.run(context)
    assert marks == [0, 1]
    assert receipt.id == 2


async def test_after_a_conflict_the_context_runs_again_when_the_view_has_caught_up(world: World, view: Memo) -> None:
    client = await world.client(view=view)
    other = await world.client()
    await client.ready()
    view.gate = asyncio.Event()
    await other.append(b"theirs", locks=[Lock("account", 1)])
    runs: list[int] = []

    def context(tx: Draft) -> None:
        runs.append(tx.high_water_mark)
        tx.write_lock("account", 1)
        tx.append(b"ours")

    running = asyncio.ensure_future(client.run(context))
    await wait_until(lambda: len(world.server.heard.appends) == 2)
    await nothing_happens_for(0.02)
    assert runs == [-1]
    view.gate.set()
    assert (await running).id == 1
    assert runs == [-1, 0]


async def test_an_abandoned_context_appends_nothing(world: World, client: Log) -> None:

    def context(tx: Draft) -> None:
        tx.append(b"paid")
        return tx.abandon("insufficient funds")

    with pytest.raises(Abandoned, match="insufficient funds"):
        await client.run(context)
    with pytest.raises(Abandoned):
        await client.run(lambda tx: None)
    for reason in (None, ""):  # such as `tx.abandon(reasons.get(code))`
        with pytest.raises(Abandoned):
            await client.run(lambda tx, reason=reason: tx.append(b"paid") or tx.abandon(reason))
    outcome = await client.submit(context).outcome()
    assert outcome.kind is OutcomeKind.ABANDONED
    assert not world.server.heard.appends


async def test_what_a_context_raises_ends_it(client: Log) -> None:

    async def context(tx: Draft) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await client.run(context)
    outcome = await client.submit(context).outcome()
    assert outcome.kind is OutcomeKind.RAISED
    assert isinstance(outcome.error, ZeroDivisionError)
    assert (await client.run(append, b"next")).id == 0


async def test_a_register_that_is_not_as_demanded_is_the_callers_to_judge(world: World, client: Log) -> None:

    def once(tx: Draft) -> None:
        tx.expect(b"done", absent=True)
        tx.set(b"done", b"yes")
        tx.append(b"once")

    await client.run(once)
    with pytest.raises(ExpectationFailed):
        await client.run(once)
    assert world.log.bodies() == [b"once"]


async def test_a_context_that_demands_its_position_runs_again_when_the_log_moved_on(world: World, client: Log) -> None:
    other = await world.client()
    await client.ready()
    runs = 0

    async def context(tx: Draft) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await other.append(b"theirs")
        tx.expect_position(tx.high_water_mark + 1)
        tx.append(b"ours")

    assert (await client.run(context)).id == 1
    assert runs == 2


async def test_a_position_that_is_taken_fails_at_once(client: Log) -> None:
    await (await client.append(b"first")).applied()
    await (await client.append(b"second")).applied()
    runs: list[int] = []

    def context(tx: Draft, position: int) -> None:
        runs.append(tx.high_water_mark)
        tx.expect_position(position)
        tx.append(b"ours")

    for taken in (0, 1):
        with pytest.raises(ExpectationFailed, match=f"demands position {taken}, and ids up to 1 are taken"):
            await client.run(context, taken, timeout=1)
    assert runs == [1, 1]
    assert (await client.run(context, 2)).id == 2


async def test_a_position_that_somebody_else_took_meanwhile_fails_once_that_is_applied(world: World) -> None:
    client = await world.client()
    other = await world.client()
    await client.ready()
    runs: list[int] = []

    async def context(tx: Draft) -> None:
        runs.append(tx.high_water_mark)
        if tx.high_water_mark == -1:
            await other.append(b"theirs")
        tx.expect_position(0)
        tx.append(b"ours")

    with pytest.raises(ExpectationFailed):
        await client.run(context, timeout=1)
    assert runs == [-1, 0]
    assert world.log.bodies() == [b"theirs"]


async def test_a_context_that_always_loses_the_race_for_its_position_does_not_run_without_a_pause(world: World) -> None:
    client = await world.client(settings={"retry_s_min": 60.0, "retry_s_max": 60.0})
    other = await world.client()
    await client.ready()
    runs = 0

    async def context(tx: Draft) -> None:
        nonlocal runs
        runs += 1
        await other.append(b"theirs")
        tx.expect_position(tx.high_water_mark + 1)
        tx.append(b"ours")

    running = asyncio.ensure_future(client.run(context))
    await wait_until(lambda: runs == RACES_AT_ONCE + 1)
    await nothing_happens_for(0.05)
    assert runs == RACES_AT_ONCE + 1
    running.cancel()
    await asyncio.wait([running])
    assert b"ours" not in world.log.bodies()


@pytest.mark.slow
async def test_a_context_whose_time_is_over_is_told_which_position_was_taken(world: World, client: Log) -> None:
    other = await world.client()
    await client.ready()
    runs = 0

    async def context(tx: Draft) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await other.append(b"theirs")
            await time_passes(0.6)  # so that the second run takes less than half of the time
            tx.expect_position(0)
        else:
            await asyncio.Event().wait()
        tx.append(b"ours")

    with pytest.raises(AppendExpired) as expired:
        await client.run(context, timeout=1.0)
    told = str(expired.value)
    assert "took too long" not in told
    assert "refused, 1 times; the last demanded position 0, and the log's next was 1" in told


async def test_registers_change_only_with_an_append(client: Log) -> None:
    with pytest.raises(BadOption):
        await client.run(lambda tx: tx.set(b"k", b"v"))


async def test_a_context_runs_again_after_its_append_was_lost(world: World, ready_client: Log) -> None:
    world.server.lose = True
    running = asyncio.ensure_future(ready_client.run(append, b"paid"))
    await wait_until(lambda: world.server.heard.appends)
    world.server.lose = False
    assert (await running).id == 0
    assert world.log.bodies() == [b"paid"]


async def test_a_deadline_before_the_append_was_sent_is_expiry(world: World) -> None:
    world.server.crash()
    client = await world.client()
    with pytest.raises(AppendExpired, match="nobody listens"):
        await client.run(append, b"paid", timeout=0.03)


async def test_a_deadline_in_the_context_is_expiry(world: World, client: Log) -> None:

    async def slow(tx: Draft) -> None:
        tx.append(b"paid")
        await asyncio.Event().wait()

    with pytest.raises(AppendExpired):
        await client.run(slow, timeout=0.02)
    outcome = await client.submit(slow, timeout=0.02).outcome()
    assert outcome.kind is OutcomeKind.EXPIRED
    assert not world.server.heard.appends


async def test_a_timeout_of_the_contexts_own_is_not_mistaken_for_the_deadline(client: Log) -> None:

    async def impatient(tx: Draft) -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await client.run(impatient, timeout=5)


async def test_a_deadline_while_waiting_for_the_view_is_expiry(world: World, view: Memo) -> None:
    client = await world.ready_client(view=view)
    view.gate = asyncio.Event()
    other = await world.client()
    await other.append(b"theirs", locks=[Lock("account", 1)])

    def context(tx: Draft) -> None:
        tx.write_lock("account", 1)
        tx.append(b"ours")

    with pytest.raises(AppendExpired, match="waited for transaction 0 to be applied"):
        await client.run(context, timeout=0.05)


async def test_a_deadline_with_the_append_in_flight_is_unknown_and_its_receipt_tells_later(world: World) -> None:
    client = await world.ready_client(settings={"idle_flush_s": 30})
    world.server.hold = True
    with pytest.raises(AppendUnknown) as raised:
        await client.run(append, b"paid", timeout=0.02)
    outcome = await client.submit(append, b"also", timeout=0.02).outcome()
    assert outcome.kind is OutcomeKind.UNKNOWN
    world.server.release()
    assert (await raised.value.receipt).id == 0
    assert outcome.receipt is not None
    assert (await outcome.receipt).id == 1


async def test_a_cancelled_run_with_its_append_in_flight_leaves_nothing_behind(world: World, ready_client: Log) -> None:
    world.server.hold = True
    running = asyncio.ensure_future(ready_client.run(append, b"paid"))
    await wait_until(lambda: world.server.held)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    world.server.release()
    appends = partitions_of(ready_client).used[0].appends
    await wait_until(lambda: appends._outstanding.count == 0)
    assert appends.admission.taken == 0


async def test_a_cancelled_run_whose_append_was_not_sent_takes_it_back(world: World, ready_client: Log) -> None:
    appends = partitions_of(ready_client).used[0].appends

    async def cut_off(tx: Draft) -> None:
        world.server.crash()
        await wait_until(lambda: appends._stream is None)
        tx.append(b"paid")

    running = asyncio.ensure_future(ready_client.run(cut_off))
    await wait_until(lambda: appends._outstanding.count)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert appends._outstanding.count == 0
    world.server.restart()
    await ready_client.flush()
    assert world.log.bodies() == []


async def test_runs_wait_for_room_in_order_and_cancelled_ones_give_their_place_up(world: World) -> None:
    client = await world.ready_client(settings={"outstanding_count_max": 2})
    world.server.hold = True
    running = [asyncio.ensure_future(client.run(append, b"%d" % number)) for number in range(6)]
    await wait_until(lambda: world.server.held)
    assert len(world.server.held) == 1
    running[3].cancel()
    world.server.release()
    await asyncio.gather(*running, return_exceptions=True)
    assert world.log.bodies() == [b"0", b"1", b"2", b"4", b"5"]
    assert partitions_of(client).used[0].appends.admission.taken == 0


async def test_submissions_are_bounded(world: World) -> None:
    client = await world.ready_client(settings={"submissions_max": 2})
    world.server.hold = True
    held = [client.submit(append, b"a"), client.submit(append, b"b")]
    with pytest.raises(Overloaded):
        client.submit(append, b"c")
    await wait_until(lambda: world.server.held)
    world.server.release()
    assert sorted([(await submission).id for submission in held]) == [0, 1]
    await client.submit(append, b"d")


async def test_giving_up_on_a_submission_does_not_end_it(world: World, ready_client: Log) -> None:
    world.server.hold = True
    submission = ready_client.submit(append, b"a")

    async def wait() -> None:
        await submission

    waiting = asyncio.ensure_future(wait())
    await wait_until(lambda: world.server.held)
    waiting.cancel()
    await asyncio.sleep(0)
    world.server.release()
    assert (await submission.outcome()).kind is OutcomeKind.COMMITTED


async def test_closing_ends_runs_and_submissions(world: World, ready_client: Log) -> None:
    world.server.hold = True

    async def endless(tx: Draft) -> None:
        await asyncio.Event().wait()

    in_flight, in_context = ready_client.submit(append, b"a"), ready_client.submit(endless)
    waiting = asyncio.ensure_future(ready_client.run(append, b"b"))
    await wait_until(lambda: len(world.server.held) == 1)
    await ready_client.close()
    assert (await in_flight.outcome()).kind is OutcomeKind.UNKNOWN
    assert (await in_context.outcome()).kind is OutcomeKind.RAISED
    with pytest.raises((Closed, AppendUnknown)):
        await waiting


async def test_a_serializer_and_a_partitioner_take_the_applications_values(two_partitions: World) -> None:
    class Json:
        def encode(self, value: Any) -> bytes:
            import json

            return json.dumps(value).encode()

        def decode(self, data: bytes) -> Any:
            import json

            return json.loads(data)

    world = two_partitions
    client = await world.client(serializer=Json(), partitioner=lambda given, partitions: given[0]["n"] % partitions)

    def context(tx: Draft, value: dict[str, int]) -> None:
        tx.append(value)

    receipts = [await client.append({"n": 3}), await client.run(context, {"n": 4})]
    assert [receipt.partition for receipt in receipts] == [1, 0]
    assert client.decode(await client.transaction(0, 1)) == {"n": 3}
    assert world.logs[0].bodies() == [b'{"n": 4}']


async def test_a_partitioner_that_needs_arguments_has_a_call_without_them_name_its_partition(
    two_partitions: World,
) -> None:
    client = await two_partitions.client(partitioner=lambda given, partitions: given[0] % partitions)
    for call in (client.flush, client.ready, client.high_water_mark):
        with pytest.raises(BadOption, match="give partition=") as raised:
            await call()
        assert isinstance(raised.value.__cause__, IndexError)
    with pytest.raises(BadOption, match="give partition="):
        client.read()
    with pytest.raises(TypeError, match="not all arguments"):
        client.append("paid")


# ------------------------------------------------------------------ what a context returns


async def test_the_receipt_has_what_the_context_returned_in_the_run_that_committed(world: World, view: Memo) -> None:
    client = await world.client(view=view)
    runs = 0

    async def context(tx: Draft, step: int) -> dict[str, int]:
        nonlocal runs
        runs += 1
        tx.write_lock("account", "DE89 3704")
        if runs == 1:
            await other.append(b"first", locks=[Lock("account", "DE89 3704")])
        tx.append(b"%d" % step)
        return {"run": runs, "seen": len(view.applied)}

    other = await world.client()
    receipt = await client.run(context, 5)
    assert receipt.value == {"run": 2, "seen": 1}
    assert (await client.submit(context, 5)).value["seen"] == 2
    outcome = await client.submit(context, 5).outcome()
    assert outcome.receipt is not None
    assert outcome.receipt.value == {"run": runs, "seen": 3}
    assert (await client.append(b"without a context")).value is None
