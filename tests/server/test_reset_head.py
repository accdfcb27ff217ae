"""A partition that lost the majority of its replicas goes on after an operator has reset its head, and records it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from polonaise.admin.headresets import (
    HeadOutcome,
    HeadState,
    HeldCopy,
    ask_reset,
    await_reset,
    decision,
    decisions_from,
    head_state,
    head_states,
    reset_heads,
)
from polonaise.client.log import Log
from polonaise.coordination.values import Engagement, HeadReset, PartitionValue
from polonaise.errors import DeadlineExceeded, HeadNotReset, PartitionNotReady
from polonaise.fragments.protocol.names import FragmentName
from polonaise.server.protocol import headreset
from polonaise.server.protocol.recovery import NOTHING_KNOWN, Decided, ReplicaAnswer, Undecided
from polonaise.server.sessionstart import SessionStart
from polonaise.storage.node import StorageNode
from polonaise.terms import OwnKind
from polonaise.wire.messages import Confirm, FindBatch
from rigs.archivedtown import ArchivedTown
from rigs.headresets import health, lose_majority, reset, state
from rigs.town import Town, held_down, in_a_town
from rigs.waiting import time_passes, wait_until


async def lost_majority(town: Town) -> None:
    """Append three transactions, then wipe two of the three disks."""
    await town.append(b"1", b"2", b"3")
    await lose_majority(town)


async def records(town: Town) -> list[tuple[int, dict[str, Any]]]:
    """The library's records of resets in the log, each with its id."""

    async def main(log: Log) -> list[tuple[int, dict[str, Any]]]:
        found = []
        async for batch in log.read_batches(0):
            for tx in batch.transactions(own=True):
                if tx.own and tx.header == OwnKind.RESET_HEAD:
                    found.append((tx.id, json.loads(tx.data)))
        return found

    return await town.application("reader", main)


@pytest.mark.parametrize(("to", "given_up"), [(2, []), (0, [1, 2])], ids=["nothing is given up", "two are given up"])
@in_a_town
async def test_after_a_reset_of_its_head_a_partition_goes_on_without_what_was_given_up_and_records_it(
    town: Town, *, to: int, given_up: list[int]
) -> None:
    await lost_majority(town)
    found = await state(town)
    assert found.known == 2
    assert [copy.last for copy in found.copies] == [2, -1, -1]
    assert (await reset(town, to)).carried_out
    await town.append(b"4")
    assert await town.log() == [*[b"1", b"2", b"3"][: to + 1], b"4"]
    ((id, told),) = await records(town)
    assert (id, told["to"], told["given_up"], told["earlier"]) == (to + 1, to, given_up, [])


@pytest.mark.slow
@in_a_town
async def test_a_lost_replica_that_comes_back_with_more_is_cut_and_not_believed(town: Town) -> None:
    await town.append(b"1", b"2", b"3", b"4")
    survivor, lost, other = town.cluster.storage
    await time_passes(1)
    snapshot = lost.machine.disk.snapshot()
    for node in (lost, other):
        held_down(node, wiped=True)
        node.let_up()
    await wait_until(lambda: len(health(town).get("held", {})) == 3)
    assert (await reset(town, 1)).carried_out
    await town.append(b"5", b"6")
    held_down(lost)
    lost.machine.disk.restore(snapshot)  # the lost disk was found again
    await wait_until(lambda: len(health(town).get("engaged", ())) == 2)
    lost.let_up()
    await wait_until(lambda: len(health(town).get("engaged", ())) == 3)
    held_down(survivor)  # so that the log is read from the one that came back, too
    await town.append(b"7")
    assert await town.log() == [b"1", b"2", b"5", b"6", b"7"]


@in_a_town
async def test_the_record_is_there_after_a_crash_between_the_cut_and_the_record(town: Town) -> None:
    await lost_majority(town)

    async def ask(host: Any, coordinator: Any) -> None:
        found = await head_state(host, coordinator, 0, 2.0)
        await ask_reset(coordinator, found, decision(found, 1, None, host.clock.wall_us()), 20.0)

    await town.operator(ask)
    (server,) = town.cluster.servers
    await wait_until(lambda: not town.cluster.partition_value(0).resets[-1].is_pending)
    server.crash()  # the engagement is written, and the record is on its way at best
    await wait_until(lambda: health(town).get("session") is not None)
    await town.append(b"4")
    assert [(id, told["to"]) for id, told in await records(town)] == [(2, 1)]
    assert await town.log() == [b"1", b"2", b"4"]


@pytest.mark.slow
@in_a_town
async def test_a_second_reset_names_the_first_whose_record_it_gives_up(town: Town) -> None:
    await lost_majority(town)
    await reset(town, 2)
    await town.append(b"4")
    for node in town.cluster.storage[1:]:
        held_down(node, wiped=True)
        node.let_up()
    await wait_until(lambda: len(health(town).get("held", {})) == 3)
    assert (await reset(town, 1)).carried_out
    ((id, told),) = await records(town)
    assert (id, told["to"], [each["to"] for each in told["earlier"]]) == (2, 1, [2])


@in_a_town
async def test_an_open_partition_is_not_reset(town: Town) -> None:
    await town.append(b"1")
    with pytest.raises(HeadNotReset, match="is open in session"):
        await state(town)


@in_a_town
async def test_replicas_that_come_back_in_time_prove_the_end_of_the_log_and_nothing_is_given_up(town: Town) -> None:
    await town.append(b"1", b"2", b"3")
    for node in town.cluster.storage[1:]:
        held_down(node)
    (server,) = town.cluster.servers
    server.crash()
    await wait_until(lambda: len(health(town).get("held", {})) == 1)

    async def ask(host: Any, coordinator: Any) -> HeadOutcome:
        found = await head_state(host, coordinator, 0, 2.0)
        decided = decision(found, 0, None, host.clock.wall_us())
        await ask_reset(coordinator, found, decided, 20.0)
        for node in town.cluster.storage[1:]:
            node.let_up()
        return await await_reset(host, coordinator, found, decided, 60.0)

    assert not (await town.operator(ask)).carried_out
    assert await town.log() == [b"1", b"2", b"3"]
    assert await records(town) == []


@in_a_town
async def test_a_reset_whose_owner_is_away_waits_for_a_server_and_says_so(town: Town) -> None:
    await lost_majority(town)
    (server,) = town.cluster.servers

    async def ask(host: Any, coordinator: Any) -> None:
        found = await head_state(host, coordinator, 0, 2.0)
        decided = decision(found, 1, None, host.clock.wall_us())
        held_down(server)
        await ask_reset(coordinator, found, decided, 20.0)
        await await_reset(host, coordinator, found, decided, 5.0)

    with pytest.raises(DeadlineExceeded, match=r"What keeps it: its owner, server 1, does not answer: "):
        await town.operator(ask)
    server.let_up()
    await wait_until(lambda: health(town).get("session") is not None)
    assert await town.log() == [b"1", b"2"]


@in_a_town
async def test_an_id_that_no_replica_holds_is_refused_and_nothing_is_changed(town: Town) -> None:
    await lost_majority(town)
    with pytest.raises(HeadNotReset, match="no replica that has answered holds 7"):
        await reset(town, 7)
    with pytest.raises(HeadNotReset, match="holds ids up to -1"):
        await reset(town, 1, town.name(1))
    assert town.cluster.partition_value(0).resets == ()


async def append_at_once(town: Town, *bodies: bytes) -> None:
    """Append these in one batch."""

    async def main(log: Log) -> None:
        await asyncio.gather(*(log.append(body, 0) for body in bodies))

    await town.application("writer", main)


@in_a_town
async def test_an_id_within_a_batch_is_refused_with_its_neighbours_and_nothing_is_changed(town: Town) -> None:
    await town.append(b"0")
    await append_at_once(town, b"1", b"2", b"3")
    await lost_majority(town)
    with pytest.raises(HeadNotReset, match=r"no batch ends there.*The ids 1 to 3 are one: choose --to 0 or --to 3"):
        await reset(town, 2)
    assert town.cluster.partition_value(0).resets == ()
    assert (await reset(town, 3)).carried_out


@pytest.mark.slow
@in_a_town
async def test_storage_nodes_of_an_earlier_version_are_sent_nothing_that_they_do_not_know(town: Town) -> None:
    """An operator's connection, or even the one of a server for all its partitions, would end by that."""
    await append_at_once(town, b"0", b"1", b"2")
    await lost_majority(town)
    sent: list[object] = []
    answer = StorageNode._on_message

    def heard(node: StorageNode, connection: Any, message: Any, *others: Any) -> None:
        sent.append(message)
        answer(node, connection, message, *others)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(StorageNode, "_on_message", heard)
        patches.setattr("polonaise.link.protocol.greeting.PROTOCOL_VERSION", 5)
        told = r"within 20 s\..*What keeps it: .*no batch ends there"
        with pytest.raises(DeadlineExceeded, match=told) as raised:
            await reset(town, 1, seconds=20.0)
    assert "as soon as" not in raised.value.text, "nothing is promised"
    assert not [each for each in sent if isinstance(each, FindBatch)]
    assert (await reset(town, 2)).carried_out, "another decision replaces it"


@pytest.mark.slow
def test_fragments_above_a_reset_are_to_be_moved_first_and_the_wait_says_so() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"0")
        await town.archive()
        await lost_majority(town)
        told = r"What keeps it: .*fragments_ahead.*reach up to 0.*archive cut the store 0=-1"
        with pytest.raises(DeadlineExceeded, match=told):
            await reset(town, -1, seconds=30.0)
        assert "the replicas hold no more" not in health(town)["waits_for"]
        assert [copy.last for copy in (await state(town)).copies] == [3, -1, -1], "nothing was cut"

        async def moved_out(*_: object) -> None:
            for listed in await town.store.list():
                if FragmentName.parse(listed.path) is not None:
                    await town.store.delete(listed.path)

        await town.operator(moved_out)
        await wait_until(lambda: health(town).get("session") is not None)
        await town.append(b"5")
        assert await town.log() == [b"5"]

    ArchivedTown().tell(story)


def test_a_reset_waits_for_its_source_and_says_why() -> None:
    taking_part = dict.fromkeys("abc", Engagement(4))
    value = PartitionValue(1, 5, ("a", "b", "c"), engagements=taking_part, resets=(HeadReset(2, "d", 2, 0),))
    found = headreset.decide(value, {}, NOTHING_KNOWN)
    assert isinstance(found, Undecided)
    said = found.waits_for({})
    assert said == "an answer from d, whose copy is taken for the log by the reset of its head that is pending"


def test_a_tail_of_a_copy_that_was_late_is_taken_only_if_the_copy_is_named() -> None:
    late, sound = HeldCopy("A", 9, 4, 6, False), HeldCopy("B", 6, 6, 7, True)
    found = HeadState(0, "", [late, sound], ["C"], 9, PartitionValue(1, 8, tuple("ABC")), 1)
    with pytest.raises(HeadNotReset, match=r"9 is held by A \(up to 9\).* with --from"):
        decision(found, 9, None, 0)
    assert decision(found, 9, "A", 0).source == "A"
    assert decision(found, 6, None, 0).source == "B"
    assert decision(found, 4, None, 0).source == "B", "of two that prove it, the one that took part until the end"
    with pytest.raises(HeadNotReset, match="C has not told what it holds"):
        decision(found, 4, "C", 0)
    assert decision(found, 4, "A", 0).known == 9, "what is given up is told"


@in_a_town
async def test_a_copy_that_missed_an_earlier_reset_proves_nothing_of_what_that_has_given_up(town: Town) -> None:
    await town.append(*(b"%d" % n for n in range(5)))
    survivor, wiped, missed = town.cluster.storage
    served = town.server.partitions[0]
    assert served.owner.session is not None
    for number in (0, 2):
        await served.reader.ask(town.name(number), Confirm(served.owner.session.id, 4))
    held_down(missed)
    held_down(wiped, wiped=True)
    wiped.let_up()
    await wait_until(lambda: len(health(town).get("held", {})) == 2)
    assert (await reset(town, 1, town.name(0))).carried_out
    held_down(survivor)
    held_down(wiped, wiped=True)
    wiped.let_up()
    missed.let_up()
    await wait_until(lambda: len(health(town).get("held", {})) == 2)
    found = await state(town)
    assert {copy.name: (copy.last, copy.proved) for copy in found.copies}[town.name(2)] == (4, 1)
    with pytest.raises(HeadNotReset, match="with --from"):
        decision(found, 4, None, 0)


@in_a_town
async def test_the_log_goes_on_from_the_tail_of_a_late_copy_that_was_named(town: Town) -> None:
    await town.append(b"1", b"2")
    late, *others = town.cluster.storage
    await time_passes(1)
    held_down(late)
    await town.append(b"3")  # the late copy lacks this one, and now both others are lost
    for node in others:
        held_down(node, wiped=True)
        node.let_up()
    late.let_up()
    await wait_until(lambda: len(health(town).get("held", {})) == 3)
    found = await state(town)
    name = town.cluster.storage_id(late)
    assert {copy.name: copy.took_part for copy in found.copies}[name] is False
    assert (found.known, (await reset(town, 1, name)).carried_out) == (2, True)
    await town.append(b"4")
    assert await town.log() == [b"1", b"2", b"4"]
    ((id, told),) = await records(town)
    assert (id, told["source"], told["given_up"]) == (2, name, [2, 2])


@in_a_town
async def test_an_operator_whose_decision_was_replaced_is_not_told_that_it_was_carried_out(town: Town) -> None:
    await lost_majority(town)

    async def do(host: Any, coordinator: Any) -> None:
        found = await head_state(host, coordinator, 0, 2.0)
        mine = decision(found, 0, None, host.clock.wall_us())
        await ask_reset(coordinator, found, mine, 20.0)
        # Before the owner has read it, a second operator decides otherwise.
        current = await coordinator.partition(0)
        again = replace(found, value=current.value, version=current.version)
        await ask_reset(coordinator, again, decision(again, 2, None, host.clock.wall_us()), 20.0)
        await await_reset(host, coordinator, found, mine, 60.0)

    with pytest.raises(HeadNotReset, match="another operator has replaced it, and the log goes on from 2"):
        await town.operator(do)
    assert await town.log() == [b"1", b"2", b"3"]


@in_a_town
async def test_a_replica_that_answers_while_the_reset_is_prepared_counts_as_one_that_came_back_in_time(
    town: Town,
) -> None:
    await town.append(b"1", b"2", b"3")
    _, wiped, late = town.cluster.storage
    for node in (wiped, late):
        held_down(node, wiped=node is wiped)
    wiped.let_up()
    await wait_until(lambda: len(health(town).get("held", {})) == 2)
    decided_by = SessionStart._decided_by

    async def decided_late(
        start: SessionStart, value: PartitionValue, reset: HeadReset, held: ReplicaAnswer
    ) -> Decided:
        decided = await decided_by(start, value, reset, held)
        late.let_up()
        await wait_until(lambda: town.cluster.storage_id(late) in start._answers)
        return decided

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(SessionStart, "_decided_by", decided_late)
        assert not (await reset(town, 0)).carried_out
    assert await town.log() == [b"1", b"2", b"3"]


@pytest.mark.slow
@in_a_town
async def test_copies_that_were_cut_for_a_reset_that_was_replaced_prove_nothing(town: Town) -> None:
    await lost_majority(town)
    engage, replaced = SessionStart._engage, []

    async def engage_late(start: SessionStart, value: PartitionValue, version: int) -> None:
        """Let a second operator decide otherwise, before the engagement that carries the first decision out."""
        if not replaced:
            now = await start._coordinator.partition(0)
            copies = [HeldCopy(value.resets[-1].source, 2, 2, 1, True)]  # as it was shown before the cut
            found = HeadState(0, "", copies, [], 2, now.value, now.version)
            replaced.append(decision(found, 2, None, 7))
            await ask_reset(start._coordinator, found, replaced[0], 20.0)
        await engage(start, value, version)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(SessionStart, "_engage", engage_late)
        with pytest.raises((HeadNotReset, DeadlineExceeded)):
            await reset(town, 0, seconds=20.0)
        # 2 and 3 are gone, and nobody may take that for the log until an operator has decided on it.
        assert health(town)["session"] is None
        assert "choose one of these" in health(town)["waits_for"]
        assert (await reset(town, 0, town.name(0))).carried_out
    await town.append(b"4")
    assert await town.log() == [b"1", b"4"]
    ((id, told),) = await records(town)
    assert (id, told["given_up"]) == (1, [1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("after", [1, 4])
def test_the_source_of_a_reset_that_is_withdrawn_knows_no_more_than_an_earlier_reset_has_left(
    after: int, away: bool
) -> None:
    """The source missed that one: what was confirmed to it was given up, and the others hold another log there."""

    async def story(town: Town) -> None:
        await town.append(*(b"%d" % n for n in range(5)))
        proof, wiped, source = town.cluster.storage
        served = town.server.partitions[0]
        assert served.owner.session is not None
        await served.reader.ask(town.name(2), Confirm(served.owner.session.id, 4))
        held_down(source)
        held_down(wiped, wiped=True)
        wiped.let_up()
        await wait_until(lambda: len(health(town).get("held", {})) == 2)
        assert (await reset(town, 1, town.name(0))).carried_out
        kept = [b"0", b"1", *(b"later %d" % n for n in range(after))]
        await town.append(*kept[2:])

        held_down(proof)
        held_down(wiped, wiped=True)
        wiped.let_up()
        source.let_up()
        await wait_until(lambda: len(health(town).get("held", {})) == 2)
        engage, failed = SessionStart._engage, []

        async def engage_late(start: SessionStart, value: PartitionValue, version: int) -> None:
            """Let the replica come back that proves the end of the log, instead of the first engagement."""
            if not failed:
                failed.append(value)
                if away:
                    held_down(source)
                proof.let_up()
                await start._shared.links[town.name(0)].connected()
                raise PartitionNotReady("the coordinator was not reached")
            await engage(start, value, version)

        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(SessionStart, "_engage", engage_late)
            assert not (await reset(town, 4, town.name(2))).carried_out
        assert failed[0].resets[-1].to == 4
        if away:
            await town.append(b"without the source")
            kept.append(b"without the source")
            source.let_up()
        await wait_until(lambda: len(health(town).get("engaged", ())) == 3)
        assert await town.log() == kept

    Town(1).run(story)


@pytest.mark.parametrize("every", [True, False])
def test_partitions_that_lost_the_same_majority_are_reset_together(every: bool) -> None:
    async def story(town: Town) -> None:
        for partition in range(3):
            await town.append(*(b"%d" % n for n in range(partition + 1)), partition=partition)
        for node in town.cluster.storage[1:]:
            held_down(node, wiped=True)
        for node in town.cluster.storage[1:]:
            node.let_up()
        survivor = town.name(0)

        def told() -> list[int]:
            partitions = [each.health()["partitions"] for each in town.cluster.running_servers]
            return [len(one.get("held", {})) for some in partitions for one in some.values()]

        await wait_until(lambda: told() == [3, 3, 3])

        async def do(host: Any, coordinator: Any) -> list[Any]:
            states = await head_states(host, coordinator, None if every else (0, 1, 2), survivor, 2.0)
            with pytest.raises(HeadNotReset, match="is empty, and the log was not"):
                decisions_from(states, town.name(1), 0)
            decided = decisions_from(states, survivor, host.clock.wall_us())
            assert [(each.partition, reset.to) for each, reset in decided] == [(0, 0), (1, 1), (2, 2)]
            return await reset_heads(host, coordinator, decided, 60.0)

        outcomes = await town.operator(do)
        assert [(each.carried_out, each.committed) for each in outcomes] == [(True, 1), (True, 2), (True, 3)]
        with pytest.raises(HeadNotReset, match="is open in session"):
            await town.operator(lambda host, coordinator: head_states(host, coordinator, (0, 2), survivor, 2.0))
        with pytest.raises(HeadNotReset, match="all are open"):
            await town.operator(lambda host, coordinator: head_states(host, coordinator, None, survivor, 2.0))

    Town(1, partitions=3).run(story)
