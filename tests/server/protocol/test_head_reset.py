"""The decisions about resets of the head, with values: what counts, what is cut, and what is kept for later."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from polonaise.coordination.values import Engagement, HeadReset, PartitionValue
from polonaise.server.protocol import headreset
from polonaise.server.protocol.headreset import CarryOut, Withheld
from polonaise.server.protocol.recovery import NOTHING_KNOWN, Decided, Known, ReplicaAnswer, Undecided
from polonaise.terms import NO_SESSION

ASKED = HeadReset(2, "C", 5, 7)
"""Decided on when C was the only copy left of session 3, and ids up to 5 were known."""
ENGAGED = {name: Engagement(3) for name in "ABC"}
EMPTY = ReplicaAnswer(NO_SESSION, -1, -1, -1, 0, None)
"""What a wiped replica answers."""
LEFT = ReplicaAnswer(3, -1, 1, 5, 50, None)
"""What C answers, which holds ids up to 5, confirmed up to 1."""


def value(*resets: HeadReset, session: int = 5) -> PartitionValue:
    return PartitionValue(1, session, tuple("ABC"), engagements=ENGAGED, resets=resets)


def test_a_reset_is_carried_out_when_the_end_of_the_log_cannot_be_proved() -> None:
    answers = {"A": EMPTY, "C": LEFT}
    assert isinstance(headreset.decide(value(), answers, NOTHING_KNOWN), Undecided)
    assert headreset.decide(value(ASKED), answers, NOTHING_KNOWN) == CarryOut(ASKED)


@pytest.mark.parametrize(
    ("source", "known"),
    [
        pytest.param(replace(LEFT, max_synced=6), NOTHING_KNOWN, id="held"),
        pytest.param(replace(LEFT, confirmed=6), NOTHING_KNOWN, id="confirmed, and lost"),
        pytest.param(LEFT, Known(6, 60, 3), id="seen by the server itself"),
    ],
)
def test_a_reset_gives_up_not_a_single_id_that_its_operator_was_not_shown(source: ReplicaAnswer, known: Known) -> None:
    outcome = headreset.decide(value(ASKED), {"A": EMPTY, "C": source}, known)
    assert isinstance(outcome, Withheld)
    assert "knows of 6 now" in outcome.why


def test_a_replica_that_brings_back_the_end_of_the_log_counts_and_not_the_reset() -> None:
    answers = {"A": EMPTY, "B": LEFT, "C": LEFT}
    outcome = headreset.decide(value(ASKED), answers, NOTHING_KNOWN)
    assert outcome == Decided(5, 50, ("B", "C"))
    assert not headreset.is_confirmed_at(ASKED, outcome)


def test_copies_that_were_cut_for_a_reset_prove_nothing_until_it_is_carried_out() -> None:
    # A session's start has made A and C clean for the reset to 2, and has ended before its engagement.
    cut = ReplicaAnswer(5, 2, 1, 2, 20, None)
    answers = {"A": cut, "C": cut}
    begun = headreset.begun(value(ASKED), 1)
    again = replace(begun, session=6)
    assert headreset.decide(again, answers, NOTHING_KNOWN) == CarryOut(begun.resets[-1])
    # Another decision has taken its place. By the copies alone the log would end at 2, and nobody would know why.
    other = replace(begun.resets[-1], to=5)
    assert isinstance(headreset.decide(replace(again, resets=(other,)), answers, NOTHING_KNOWN), Withheld)
    assert headreset.decide(replace(again, resets=()), answers, NOTHING_KNOWN) == Decided(2, 20, ("A", "C"))


def test_what_a_source_shares_with_others_is_not_more_once_copies_were_made_from_it() -> None:
    begun = headreset.begun(value(ASKED), 1)
    assert begun.resets == (replace(ASKED, begun=5, certain=1),)
    assert headreset.certain_of(begun, begun.resets[0], replace(LEFT, confirmed=2)) == 1
    later = headreset.begun(replace(begun, session=6), 0)
    assert later.resets == (replace(ASKED, begun=5, certain=0),), "the first session that has cut, and the least"


def test_a_source_that_was_not_cut_for_an_earlier_reset_shares_no_more_than_that_has_left() -> None:
    """What was confirmed to C above 1 was given up while C was away, and others hold another log there since."""
    earlier = HeadReset(2, "B", 5, 6, session=4, certain=1)
    source = replace(LEFT, confirmed=5)
    asked = replace(ASKED, to=5)
    assert headreset.certain_of(value(earlier, asked), asked, source) == 1
    assert headreset.certain_of(value(earlier, asked), asked, replace(source, joined=4)) == 5, "it was cut"


def test_the_source_of_a_reset_has_to_forget_what_an_earlier_one_has_given_up_and_nothing_else() -> None:
    earlier = HeadReset(2, "B", 5, 6, session=4, certain=1)
    source = replace(LEFT, confirmed=5)
    assert headreset.must_forget(value(earlier, ASKED), source, 1)
    assert not headreset.must_forget(value(earlier, ASKED), LEFT, 1), "its mark is no higher"
    assert not headreset.must_forget(value(earlier, ASKED), replace(source, joined=4), 1), "it was cut"
    assert not headreset.must_forget(value(ASKED), source, 2), "its mark is right, and is cut with what it holds"


def test_a_reset_that_was_carried_out_is_written_without_where_it_began() -> None:
    begun = headreset.begun(value(ASKED), 1)
    closed = replace(begun, engagements={**ENGAGED, "B": Engagement(3, 2)})
    done = headreset.engaged(closed, "AC", begun.resets[0], 2)
    assert done.resets == (replace(ASKED, session=5, certain=1),)
    assert done.engagements["B"].closing == 1, "the copy that is away is believed as far as the source shares it"
    assert PartitionValue.decode(done.encode()) == done
    assert PartitionValue.decode(begun.encode()) == begun
    assert len(json.loads(done.encode())["resets"][0]) == 6


def test_a_reset_that_was_begun_and_is_withdrawn_leaves_what_copies_may_hold_of_it() -> None:
    begun = headreset.begun(value(ASKED), 1)
    closed = replace(begun, engagements={**ENGAGED, "A": Engagement(3, 5)})
    done = headreset.engaged(closed, "BC", None, 5)
    assert (done.resets, done.engagements["A"].closing) == ((), 1)


def test_copies_are_cut_where_the_source_of_a_reset_surely_shares_their_log_and_not_at_their_own_marks() -> None:
    """B has 3 confirmed, and C, from which the log goes on, surely shares it up to 1 only."""
    answer = ReplicaAnswer(3, -1, 3, 5, 51, None)
    assert headreset.clean_to(value(ASKED), "B", answer, 2, ASKED, 1) == 1
    assert headreset.clean_to(value(ASKED), "C", LEFT, 2, ASKED, 1) == 2


def test_an_owner_that_has_not_heard_of_its_engagement_knows_no_more_of_what_that_has_given_up() -> None:
    """Session 4 has carried the reset out; its engagement was written, and the owner, of session 3, was not told."""
    done = value(replace(ASKED, session=4, certain=1))
    answers = {name: ReplicaAnswer(4, 2, 2, 2, 20, None) for name in "ABC"}
    known = Known(5, 50, 3)
    assert headreset.corrected_known(done, known) == NOTHING_KNOWN
    assert headreset.corrected_known(done, Known(1, 10, 3)) == Known(1, 10, 3), "the reset has left that"
    assert headreset.corrected_known(done, Known(5, 50, 4)) == Known(5, 50, 4), "it was learnt after the reset"
    assert headreset.decide(done, answers, known) == Decided(2, 20, ("A", "B", "C"))
