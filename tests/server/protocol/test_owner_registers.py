"""What an owner answers to those who ask for registers."""

from __future__ import annotations

import pytest

from polonaise.errors import ProtocolError
from polonaise.server.protocol.effects import Answer
from polonaise.wire.codec import Message
from polonaise.wire.messages import ListRegisters, RegisterIs
from rigs.order import SET, Tx, frame
from rigs.owner import Talk


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
