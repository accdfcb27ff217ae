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
from polonaise_proving.record.observations import COUNT, MOVE, PRODUCED, History, Kind, Listing, ProvedAnswer, Try
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


class Made(NamedTuple):
    """Where an append of a `Case` is: its number among the tries and among the batches, and its first id."""

    number: int
    sheet: int
    id: int


class Case:
    """A history of one partition and the batches of its log, which fit until one of them is changed.

    Each append has a name. Ids and numbers follow from the order, so that another append may stand anywhere.
    """

    def __init__(self) -> None:
        self.history = history = History(1)
        history.listing_count_max = 2
        self.sheets: list[Sheet] = []
        self.made: dict[str, Made] = {}
        self.commit("plain", Kind.PLAIN, [b""])
        self.commit("group", Kind.GROUP, [b"a", b"b"])
        self.commit("move", Kind.MOVE, [MOVE.pack(1, 2, 30, 100, 100)], locks=[(11, WRITE), (12, WRITE)])
        self.commit("count", Kind.COUNT, [COUNT.pack(1, 1)], changes=[(b"counter", b"1")])
        self.commit("produced", Kind.PRODUCED, [PRODUCED.pack(1, 0)])
        self.commit("produced next", Kind.PRODUCED, [PRODUCED.pack(1, 1)])
        self.sheets.append(Sheet([Planned(b"", generation=~1)]))
        own = self.end
        self.commit("locked", Kind.LOCKED, [b""], locks=[(11, READ)])
        conflict = history.invoke("b", 0, Kind.LOCKED, [b""], 0)
        self.made["conflict"] = Made(conflict.number, -1, -1)
        conflict.mark = self.id("move") - 1
        history.failed(conflict, "lock conflict", self.id("move"))
        for transaction in self.log().transactions:
            if not transaction.own:
                history.saw("a", transaction)
        history.left_out[0][own] = "a"
        history.answered(self.answer(mark=self.end))
        history.answered(self.answer())
        history.note(self.listing([(b"counter", b"1")]))

    def commit(
        self,
        name: str,
        kind: Kind,
        rests: list[bytes],
        locks: Sequence[tuple[int, int]] = (),
        changes: Sequence[registers.Change] = (),
    ) -> None:
        """Have an append in the log. One with locks was built on all that is before it."""
        first = self.end + 1
        attempt = self.history.invoke("a", 0, kind, rests, 0)
        self.made[name] = Made(attempt.number, len(self.sheets), first)
        if locks:
            attempt.mark, attempt.locks = self.end, [list(locks)]
        self.history.committed(attempt, first)
        self.sheets.append(Sheet([Planned(body, first - 1, locks) for body in attempt.bodies], list(changes)))

    @property
    def end(self) -> int:
        """The last id of the log."""
        return sum(len(sheet.transactions) for sheet in self.sheets) - 1

    def id(self, of: str | int) -> int:
        """Return the first id of the append of that name; an id is itself."""
        return of if isinstance(of, int) else self.made[of].id

    def told(self, text: str) -> str:
        """Put ids and numbers into a text: `{count}` is the id of that append, `{try_count}` the number of its try."""
        numbers = {f"try_{name.replace(' ', '_')}": made.number for name, made in self.made.items()}
        ids = {name.replace(" ", "_"): made.id for name, made in self.made.items()}
        return text.format(**ids, **numbers, end=self.end, beyond=self.end + 1, before_move=self.id("move") - 1)

    def sheet(self, of: str) -> Sheet:
        return self.sheets[self.made[of].sheet]

    def try_of(self, of: str) -> Try:
        return self.history.tries[self.made[of].number]

    def answer(self, **fields: Any) -> ProvedAnswer:
        return ProvedAnswer("a", 0, self.id("count"), None, b"counter", b"1")._replace(**fields)

    def listing(self, listed: list[tuple[bytes, bytes]]) -> Listing:
        return Listing("a", 0, self.id("count"), b"", listed)

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

    def rewrite(self, of: str, data: bytes) -> None:
        """Change the body of a transaction, but for the beginning that names its try."""
        planned = self.sheet(of).transactions[-1]
        planned.data = planned.data[: len(planned.data) - len(data)] + data


def change(of: str, **fields: Any) -> Callable[[Case], None]:
    """Change fields of a batch of the log; `first` may be the name of an append."""

    def spoil(case: Case) -> None:
        ids = {"first": case.id(fields["first"])} if "first" in fields else {}
        case.sheets[case.made[of].sheet] = replace(case.sheet(of), **(fields | ids))

    return spoil


def attempt(of: str, **fields: Any) -> Callable[[Case], None]:
    """Change what is noted of a try. The name of an append stands for its id."""

    def spoil(case: Case) -> None:
        for name, value in fields.items():
            setattr(case.try_of(of), name, case.id(value) if isinstance(value, str) else value)

    return spoil


def see(beyond: int, **fields: Any) -> Callable[[Case], None]:
    """Note that a client was given this, under the first id or so many ids beyond the end."""

    def spoil(case: Case) -> None:
        seen = case.history.seen[0]
        seen[case.end + beyond if beyond else 0] = seen[0]._replace(**fields)

    return spoil


def rewrite(of: str, data: bytes) -> Callable[[Case], None]:
    """Change the body of a transaction."""
    return lambda case: case.rewrite(of, data)


def append(sheet: Sheet) -> Callable[[Case], None]:
    """Have one more batch in the log."""
    return lambda case: case.sheets.append(sheet)


def split_the_group(case: Case) -> None:
    one, two = case.sheet("group").transactions
    at = case.made["group"].sheet
    case.sheets[at : at + 1] = [Sheet([one]), Sheet([two])]


def answer(**fields: Any) -> Callable[[Case], None]:
    """Note another answer that a client was given."""
    return lambda case: case.history.noted(ProvedAnswer).append(case.answer(**fields))


def listing(*listed: tuple[bytes, bytes]) -> Callable[[Case], None]:
    return lambda case: case.history.noted(Listing).append(case.listing([*listed]))


WRONG: list[tuple[Judge, str, str, Callable[[Case], object]]] = [
    (partitions.no_dirty_read, "P4", "id {beyond} to be in the log", see(1)),
    (partitions.agreement, "P2", "was given to somebody", see(0, data=b"something else")),
    (partitions.durability, "P1", "nothing at {end}", lambda case: case.sheets.pop()),
    (partitions.durability, "P1", "try {try_produced} place 0", attempt("plain", id="produced")),
    (partitions.order, "P3", "a batch from {move}; seen: one from {count}", change("move", first="count")),
    (partitions.order, "P3", "commit_time_us never to decrease", change("count", time_us=1)),
    (partitions.order, "P3", "session never to decrease", change("count", session=0)),
    (partitions.order, "P3", "generation never to decrease", change("count", generation=0)),
    (partitions.order, "P2", "the batch from {move} to name its predecessor", change("move", previous_crc=1)),
    (partitions.serializability, "P5", "evidence in every batch", change("plain", evidence=False)),
    (
        partitions.serializability,
        "P5",
        "{locked} was built on state up to {before_move}, and {move} had raised its lock 0xb",
        lambda case: setattr(case.sheet("locked").transactions[0], "mark", case.id("move") - 1),
    ),
    (
        partitions.serializability,
        "P5",
        "try {try_move} ({move}) was built on balances 90 and 100",
        rewrite("move", MOVE.pack(1, 2, 30, 90, 100)),
    ),
    (
        partitions.serializability,
        "P5",
        "try {try_move} ({move}) takes 101 from an account with 100",
        rewrite("move", MOVE.pack(1, 2, 101, 100, 100)),
    ),
    (partitions.fates, "P10", "only what a client has asked for", append(Sheet([Planned(b"foreign")]))),
    (partitions.fates, "P6", "told failed; seen: it is in the log as [{plain}]", attempt("plain", fate=Fate.FAILED)),
    (
        partitions.fates,
        "P6",
        "told given up; seen: it is in the log as [{plain}]",
        attempt("plain", fate=Fate.GIVEN_UP),
    ),
    (
        partitions.fates,
        "P6",
        "told committed as {locked}; seen: it is in the log as [{plain}]",
        attempt("plain", id="locked"),
    ),
    (partitions.fates, "P6", "1 transactions, once", lambda case: case.sheets.append(case.sheet("plain"))),
    (partitions.fates, "P9", "2 transactions, once", lambda case: case.sheet("group").transactions.pop()),
    (partitions.fates, "P9", "a group in one batch", split_the_group),
    (checkers.left_out_is_own, "P3", "a was not given it", lambda case: case.history.left_out[0].__setitem__(0, "a")),
    (
        checkers.floors,
        "P3",
        "{move} was known before try {try_plain} was made; seen: it got {plain}",
        attempt("plain", floor="move"),
    ),
    (checkers.evidence, "P5", "locks [(11, 0)] at {locked}", attempt("locked", mark="produced")),
    (checkers.evidence, "P5", "mark {before_move} and locks [(11, ", attempt("move", locks=[[(11, WRITE)]])),
    (checkers.counters, "P5", "number 1 of counter 1 next; seen: 2 at {count}", rewrite("count", COUNT.pack(1, 2))),
    (checkers.answers, "P4", "a was answered at {beyond}", lambda case: answer(mark=case.end + 1)(case)),
    (checkers.answers, "P2", "a was told b'2'", answer(value=b"2")),
    (checkers.answers, "P2", "a was told None", answer(value=None)),
    (checkers.listings, "P2", "a was told [(b'counter', b'2')]", listing((b"counter", b"2"))),
    (checkers.listings, "P2", "a was told []", listing()),
    (checkers.written, "P10", "other bytes at ", rewrite("group", b"c")),
    (
        checkers.written,
        "P6",
        "at the demanded position {count}; seen: it got {plain}",
        attempt("plain", position="count"),
    ),
    (checkers.reasons, "P6", "resting on 999", attempt("conflict", rests_on=999)),
    (checkers.reasons, "P6", "above {before_move}; seen: ", attempt("conflict", rests_on="group")),
    (
        checkers.producers,
        "P6",
        "number 1 of producer 1 next; seen: 3 at {produced_next}",
        rewrite("produced next", PRODUCED.pack(1, 3)),
    ),
    (
        checkers.producers,
        "P6",
        "number 0 of producer 1 next; seen: 1 at {produced}",
        rewrite("produced", PRODUCED.pack(1, 1)),
    ),
]


def test_a_log_and_a_history_that_fit_are_not_accused() -> None:
    case = Case()
    assert check([case.log()], case.history) == []


@pytest.mark.parametrize(
    ("judge", "promise", "naming", "spoil"), WRONG, ids=[f"{each[0].__name__}-{each[2][:50]}" for each in WRONG]
)
def test_a_planted_wrong_is_found(judge: Judge, promise: str, naming: str, spoil: Callable[[Case], object]) -> None:
    case = Case()
    naming = case.told(naming)
    spoil(case)
    log = case.log()
    looked_at = [ScheduleRecord(log, case.history)] if judge in JUDGES_OF_PARTITIONS else [log, case.history]
    assert any(each.promise.split()[0] == promise and naming in str(each) for each in judge(*looked_at))
    assert any(naming in str(each) for each in check([log], case.history))


@pytest.mark.parametrize("of", ["move", "count", "produced"])
def test_a_body_that_is_cut_short_is_damage_and_no_judge_stumbles_over_it(of: str) -> None:
    case = Case()
    planned = case.sheet(of).transactions[0]
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
    forgotten, _ = (history.invoke(client, 0, Kind.PLAIN, [b""], 0) for client in ("a", "another"))
    assert [str(each) for each in moments.fates_told("a", history.tries)] == [
        f"P6 fate: expected the fate of {forgotten} to be noted, as its client is done; "
        "seen: its fate was never told, or the step that made it has not noted it"
    ]
    history.unknown(forgotten, "its application died")
    assert list(moments.fates_told("a", history.tries)) == []


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
        ({"batches": []}, "P1 durability: expected partition 0 up to {end}; seen: a ends at -1"),
    ],
    ids=["whole", "torn", "empty"],
)
def test_a_replica_that_was_never_damaged_has_all_and_one_that_was_may_lack_it(
    spoil: dict[str, Any], found: str
) -> None:
    case = Case()
    held = [replica(case, **spoil)]
    assert [str(each) for each in check_replicas(case.log(), held, set())] == ([case.told(found)] if found else [])
    assert list(check_replicas(case.log(), held, {"a"})) == []


@pytest.mark.parametrize("spoilt", [set(), {"a"}], ids=["sound", "damaged"])
def test_a_replica_holds_nothing_else_than_the_log(spoilt: set[str]) -> None:
    case, other = Case(), Case()
    other.rewrite("group", b"c")
    found = [each.promise for each in check_replicas(case.log(), [replica(other)], spoilt)]
    assert set(found) == {"P2 agreement"}
