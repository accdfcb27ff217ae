"""What the simulator's history and checkers say of logs whose heads were reset."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.coordination.values import Engagement, HeadReset, PartitionValue
from polonaise.host import Host
from polonaise.log.batch import Batch, Columns, seal
from polonaise.terms import OwnKind, TransactionId
from polonaise_proving.faults.headresetting import HeadResets
from polonaise_proving.judges.checkers import check
from polonaise_proving.judges.clients import ClientsJudge
from polonaise_proving.judges.headresetcheck import CarriedOut, Decision, HeadResetCheck
from polonaise_proving.record.diskaudit import DiskReplica, FinalLog
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.faultcounts import FaultCounts
from polonaise_proving.record.observations import History, Kind, Try
from polonaise_proving.record.partitionrecord import Fate
from polonaise_proving.stages.simulated.cluster import Cluster, Node
from polonaise_proving.stages.simulated.observer import Observer
from polonaise_proving.work.application import Application
from rigs.town import Town

RESET = HeadReset(1, "A", 3, 7, 5, 1)
"""Ids 2 and 3 are given up by session 5."""
RECORD = {"to": 1, "given_up": [2, 3], "source": "A", "session": 5, "asked_us": 7, "earlier": []}


def log(*transactions: tuple[int, bytes, bool], after: FinalLog | None = None, up_to: TransactionId = -1) -> FinalLog:
    """A log: that of `after` up to an id, then a batch for each (session, body, whether it is a record)."""
    batches = [batch for batch in after.batches if batch.last <= up_to] if after is not None else []
    for session, body, own in transactions:
        columns, last = Columns(), batches[-1] if batches else None
        columns.add(0 if own else 1, ~1 if own else 1, session, OwnKind.RESET_HEAD if own else 0, body)
        raw = seal(
            columns, partition=0, first=len(batches), session=session, generation=1, commit_time_us=1,
            previous_crc=last.crc if last else 0, evidence=True,
        )  # fmt: skip
        batches.append(Batch.parse(raw))
    return FinalLog(0, batches)


def committed(history: History, id: TransactionId) -> Try:
    attempt = history.invoke("client-0", 0, Kind.PLAIN, [b""], 0)
    history.committed(attempt, id)
    return attempt


@pytest.fixture
def cluster() -> Cluster:
    return Town(1).cluster


def found(before: FinalLog, after: FinalLog, *resets: HeadReset) -> list[str]:
    checked = HeadResetCheck(History(1), 1, {}, FaultCounts())
    checked.carried_out[0] = [CarriedOut(reset, reset.to, before) for reset in resets]
    return [violation.promise for violation in checked.check([after])]


BEFORE = log((1, b"0", False), (1, b"1", False), (1, b"2", False), (1, b"3", False))


def record(**changed: Any) -> tuple[int, bytes, bool]:
    return 5, json.dumps({**RECORD, **changed}).encode(), True


def test_a_log_that_tells_of_its_reset_and_kept_what_it_kept_is_right() -> None:
    after = log(record(), (5, b"4", False), after=BEFORE, up_to=1)
    assert found(BEFORE, after, RESET) == []


@pytest.mark.parametrize(
    ("after", "promise"),
    [
        (log(record(), after=log((1, b"0", False), (1, b"other", False)), up_to=1), "P1 durability"),
        (log((5, b"4", False), after=BEFORE, up_to=1), "P13 fail-safe"),
        (log(record(to=0), after=BEFORE, up_to=1), "P13 fail-safe"),
        (log((5, b'{"to": \xff', True), after=BEFORE, up_to=1), "P13 fail-safe"),
        (log(record(), record(), after=BEFORE, up_to=1), "P13 fail-safe"),
        (log(record(), (1, b"3", False), after=BEFORE, up_to=1), "P4 no dirty read"),
    ],
    ids=[
        "another log is kept",
        "no record",
        "a wrong record",
        "a damaged record",
        "two records",
        "an older session above the reset",
    ],
)
def test_what_a_reset_must_not_do_is_found(after: FinalLog, promise: str) -> None:
    assert found(BEFORE, after, RESET) == [promise]


def test_a_later_reset_has_to_tell_of_the_one_whose_record_it_gives_up() -> None:
    later = HeadReset(0, "A", 4, 8, 9, 0)
    told = {"to": 0, "given_up": [1, 4], "source": "A", "session": 9, "asked_us": 8}
    earlier = [{key: RECORD[key] for key in ("to", "given_up", "source", "session", "asked_us")}]
    silent, telling = [
        log((9, json.dumps({**told, "earlier": each}).encode(), True), after=BEFORE, up_to=0) for each in ([], earlier)
    ]
    assert found(BEFORE, telling, RESET, later) == []
    assert found(BEFORE, silent, RESET, later) == ["P13 fail-safe"]


class Copies:
    """What a storage node has on its disk of one partition."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.held = FinalLog(0, [])

    def replica(self, partition: int) -> DiskReplica:
        return DiskReplica(self._name, self.held.batches)

    def durable_last(self, partition: int) -> TransactionId:
        return len(self.held) - 1


class Resets:
    """A check that is told of resets of a partition with three copies, as they are written at the coordinator."""

    def __init__(self) -> None:
        self.history = History(1)
        self.nodes = {name: Copies(name) for name in ("storage-0:9000", "storage-1:9000", "storage-2:9000")}
        self.names = [*self.nodes]
        self.check = HeadResetCheck(self.history, 1, self.nodes, FaultCounts())
        self._value = PartitionValue(1, 1, tuple(self.names))

    def hold(self, *logs: FinalLog) -> None:
        for node, each in zip(self.nodes.values(), logs, strict=True):
            node.held = each

    def carry_out(self, to: TransactionId, known: TransactionId, session: int) -> HeadReset:
        """Reset the head to an id of the first node's copy, in a session with all three."""
        asked = HeadReset(to, self.names[0], known, 7)
        self.check.decisions[0].append(Decision(asked, True))
        done = replace(asked, session=session, certain=to)
        engaged = {name: Engagement(session) for name in self.names}
        self._write(replace(self._value, resets=(*self._value.resets, asked)))
        self._write(replace(self._value, session=session, engagements=engaged, resets=(*self._value.resets[:-1], done)))
        return done

    def _write(self, value: PartitionValue) -> None:
        self.check.written(0, self._value, value)
        self._value = value

    def found(self, after: FinalLog) -> list[str]:
        return [violation.promise for violation in [*self.history.violations, *self.check.check([after])]]


@pytest.fixture
def resets() -> Resets:
    return Resets()


def told(reset: HeadReset, *earlier: HeadReset) -> tuple[int, bytes, bool]:
    """The record of a reset, which tells of earlier ones whose records it gives up."""
    documents = [
        {
            "to": each.to,
            "given_up": [each.to + 1, each.known] if each.known > each.to else [],
            "source": each.source,
            "session": each.session,
            "asked_us": each.asked_us,
        }
        for each in (reset, *earlier)
    ]
    return reset.session, json.dumps({**documents[0], "earlier": documents[1:]}).encode(), True


def test_a_second_reset_after_one_loss_keeps_what_the_first_has_left_and_not_what_that_gave_up(resets: Resets) -> None:
    resets.check.disks_are_lost([BEFORE])
    resets.hold(BEFORE, log(), log())
    first = resets.carry_out(1, 3, 5)
    gone_on = log(told(first), (5, b"new", False), after=BEFORE, up_to=1)
    resets.hold(gone_on, gone_on, BEFORE)
    second = resets.carry_out(3, 3, 9)
    assert resets.found(log(told(second), after=gone_on, up_to=3)) == []
    other = log(told(first), (5, b"other", False), told(second), after=BEFORE, up_to=1)
    assert resets.found(other) == ["P1 durability"]


def test_what_went_on_after_a_reset_and_was_given_up_by_the_next_one_is_known_as_given_up(resets: Resets) -> None:
    resets.check.disks_are_lost([BEFORE])
    resets.hold(BEFORE, log(), log())
    first = resets.carry_out(1, 3, 5)
    gone_on = log(told(first), (5, b"new", False), after=BEFORE, up_to=1)
    resets.hold(gone_on, gone_on, log())
    second = resets.carry_out(1, 3, 9)
    assert resets.history.given_up[0][3] == [BEFORE.transactions[3], gone_on.transactions[3]]
    assert resets.found(log(told(second, first), after=BEFORE, up_to=1)) == []


def test_what_came_back_has_to_be_shown_to_the_operator_of_the_first_reset_since_and_to_no_later_one(
    resets: Resets,
) -> None:
    resets.check.disks_are_lost([BEFORE])
    resets.hold(BEFORE, BEFORE, log())
    resets.check.notes_what_came_back(resets.names[1])
    first = resets.carry_out(1, 3, 5)
    gone_on = log(told(first), after=BEFORE, up_to=1)
    resets.hold(gone_on, gone_on, gone_on)
    second = resets.carry_out(2, 2, 9)
    assert resets.found(log(told(second), after=gone_on, up_to=2)) == []
    resets.check.disks_are_lost([gone_on])
    resets.check.notes_what_came_back(resets.names[1])
    resets.carry_out(1, 1, 12)
    assert [each.promise for each in resets.history.violations] == ["P1 durability"]


def test_an_operator_has_to_be_told_what_became_of_its_own_decision() -> None:
    history = History(1)
    checked = HeadResetCheck(history, 1, {}, FaultCounts())
    checked.carried_out[0] = [CarriedOut(RESET, 1, BEFORE)]
    checked.told(0, RESET, 0, True)
    assert history.violations == []
    checked.told(0, HeadReset(0, "A", 3, 7), 0, True)
    checked.told(0, RESET, 0, False)
    assert [each.promise for each in history.violations] == ["P6 fate", "P6 fate"]


def test_an_append_that_a_reset_has_given_up_must_not_come_back(cluster: Cluster) -> None:
    history = History(1)
    kept, gone = committed(history, 0), committed(history, 1)
    history.head_reset(0, 0, 0, [], ())
    assert (kept.fate, gone.fate, history.told) == (Fate.COMMITTED, Fate.GIVEN_UP, [0])
    first, second = (each.bodies[0] for each in (kept, gone))
    assert check([log((1, first, False))], history) == []
    back = log((1, first, False), (1, second, False))
    assert [each.promise for each in check([back], history)] == ["P6 fate"]


def test_what_was_known_before_a_reset_is_not_known_again_once_the_log_that_goes_on_is_as_long(
    cluster: Cluster,
) -> None:
    """An answer that is under way meanwhile may be one about any length of the new log."""
    history = History(1)
    for id in range(4):
        committed(history, id)
    before = history.known(0)
    assert history.still_known(before) == 3
    history.head_reset(0, 1, 1, [], ())
    for id in range(2, 6):
        committed(history, id)
    assert (history.still_known(before), history.still_known(history.known(0))) == (1, 5)


def test_a_copy_in_doubt_leaves_open_what_became_of_appends_that_it_may_hold(cluster: Cluster) -> None:
    history = History(1)
    sure, open_ = committed(history, 0), committed(history, 1)
    failed = history.invoke("client-0", 0, Kind.PLAIN, [b""], 0)
    history.failed(failed, "too late")
    history.head_reset(0, 2, 0, [], {failed.number})
    assert (sure.fate, open_.fate, failed.fate) == (Fate.COMMITTED, Fate.UNKNOWN, Fate.UNKNOWN)


def test_what_was_given_up_is_fed_to_nobody_but_by_messages_that_were_under_way() -> None:
    history = ClientsJudge(1)
    gone = BEFORE.transactions[3]
    history.head_reset(0, 1, 1, BEFORE.transactions[2:], ())
    history.lingering.add(0)
    history.saw("client-0", gone)
    assert (history.violations, history.told) == ([], [-1])
    history.lingering.clear()
    history.saw("client-0", gone)
    assert [each.promise for each in history.violations] == ["P4 no dirty read"]


class Living:
    """A client that lives through a reset to id 1, after it was fed up to id 9."""

    def __init__(self, cluster: Cluster, applied: TransactionId) -> None:
        self.history = ClientsJudge(1)
        self.node = Node(cluster, "client-0", self._main)
        self.application = Application(self.history, self.node.name, 1, 5, random.Random(0))
        applications = {self.node.name: self.application}
        nemesis: Any = None
        self.scene = HeadResets(Observer(cluster, self.history, applications), applications, nemesis, self._main)
        self.scene._lives(self.node)
        self.opens(fed=9)
        self.application.ledger._readings[0].last = applied
        self.scene._reset(0, RESET)

    async def _main(self, node: Node, host: Host) -> None:
        """What the client's process would run: it is never started."""

    def opens(self, fed: TransactionId) -> None:
        used = {0: SimpleNamespace(mounting=SimpleNamespace(received=fed))}
        log: Any = SimpleNamespace(partition_count=1, _started=lambda: SimpleNamespace(used=used))
        self.application.open(log)

    def appends(self, id: TransactionId) -> None:
        self.history.committed(self.history.invoke(self.node.name, 0, Kind.PLAIN, [b""], 0), id)

    def found(self) -> list[str]:
        """What is found once the client was told that it is ahead."""
        self.history.ahead_told = 1
        try:
            asyncio.run(self.scene._live_is_told(self.node))
        except Violation as violation:
            return [violation.promise]
        return []


def test_a_client_that_was_fed_or_has_applied_what_a_reset_gave_up_must_append_nothing(cluster: Cluster) -> None:
    living = Living(cluster, applied=0)
    assert living.found() == []
    living.appends(10)
    assert living.found() == ["P6 fate"]


def test_a_log_object_that_begins_where_a_view_is_that_is_not_ahead_appends_rightly(
    cluster: Cluster,
) -> None:
    """The client has closed the one that was fed more than the log has. Its view was never given that."""
    for applied in (-1, 1):
        living = Living(cluster, applied)
        living.opens(fed=applied)
        living.appends(3)
        assert living.found() == []


def test_what_a_log_object_that_was_ahead_has_appended_is_found_also_when_the_client_has_another_one(
    cluster: Cluster,
) -> None:
    living = Living(cluster, applied=0)
    living.appends(10)
    living.opens(fed=0)
    assert living.found() == ["P6 fate"]


def test_a_client_whose_view_has_applied_what_a_reset_gave_up_must_append_nothing_by_another_log_object(
    cluster: Cluster,
) -> None:
    living = Living(cluster, applied=3)
    living.opens(fed=3)
    living.appends(4)
    assert living.found() == ["P6 fate"]


def test_a_client_whose_view_has_applied_what_has_the_id_of_the_record_is_made_anew_when_it_makes_a_log_object(
    cluster: Cluster,
) -> None:
    """The log does not end below its mark: nobody can tell it."""
    living = Living(cluster, applied=2)
    assert not living.node.held_down
    living.opens(fed=2)
    assert living.node.held_down
    assert living.found() == []
