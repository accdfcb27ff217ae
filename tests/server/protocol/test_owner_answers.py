"""What an owner answers to those who ask for registers and leases, and what it counts."""

from __future__ import annotations

import pytest

from polonaise.errors import Overloaded, ProtocolError
from polonaise.histogram import BOUNDS_S
from polonaise.server.protocol import inbox
from polonaise.server.protocol.effects import Answer, RefuseRequest, Replicate
from polonaise.server.protocol.ownerhealth import health_of
from polonaise.wire.codec import Message
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
from polonaise.wire.messages import ListRegisters, RegisterIs
from rigs.order import SET, Tx, frame
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


def test_registers_are_listed_by_their_keys_once_a_message_after_the_request_is_committed() -> None:
    talk = Talk()
    talk.owner.registers.replace({b"seat/2": b"b", b"day": b"1", b"seat/1": b"a"})
    talk.hear("session 1 at -1", "x mounts at -1", "A B store 1", "x appends 1")
    assert talk("x lists") == ["turn"]
    assert talk("A B store 2")[0] == "send 3: barrier"
    assert talk("A C store 3") == ["answer x: registers day=1 seat/1=a seat/2=b"]
    assert talk("x lists seat/") == ["send 4: barrier"]
    assert talk("A C store 4") == ["answer x: registers seat/1=a seat/2=b"]
    talk("x lists nothing")
    assert talk("A C store 5") == ["answer x: registers none"]


def test_a_long_list_of_registers_is_answered_in_pages() -> None:
    talk = Talk(listing_count_max=2)
    talk.owner.registers.replace({b"%d" % number: b"v" for number in range(3)})
    talk.hear("session 1 at -1", "x mounts at -1", "A B store 1", "x lists")
    assert talk("A C store 2") == ["answer x: registers 0=v 1=v and more"]


def test_the_number_of_register_lists_waiting_at_once_is_bounded_however_they_end() -> None:
    """Each is made in the turn in which a message is committed: thousands of them would hold up everybody."""
    talk = Talk.ready()
    for events, end in (
        (("turn", "A C store 2", "A C store 3"), "answer x: registers none"),
        (("A B fails", "time 9"), "refuse x: partition_not_ready"),
        (("session 2 at -1", "A B store 1"), "answer x: registers none"),
        (("stops",), "refuse x: not_owner"),
    ):
        assert all(talk("x lists") != ["refused: overloaded"] for _ in range(16))
        assert talk("x lists") == ["refused: overloaded"]
        told = [line for event in events for line in talk(event)]
        assert told.count(end) == 16


@pytest.mark.parametrize(("first", "prefix"), [(1_026, 0), (0, 1_025)])
def test_registers_behind_what_no_key_is_are_refused(first: int, prefix: int) -> None:
    talk = Talk().hear("session 1 at -1")
    with pytest.raises(ProtocolError, match="the limits are 1025 bytes for that key, and 1024 bytes for the prefix"):
        talk.owner.ask_registers("x1", 1, ListRegisters(bytes(first), bytes(prefix)), talk.now)
    talk.owner.ask_registers("x1", 1, ListRegisters(bytes(1_025), bytes(1_024)), talk.now)


def test_a_register_is_told_as_it_is_at_the_mark_that_is_told_with_it_whatever_is_ordered_by_then() -> None:
    talk = Talk()
    talk.owner.registers.replace({b"r": b"old"})
    talk.hear("session 1 at -1", "x mounts at -1", "A B store 1", "x appends 1", "A B store 2", "x asks for r")
    change = frame(Tx(mark=0, operations=[(SET, b"r", b"new")], sequence=2))
    for effect in talk.owner.append(1, "x1", 1, change, talk.now):
        talk.lines(effect)
    assert answers(talk, "A B store 3") == [RegisterIs(1, 0, b"old")]
    talk.hear("turn", "A B store 4", "x asks for r")
    assert answers(talk, "A B store 5") == [RegisterIs(1, 1, b"new")]


def answers(talk: Talk, event: str) -> list[Message]:
    """Return the messages with which requests are answered at this event."""
    found: list[Message] = []
    for effect in talk.effects_of(event):
        talk.lines(effect)
        if isinstance(effect, Answer):
            found.append(effect.message)
    return found


def test_a_batch_is_measured_from_its_oldest_append_to_its_commit() -> None:
    talk = Talk.ready().hear("x appends 1", "time 0.4", "x appends 2 3", "turn", "time 0.004", "A B store 2")
    counts, latencies = talk.owner._counts, talk.owner._counts._latencies
    assert (counts["committed_batches"], counts["committed_transactions"]) == (1, 1)
    assert latencies.counts[BOUNDS_S.index(0.5)] == 1
    talk("A B store 3")
    assert (counts["committed_batches"], counts["committed_transactions"]) == (2, 3)
    assert latencies.counts[BOUNDS_S.index(0.005)] == 1, "the second batch waited for the first one's sync only"
    assert counts["committed_bytes"] == sum(len(batch.raw) for batch in talk.sealed.values())


def test_what_a_recovery_kept_is_measured_with_the_pause() -> None:
    talk = Talk.ready().hear("x appends 1", "C fails", "time 3", "session 2 at 0 of A B")
    latencies = talk.owner._counts._latencies
    assert talk.owner.counts["committed_transactions"] == 1
    assert latencies.counts[BOUNDS_S.index(5.0)] == 1


def test_an_append_that_was_refused_does_not_make_the_next_one_look_older() -> None:
    talk = Talk.ready().hear("x appends 1:k", "A B store 2", "x appends 2:k", "time 2", "x appends 3", "A B store 3")
    latencies = talk.owner._counts._latencies
    assert talk.owner.counts["refused"] == 1
    assert sum(latencies.counts) == 2
    assert latencies.total < 0.1


def test_conflicts_with_what_the_session_knows_are_certain() -> None:
    counts = Talk.ready().hear("x appends 1:k", "x appends 2:k").owner.counts
    assert (counts["conflicts"], counts["conflicts_before_session"], counts["conflicts_by_table"]) == (1, 0, 0)


def test_a_conflict_with_the_time_before_the_session_may_be_false() -> None:
    counts = (
        Talk.ready()
        .hear("x appends 1", "A B store 2", "ends", "session 2 at 0", "A B store 1", "x appends 2:k")
        .owner.counts
    )
    assert (counts["conflicts"], counts["conflicts_before_session"], counts["conflicts_by_table"]) == (1, 1, 0)


def test_a_conflict_in_the_lock_table_may_be_false() -> None:
    """The table of 64 entries keeps two locks one by one."""
    counts = Talk.ready().hear("x appends 1:a 2:b 3:c", "x appends 4:a").owner.counts
    assert (counts["conflicts"], counts["conflicts_before_session"], counts["conflicts_by_table"]) == (1, 0, 1)


def test_how_far_each_replica_is_goes_by_what_it_acknowledged() -> None:
    talk = Talk.ready().hear("C store 1", "x appends 1 2", "A B store 2")
    session = talk.owner.session
    assert session is not None
    assert session.sent == 1
    assert [session.reached(name) for name in "ABC"] == [1, 1, -1]
    talk("time 0.1")
    assert [session.reached(name) for name in "ABC"] == [1, 1, -1]
    talk.hear("C store 2", "time 0.1")
    assert [session.reached(name) for name in "ABC"] == [1, 1, 1]


def test_how_far_a_lost_replica_was_is_remembered_until_it_is_back() -> None:
    talk = Talk.ready().hear("C store 1", "x appends 1", "A B store 2", "C fails", "session 2 at 0 of A B")
    assert talk.owner.readiness.reached == {"C": -1}
    talk.owner.readiness.replica_reached("C", 0)
    talk.owner.readiness.replica_reached("A", 7)
    assert talk.owner.readiness.reached == {"C": 0}
    talk.hear("ends", "session 3 at 0")
    assert talk.owner.readiness.reached == {}
