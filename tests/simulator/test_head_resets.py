"""What the simulator's history and checkers say of logs whose heads were reset."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polonaise.admin.headresets import HeadOutcome
from polonaise.coordination.values import HeadReset
from polonaise.log.batch import Batch, Columns, seal
from polonaise.simulator.checkers import check
from polonaise.simulator.cluster import Cluster
from polonaise.simulator.diskaudit import FinalLog
from polonaise.simulator.headresetcheck import CarriedOut, HeadResetCheck
from polonaise.simulator.observations import Fate, History, Kind, Try
from polonaise.terms import OwnKind, TransactionId
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


def found(cluster: Cluster, before: FinalLog, after: FinalLog, *resets: HeadReset) -> list[str]:
    checked = HeadResetCheck(cluster, History(1))
    checked.carried_out[0] = [CarriedOut(reset, reset.to, before) for reset in resets]
    return [violation.promise for violation in checked.check([after])]


BEFORE = log((1, b"0", False), (1, b"1", False), (1, b"2", False), (1, b"3", False))


def record(**changed: Any) -> tuple[int, bytes, bool]:
    return 5, json.dumps({**RECORD, **changed}).encode(), True


def test_a_log_that_tells_of_its_reset_and_kept_what_it_kept_is_right(cluster: Cluster) -> None:
    after = log(record(), (5, b"4", False), after=BEFORE, up_to=1)
    assert found(cluster, BEFORE, after, RESET) == []


@pytest.mark.parametrize(
    ("after", "promise"),
    [
        (log(record(), after=log((1, b"0", False), (1, b"other", False)), up_to=1), "P1 durability"),
        (log((5, b"4", False), after=BEFORE, up_to=1), "P13 fail-safe"),
        (log(record(to=0), after=BEFORE, up_to=1), "P13 fail-safe"),
        (log(record(), record(), after=BEFORE, up_to=1), "P13 fail-safe"),
        (log(record(), (1, b"3", False), after=BEFORE, up_to=1), "P4 no dirty read"),
    ],
    ids=["another log is kept", "no record", "a wrong record", "two records", "an older session above the reset"],
)
def test_what_a_reset_must_not_do_is_found(cluster: Cluster, after: FinalLog, promise: str) -> None:
    assert found(cluster, BEFORE, after, RESET) == [promise]


def test_a_later_reset_has_to_tell_of_the_one_whose_record_it_gives_up(cluster: Cluster) -> None:
    later = HeadReset(0, "A", 4, 8, 9, 0)
    told = {"to": 0, "given_up": [1, 4], "source": "A", "session": 9, "asked_us": 8}
    earlier = [{key: RECORD[key] for key in ("to", "given_up", "source", "session", "asked_us")}]
    silent, telling = [
        log((9, json.dumps({**told, "earlier": each}).encode(), True), after=BEFORE, up_to=0) for each in ([], earlier)
    ]
    assert found(cluster, BEFORE, telling, RESET, later) == []
    assert found(cluster, BEFORE, silent, RESET, later) == ["P13 fail-safe"]


def test_an_operator_has_to_be_told_what_became_of_its_own_decision(cluster: Cluster) -> None:
    history = History(1)
    checked = HeadResetCheck(cluster, history)
    checked.carried_out[0] = [CarriedOut(RESET, 1, BEFORE)]
    checked.told(0, RESET, 0, HeadOutcome(True, 2))
    assert history.violations == []
    checked.told(0, HeadReset(0, "A", 3, 7), 0, HeadOutcome(True, 2))
    checked.told(0, RESET, 0, HeadOutcome(False, 2))
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


def test_a_copy_in_doubt_leaves_open_what_became_of_appends_that_it_may_hold(cluster: Cluster) -> None:
    history = History(1)
    sure, open_ = committed(history, 0), committed(history, 1)
    failed = history.invoke("client-0", 0, Kind.PLAIN, [b""], 0)
    history.failed(failed, "too late")
    history.head_reset(0, 2, 0, [], {failed.number})
    assert (sure.fate, open_.fate, failed.fate) == (Fate.COMMITTED, Fate.UNKNOWN, Fate.UNKNOWN)


def test_what_was_given_up_is_fed_to_nobody_but_by_messages_that_were_under_way() -> None:
    history = History(1)
    gone = BEFORE.transactions[3]
    history.head_reset(0, 1, 1, BEFORE.transactions[2:], ())
    history.lingering.add(0)
    history.saw("client-0", gone)
    assert (history.violations, history.told) == ([], [-1])
    history.lingering.clear()
    history.saw("client-0", gone)
    assert [each.promise for each in history.violations] == ["P4 no dirty read"]
