"""What an owner answers about leases is proved by its replicas, and nothing about them is in the log."""

from __future__ import annotations

import pytest

from polonaise.errors import Overloaded, ProtocolError
from polonaise.server.protocol import inbox
from polonaise.server.protocol.effects import Answer, RefuseRequest, Replicate
from polonaise.server.protocol.ownerhealth import health_of
from polonaise.wire.leases import (
    AskedLease,
    HoldLeases,
    LeaseAnswer,
    LeasesAre,
    LeasesReleased,
    ReleaseLeases,
    encode_asked,
    encode_names,
    parse_answered,
)
from rigs.owner import Talk


def asked(holder: int = 7, *, renews: bool = False, duration_ms: int = 5_000, name: str = "n") -> HoldLeases:
    return HoldLeases(holder, duration_ms, 0, encode_asked([AskedLease(name, b"", renews)]), "")


def ask(talk: Talk, message: HoldLeases | ReleaseLeases, request: int = 1) -> list[object]:
    return list(talk.owner.ask_leases("x", request, message, talk.now))


def told(effects: list[object]) -> list[LeaseAnswer]:
    (answer,) = [effect.message for effect in effects if isinstance(effect, Answer)]
    assert isinstance(answer, LeasesAre)
    return [each.answer for each in parse_answered(answer.answered)]


def old() -> Talk:
    """An owner that has had a session for longer than the leases of these tests last."""
    return Talk.ready().hear("A B C store 1", "time 59")


def test_a_lease_is_granted_once_a_barrier_that_was_sent_after_the_request_is_synced() -> None:
    talk = old()
    (sent,) = ask(talk, asked())
    assert isinstance(sent, Replicate)
    assert sent.batch is None, "nothing is appended"
    assert told(list(talk.effects_of(f"A B store {sent.number}"))) == [LeaseAnswer.HELD]
    assert talk.owner.committed == -1
    assert health_of(talk.owner, talk.now)["leases"] == 1


def test_an_owner_that_its_replicas_obey_no_more_grants_nothing() -> None:
    talk = old()
    ask(talk, asked())
    assert not [effect for effect in talk.effects_of("A store 2") if isinstance(effect, Answer)], "one is no quorum"
    stopping = talk.effects_of("stops")
    (refused,) = [effect for effect in stopping if isinstance(effect, RefuseRequest) and effect.request == 1]
    assert refused.error.code == "not_owner"
    assert talk.owner.leases.count(talk.now.monotonic_s) == 0


def test_what_is_released_can_be_had_by_the_next_request() -> None:
    talk = old()
    ask(talk, asked(7))
    talk("A B store 2")
    ask(talk, ReleaseLeases(7, encode_names(["n"])))
    (answer,) = [each for each in talk.effects_of("A B store 3") if isinstance(each, Answer)]
    assert answer.message == LeasesReleased(1)
    ask(talk, asked(8))
    assert told(list(talk.effects_of("A B store 4"))) == [LeaseAnswer.HELD]


def test_leases_last_over_the_sessions_of_one_owner() -> None:
    talk = old()
    ask(talk, asked(7))
    talk("A B store 2")
    talk("ends")
    talk("session 2 at -1")
    ask(talk, asked(8))
    assert told(list(talk.effects_of("A B store 1"))) == [LeaseAnswer.TAKEN]


def test_a_new_owner_grants_to_those_only_who_hold_a_lease_already() -> None:
    talk = Talk.ready()
    ask(talk, asked(8))
    assert told(list(talk.effects_of("A B store 2"))) == [LeaseAnswer.TOO_EARLY]
    ask(talk, asked(7, renews=True))
    assert told(list(talk.effects_of("A B store 3"))) == [LeaseAnswer.HELD]


def test_the_owner_of_a_partition_that_never_had_a_session_grants_leases_at_once() -> None:
    talk = Talk()
    talk("session 1 at -1 first")
    ask(talk, asked(8))
    assert told(list(talk.effects_of("A B store 1"))) == [LeaseAnswer.HELD]


def test_a_request_that_comes_before_the_first_session_is_answered_by_it() -> None:
    talk = Talk()
    assert ask(talk, asked(7, renews=True)) == []
    assert told(list(talk.effects_of("session 1 at -1") + talk.effects_of("A B store 1"))) == [LeaseAnswer.HELD]


def test_a_request_that_is_not_proved_in_time_is_refused() -> None:
    talk = Talk()
    ask(talk, asked())
    (refused,) = [effect for effect in talk.effects_of("time 5") if isinstance(effect, RefuseRequest)]
    assert refused.error.code == "partition_not_ready"


def test_a_full_inbox_takes_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "COUNT_MAX", 0)
    (refused,) = ask(Talk(), asked())
    assert isinstance(refused, RefuseRequest)
    assert isinstance(refused.error, Overloaded)


@pytest.mark.parametrize("message", [asked(duration_ms=999), asked(name=""), ReleaseLeases(7, b"\1")])
def test_an_invalid_request_is_refused_and_changes_nothing(message: HoldLeases | ReleaseLeases) -> None:
    talk = old()
    with pytest.raises(ProtocolError):
        ask(talk, message)
    assert talk.effects_of("turn") == []
