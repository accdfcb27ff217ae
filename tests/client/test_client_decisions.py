"""The client's other decisions: continuity, mounts, frames, drafts, locks, what to try again."""

from __future__ import annotations

from decimal import Decimal
from enum import IntEnum
from itertools import accumulate, count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.client.batchreader import Ahead
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.draft import (
    Change,
    Draft,
    Expectation,
    Limits,
    append_own,
    built,
    finish,
    joined,
    operations,
)
from polonaise.client.protocol.locks import Lock
from polonaise.client.protocol.outcomes import Again, error_of, next_step
from polonaise.client.protocol.outstanding import AppendFailure, Outgoing, Outstanding, Pending, Unordered, frames
from polonaise.client.protocol.subscription import Continuity, MountVerdict, Subscription
from polonaise.errors import AppendUnknown, BadOption, BodyTooLarge, Closed, LogForked, OutOfOrder, TooManyLocks
from polonaise.terms import FailureReason, LockMode, MountState, OwnKind
from rigs.fakeserver import FakeLog

# ------------------------------------------------------------------ reading ahead

ANSWER = 134
"""Bytes, of which a part is to fill three quarters: 100."""


def test_a_range_is_asked_for_in_parts_of_about_one_answer_without_gaps() -> None:
    ahead = Ahead(10, 35, answer_bytes=ANSWER, ids=5, size=50)
    assert [ahead.next_part(10) for _ in range(4)] == [(10, 19), (20, 29), (30, 35), None]


def test_what_answers_have_brought_already_is_not_asked_for_again() -> None:
    """They hold whole batches, which may reach far beyond what was asked for."""
    ahead = Ahead(10, 60, answer_bytes=ANSWER, ids=5, size=50)
    assert ahead.next_part(10) == (10, 19)
    assert ahead.next_part(34) == (34, 43)
    assert ahead.next_part(34) == (44, 53)
    assert ahead.next_part(61) is None
    assert ahead.next_part(54) == (54, 60)


@pytest.mark.parametrize(
    ("ids", "size", "whole", "expected"),
    [
        (20, 100, True, (20, 39)),
        (1, 400, True, (20, 20)),
        (20, 1, True, (20, 59)),
        (3, 100, False, (20, 22)),
        (30, 100, False, (20, 29)),
    ],
    ids=["as large as thought", "larger than an answer", "small ones: twice as many", "fewer", "never more"],
)
def test_how_much_is_asked_for_follows_what_answers_brought(
    ids: int, size: int, whole: bool, expected: tuple[int, int]
) -> None:
    ahead = Ahead(10, 1_000, answer_bytes=ANSWER, ids=5, size=50)
    assert ahead.next_part(10) == (10, 19)
    ahead.answered(ids, size, whole=whole)
    assert ahead.next_part(20) == expected


# ------------------------------------------------------------------ continuity


def a_log(*sizes: int, body: bytes = b"x") -> FakeLog:
    log = FakeLog(0)
    for size in sizes:
        log.fill(*[body] * size)
    return log


def test_batches_in_order_bring_something_and_repeated_ones_do_not() -> None:
    log = a_log(2, 3, 1)
    continuity = Continuity(0)
    assert [continuity.follows(batch) for batch in [*log.batches, *log.batches[1:]]] == [True, True, True, False, False]
    assert continuity.next_id == 6


def test_a_feed_may_begin_within_a_batch() -> None:
    continuity = Continuity(4)
    assert [continuity.follows(batch) for batch in a_log(2, 3, 1).batches] == [False, True, True]


def test_a_gap_is_out_of_order() -> None:
    log = a_log(2, 3, 1)
    continuity = Continuity(0)
    continuity.follows(log.batches[0])
    with pytest.raises(OutOfOrder):
        continuity.follows(log.batches[2])


def test_a_batch_whose_predecessor_was_another_one_is_a_fork() -> None:
    continuity = Continuity(0)
    continuity.follows(a_log(2).batches[0])
    with pytest.raises(LogForked):
        continuity.follows(a_log(2, 3, body=b"y").batches[1])


def test_the_last_batch_fed_again_with_other_bytes_is_a_fork() -> None:
    continuity = Continuity(0)
    continuity.follows(a_log(2).batches[0])
    with pytest.raises(LogForked):
        continuity.follows(a_log(2, body=b"y").batches[0])


# ------------------------------------------------------------------ mounts


@pytest.mark.parametrize(
    ("state", "generation", "mark", "verdict"),
    [
        (MountState.READY, 3, 4, MountVerdict.READY),
        (MountState.READY, 5, 4, MountVerdict.READY),
        (MountState.READY, 3, 2, MountVerdict.READY),
        (MountState.READY, 2, 4, MountVerdict.OLD_GENERATION),
        (MountState.NOT_READY, 2, -1, MountVerdict.OLD_GENERATION),
        (MountState.READY, 3, 9, MountVerdict.INCOMPLETE),
        (MountState.READY, 3, 0, MountVerdict.CLIENT_AHEAD),
        (MountState.NOT_READY, 3, -1, MountVerdict.ASK_AGAIN),
        (MountState.CLIENT_AHEAD, 3, 0, MountVerdict.CLIENT_AHEAD),
    ],
)
def test_what_an_answer_to_a_mount_means(state: MountState, generation: int, mark: int, verdict: MountVerdict) -> None:
    """Generation 3 is known; mounted at 1, and fed up to 4."""
    subscription = Subscription(1)
    subscription.generation_known = 3
    subscription.mount()
    for batch in a_log(2, 3).batches:
        subscription.fed(batch)
    assert subscription.mounted(state, generation, mark) is verdict
    assert subscription.generation_known == max(3, generation)


def test_remains_of_the_feed_before_a_rewind_are_passed_over() -> None:
    log = a_log(2, 2, 2)
    subscription = Subscription(-1)
    subscription.mount()
    assert [subscription.fed(batch) for batch in log.batches[:2]] == [True, True]
    subscription.rewind(-1)
    assert subscription.mount() == -1
    assert [subscription.fed(batch) for batch in [log.batches[2], *log.batches]] == [False, True, True, True]


def test_fates_are_read_once_although_a_rewound_feed_comes_again() -> None:
    log = a_log(2, 2)
    subscription = Subscription(-1)
    assert [subscription.unjudged(batch) for batch in log.batches] == [True, True]
    subscription.rewind(-1)
    assert [subscription.unjudged(batch) for batch in log.batches] == [False, False]


# ------------------------------------------------------------------ frames


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), max_size=20),
    st.integers(1, 6),
    st.integers(1, 60),
)
def test_frames_keep_the_order_and_never_cut_a_group(groups: list[list[int]], count_max: int, bytes_max: int) -> None:
    outstanding = Outstanding()
    waiting: list[Outgoing] = []
    for group in groups:
        entry = Pending(len(group), sum(group))
        outstanding.add(entry)
        for place, size in enumerate(group):
            sequence = entry.sequence + place
            waiting.append((entry, sequence, -1, 0, bytes(size), b"", (), place == len(group) - 1))
    made = list(frames(waiting, count_max, bytes_max))
    assert [s for columns in made for s in columns.sequences] == [out[1] for out in waiting]
    for columns in made:
        assert columns.group_ends[-1]
        one_group = columns.group_ends.count(1) == 1
        assert one_group or (len(columns) <= count_max and columns.data_bytes <= bytes_max)


def test_locks_and_operations_fill_a_frame_too() -> None:
    """A server has bounds on both in a frame, and refuses all of one that exceeds them."""
    locks = joined([Lock("a", number) for number in range(100)], Limits())
    asked = operations([], [Change.set(b"k", b"")] * 100)
    waiting: list[Outgoing] = [(Pending(), n, -1, 0, b"", locks, asked, True) for n in range(1, 9)]
    made = list(frames(waiting, 1_000, 10_000))
    assert [len(columns) for columns in made] == [2] * 4
    assert [list(columns.sequences) for columns in made] == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_the_keys_and_values_of_operations_fill_a_frame_too() -> None:
    """512 appends of one turn, each with a register of 64 KiB, were one frame of 32 MiB, which servers refuse."""
    asked = operations([], [Change.set(b"k", bytes(65_536))])
    waiting: list[Outgoing] = [(Pending(), n, -1, 0, b"", b"", asked, True) for n in range(1, 513)]
    made = list(frames(waiting, 4_096, 1024 * 1024))
    assert max(len(columns.message(0).columns) for columns in made) <= 1024 * 1024
    assert [s for columns in made for s in columns.sequences] == list(range(1, 513))


def test_what_was_withdrawn_is_not_sent() -> None:
    entry = Pending()
    entry.failure = AppendFailure(Unordered.WITHDRAWN)
    assert list(frames([(entry, 1, -1, 0, b"", b"", (), True)], 10, 10)) == []


held_locks = st.lists(
    st.builds(Lock, st.sampled_from(["a", "b"]), st.integers(0, 9), st.sampled_from(LockMode)), max_size=3
)


@given(st.lists(held_locks, min_size=1, max_size=6))
def test_a_frame_carries_the_locks_of_each_append(appends: list[list[Lock]]) -> None:
    waiting: list[Outgoing] = [
        (Pending(), sequence, -1, 0, b"", joined(locks, Limits()), (), True)
        for sequence, locks in enumerate(appends, 1)
    ]
    [columns] = frames(waiting, 10, 1_000)
    if any(appends):
        assert list(columns.lock_ends) == list(accumulate(map(len, appends)))
    flat = [lock for locks in appends for lock in locks]
    assert columns.lock_hashes.tobytes() == b"".join(lock[:8] for lock in flat)
    assert columns.lock_modes == bytes(lock.mode for lock in flat)


# ------------------------------------------------------------------ drafts and locks


def test_a_lock_hash_is_stable_and_keeps_name_and_number_apart() -> None:
    assert Lock("account", 1) == Lock("account", 1)
    assert len({Lock(name, number).hash for name in ("acctA", "acctB", "") for number in (-1, 0, 10, 11)}) == 12
    assert len(Lock("é" * 100, -(2**63))) == 9
    assert Lock("account", 1).hash == 0x779034EA112AA3D1, "clients of all versions must agree"


def test_texts_and_uuids_are_ids_of_locks_too_and_told_apart_by_their_type() -> None:
    seven = UUID(int=7)
    ids = [7, "7", seven, str(seven), seven.bytes.decode("latin-1"), (7).to_bytes(8, "little").decode(), "", "é", "e"]
    assert len({Lock("account", id).hash for id in ids}) == len(ids)
    assert Lock("account", "1").hash == 0x166B1FD05A60ACEE, "clients of all versions must agree"
    assert Lock("account", UUID(int=1)).hash == 0x1D59AF01A9EB019D
    assert Lock("ab", "c") != Lock("a", "bc")
    draft = Draft(0, 5, Limits())
    draft.write_lock("iban", "DE89 3704")
    draft.read_lock("order", seven)
    assert built(draft).locks == (Lock("iban", "DE89 3704"), Lock("order", seven, LockMode.READ))


def test_an_id_of_a_kind_of_number_or_text_is_what_it_stands_for() -> None:
    class Floor(IntEnum):
        FIRST = 1

    class Name(str):
        pass

    assert Lock("a", Floor.FIRST) == Lock("a", 1)
    assert Lock("a", Name("x")) == Lock("a", "x")


def test_a_draft_counts_all_that_will_be_sent_of_it() -> None:
    draft = Draft(0, 5, Limits())
    draft.append(b"12345")
    draft.write_lock("a", 1)
    draft.read_lock("a", 2)
    draft.set(b"key", b"value")
    draft.expect(b"other", absent=True)
    assert built(draft).size == 5 + 2 * 9 + len(b"key" + b"value" + b"other")


def test_the_librarys_registers_are_looked_at_and_deleted_by_an_application_and_not_set() -> None:
    for prefix in (b"producer/", b"spark/"):
        with pytest.raises(BadOption, match=repr(prefix)):
            operations([], [Change.set(prefix + b"x", b"")])
        assert operations([Expectation.present(prefix + b"x")], [Change.delete(prefix + b"x")])
        assert operations([], [Change.set(prefix[:-1], b""), Change.set(prefix.upper(), b"")])
        assert operations([], [Change.set(prefix + b"x", b"")], own=True)


def test_a_draft_collects_locks_in_their_modes() -> None:
    draft = Draft(0, 5, Limits())
    draft.read_lock("a", 1)
    draft.write_lock("a", 2)
    draft.append_lock("a", 3)
    assert [lock.mode for lock in built(draft).locks] == list(LockMode)
    assert built(draft).locks == (Lock("a", 1, LockMode.READ), Lock("a", 2), Lock("a", 3, LockMode.APPEND))


@pytest.mark.parametrize(
    "said",
    [
        ("a", 2**63),
        ("a", -(2**63) - 1),
        (7, 1),
        ("a", "\ud800"),
        ("a", b"1"),
        ("a", 1.5),
        ("a", 1.0),
        ("a", True),
        ("a", Decimal(1)),
        ("a", None),
        ("a", 1, 3),
        ("a", 1, "w"),
    ],
    ids=repr,
)
def test_what_is_no_lock_is_refused_at_once(said: tuple[Any, ...]) -> None:
    """Also while a lock is kept whose id equals what was given."""
    assert Lock("a", 1)
    with pytest.raises(BadOption):
        Lock(*said)
    with pytest.raises(BadOption):
        joined([said], Limits())  # type: ignore[list-item]


@pytest.mark.parametrize(
    "others", [[b"account "], [b"account 7"], [b"account ", b"account 78"], [Lock("a", 1), b"account 7"]]
)
def test_other_bytes_are_no_locks(others: list[Any]) -> None:
    """Whatever their length: a mode that is none would make the owner cut the connection off."""
    with pytest.raises(BadOption, match=r"is no Lock\(name, id, mode\)"):
        joined(others, Limits())


def test_too_many_locks_are_refused_at_once() -> None:
    draft = Draft(0, 5, Limits(locks_max=2))
    draft.write_lock("a", 1)
    draft.write_lock("a", 2)
    with pytest.raises(TooManyLocks):
        draft.write_lock("a", 3)
    with pytest.raises(TooManyLocks):
        joined([Lock("a", number) for number in range(3)], Limits(locks_max=2))


def test_no_more_locks_are_made_than_it_takes_to_see_that_they_are_too_many() -> None:
    made = count()
    with pytest.raises(TooManyLocks):
        joined((Lock("a", number) for number in made), Limits(locks_max=2))
    assert next(made) == 3


def test_no_more_expectations_and_changes_are_made_than_it_takes_to_see_that_they_are_too_many() -> None:
    made = count()
    changes = (Change.delete(b"%d" % next(made)) for _ in range(100_000))
    with pytest.raises(BadOption, match="more than 32768 expectations and changes"):
        operations([], changes)
    assert next(made) == 32_769
    draft = Draft(0, 5, Limits())
    for _ in range(32_768):
        draft.delete(b"k")
    with pytest.raises(BadOption, match="split it"):
        draft.delete(b"k")


def test_no_more_bytes_of_expectations_and_changes_are_taken_than_a_frame_has_room_for() -> None:
    """The server refuses a larger frame whole, and nobody can append it again."""
    large = [Change.set(b"%04d" % number, bytes(65_536)) for number in range(300)]
    assert len(operations([], large[:255])) == 255
    with pytest.raises(BadOption, match="bytes of keys and values on one append; the limit is 16777216: split it"):
        operations([], large)
    draft = Draft(0, 5, Limits())
    for change in large[:255]:
        draft.set(change.key, change.value)
    with pytest.raises(BadOption, match="split it"):
        draft.expect(b"k", equals=bytes(65_536))


def test_nothing_is_asked_of_a_draft_that_is_over() -> None:
    """It would be lost, and the transaction would be let in without its lock."""
    asks = [
        lambda draft: draft.read_lock("a", 1),
        lambda draft: draft.write_lock("a", 1),
        lambda draft: draft.append_lock("a", 1),
        lambda draft: draft.append(b"x"),
        lambda draft: append_own(draft, OwnKind.PRODUCER, b""),
        lambda draft: draft.expect(b"k", absent=True),
        lambda draft: draft.expect_position(3),
        lambda draft: draft.set(b"k", b"v"),
        lambda draft: draft.delete(b"k"),
        lambda draft: draft.need(copies=2),
        lambda draft: draft.abandon(),
    ]
    public = {name for name, kind in vars(Draft).items() if callable(kind) and not name.startswith("_")}
    assert len(asks) == len(public) + 1, "all that a context can ask for"
    for ask in asks:
        draft = Draft(0, 5, Limits())
        finish(draft)
        with pytest.raises(Closed, match="the context has returned"):
            ask(draft)


def test_a_body_or_group_over_its_limit_is_refused_at_once() -> None:
    draft = Draft(0, 5, Limits(body_bytes_max=4, group_bytes_max=6, group_count_max=3))
    with pytest.raises(BodyTooLarge):
        draft.append(b"12345")
    draft.append(b"1234")
    with pytest.raises(BodyTooLarge):
        draft.append(b"1234")
    small = Draft(0, 5, Limits(group_count_max=2))
    small.append(b"")
    small.append(b"")
    with pytest.raises(BodyTooLarge):
        small.append(b"")


def test_bodies_are_bytes_and_headers_fit_32_bits() -> None:
    draft = Draft(0, 5, Limits())
    draft.append(memoryview(b"abc"), header=-(2**31))
    assert built(draft).bodies == ((-(2**31), b"abc"),)
    with pytest.raises(BadOption):
        draft.append("text")
    with pytest.raises(BadOption):
        draft.append(b"", header=2**31)


@pytest.mark.parametrize("demands", [{}, {"equals": b"", "absent": True}, {"absent": True, "present": True}])
def test_an_expectation_demands_exactly_one_thing(demands: dict[str, object]) -> None:
    with pytest.raises(BadOption):
        Draft(0, 5, Limits()).expect(b"key", **demands)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expectations", "changes"),
    [
        ([Expectation.absent(b"k" * 1025)], []),
        ([], [Change.set(b"k", b"v" * 65_537)]),
        ([], [Change.delete(b"k" * 1025)]),
    ],
)
def test_registers_past_their_bounds_are_refused_at_once(
    expectations: list[Expectation], changes: list[Change]
) -> None:
    with pytest.raises(BadOption):
        operations(expectations, changes)


# ------------------------------------------------------------------ what next


@pytest.mark.parametrize(
    ("failure", "position", "step"),
    [
        (AppendFailure(FailureReason.LOCK_CONFLICT, 40), None, Again(40, False)),
        (AppendFailure(FailureReason.EXPECTATION_FAILED, 40), None, None),
        (AppendFailure(FailureReason.EXPECTATION_FAILED, 40), 39, Again(39, False)),
        (AppendFailure(FailureReason.EXPECTATION_FAILED, 40), 40, None),
        (AppendFailure(FailureReason.EXPECTATION_FAILED, 40), 41, None),
        (AppendFailure(FailureReason.SESSION_ENDED), None, Again(-1, True)),
        (AppendFailure(FailureReason.INSUFFICIENT_REPLICAS), None, Again(-1, True)),
        (AppendFailure(FailureReason.DEADLINE), None, Again(-1, True)),
        (AppendFailure(FailureReason.REGISTERS_FULL), None, None),
        (AppendFailure(FailureReason.PRODUCER_FENCED), None, None),
        (AppendFailure(Unordered.PASSED_OVER), None, Again(-1, True)),
        (AppendFailure(Unordered.UNKNOWN), None, None),
        (AppendFailure(Unordered.STOPPED), None, None),
    ],
)
def test_what_a_run_does_after_a_failure(failure: AppendFailure, position: int | None, step: Again | None) -> None:
    assert next_step(failure, position) == step


@pytest.mark.parametrize(("races", "pause"), [(0, False), (7, False), (8, True), (1_000, True)])
def test_who_loses_the_race_for_a_position_again_and_again_pauses(races: int, pause: bool) -> None:
    assert next_step(AppendFailure(FailureReason.EXPECTATION_FAILED, 40), 39, races) == Again(39, pause)


@pytest.mark.parametrize("reason", [*FailureReason, *Unordered])
def test_every_failure_has_an_error_and_only_unknown_leaves_the_fate_open(
    reason: FailureReason | Unordered,
) -> None:
    error = error_of(AppendFailure(reason, 3), 0, 9)
    assert "append 9 to partition 0" in str(error)
    assert isinstance(error, AppendUnknown) == (reason is Unordered.UNKNOWN)


def test_pauses_double_up_to_a_bound_with_jitter_and_start_over() -> None:
    backoff = Backoff(1.0, 4.0)
    assert [backoff.pause_s(1.0) for _ in range(4)] == [1.0, 2.0, 4.0, 4.0]
    backoff.reset()
    assert backoff.pause_s(0.0) == 0.5
