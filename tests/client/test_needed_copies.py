"""Appends that need copies succeed once these are proved: what their receipts tell, and what older servers are sent."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from polonaise import Draft, Group, Log, Receipt, blocking, testing
from polonaise.client.log import partitions_of
from polonaise.client.running import OutcomeKind
from polonaise.errors import (
    AppendExpired,
    AppendUnknown,
    BadOption,
    BeyondLog,
    CopiesUnproved,
    DeadlineExceeded,
    InsufficientReplicas,
    PartitionNotReady,
    UnsupportedVersion,
)
from polonaise.terms import FailureReason, TransactionId
from polonaise.wire.appends import Operation
from polonaise.wire.copies import COPIES_VERSION, Needs
from rigs.clients import World
from rigs.waiting import nothing_happens_for, wait_until

OLDER = COPIES_VERSION - 1


def build(tx: Draft) -> str:
    tx.append(b"built")
    tx.need(copies=3, zones=2)
    return "value"


def sent(world: World) -> list[Operation]:
    return [operation for _, appends in world.server.heard.appends for operation in appends.operations]


@pytest.fixture
async def log(world: World) -> Log:
    """A client of a server that proves no copies until it is told to."""
    log = await world.ready_client()
    world.server.proves = False
    return log


async def waiting_for_proof(world: World, log: Log, zones: int = 0) -> tuple[Receipt, asyncio.Future[Any]]:
    """Append with three copies; return the receipt, and a wait for it, once the server was asked for the proof."""
    receipt = log.append(b"1", copies=3, zones=zones)
    waiting = asyncio.ensure_future(_result(receipt))
    await wait_until(lambda: world.server.held_proofs)
    return receipt, waiting


# ------------------------------------------------------------------ success waits for the proof


async def test_an_append_succeeds_when_its_copies_are_proved_and_not_when_it_is_committed(
    world: World, log: Log
) -> None:
    receipt, waiting = await waiting_for_proof(world, log, zones=2)
    assert sent(world) == [Operation(0, 4, b"", b"\3\2")]
    assert [(asked.id, asked.copies, asked.zones) for asked in world.server.heard.proofs] == [(0, 3, 2)]
    assert (receipt.committed, receipt.done, waiting.done()) == (True, False, False)
    world.server.prove()
    assert await waiting is receipt
    assert (receipt.done, receipt.error) == (True, None)
    await receipt
    assert len(world.server.heard.proofs) == 1, "what is proved is not asked for again"


async def test_an_append_without_needs_asks_for_nothing(world: World) -> None:
    log = await world.ready_client()
    await log.append(b"1")
    await log.append_group(Group.of([b"2", b"3"]))
    assert (sent(world), world.server.heard.proofs) == ([], [])


async def test_a_group_is_proved_up_to_its_last_transaction_and_zones_are_copies_too(world: World) -> None:
    log = await world.ready_client()
    await log.append_group(Group.of([b"1", b"2"]), zones=2)
    assert [(asked.id, asked.copies, asked.zones) for asked in world.server.heard.proofs] == [(1, 2, 2)]


async def test_a_context_succeeds_when_what_it_needs_is_proved(world: World, log: Log) -> None:
    running = asyncio.ensure_future(log.run(build, timeout=30))
    await wait_until(lambda: world.server.held_proofs)
    await nothing_happens_for(0.05)
    assert not running.done()
    world.server.prove()
    assert (await running).value == "value"


async def test_the_client_asks_again_in_the_next_session(world: World, log: Log) -> None:
    waiting = asyncio.ensure_future(_result(log.append(b"1", copies=3)))
    await wait_until(lambda: world.server.held_proofs)
    world.server.prove(PartitionNotReady("its session has ended"))
    await wait_until(lambda: world.server.held_proofs)
    world.server.prove()
    await waiting


async def test_one_request_proves_all_that_waits_and_polled_waits_ask_no_more(world: World, log: Log) -> None:
    first = log.append(b"0", copies=3)
    waiting = [asyncio.ensure_future(_result(first))]
    await wait_until(lambda: world.server.held_proofs)
    receipts = [log.append(b"%d" % n, copies=3) for n in range(1, 10)]
    waiting += [asyncio.ensure_future(_result(receipt)) for receipt in receipts]
    for _ in range(20):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receipts[4], 0.005)
    await wait_until(lambda: all(receipt.committed for receipt in receipts))
    world.server.prove()
    await asyncio.gather(*waiting)
    assert [asked.id for asked in world.server.heard.proofs] == [0], "the answer tells how far it is proved"


async def test_a_wait_that_nobody_goes_on_with_leaves_nothing_in_the_client(world: World, log: Log) -> None:
    receipt, waiting = await waiting_for_proof(world, log)
    waiting.cancel()
    await wait_until(lambda: not [task for task in asyncio.all_tasks() if "prove copies" in task.get_name()])
    world.server.proves = True
    await receipt


async def test_what_was_proved_before_a_reset_of_the_head_is_no_proof_for_the_ids_given_anew(
    world: World, log: Log
) -> None:
    _, waiting = await waiting_for_proof(world, log)
    world.log.fill(b"of another client, and not fed", b"before the head is reset")
    world.server.prove()
    await waiting
    world.log.reset_head(1)
    world.server.break_connections()
    await wait_until(lambda: world.server.mounts)
    receipt, waiting = await waiting_for_proof(world, log)
    assert (receipt.id, waiting.done()) == (1, False)
    world.server.prove()
    await waiting
    assert [asked.id for asked in world.server.heard.proofs] == [0, 1]


async def test_an_answer_that_was_asked_for_on_an_earlier_mount_proves_nothing(world: World, log: Log) -> None:
    receipt, waiting = await waiting_for_proof(world, log)
    proofs = partitions_of(log).used[0].appends.proofs
    assert proofs is not None
    proofs.forget()
    world.server.prove()
    await wait_until(lambda: world.server.held_proofs)
    assert not waiting.done()
    world.server.prove()
    assert await waiting is receipt


async def test_a_proof_that_can_not_be_had_for_one_append_is_no_error_of_the_others(world: World, log: Log) -> None:
    low, high = log.append(b"1", copies=3), log.append(b"2", copies=3)
    waiting = [asyncio.ensure_future(_result(receipt)) for receipt in (low, high)]
    await wait_until(lambda: world.server.held_proofs)
    world.server.proves = True
    world.server.prove(BeyondLog("the log ends before it"))
    with pytest.raises(CopiesUnproved, match="ends before it"):
        await waiting[0]
    await waiting[1]


# ------------------------------------------------------------------ no silent success, and no failure that is none


async def test_a_deadline_tells_that_the_append_is_in_the_log_and_not_proved(world: World, log: Log) -> None:
    receipt = log.append(b"1", copies=3)
    with pytest.raises(CopiesUnproved, match="in the log as 0, for good, and is not proved to be on 3 copies") as told:
        await receipt.applied(timeout=0.1)
    assert told.value.receipt is receipt
    with pytest.raises(TimeoutError):
        await receipt.wait(partitions_of(log).parts.loop.time() + 0.05)
    world.server.proves = True
    world.server.prove()
    await receipt


@pytest.mark.slow
async def test_a_context_whose_time_is_over_before_the_proof_is_told_so(world: World, log: Log) -> None:
    with pytest.raises(CopiesUnproved, match="in the log as 0") as told:
        await log.run(build, timeout=0.2)
    outcome = await log.submit(build, timeout=0.2).outcome()
    assert (outcome.kind, outcome.receipt is not None) == (OutcomeKind.RAISED, True)
    assert world.log.bodies() == [b"built", b"built"], "each was appended once"
    world.server.proves = True
    world.server.prove()
    assert (await told.value.receipt).id == 0


async def test_an_append_that_is_not_decided_in_time_is_unknown_as_ever(world: World) -> None:
    log = await world.ready_client()
    world.server.hold = True
    receipt = log.append(b"1", copies=3)
    with pytest.raises(DeadlineExceeded, match="not decided"):
        await receipt.applied(timeout=0.1)
    with pytest.raises(AppendUnknown):
        await log.run(build, timeout=0.1)


async def test_an_append_without_enough_replicas_is_refused(world: World) -> None:
    log = await world.ready_client()
    world.server.refuse = FailureReason.INSUFFICIENT_REPLICAS
    with pytest.raises(InsufficientReplicas, match=r"it needs 3 copies, and the replicas .* nothing was written"):
        await log.append(b"1", copies=3)
    assert world.server.heard.proofs == []


async def test_a_client_that_is_closed_before_the_proof_tells_that_the_append_is_in_the_log(
    world: World, log: Log
) -> None:
    receipt, waiting = await waiting_for_proof(world, log)
    await log.close()
    with pytest.raises(CopiesUnproved, match="in the log as 0"):
        await waiting
    assert isinstance(receipt.error, CopiesUnproved)
    with pytest.raises(CopiesUnproved):
        await receipt


async def test_a_submission_of_a_client_that_is_closed_before_the_proof_tells_its_receipt(
    world: World, log: Log
) -> None:
    submission = log.submit(build)
    await wait_until(lambda: world.server.held_proofs)
    await log.close()
    outcome = await submission.outcome()
    assert isinstance(outcome.error, CopiesUnproved)
    assert outcome.receipt is not None
    assert (outcome.kind, outcome.receipt.id) == (OutcomeKind.RAISED, 0)
    assert "can't wait for the proof any more" in str(outcome.error)


async def test_a_context_that_can_not_have_its_copies_in_time_says_so(world: World) -> None:
    log = await world.ready_client()
    world.server.refuse = FailureReason.INSUFFICIENT_REPLICAS

    async def run() -> None:
        for _ in range(20):
            with contextlib.suppress(AppendUnknown):  # an attempt was under way when the time was over
                await log.run(build, timeout=0.2)

    with pytest.raises(AppendExpired, match=r"it needs 3 copies in 2 zones, and the replicas that are engaged"):
        await run()


# ------------------------------------------------------------------ servers of an older version


async def test_an_older_server_is_sent_nothing_of_it_and_the_error_says_what_to_upgrade(world: World) -> None:
    world.server.version_max = OLDER
    log = await world.ready_client()
    for append in (lambda: log.append(b"1", copies=3), lambda: log.append_group(Group.of([b"1"]), copies=3)):
        with pytest.raises(UnsupportedVersion, match="upgrade the servers"):
            append()
    with pytest.raises(UnsupportedVersion, match="upgrade the servers"):
        await log.run(build, timeout=5)
    await log.append(b"2")
    assert (world.log.bodies(), sent(world)) == ([b"2"], [])


async def test_what_waits_for_the_first_mount_is_not_sent_to_an_older_server(world: World) -> None:
    world.server.version_max = OLDER
    log = await world.client()
    plain, needing = log.append(b"1"), log.append(b"2", copies=3)
    group, last = log.append_group(Group.of([b"3", b"4"]), copies=3), log.append(b"5")
    for receipt in (needing, group):
        with pytest.raises(UnsupportedVersion, match=r"is not in the log, and is not sent: .* upgrade the servers"):
            await receipt
    assert [(await plain).id, (await last).id] == [0, 1]
    assert (world.log.bodies(), sent(world)) == ([b"1", b"5"], [])


async def test_what_was_sent_to_a_newer_server_is_not_sent_again_to_an_older_one(world: World) -> None:
    log = await world.ready_client()
    world.server.hold = True
    receipts = [log.append(b"1"), log.append(b"2", copies=3), log.append(b"3")]
    await wait_until(lambda: world.server.held)
    world.server.hold, world.server.version_max = False, OLDER
    world.server.heard.appends.clear()
    world.server.break_connections()
    with pytest.raises(UnsupportedVersion, match="is not in the log"):
        await receipts[1]
    assert [(await receipts[0]).id, (await receipts[2]).id] == [0, 1]
    assert (world.log.bodies(), sent(world)) == ([b"1", b"3"], [])


async def test_an_older_owner_that_took_over_before_the_proof_is_named(world: World, log: Log) -> None:
    _, waiting = await waiting_for_proof(world, log)
    world.server.version_max = OLDER
    world.server.break_connections()
    with pytest.raises(CopiesUnproved, match=r"in the log as 0.*upgrade the servers"):
        await waiting


# ------------------------------------------------------------------ arguments, and the log in memory


@pytest.mark.parametrize(
    "wrong",
    [
        {"copies": -1},
        {"copies": 256},
        {"zones": 2.0},
        {"zones": True},
        {"copies": "3"},
        {"copies": None},
        {"zones": False},
        {"copies": 0.0},
        {"zones": ""},
    ],
)
async def test_what_is_no_number_of_copies_is_refused_by_name(wrong: dict[str, Any]) -> None:
    async with testing.log() as log:
        with pytest.raises(BadOption, match=f"{next(iter(wrong))}"):
            log.append(b"1", **wrong)
        with pytest.raises(BadOption, match=f"{next(iter(wrong))}"):
            log.append_group(Group.of([b"1"]), **wrong)

        def context(tx: Draft) -> None:
            tx.need(**wrong)

        with pytest.raises(BadOption):
            await log.run(context)


async def test_a_log_in_memory_has_three_copies_in_three_zones() -> None:
    async with testing.log() as log:
        receipt = await log.append(b"1", copies=3, zones=3)
        assert receipt.id == 0
        with pytest.raises(InsufficientReplicas):
            await log.append(b"2", copies=4)
        assert (await log.run(build)).id == 1
        assert [tx.data for tx in log.transactions()] == [b"1", b"built"]


def test_threads_append_with_copies() -> None:
    with testing.blocking_log() as log:
        receipt = log.append(b"1", copies=3).result(timeout=10)
        assert (receipt.id, receipt.done) == (0, True)
        assert log.append_group(Group.of([b"2"]), zones=2).result(timeout=10).id == 1
        with pytest.raises(InsufficientReplicas):
            log.append(b"3", copies=4).result(timeout=10)


def test_threads_are_told_that_the_append_is_in_the_log_after_the_log_was_closed() -> None:
    with testing.blocking_log() as log:
        log.append(b"0").result(timeout=10)
        receipt = log.append(b"1", copies=3)
        proofs = receipt._receipt._condition.proofs
        assert proofs is not None
        proofs._ask = _never
        assert not receipt.wait(0.05)
    for ask in (receipt.result, receipt.applied):
        with pytest.raises(CopiesUnproved, match="in the log as 1"):
            ask(10)
    assert receipt.wait(10)
    assert isinstance(receipt.error, CopiesUnproved)


def test_threads_are_told_why_the_proof_cannot_be_had_and_may_ask_again() -> None:
    with testing.blocking_log() as log:
        receipt = log.append(b"1", copies=3)
        proofs = receipt._receipt._condition.proofs
        assert proofs is not None
        ask, proofs._ask = proofs._ask, _too_old
        for wait in (receipt.result, receipt.wait, receipt.applied):
            with pytest.raises(CopiesUnproved, match=r"in the log as 0.* upgrade it") as unproved:
                wait(10)
            assert isinstance(unproved.value.receipt, blocking.Receipt)
        assert not receipt.done
        proofs._ask = ask
        assert receipt.result(10).done


async def test_the_receipt_of_what_is_not_proved_is_one_for_threads_there(log: Log) -> None:
    receipt = log.append(b"1", copies=3)
    await wait_until(lambda: receipt.committed)
    error = receipt.unproved("the 1 s are over")  # type: ignore[attr-defined]
    background: Any = object()
    wrapped = blocking.receipt.with_receipt(background, error)
    assert isinstance(wrapped.receipt, blocking.Receipt)


async def _result(receipt: Any) -> Any:
    return await receipt


async def _too_old(id: TransactionId, needs: Needs) -> TransactionId:
    raise UnsupportedVersion("the owner is too old: upgrade it")


async def _never(id: TransactionId, needs: Needs) -> TransactionId:
    return await asyncio.get_running_loop().create_future()
