"""Each judge of a schedule can fail: it finds a wrong that is planted in a log and a history that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest

from polonaise.log import registers
from polonaise.log.batch import Batch, Columns, seal
from polonaise.terms import LockMode, OwnKind
from polonaise_proving.judges import checkers, moments, partitions
from polonaise_proving.judges.checkers import CHECKERS, check, check_replicas
from polonaise_proving.judges.partitions import JUDGES_OF_PARTITIONS
from polonaise_proving.record.diskaudit import DiskReplica, FinalLog
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.observations import COUNT, MOVE, PRODUCED, History, Kind, Listing, ProvedAnswer
from polonaise_proving.record.partitionrecord import Fate
from polonaise_proving.record.schedulerecord import ScheduleRecord

Judge = Callable[..., Iterator[Violation]]
WRITE, READ = int(LockMode.WRITE), int(LockMode.READ)


@dataclass
class Planned:
    """A transaction of a batch that is to be made."""

    data: bytes
    mark: int = -1
    locks: Sequence[tuple[int, int]] = ()
    generation: int = 1


@dataclass
class Sheet:
    """A batch that is to be made; what is None follows from the batches before it."""

    transactions: list[Planned]
    changes: list[registers.Change] = field(default_factory=list)
    first: int | None = None
    time_us: int | None = None
    session: int = 1
    generation: int = 1
    previous_crc: int | None = None
    evidence: bool = True


class Case:
    """A history of one partition and the batches of its log, which fit until one of them is changed."""

    def __init__(self) -> None:
        self.history = history = History(1)
        history.listing_count_max = 2
        self.sheets: list[Sheet] = []
        plain = self.commit(Kind.PLAIN, [b""], 0)
        assert plain.number == 0
        self.commit(Kind.GROUP, [b"a", b"b"], 1)
        self.commit(Kind.MOVE, [MOVE.pack(1, 2, 30, 100, 100)], 3, mark=2, locks=[(11, WRITE), (12, WRITE)])
        self.commit(Kind.COUNT, [COUNT.pack(1, 1)], 4, changes=[(b"counter", b"1")])
        self.commit(Kind.PRODUCED, [PRODUCED.pack(1, 0)], 5)
        self.commit(Kind.PRODUCED, [PRODUCED.pack(1, 1)], 6)
        self.sheets.append(Sheet([Planned(b"", generation=~1)]))
        self.commit(Kind.LOCKED, [b""], 8, mark=7, locks=[(11, READ)])
        conflict = history.invoke("b", 0, Kind.LOCKED, [b""], 0)
        conflict.mark = 2
        history.failed(conflict, "lock conflict", 3)
        for transaction in self.log().transactions:
            if not transaction.own:
                history.saw("a", transaction)
        history.left_out[0][7] = "a"
        history.answered(ProvedAnswer("a", 0, 5, 8))
        history.answered(ProvedAnswer("a", 0, 5, None, b"counter", b"1"))
        history.note(Listing("a", 0, 5, b"", [(b"counter", b"1")]))

    def commit(
        self,
        kind: Kind,
        rests: list[bytes],
        first: int,
        mark: int | None = None,
        locks: Sequence[tuple[int, int]] = (),
        changes: Sequence[registers.Change] = (),
    ) -> Any:
        attempt = self.history.invoke("a", 0, kind, rests, 0)
        attempt.mark = mark
        attempt.locks = [list(locks)] if locks else []
        self.history.committed(attempt, first)
        known = first - 1 if mark is None else mark
        self.sheets.append(Sheet([Planned(body, known, locks) for body in attempt.bodies], list(changes)))
        return attempt

    def log(self) -> FinalLog:
        batches: list[Batch] = []
        crc = following = 0
        for sheet in self.sheets:
            columns = Columns()
            for place, each in enumerate(sheet.transactions):
                columns.add(
                    7, each.generation, following + place, OwnKind.PRODUCER, each.data,
                    client_high_water_mark=each.mark, locks=each.locks,
                )  # fmt: skip
            raw = seal(
                columns,
                partition=0,
                first=following if sheet.first is None else sheet.first,
                session=sheet.session,
                generation=sheet.generation,
                commit_time_us=1_000 + following if sheet.time_us is None else sheet.time_us,
                previous_crc=crc if sheet.previous_crc is None else sheet.previous_crc,
                registers=registers.encode(sheet.changes),
                evidence=sheet.evidence,
            )
            batches.append(Batch.parse(raw))
            following, crc = following + len(sheet.transactions), batches[-1].crc
        return FinalLog(0, batches)

    def rewrite(self, transaction: int, data: bytes) -> None:
        """Change the body of a transaction, but for the beginning that names its try."""
        planned = [each for sheet in self.sheets for each in sheet.transactions][transaction]
        planned.data = planned.data[: len(planned.data) - len(data)] + data


def change(of: int, **fields: Any) -> Callable[[Case], None]:
    """Change fields of a batch of the log."""
    return lambda case: case.sheets.__setitem__(of, replace(case.sheets[of], **fields))


def attempt(number: int, **fields: Any) -> Callable[[Case], None]:
    """Change what is noted of a try."""

    def spoil(case: Case) -> None:
        for name, value in fields.items():
            setattr(case.history.tries[number], name, value)

    return spoil


def see(id: int, **fields: Any) -> Callable[[Case], None]:
    """Note that a client was given this under an id."""
    return lambda case: case.history.seen[0].__setitem__(id, case.history.seen[0][0]._replace(**fields))


def rewrite(transaction: int, data: bytes) -> Callable[[Case], None]:
    """Change the body of a transaction."""
    return lambda case: case.rewrite(transaction, data)


def append(sheet: Sheet) -> Callable[[Case], None]:
    """Have one more batch in the log."""
    return lambda case: case.sheets.append(sheet)


def split_the_group(case: Case) -> None:
    one, two = case.sheets[1].transactions
    case.sheets[1:2] = [Sheet([one]), Sheet([two])]


def answer(**fields: Any) -> Callable[[Case], None]:
    """Note another answer that a client was given."""
    told = ProvedAnswer("a", 0, 5, None, b"counter", b"1")._replace(**fields)
    return lambda case: case.history.noted(ProvedAnswer).append(told)


def listing(*listed: tuple[bytes, bytes], floor: int = 5) -> Callable[[Case], None]:
    return lambda case: case.history.noted(Listing).append(Listing("a", 0, floor, b"", [*listed]))


WRONG: list[tuple[Judge, str, str, Callable[[Case], object]]] = [
    (partitions.no_dirty_read, "P4", "id 9 to be in the log", see(9)),
    (partitions.agreement, "P2", "was given to somebody", see(0, data=b"something else")),
    (partitions.durability, "P1", "nothing at 8", lambda case: case.sheets.pop()),
    (partitions.durability, "P1", "try 4 place 0", attempt(0, id=5)),
    (partitions.order, "P3", "a batch from 3; seen: one from 4", change(2, first=4)),
    (partitions.order, "P3", "commit_time_us never to decrease", change(3, time_us=1)),
    (partitions.order, "P3", "session never to decrease", change(3, session=0)),
    (partitions.order, "P3", "generation never to decrease", change(3, generation=0)),
    (partitions.order, "P2", "the batch from 3 to name its predecessor", change(2, previous_crc=1)),
    (partitions.serializability, "P5", "evidence in every batch", change(0, evidence=False)),
    (
        partitions.serializability,
        "P5",
        "8 was built on state up to 2, and 3 had raised its lock 0xb",
        lambda case: setattr(case.sheets[-1].transactions[0], "mark", 2),
    ),
    (
        partitions.serializability,
        "P5",
        "try 2 (3) was built on balances 90 and 100",
        rewrite(3, MOVE.pack(1, 2, 30, 90, 100)),
    ),
    (
        partitions.serializability,
        "P5",
        "try 2 (3) takes 101 from an account with 100",
        rewrite(3, MOVE.pack(1, 2, 101, 100, 100)),
    ),
    (partitions.fates, "P10", "only what a client has asked for", append(Sheet([Planned(b"foreign")]))),
    (partitions.fates, "P6", "told failed; seen: it is in the log as [0]", attempt(0, fate=Fate.FAILED)),
    (partitions.fates, "P6", "told given up; seen: it is in the log as [0]", attempt(0, fate=Fate.GIVEN_UP)),
    (partitions.fates, "P6", "told committed as 8; seen: it is in the log as [0]", attempt(0, id=8)),
    (partitions.fates, "P6", "1 transactions, once", lambda case: case.sheets.append(case.sheets[0])),
    (partitions.fates, "P9", "2 transactions, once", lambda case: case.sheets[1].transactions.pop()),
    (partitions.fates, "P9", "a group in one batch", split_the_group),
    (checkers.left_out_is_own, "P3", "a was not given it", lambda case: case.history.left_out[0].__setitem__(0, "a")),
    (checkers.floors, "P3", "3 was known before try 0 was made; seen: it got 0", attempt(0, floor=3)),
    (checkers.evidence, "P5", "mark 7 and locks [(11, 0)] at 8", attempt(6, mark=6)),
    (checkers.evidence, "P5", "mark 2 and locks [(11, ", attempt(2, locks=[[(11, WRITE)]])),
    (checkers.counters, "P5", "number 1 of counter 1 next; seen: 2 at 4", rewrite(4, COUNT.pack(1, 2))),
    (checkers.answers, "P4", "a was answered at 9", answer(mark=9)),
    (checkers.answers, "P2", "a was told b'2'", answer(value=b"2")),
    (checkers.answers, "P2", "a was told None", answer(value=None)),
    (checkers.listings, "P2", "a was told [(b'counter', b'2')]", listing((b"counter", b"2"))),
    (checkers.listings, "P2", "a was told []", listing()),
    (checkers.written, "P10", "other bytes at 2", rewrite(2, b"c")),
    (checkers.written, "P6", "at the demanded position 4; seen: it got 0", attempt(0, position=4)),
    (checkers.reasons, "P6", "resting on 9", attempt(7, rests_on=9)),
    (checkers.reasons, "P6", "above 2; seen: ", attempt(7, rests_on=2)),
    (checkers.producers, "P6", "number 1 of producer 1 next; seen: 3 at 6", rewrite(6, PRODUCED.pack(1, 3))),
    (checkers.producers, "P6", "number 0 of producer 1 next; seen: 1 at 5", rewrite(5, PRODUCED.pack(1, 1))),
]  # fmt: skip


def test_a_log_and_a_history_that_fit_are_not_accused() -> None:
    case = Case()
    assert check([case.log()], case.history) == []


@pytest.mark.parametrize(
    ("judge", "promise", "naming", "spoil"), WRONG, ids=[f"{each[0].__name__}-{each[2][:50]}" for each in WRONG]
)
def test_a_planted_wrong_is_found(judge: Judge, promise: str, naming: str, spoil: Callable[[Case], object]) -> None:
    case = Case()
    spoil(case)
    log = case.log()
    looked_at = [ScheduleRecord(log, case.history)] if judge in JUDGES_OF_PARTITIONS else [log, case.history]
    assert any(each.promise.split()[0] == promise and naming in str(each) for each in judge(*looked_at))
    assert any(naming in str(each) for each in check([log], case.history))


@pytest.mark.parametrize("transaction", [3, 4, 5], ids=["a transfer", "a count", "a producer's number"])
def test_a_body_that_is_cut_short_is_damage_and_no_judge_stumbles_over_it(transaction: int) -> None:
    case = Case()
    planned = [each for sheet in case.sheets for each in sheet.transactions][transaction]
    planned.data = planned.data[:9]
    assert "P10 corruption" in {each.promise for each in check([case.log()], case.history)}


class Counted(NamedTuple):
    """What a client was told, of a class of its own, as new work may have one."""

    partition: int
    value: int


def test_whatever_clients_were_told_of_a_partition_is_forgotten_with_a_reset_of_its_head() -> None:
    history = History(2)
    history.lingering = {1}
    for partition in (0, 1):
        history.note(Counted(partition, 1))
    assert history.noted(Counted) == [Counted(0, 1)], "of the other messages of both logs may be on their way"
    history.lingering = set()
    history.note(Counted(1, 2))
    history.head_reset(0, 3, 3, [], ())
    assert history.noted(Counted) == [Counted(1, 2)]


def test_an_append_of_which_nothing_was_noted_by_the_end_is_found() -> None:
    """What a step forgets to note would never be judged."""
    history = History(1)
    forgotten, kept = (history.invoke("a", 0, Kind.PLAIN, [b""], 0) for _ in range(2))
    assert [str(each) for each in moments.fates_told(history.tries, [kept])] == [
        f"P6 fate: expected the fate of {forgotten} to be told, as all is settled; seen: nothing was noted"
    ]
    history.unknown(forgotten, "its application died")
    assert list(moments.fates_told(history.tries, [kept])) == []


def test_every_judge_has_a_wrong_that_it_finds() -> None:
    """Without one, a new judge may be one that can't fail."""
    assert {judge for judge, _, _, _ in WRONG} == {*JUDGES_OF_PARTITIONS, *CHECKERS}


def replica(case: Case, **fields: Any) -> DiskReplica:
    return replace(DiskReplica("a", case.log().batches), **fields)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        ({}, ""),
        ({"bad": "torn"}, "P10 corruption: expected a, which was never damaged, to read; seen: torn"),
        ({"batches": []}, "P1 durability: expected partition 0 up to 8; seen: a ends at -1"),
    ],
    ids=["whole", "torn", "empty"],
)
def test_a_replica_that_was_never_damaged_has_all_and_one_that_was_may_lack_it(
    spoil: dict[str, Any], found: str
) -> None:
    case = Case()
    held = [replica(case, **spoil)]
    assert [str(each) for each in check_replicas(case.log(), held, set())] == ([found] if found else [])
    assert list(check_replicas(case.log(), held, {"a"})) == []


@pytest.mark.parametrize("spoilt", [set(), {"a"}], ids=["sound", "damaged"])
def test_a_replica_holds_nothing_else_than_the_log(spoilt: set[str]) -> None:
    case, other = Case(), Case()
    other.rewrite(2, b"c")
    found = [each.promise for each in check_replicas(case.log(), [replica(other)], spoilt)]
    assert set(found) == {"P2 agreement"}
