"""The fate of appends: told once, and true, whatever the server says in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.client.protocol.outstanding import AppendFailure, Outstanding, Pending, Unordered
from polonaise.errors import ConsistencyLost
from polonaise.terms import FailureReason


def sent(*counts: int) -> tuple[Outstanding, list[Pending]]:
    """Appends (or groups, by their counts) that were registered and sent."""
    outstanding = Outstanding()
    entries = [Pending(count, size=10 * count) for count in counts]
    for entry in entries:
        entry.watchers = [object()]
        outstanding.add(entry)
    outstanding.sent = outstanding.next_sequence - 1
    return outstanding, entries


def fates(entries: list[Pending]) -> str:
    """One mark each: the id, `-` for failed, `?` for pending."""
    return " ".join(str(e.id) if e.id >= 0 else "-" if e.failure else "?" for e in entries)


def test_sequences_start_at_one_and_are_never_reused() -> None:
    outstanding, entries = sent(1, 3, 1)
    assert [entry.sequence for entry in entries] == [1, 2, 5]
    outstanding.passed(5)
    late = Pending()
    outstanding.add(late)
    assert late.sequence == 6


@pytest.mark.parametrize(
    ("counts", "sequences", "ids", "told"),
    [
        ((1, 1, 1), [1, 2, 3], [7, 8, 9], "7 8 9"),
        ((1, 1, 1), [1], [7], "7 ? ?"),
        ((1, 1, 1), [2], [7], "- 7 ?"),
        ((1, 1, 1), [1, 3], [7, 9], "7 - 9"),
        ((1, 1, 1, 1), [2, 3], [4, 9], "- 4 9 ?"),
        ((2, 1), [1, 2, 3], [0, 1, 2], "0 2"),
        ((1, 2, 1), [2, 3], [5, 6], "- 5 ?"),
        ((1, 2, 1), [1, 4], [5, 6], "5 - 6"),
    ],
)
def test_an_own_id_in_the_feed_commits_it_and_fails_what_is_older(
    counts: tuple[int, ...], sequences: list[int], ids: list[int], told: str
) -> None:
    outstanding, entries = sent(*counts)
    outstanding.committed(sequences, ids)
    assert fates(entries) == told
    pending = [entry for entry in entries if not entry.settled]
    assert outstanding.count == sum(entry.count for entry in pending)
    assert outstanding.bytes == sum(entry.size for entry in pending)


def test_a_refusal_settles_the_one_it_names_and_no_other() -> None:
    outstanding, entries = sent(1, 1, 1)
    watched = outstanding.refused(2, AppendFailure(FailureReason.LOCK_CONFLICT, 40))
    assert watched == [entries[1]]
    assert entries[1].failure == AppendFailure(FailureReason.LOCK_CONFLICT, 40)
    assert fates(entries) == "? - ?"


def test_a_refusal_of_what_is_settled_already_is_ignored() -> None:
    outstanding, entries = sent(1, 1)
    outstanding.committed([2], [0])
    assert outstanding.refused(1, AppendFailure(FailureReason.LOCK_CONFLICT, 40)) == []
    assert outstanding.refused(2, AppendFailure(FailureReason.SESSION_ENDED)) == []
    assert fates(entries) == "- 0"


def test_what_the_mount_it_was_sent_on_did_not_tell_of_is_told_apart_from_what_an_older_one_may_have_told() -> None:
    outstanding, entries = sent(1, 1, 1)
    outstanding.mounted_after = 1
    outstanding.committed([3], [0])
    assert [entry.failure for entry in entries[:2]] == [
        AppendFailure(Unordered.PASSED_OVER),
        AppendFailure(Unordered.UNTOLD),
    ]


def test_a_refused_group_is_refused_once_although_each_of_its_rows_names_it() -> None:
    outstanding, entries = sent(3, 1)
    for sequence in (1, 2, 3):
        outstanding.refused(sequence, AppendFailure(FailureReason.LOCK_CONFLICT, 9))
    assert fates(entries) == "- ?"
    assert (outstanding.count, outstanding.bytes) == (1, 10)


def test_a_duplicate_is_committed_under_the_id_of_the_first_time() -> None:
    outstanding, entries = sent(1)
    outstanding.refused(1, AppendFailure(FailureReason.DUPLICATE, 12))
    assert entries[0].id == 12
    assert entries[0].failure is None


def test_a_flush_fails_what_it_covers_and_leaves_what_came_later() -> None:
    outstanding, entries = sent(1, 1, 1)
    outstanding.passed(2)
    assert fates(entries) == "- - ?"


def test_what_was_not_sent_can_be_withdrawn_and_what_was_sent_cannot() -> None:
    outstanding, entries = sent(1)
    unsent = Pending()
    outstanding.add(unsent)
    assert outstanding.withdraw(unsent)
    assert not outstanding.withdraw(entries[0])
    assert unsent.failure == AppendFailure(Unordered.WITHDRAWN)
    assert fates(entries) == "?"


def test_stopping_tells_unknown_of_what_was_sent_and_stopped_of_what_was_not() -> None:
    outstanding, entries = sent(1, 1)
    unsent = Pending()
    outstanding.add(unsent)
    outstanding.committed([1], [0])
    assert outstanding.stop("why") == [entries[1]]
    assert fates(entries) == "0 -"
    assert entries[1].failure == AppendFailure(Unordered.UNKNOWN, cause="why")
    assert unsent.failure == AppendFailure(Unordered.STOPPED, cause="why")
    assert (outstanding.count, outstanding.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("counts", "settle", "sequences"),
    [
        pytest.param((1, 1), lambda o: o.passed(1), [1], id="told failed by a flush"),
        pytest.param((1, 1), lambda o: o.passed(1), [1, 2], id="told failed, among others"),
        pytest.param((1, 1), lambda o: o.refused(2, AppendFailure(FailureReason.DEADLINE)), [1, 2], id="refused"),
        pytest.param((1, 1), lambda o: o.committed([1], [7]), [1], id="committed twice"),
        pytest.param((1, 1), lambda o: None, [3], id="never sent"),
        pytest.param((1, 1), lambda o: None, [2, 1], id="out of order"),
        pytest.param((1, 1), lambda o: None, [1, 1], id="twice in one batch"),
        pytest.param((2, 1), lambda o: None, [1], id="half of a group"),
        pytest.param((2, 1), lambda o: None, [2, 3], id="the other half of a group"),
        pytest.param((2, 2), lambda o: None, [1, 2, 3], id="a group and a half"),
    ],
)
def test_a_feed_that_contradicts_a_told_fate_is_said_loudly(counts, settle, sequences) -> None:
    outstanding, _ = sent(*counts)
    settle(outstanding)
    with pytest.raises(ConsistencyLost):
        outstanding.committed(sequences, list(range(20, 20 + len(sequences))))


@given(st.data())
def test_fates_never_contradict_the_log(data: st.DataObject) -> None:
    """A server that decides at random, told through feed, refusals, flushes and mounts in random order."""
    outstanding = Outstanding()
    entries: list[Pending] = []
    unsent: list[Pending] = []
    in_flight: list[Pending] = []
    log: list[int] = []
    truth: dict[int, int] = {}
    unfed: list[tuple[int, int]] = []
    unrefused: list[tuple[int, AppendFailure]] = []
    first_fate: dict[int, tuple[int, AppendFailure | None]] = {}

    def feed() -> None:
        if unfed:
            outstanding.committed([sequence for sequence, _ in unfed], [transaction for _, transaction in unfed])
            unfed.clear()

    for step in data.draw(st.lists(st.sampled_from("asdfrlwm"), max_size=60)):
        if step == "a":
            entry = Pending(data.draw(st.integers(1, 3)), 5)
            outstanding.add(entry)
            entries.append(entry)
            unsent.append(entry)
        elif step == "s":
            in_flight += [entry for entry in unsent if not entry.settled]
            unsent.clear()
            outstanding.sent = outstanding.next_sequence - 1
        elif step == "w" and unsent:
            assert outstanding.withdraw(unsent.pop(data.draw(st.integers(0, len(unsent) - 1))))
        elif step == "d" and in_flight:
            entry = in_flight.pop(0)
            if data.draw(st.booleans()):
                truth[entry.sequence] = len(log)
                for place in range(entry.count):
                    unfed.append((entry.sequence + place, len(log)))
                    log.append(entry.sequence + place)
            elif data.draw(st.booleans()):
                rows = range(entry.sequence, entry.sequence + entry.count)
                unrefused += [(sequence, AppendFailure(FailureReason.LOCK_CONFLICT, len(log))) for sequence in rows]
        elif step == "f":
            feed()
        elif step == "r" and unrefused:
            outstanding.refused(*unrefused.pop(data.draw(st.integers(0, len(unrefused) - 1))))
        elif step in "lm" and not in_flight:
            feed()
            outstanding.passed(outstanding.sent)
        for entry in entries:
            if entry.settled:
                fate = first_fate.setdefault(entry.sequence, (entry.id, entry.failure))
                assert fate == (entry.id, entry.failure)
                assert entry.id == truth.get(entry.sequence, -1)
        pending = [entry for entry in entries if not entry.settled]
        assert outstanding.count == sum(entry.count for entry in pending)
        assert outstanding.bytes == sum(entry.size for entry in pending)
        assert outstanding.awaited == any(entry.sequence <= outstanding.sent for entry in pending)
    in_flight.clear()
    feed()
    outstanding.passed(outstanding.sent)
    for entry in entries:
        if entry.sequence <= outstanding.sent:
            assert entry.settled
            assert entry.id == truth.get(entry.sequence, -1)


def test_places_of_settled_appends_are_given_up() -> None:
    outstanding = Outstanding()
    for number in range(1, 20_001):
        outstanding.add(Pending())
        outstanding.sent = number
        outstanding.committed([number], [number])
    assert len(outstanding._entries) < 4_096
    assert not outstanding.awaited
