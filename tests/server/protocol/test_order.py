"""The order of a partition: who is let in, under which id, and what the others are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polonaise.errors import BodyTooLarge, DataDamaged, InvariantViolated, TooManyLocks
from polonaise.log.batch import Batch
from polonaise.server.protocol import order as order_room
from polonaise.server.protocol.order import check_bodies
from polonaise.terms import FailureReason
from polonaise.wire.appends import ReceivedAppends
from rigs.order import (
    ABSENT,
    APPEND,
    CLIENT,
    DELETE,
    EQUALS,
    POSITION,
    PRESENT,
    READ,
    SET,
    WRITE,
    A,
    B,
    C,
    Log,
    Tx,
    conflict,
    frame,
    logged_order_of,
    order_of,
    position,
    refused,
)

# ------------------------------------------------------------------ singles, batches


def test_the_commit_time_never_goes_back_even_if_the_clock_does() -> None:
    order = order_of(commit_time_us=500)
    log, times = Log.after(order), []
    for wall_us in (400, 600, 550, 601):
        refused(order, Tx())
        times.append(log.seal(wall_us).commit_time_us)
    assert times == [500, 600, 600, 601]


def test_an_empty_batch_is_never_sealed() -> None:
    with pytest.raises(InvariantViolated):
        order_of().seal(1)


@pytest.mark.parametrize("mark", [10, 11, 2**63 - 1, -2, -(2**63)])
def test_a_mark_that_nobody_can_have_is_refused_alone(mark: int) -> None:
    order = order_of(closing=9)
    (told,) = refused(order, Tx(b"fine", mark=9), Tx(mark=mark), Tx(b"fine, too"))
    assert told == (1, FailureReason.MARK_BEYOND_LOG, 9, -1)
    assert [tx.data for tx in Batch.parse(order.seal(1).raw).transactions()] == [b"fine", b"fine, too"]


def test_a_mark_of_what_is_ordered_and_not_committed_is_one_that_nobody_can_have() -> None:
    order = order_of(closing=9)
    assert refused(order, Tx()) == []
    (refusal,) = order.judge(CLIENT, frame(Tx(mark=10)), committed=9)
    assert refusal.reason is FailureReason.MARK_BEYOND_LOG


# ------------------------------------------------------------------ locks


@pytest.mark.parametrize(
    ("first", "then", "passes"),
    [
        pytest.param(READ, READ, True, id="readers do not disturb each other"),
        pytest.param(READ, WRITE, True, id="a reader does not disturb a writer"),
        pytest.param(READ, APPEND, True, id="a reader does not disturb an appender"),
        pytest.param(WRITE, READ, False, id="who read what was written since is stale"),
        pytest.param(WRITE, WRITE, False, id="the second of two writers is stale"),
        pytest.param(WRITE, APPEND, True, id="an appender has looked at nothing"),
        pytest.param(APPEND, READ, False, id="who read what was appended to since is stale"),
        pytest.param(APPEND, WRITE, False, id="who wrote after an append it had not seen is stale"),
        pytest.param(APPEND, APPEND, True, id="appenders do not disturb each other"),
    ],
)
def test_locks_by_mode(first: int, then: int, passes: bool) -> None:
    order = order_of(closing=3)
    assert refused(order, Tx(mark=3, locks=[(A, first)])) == []
    assert refused(order, Tx(mark=3, locks=[(A, then)])) == ([] if passes else [conflict(0, 4)])
    assert refused(order, Tx(mark=order.next_id - 1, locks=[(A, then)])) == []  # who has seen it all always passes
    assert refused(order, Tx(mark=3, locks=[(B, then)])) == []  # and another lock was never touched


def test_many_locks_conflict_at_the_highest_of_them() -> None:
    order = order_of()
    refused(order, Tx(locks=[(A, WRITE)]), Tx(locks=[(B, WRITE)]))
    assert refused(order, Tx(locks=[(A, WRITE), (B, READ), (C, WRITE)])) == [conflict(0, 1)]
    assert refused(order, Tx(locks=[(C, WRITE)])) == []  # the refused one has raised nothing


def test_within_one_frame_the_first_writer_wins_and_ids_stay_dense() -> None:
    order, log = logged_order_of(closing=0)
    told = refused(
        order,
        Tx(b"one", mark=0, locks=[(A, WRITE)]),
        Tx(b"stale", mark=0, locks=[(A, WRITE)]),
        Tx(b"free", mark=0),
        Tx(b"two", mark=0, locks=[(B, WRITE), (C, APPEND)]),
        Tx(b"stale too", mark=0, locks=[(C, READ)]),
    )
    assert told == [conflict(1, 1), conflict(4, 3)]
    log.seal()
    assert log.bodies == [b"one", b"free", b"two"]


def test_nothing_passes_a_lock_at_a_mark_below_the_start_of_the_session() -> None:
    order = order_of(closing=20)
    assert refused(order, Tx(mark=19, locks=[(A, WRITE)])) == [conflict(0, 20)]
    assert refused(order, Tx(mark=20, locks=[(A, WRITE)])) == []


@pytest.mark.parametrize("grouped", [False, True])
def test_evidence_tells_what_each_transaction_was_judged_by(grouped: bool) -> None:
    order, log = logged_order_of(closing=5, evidence=True)
    refused(order, Tx(mark=5, locks=[(A, WRITE), (B, READ)]), Tx(mark=4))
    stale = Tx(mark=5, locks=[(A, WRITE)])
    free = Tx(mark=2, locks=[(C, APPEND)], operations=[(SET, b"k", b"v")] if grouped else ())
    assert refused(order, stale, free, Tx(mark=5)) == [conflict(0, 6)]
    evidence = log.seal().evidence()
    assert evidence is not None
    assert evidence.client_high_water_marks.tolist() == [5, 4, 2, 5]
    assert [evidence.locks(position) for position in range(4)] == [[(A, WRITE), (B, READ)], [], [(C, APPEND)], []]


# ------------------------------------------------------------------ groups


def test_a_group_is_ordered_whole_or_not_at_all() -> None:
    order, log = logged_order_of()
    refused(order, Tx(b"before", locks=[(A, WRITE)]))
    told = refused(
        order,
        Tx(b"x1", mark=0, locks=[(B, WRITE)], ends_group=False),
        Tx(b"x2", mark=-1, locks=[(A, WRITE)]),
        Tx(b"y1", mark=0, ends_group=False),
        Tx(b"y2", mark=0, locks=[(A, READ), (B, WRITE)]),
        first_sequence=10,
    )
    assert told == [conflict(10, 0), conflict(11, 0)]
    log.seal()
    assert log.bodies == [b"before", b"y1", b"y2"]


def test_the_oldest_mark_of_a_group_counts_for_all_its_locks() -> None:
    order = order_of()
    refused(order, Tx(locks=[(A, WRITE)]))
    assert refused(order, Tx(mark=0, locks=[(A, WRITE)], ends_group=False), Tx(mark=-1)) == [
        conflict(0, 0),
        conflict(1, 0),
    ]


def test_locks_of_a_group_are_raised_to_the_ids_of_the_transactions_that_carry_them() -> None:
    order = order_of(closing=9)
    group = [
        Tx(mark=9, locks=[(A, WRITE)], ends_group=False),
        Tx(mark=9, locks=[(A, READ), (B, APPEND)], ends_group=False),
        Tx(mark=9),
    ]
    assert refused(order, *group) == []
    assert refused(order, Tx(mark=9, locks=[(A, READ)])) == [conflict(0, 10)]
    assert refused(order, Tx(mark=9, locks=[(B, READ)])) == [conflict(0, 11)]


def test_a_group_is_never_split_over_two_batches() -> None:
    order, log = logged_order_of()
    for turn in range(5):
        refused(order, *[Tx(b"%d" % turn, ends_group=False)] * 4)
        assert log.seal().count == 4


# ------------------------------------------------------------------ what is refused before it is judged


def test_a_body_that_changed_on_the_way_is_refused() -> None:
    appends = frame(Tx(b"as it was"))
    appends.data = memoryview(b"as it Was")
    with pytest.raises(DataDamaged):
        check_bodies(appends)


@pytest.mark.parametrize(
    ("appends", "refused"),
    [
        (lambda: frame(Tx(b"as it was", locks=[(n, WRITE) for n in range(1001)])), TooManyLocks),
        (lambda: frame(Tx(b"as it was"), Tx(bytes(101))), BodyTooLarge),
    ],
)
def test_what_lengths_tell_is_told_before_anything_is_summed(
    appends: Callable[[], ReceivedAppends], refused: type[Exception]
) -> None:
    damaged = appends()
    damaged.data = memoryview(bytes(len(damaged.data)))
    with pytest.raises(refused):
        check_bodies(damaged, 100)


def test_frames_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    check_bodies(frame(Tx(bytes(100))), 100)
    with pytest.raises(BodyTooLarge):
        check_bodies(frame(Tx(bytes(101))), 100)
    check_bodies(frame(Tx(locks=[(n, WRITE) for n in range(1000)])))
    with pytest.raises(TooManyLocks):
        check_bodies(frame(Tx(), Tx(locks=[(n, WRITE) for n in range(1001)])))
    monkeypatch.setattr(order_room, "FRAME_LOCKS_MAX", 5)
    check_bodies(frame(Tx(locks=[(n, WRITE) for n in range(5)])))
    with pytest.raises(TooManyLocks, match="6 locks in one frame"):
        check_bodies(frame(*[Tx(locks=[(n, WRITE), (n, READ)]) for n in range(3)]))
    monkeypatch.setattr(order_room, "FRAME_COUNT_MAX", 2)
    with pytest.raises(BodyTooLarge):
        check_bodies(frame(Tx(), Tx(), Tx()))
    monkeypatch.setattr(order_room, "FRAME_BYTES_MAX", 50)
    with pytest.raises(BodyTooLarge):
        check_bodies(frame(Tx(bytes(30))))


# ------------------------------------------------------------------ against a simple model


@dataclass
class Model:
    """The same rules in the plainest form: exact locks, one dictionary, no columns."""

    closing: int
    registers: dict[bytes, bytes]
    locks: dict[int, int] = field(default_factory=dict)
    log: list[tuple[bytes, int]] = field(default_factory=list)

    @property
    def next_id(self) -> int:
        return self.closing + 1 + len(self.log)

    def judge(self, transactions: list[Tx]) -> list[tuple[int, FailureReason]]:
        told: list[tuple[int, FailureReason]] = []
        group: list[tuple[int, Tx]] = []
        for number, tx in enumerate(transactions):
            group.append((number, tx))
            if tx.ends_group or number == len(transactions) - 1:
                reason = self._judge_group([tx for _, tx in group])
                if reason is not None:
                    told += [(position, reason) for position, _ in group]
                group = []
        return told

    def _judge_group(self, group: list[Tx]) -> FailureReason | None:
        mark = min(tx.mark for tx in group)
        for tx in group:
            for held, mode in tx.locks:
                if mode != APPEND and self.locks.get(held, self.closing) > mark:
                    return FailureReason.LOCK_CONFLICT
        changed = dict(self.registers)
        for tx in group:
            for kind, key, value in tx.operations:
                if (
                    (kind == EQUALS and self.registers.get(key) != value)
                    or (kind == ABSENT and key in self.registers)
                    or (kind == PRESENT and key not in self.registers)
                    or (kind == POSITION and value != position(self.next_id))
                ):
                    return FailureReason.EXPECTATION_FAILED
                if kind == SET:
                    changed[key] = value
                if kind == DELETE:
                    changed.pop(key, None)
        self.registers = changed
        for tx in group:
            for held, mode in tx.locks:
                if mode != READ:
                    self.locks[held] = self.next_id
            self.log.append((tx.data, tx.header))
        return None


keys = st.sampled_from([b"k", b"l"])
operations = st.one_of(
    st.tuples(st.sampled_from([EQUALS, SET]), keys, st.sampled_from([b"1", b"2"])),
    st.tuples(st.sampled_from([ABSENT, PRESENT, DELETE]), keys, st.just(b"")),
    st.tuples(st.just(POSITION), st.just(b""), st.integers(0, 12).map(position)),
)
transactions = st.builds(
    Tx,
    data=st.binary(max_size=3),
    mark=st.integers(-1, 40),
    header=st.integers(-3, 3),
    locks=st.lists(st.tuples(st.sampled_from([A, B, C]), st.sampled_from([READ, WRITE, APPEND])), max_size=3),
    operations=st.one_of(st.just([]), st.lists(operations, max_size=2)),
    ends_group=st.sampled_from([True, True, False]),
)
plain = transactions.map(lambda tx: Tx(tx.data, tx.mark, tx.header, tx.locks))
arrivals = st.lists(
    st.tuples(
        st.one_of(st.lists(plain, min_size=1, max_size=5), st.lists(transactions, min_size=1, max_size=5)),
        st.booleans(),
    ),
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=120)
@given(closing=st.integers(-1, 5), arrived=arrivals, evidence=st.booleans())
def test_the_order_is_that_of_a_simple_model(
    closing: int, arrived: list[tuple[list[Tx], bool]], evidence: bool
) -> None:
    order = order_of(closing=closing, held={b"k": b"1"}, evidence=evidence)
    model, log = Model(closing, {b"k": b"1"}), Log.after(order)
    for said, seals in arrived:
        said = [Tx(**{**vars(tx), "mark": min(tx.mark, order.next_id - 1)}) for tx in said]
        newest = order.next_id - 1
        told = order.judge(CLIENT, frame(*said), order.next_id - 1)
        assert [(r.sequence, r.reason) for r in told] == model.judge(said)
        assert all(r.rests_on < order.next_id for r in told)
        assert all(r.rests_on >= newest or r.reason is FailureReason.LOCK_CONFLICT for r in told)
        assert order.next_id == model.next_id
        if seals and order.forming_count:
            log.seal()
    if order.forming_count:
        log.seal()
    assert order.registers == model.registers
    assert [(tx.data, tx.header) for batch in log.batches for tx in batch.transactions()] == model.log


def test_refusals_name_the_client_that_asked() -> None:
    order = order_of()
    refused(order, Tx(locks=[(A, WRITE)]))
    told = order.judge(31, frame(Tx(locks=[(A, WRITE)])), order.next_id - 1)
    assert [refusal.client_id for refusal in told] == [31]
