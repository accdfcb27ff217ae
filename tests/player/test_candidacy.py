"""When a process of a player pauses, for how long, and when it ends."""

from __future__ import annotations

import pytest

from polonaise.errors import (
    BadOption,
    CertificateUnusable,
    Closed,
    DeliveryStopped,
    ExtraMissing,
    HostFailed,
    PolonaiseError,
    ProducerFenced,
    ServersUnavailable,
    UnknownTopic,
)
from polonaise.player.protocol.candidacy import Candidacy, CandidateState, TurnEnd, turn_end_of


@pytest.mark.parametrize(
    ("error", "connected", "end"),
    [
        (ProducerFenced("x"), True, TurnEnd.REPLACED),
        (BadOption("x"), True, TurnEnd.MISTAKEN),
        (ExtraMissing("x"), False, TurnEnd.MISTAKEN),
        (CertificateUnusable("x"), False, TurnEnd.MISTAKEN),
        (UnknownTopic("x"), False, TurnEnd.MISTAKEN),
        (ServersUnavailable("x"), False, TurnEnd.FAILED),
        (DeliveryStopped("x"), True, TurnEnd.FAILED),
        (Closed("x"), True, TurnEnd.FAILED),
        (HostFailed("x"), True, TurnEnd.FAILED),
    ],
)
def test_what_an_error_means(error: PolonaiseError, connected: bool, end: TurnEnd) -> None:
    assert turn_end_of(error, connected=connected) is end


def active(candidacy: Candidacy, now_s: float) -> None:
    candidacy.connected()
    candidacy.acquired()
    candidacy.started(7, now_s)


def test_a_lost_lease_is_waited_for_at_once() -> None:
    candidacy = Candidacy(5.0)
    active(candidacy, 0.0)
    assert candidacy.epoch == 7
    assert candidacy.over(TurnEnd.LEASE_LOST, "gone", 1.0) == 0.0
    assert candidacy.epoch is None
    assert not candidacy.ready


def test_a_replaced_process_pauses_as_long_as_a_lease_at_the_least() -> None:
    candidacy = Candidacy(5.0)
    active(candidacy, 0.0)
    assert candidacy.over(TurnEnd.REPLACED, "another one", 1.0) == 5.0


def test_pauses_grow_with_each_failure_up_to_a_bound() -> None:
    candidacy = Candidacy(1.0)
    pauses = []
    for _ in range(9):
        active(candidacy, 0.0)
        pauses.append(candidacy.over(TurnEnd.FAILED, "no", 1.0))
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_process_that_has_delivered_for_long_begins_with_the_first_pause() -> None:
    candidacy = Candidacy(1.0)
    for _ in range(3):
        candidacy.over(TurnEnd.FAILED, "no", 0.0)
    active(candidacy, 10.0)
    assert candidacy.over(TurnEnd.FAILED, "no", 69.9) == 4.0
    active(candidacy, 70.0)
    assert candidacy.over(TurnEnd.FAILED, "no", 130.0) == 0.5


def test_why_the_last_turn_ended_is_told_until_another_process_has_delivered_for_long() -> None:
    candidacy = Candidacy(1.0)
    active(candidacy, 0.0)
    candidacy.over(TurnEnd.FAILED, "no route", 1.0)
    candidacy.next_turn()
    candidacy.connected()
    candidacy.others_deliver("one", 10.0)
    candidacy.others_deliver("one", 69.0)
    assert candidacy.reason == "no route"
    candidacy.others_deliver("", 69.5)
    candidacy.others_deliver("two", 70.0)
    candidacy.others_deliver("two", 129.0)
    assert candidacy.reason == "no route", "each may come to the same transaction, and end"
    candidacy.others_deliver("two", 130.0)
    assert candidacy.reason == ""


def test_one_that_delivers_again_after_a_turn_of_this_process_has_to_deliver_for_long_again() -> None:
    candidacy = Candidacy(1.0)
    candidacy.connected()
    candidacy.others_deliver("one", 0.0)
    candidacy.acquired()
    candidacy.started(1, 10.0)
    candidacy.over(TurnEnd.FAILED, "no route", 80.0)
    candidacy.next_turn()
    candidacy.connected()
    candidacy.others_deliver("one", 81.0)
    assert candidacy.reason == "no route"
    candidacy.others_deliver("one", 141.0)
    assert candidacy.reason == ""


def test_a_standby_that_the_log_does_not_answer_is_not_ready() -> None:
    candidacy = Candidacy(1.0)
    candidacy.connected()
    candidacy.others_deliver("one", 0.0)
    candidacy.log_is_silent("no answer")
    assert not candidacy.ready
    assert (candidacy.other, candidacy.log_trouble) == ("", "no answer")
    candidacy.others_deliver("one", 1.0)
    assert candidacy.ready
    assert (candidacy.other, candidacy.log_trouble) == ("one", "")


def test_what_a_standby_was_told_is_forgotten_when_it_stands_by_no_longer() -> None:
    for leave in (Candidacy.acquired, lambda one: one.over(TurnEnd.FAILED, "refused", 1.0)):
        for tell in (
            lambda one: one.log_is_silent("no answer"),
            lambda one: one.others_deliver("one", 0.0),
        ):
            candidacy = Candidacy(1.0)
            candidacy.connected()
            tell(candidacy)
            leave(candidacy)
            assert (candidacy.other, candidacy.log_trouble) == ("", "")
            # An answer that was under way comes too late to be taken back.
            tell(candidacy)
            assert (candidacy.other, candidacy.log_trouble) == ("", "")


def test_the_lease_is_held_until_it_is_let_go_of() -> None:
    candidacy = Candidacy(1.0)
    candidacy.connected()
    assert not candidacy.has_lease
    candidacy.acquired()
    candidacy.started(1, 0.0)
    assert candidacy.has_lease
    candidacy.lets_go()
    assert not candidacy.has_lease


def test_a_mistake_ends_the_process() -> None:
    candidacy = Candidacy(1.0)
    assert candidacy.over(TurnEnd.MISTAKEN, "no such partition", 0.0) is None


def test_a_standby_is_ready_and_one_that_pauses_is_not() -> None:
    candidacy = Candidacy(1.0)
    seen = {candidacy.state: candidacy.ready}
    for step in (candidacy.connected, candidacy.acquired, lambda: candidacy.started(1, 0.0), candidacy.handing_over):
        step()
        seen[candidacy.state] = candidacy.ready
    candidacy.over(TurnEnd.FAILED, "no", 0.0)
    seen[candidacy.state] = candidacy.ready
    assert [state for state, ready in seen.items() if ready] == [
        CandidateState.STANDBY, CandidateState.STARTING, CandidateState.ACTIVE,
    ]  # fmt: skip
    assert set(seen) == set(CandidateState)
    candidacy.next_turn()
    assert candidacy.state is CandidateState.CONNECTING
