"""What comes in is handled in its order, a turn at a time, and a peer is dead only for what it did not do itself."""

from __future__ import annotations

from typing import Any

import pytest

from polonaise.errors import FrameTooLarge
from polonaise.link.protocol.greeting import PeerGreeting, hello
from polonaise.link.protocol.traffic import OWN_REQUESTS, AwaitedAnswers, FrameInbox
from polonaise.link.settings import LinkSettings
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER, Bodies, Flush, Hello

CAROL = hello(ROLE_CLIENT, "carol")
HELLO = b"".join(CAROL.frame())


def flushes(*numbers: int) -> bytes:
    return b"".join(b"".join(Flush().frame(request=number)) for number in numbers)


def new_inbox(*, accepted: bool = True, **settings: Any) -> tuple[FrameInbox, PeerGreeting]:
    """An inbox whose connection was made at the time 100."""
    greeting = PeerGreeting(hello(ROLE_SERVER, "sam"), (ROLE_CLIENT,), accepted=accepted)
    inbox = FrameInbox(greeting, LinkSettings(**settings))
    inbox.begin(100.0)
    return inbox, greeting


def greet(inbox: FrameInbox, greeting: PeerGreeting) -> None:
    said = greeting.hear(CAROL)
    assert isinstance(said, Hello)
    assert greeting.admit(said) is None
    inbox.greeted()


def greeted(**settings: Any) -> FrameInbox:
    """An inbox whose peer has said hello at once."""
    inbox, greeting = new_inbox(**settings)
    greet(inbox, greeting)
    return inbox


def taken(inbox: FrameInbox, data: bytes, now_s: float = 100.0) -> list[int]:
    return [frame.request for frame in inbox.take(data, now_s)]


def turn(inbox: FrameInbox) -> list[int]:
    return [frame.request for frame in inbox.take_turn()]


# ------------------------------------------------------------------ order, turns and pauses


def test_a_packet_of_many_frames_is_handled_in_turns() -> None:
    """Ten thousand messages fit into one packet, and handling them all at once would stop the node for seconds."""
    inbox = greeted()
    assert taken(inbox, flushes(*range(20))) == [*range(8)]
    assert (inbox.has_turn, inbox.reads) == (True, False)
    assert taken(inbox, flushes(20)) == [], "nothing overtakes what is held"
    assert turn(inbox) == [*range(8, 16)]
    assert turn(inbox) == [*range(16, 21)]
    assert (inbox.has_turn, inbox.reads) == (False, True)
    assert turn(inbox) == []


def test_what_this_side_has_asked_for_is_handled_at_once() -> None:
    assert taken(greeted(accepted=False), flushes(*range(20))) == [*range(20)]


def test_what_came_together_waits_when_the_first_of_it_is_reason_to_pause() -> None:
    """One packet may hold thousands of requests: a pause that came after them all would bound nothing."""
    inbox = greeted()
    handled = []
    for frame in inbox.take(flushes(1, 2, 3), 100.0):
        handled.append(frame.request)
        inbox.pause("enough")
    assert (handled, inbox.has_turn, inbox.reads) == ([1], False, False)
    assert turn(inbox) == []
    assert inbox.resume("enough", 101.0)
    for frame in inbox.take_turn():
        handled.append(frame.request)
        inbox.pause("enough")
    assert handled == [1, 2]
    assert inbox.resume("enough", 102.0)
    assert turn(inbox) == [3]


def test_a_pause_ends_with_its_last_reason() -> None:
    inbox = greeted()
    for reason in ("busy", "busy", "very busy"):
        inbox.pause(reason)
    assert not inbox.resume("never paused for this", 101.0)
    assert not inbox.resume("busy", 101.0)
    assert not inbox.reads
    assert inbox.resume("very busy", 101.0)
    assert inbox.reads


def test_what_follows_a_hello_at_once_is_taken_however_large_it_is() -> None:
    """The limit is small until the hello, and the hello may share its packet with the first large frame."""
    inbox, greeting = new_inbox(frame_bytes_max=1 << 20)
    sizes = []
    for frame in inbox.take(HELLO + b"".join(Bodies(0, payload=[bytes(300_000)]).frame()), 100.0):
        if greeting.peer is None:
            greet(inbox, greeting)
        sizes.append(len(frame.payload))
    assert sizes == [0, 300_000]
    with pytest.raises(FrameTooLarge, match="1048576 at most"):
        taken(inbox, b"".join(Bodies(0, payload=[bytes(1 << 20)]).frame()))


def test_after_the_end_nothing_is_handed_out() -> None:
    inbox = greeted()
    handled = []
    for frame in inbox.take(flushes(*range(20)) + flushes(20)[:9], 100.0):
        handled.append(frame.request)
        inbox.end()
    assert handled == [0]
    inbox = greeted()
    taken(inbox, flushes(*range(20)))
    inbox.end()
    assert (turn(inbox), inbox.kept_bytes) == ([], 0)


def test_what_is_held_and_what_has_begun_is_kept() -> None:
    inbox = greeted()
    bodies = Bodies(0, payload=[bytes(1000)]).frame(request=1)
    taken(inbox, flushes(*range(8)) + b"".join(bodies) + flushes(9)[:5])
    assert 1000 < inbox.kept_bytes < 1000 + len(bodies[0])
    turn(inbox)
    assert inbox.kept_bytes == 5


# ------------------------------------------------------------------ deadlines


def why(inbox: FrameInbox, now_s: float, late_s: float = 0.0) -> str:
    error = inbox.overdue(now_s, late_s)
    return "" if error is None else error.text


def test_a_hello_of_one_byte_per_second_is_too_slow() -> None:
    inbox, _ = new_inbox(hello_s_max=5.0)
    for second in range(1, 6):
        taken(inbox, HELLO[second : second + 1], 100.0 + second)
        assert why(inbox, 100.0 + second) == ""
    assert why(inbox, 105.1) == "the peer did not say hello"


@pytest.mark.parametrize("between", [b"", flushes(1)], ids=["only the frame", "after other frames"])
def test_a_frame_has_to_end_even_if_bytes_keep_coming(between: bytes) -> None:
    inbox = greeted(frame_s_max=10.0)
    taken(inbox, between + b"".join(Bodies(1, payload=[bytes(1000)]).frame())[:100], 100.0)
    for second in range(1, 11):
        taken(inbox, b"\0", 100.0 + second)
        assert why(inbox, 100.0 + second) == ""
    assert why(inbox, 110.1) == "carol did not finish a frame in 10 s"


def test_many_frames_each_cut_in_two_are_no_slow_frame() -> None:
    inbox = greeted(frame_s_max=3.0)
    for second in range(20):
        assert why(inbox, 100.0 + second) == ""
        assert len(taken(inbox, (flushes(0)[7:] if second else b"") + flushes(0)[:7], 100.0 + second)) == bool(second)


def test_time_for_which_this_side_did_not_read_is_not_held_against_the_peer() -> None:
    inbox = greeted(frame_s_max=4.0, silence_s_max=5.0)
    taken(inbox, flushes(1)[:9], 100.0)
    inbox.pause("busy")
    assert why(inbox, 150.0) == ""
    inbox.resume("busy", 150.0)
    assert why(inbox, 154.0) == ""
    assert "a frame" in why(inbox, 154.1)
    taken(inbox, flushes(1)[9:], 154.2)
    assert why(inbox, 159.2) == ""
    assert why(inbox, 159.3) == "carol was silent for 5 s"
    inbox.reads_on(160.0)
    assert why(inbox, 165.0) == ""


def test_a_peer_whose_frames_wait_for_their_turn_is_not_silent() -> None:
    inbox = greeted(silence_s_max=5.0)
    taken(inbox, flushes(*range(9)))
    assert (why(inbox, 106.0), inbox.silent_s(106.0)) == ("", 0.0)


def test_a_look_that_is_a_little_late_is_not_taken_for_the_reason_of_a_silence() -> None:
    assert why(greeted(silence_s_max=5.0), 105.02, late_s=0.03) == "carol was silent for 5 s"


def test_what_this_process_did_not_hear_while_it_stood_still_is_no_silence_of_the_peer() -> None:
    assert why(greeted(silence_s_max=5.0), 155.5, late_s=55.0) == (
        "this process, or its machine, itself stood still for 55.0 s, in which it heard nothing of carol"
    )
    assert why(greeted(silence_s_max=5.0), 155.5, late_s=50.0) == "carol was silent for 5 s", "before that, too"


def test_a_peer_is_late_before_it_counts_as_dead() -> None:
    inbox = greeted(heartbeat_s=1.0)
    assert inbox.silent_s(102.5) == 0.0
    assert inbox.silent_s(103.0) == 3.0
    inbox.pause("busy")
    assert inbox.silent_s(103.0) == 0.0
    stranger, _ = new_inbox(heartbeat_s=1.0)
    assert stranger.silent_s(103.0) == 0.0, "it was asked for nothing yet"


# ------------------------------------------------------------------ answers


def test_requests_are_numbered_from_the_upper_half_round_and_round() -> None:
    awaited: AwaitedAnswers[str] = AwaitedAnswers()
    assert [awaited.begin("a"), awaited.begin("b")] == [OWN_REQUESTS + 1, OWN_REQUESTS + 2]
    awaited.end(OWN_REQUESTS + 1)
    awaited.end(OWN_REQUESTS + 1)
    assert awaited.waiting == {OWN_REQUESTS + 2: "b"}
    awaited._last = 0x7FFF_FFFF
    assert awaited.begin("c") == OWN_REQUESTS
    assert awaited.end_all() == ["b", "c"]
    assert awaited.waiting == {}
