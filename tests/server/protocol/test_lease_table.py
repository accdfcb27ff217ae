"""Leases as one owner grants them, and over changes of owners: two holders never have one name at the same time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.coordination.lease import Tenure
from polonaise.server.protocol import leasetable
from polonaise.server.protocol.leasetable import AskedLeases, LeaseTable, ReleasedLeases
from polonaise.wire.leases import (
    AnsweredLease,
    AskedLease,
    LeaseAnswer,
    LeasesAre,
    LeasesReleased,
    ListedLease,
    parse_answered,
    parse_listed,
)

A, B = 1, 2
START_S = 100.0


def began(now_s: float = -inf) -> LeaseTable:
    """The table of an owner that began then; by default it knows all that is held."""
    table = LeaseTable()
    table.begin(now_s)
    return table


def hold(
    table: LeaseTable,
    holder: int,
    now_s: float,
    *names: str,
    renews: bool = False,
    duration_ms: int = 5_000,
    note: bytes = b"",
) -> list[AnsweredLease]:
    asked = [AskedLease(name, note, renews) for name in names or ("n",)]
    answer = table.answer(AskedLeases(holder, duration_ms, asked, None), now_s)
    assert isinstance(answer, LeasesAre)
    return parse_answered(answer.answered)


def release(table: LeaseTable, holder: int, now_s: float, *names: str) -> int:
    answer = table.answer(ReleasedLeases(holder, list(names or ("n",))), now_s)
    assert isinstance(answer, LeasesReleased)
    return answer.count


def listed(table: LeaseTable, now_s: float, prefix: str = "") -> list[ListedLease]:
    answer = table.answer(AskedLeases(0, 1_000, [], prefix), now_s)
    assert isinstance(answer, LeasesAre)
    return parse_listed(answer.listed)


def answers(given: list[AnsweredLease]) -> list[LeaseAnswer]:
    return [each.answer for each in given]


# ------------------------------------------------------------------ one owner


def test_a_lease_is_one_holders_until_it_runs_out() -> None:
    table = began()
    assert hold(table, A, 100.0) == [AnsweredLease(LeaseAnswer.HELD, 5_000, A)]
    assert hold(table, B, 101.0) == [AnsweredLease(LeaseAnswer.TAKEN, 4_000, A)]
    assert hold(table, A, 102.0, renews=True) == [AnsweredLease(LeaseAnswer.HELD, 5_000, A)]
    assert hold(table, B, 106.9) == [AnsweredLease(LeaseAnswer.TAKEN, 100, A)]
    assert hold(table, B, 107.0) == [AnsweredLease(LeaseAnswer.HELD, 5_000, B)]


def test_a_lease_that_ran_out_is_not_renewed_though_nobody_has_it() -> None:
    table = began()
    hold(table, A, 100.0)
    assert hold(table, A, 105.0, renews=True) == [AnsweredLease(LeaseAnswer.LOST, 0, 0)]
    assert hold(table, A, 105.0) == [AnsweredLease(LeaseAnswer.HELD, 5_000, A)]


def test_what_is_released_can_be_had_at_once_and_by_its_holder_only() -> None:
    table = began()
    hold(table, A, 100.0)
    assert release(table, B, 100.5) == 0
    assert answers(hold(table, B, 100.6)) == [LeaseAnswer.TAKEN]
    assert release(table, A, 101.0, "n", "never held") == 1
    assert answers(hold(table, B, 101.0)) == [LeaseAnswer.HELD]
    assert release(table, A, 101.0) == 0


def test_several_names_are_answered_each_for_itself() -> None:
    table = began()
    hold(table, A, 100.0, "x")
    assert answers(hold(table, B, 100.0, "w", "x", "y")) == [LeaseAnswer.HELD, LeaseAnswer.TAKEN, LeaseAnswer.HELD]


def test_a_list_has_what_is_held_below_a_prefix() -> None:
    table = began()
    hold(table, A, 100.0, "g/1", note=b"hello")
    hold(table, B, 101.0, "g/2", "h/1")
    assert listed(table, 102.0, "g/") == [ListedLease("g/1", A, 3_000, b"hello"), ListedLease("g/2", B, 4_000, b"")]
    assert [each.name for each in listed(table, 105.5)] == ["g/2", "h/1"], "what has run out is left out"
    assert (table.count(102.0), table.count(105.5), table.count(106.0)) == (3, 2, 0)


def test_another_duration_is_refused_while_the_lease_is_held() -> None:
    table = began()
    hold(table, A, 100.0)
    assert hold(table, B, 101.0, duration_ms=1_000) == [AnsweredLease(LeaseAnswer.OTHER_DURATION, 4_000, A)]
    assert answers(hold(table, B, 105.0, duration_ms=1_000)) == [LeaseAnswer.HELD]


def test_a_full_table_goes_on_with_what_it_has_and_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasetable, "LEASES_MAX", 2)
    table = began()
    hold(table, A, 100.0, "x")
    hold(table, A, 101.0, "y")
    assert answers(hold(table, B, 102.0, "z")) == [LeaseAnswer.FULL]
    assert answers(hold(table, A, 103.0, "y", renews=True)) == [LeaseAnswer.HELD]
    assert answers(hold(table, B, 105.0, "z")) == [LeaseAnswer.HELD], "what has run out leaves room"


def test_bytes_are_bounded_also_where_a_note_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasetable, "LEASES_BYTES_MAX", 10)
    table = began()
    assert answers(hold(table, A, 100.0, "x", note=b"12345")) == [LeaseAnswer.HELD]
    assert answers(hold(table, A, 100.0, "y", note=b"12345")) == [LeaseAnswer.FULL]
    assert answers(hold(table, A, 100.0, "x", note=b"123456789", renews=True)) == [LeaseAnswer.HELD]
    assert answers(hold(table, A, 100.0, "x", note=b"1234567890", renews=True)) == [LeaseAnswer.FULL]
    assert listed(table, 100.0)[0].note == b"123456789", "and is held as before"


# ------------------------------------------------------------------ a new owner


def test_a_new_owner_lets_holders_go_on_and_others_wait_for_the_duration() -> None:
    table = began(START_S)
    assert hold(table, B, 101.0) == [AnsweredLease(LeaseAnswer.TOO_EARLY, 4_000, 0)]
    assert answers(hold(table, A, 102.0, renews=True)) == [LeaseAnswer.HELD]
    assert answers(hold(table, B, 106.0)) == [LeaseAnswer.TAKEN]
    assert answers(hold(table, B, 107.0)) == [LeaseAnswer.HELD]


def test_only_the_first_session_of_an_owner_counts_as_its_beginning() -> None:
    table = began(START_S)
    table.begin(START_S + 4)
    assert answers(hold(table, A, START_S + 5)) == [LeaseAnswer.HELD]


def test_a_renewal_that_came_late_gives_its_holder_no_right_to_begin_anew() -> None:
    table = began(START_S)
    hold(table, A, 101.0, renews=True)  # of a lease that had run out, and that another one has by now
    assert answers(hold(table, A, 102.0)) == [LeaseAnswer.TOO_EARLY]
    assert answers(hold(table, A, 105.0)) == [LeaseAnswer.HELD]


# ------------------------------------------------------------------ over any course of events


@dataclass
class Holder:
    """A client that wants the lease: what it believes, by its own clock.

    As `client.lease` does, it waits for the answer to one question at a time, and drops that of one that it has given
    up, or that it asked before it released the lease. What it asked may still reach the owner.
    """

    number: int
    tenure: Tenure
    held: bool = False
    asked: int = 0
    """The number of the question whose answer it waits for."""

    def holds(self, now_s: float) -> bool:
        self.held = self.held and self.tenure.holds(now_s)
        return self.held


class Asked(NamedTuple):
    """A question on its way to an owner, or its answer on the way back: that the lease is held."""

    holder: Holder
    renews: bool
    sent_s: float
    number: int


def course(source: random.Random, begin: Callable[[LeaseTable, float], None], of: type[LeaseTable] = LeaseTable) -> str:
    """A course of requests that are slow, of owners that change, and of a clock: who held it beside another one.

    What is answered is proved: no owner answers, once its successor has begun, what was asked since. A table begins as
    `begin` says, and is one `of` this class.
    """
    duration_s, now_s = 5.0, 100.0
    table = of()
    begin(table, now_s)
    holders = [Holder(number, Tenure()) for number in (A, B, 3)]
    requests: list[Asked] = []
    answered: list[Asked] = []
    for _ in range(120):
        now_s += source.choice((0.0, 0.1, 0.5, 2.0, 6.0))
        holder = source.choice(holders)
        what = source.randrange(8)
        if what < 3:
            holder.asked += 1
            requests.append(Asked(holder, holder.holds(now_s), now_s, holder.asked))
        elif what < 5 and requests:
            asked = requests.pop(source.randrange(len(requests)))
            if answers(hold(table, asked.holder.number, now_s, renews=asked.renews)) == [LeaseAnswer.HELD]:
                answered.append(asked)
        elif what < 7 and answered:
            who, renews, sent_s, number = answered.pop(source.randrange(len(answered)))
            if number != who.asked or (renews and not who.holds(now_s)):
                continue
            who.tenure.renewed(sent_s, duration_s)
            who.held = who.tenure.holds(now_s)
        elif what == 7 and source.random() < 0.5:
            table = of()
            begin(table, now_s)
        elif what == 7 and holder.holds(now_s):
            holder.held = False
            holder.asked += 1
            release(table, holder.number, now_s)
        having = [each.number for each in holders if each.holds(now_s)]
        if len(having) > 1:
            return f"at {now_s:g} s: {having}"
    return ""


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
def test_two_never_hold_one_lease_at_the_same_time(source: random.Random) -> None:
    assert course(source, LeaseTable.begin) == ""


@pytest.mark.slow
def test_nor_in_many_more_courses() -> None:
    assert [seed for seed in range(1_000) if course(random.Random(seed), LeaseTable.begin)] == []


def late_renewal(of: type[LeaseTable]) -> list[LeaseAnswer]:
    """What is answered to a renewal that arrives when another one holds the lease, to that one's own renewal after it,
    and to the late one who asks anew."""
    table = of()
    table.begin(-inf)
    hold(table, A, 100.0)
    assert answers(hold(table, B, 105.0)) == [LeaseAnswer.HELD]
    asked = [(A, 106.0, True), (B, 107.0, True), (A, 108.0, False)]
    return [answer for who, at_s, renews in asked for answer in answers(hold(table, who, at_s, renews=renews))]


LATE_RENEWAL = [LeaseAnswer.TAKEN, LeaseAnswer.HELD, LeaseAnswer.TAKEN]


def test_a_renewal_that_comes_late_takes_the_lease_from_nobody() -> None:
    assert late_renewal(LeaseTable) == LATE_RENEWAL
