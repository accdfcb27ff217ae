"""What is left of the sent is counted, and who leaves too much of it, or all of it for too long, is cut off."""

from __future__ import annotations

from typing import Any

from polonaise.link.protocol.greeting import PeerGreeting, hello
from polonaise.link.protocol.traffic import FrameOutbox
from polonaise.link.settings import LinkSettings
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER


def new_outbox(*, accepted: bool = True, **settings: Any) -> FrameOutbox:
    greeting = PeerGreeting(hello(ROLE_SERVER, "sam"), (ROLE_CLIENT,), accepted=accepted)
    assert greeting.admit(hello(ROLE_CLIENT, "carol")) is None
    outbox = FrameOutbox(greeting, LinkSettings(**settings))
    outbox.begin(100.0)
    return outbox


def test_a_peer_that_lets_too_much_pile_up_is_cut_off() -> None:
    outbox = new_outbox(unsent_bytes_max=1_000)
    assert outbox.gave(5_000, 1_000, 100.0, own=True) is None
    error = outbox.gave(5_000, 1_001, 100.0, own=True)
    assert error is not None
    assert error.text == "carol does not read what it is sent: 1001 bytes are unsent"


def test_only_an_accepted_peer_is_not_read_because_it_does_not_read() -> None:
    """If both sides did so, each could wait for the other, for ever."""
    assert new_outbox(unread_bytes_max=4_000).is_unread(4_001)
    assert not new_outbox(unread_bytes_max=4_000).is_unread(4_000)
    assert not new_outbox(unread_bytes_max=4_000, accepted=False).is_unread(1 << 30)


def test_what_has_left_and_what_others_share_is_not_booked() -> None:
    outbox = new_outbox()
    outbox.gave(100_000, 0, 100.0, own=True)
    assert outbox.own_bytes(0) == 0, "it has left at once"
    outbox.gave(100_000, 100_000, 100.0, own=True)
    outbox.gave(500_000, 600_000, 100.0, own=False)
    outbox.gave(70_000, 670_000, 100.0, own=True)
    assert outbox.own_bytes(670_000) == 170_000
    assert outbox.own_bytes(570_001) == 170_000, "a message counts until all of it has left"
    assert outbox.own_bytes(570_000) == 70_000
    assert outbox.own_bytes(70_000) == 70_000
    assert outbox.own_bytes(0) == 0


def test_small_messages_are_booked_together() -> None:
    outbox = new_outbox()
    for count in range(1, 10_001):
        outbox.gave(100, 100 * count, 100.0, own=True)
    assert outbox.own_bytes(1_000_000) == 1_000_000
    assert len(outbox._own) < 20
    assert 500_000 <= outbox.own_bytes(500_000) < 500_000 + 65_636


def test_writers_wait_earlier_while_the_budget_is_tight() -> None:
    outbox = new_outbox(unsent_bytes_high=4_000, unsent_bytes_tight=1_000)
    assert [outbox.tighten(tight) for tight in (False, True, True, False)] == [None, 1_000, None, 4_000]


def test_a_peer_that_takes_no_byte_while_writers_wait_is_cut_off_in_the_end() -> None:
    outbox = new_outbox(unread_s_max=20.0)
    outbox.gave(5_000, 5_000, 100.0, own=True)
    assert outbox.stuck(5_000, 100.0, writable=True) is None
    assert outbox.stuck(5_000, 150.0, writable=True) is None, "nobody waits"
    assert outbox.stuck(5_000, 170.0, writable=False) is None
    error = outbox.stuck(5_000, 170.1, writable=False)
    assert error is not None
    assert error.text == "carol has read nothing of what it is sent for 20 s"


def test_a_slow_reader_that_goes_on_reading_is_left_alone() -> None:
    outbox = new_outbox(unread_s_max=3.0)
    outbox.gave(5_000, 5_000, 100.0, own=True)
    assert outbox.stuck(5_000, 99.0, writable=True) is None
    for second in range(20):
        assert outbox.stuck(5_000 - second // 3, 100.0 + second, writable=False) is None


def test_a_ping_is_due_when_nothing_was_sent_or_nothing_was_heard_for_a_heartbeat() -> None:
    outbox = new_outbox(heartbeat_s=1.0)
    assert not outbox.ping_due(100.8, heard_s=100.0)
    assert outbox.ping_due(100.9, heard_s=100.8), "a timer may be a little early"
    outbox.gave(30, 0, 100.9, own=True)
    assert not outbox.ping_due(101.0, heard_s=100.8)
    assert outbox.ping_due(101.75, heard_s=100.8)
