"""How an owner feeds its mounts, which of them count, and how much of each it takes."""

from __future__ import annotations

import pytest

from rigs.owner import COMMITTED, READY, SENT, Talk, check

# ------------------------------------------------------------------ feeds, and what they wait for


def test_a_laggard_is_read_for_and_then_fed_from_memory_again() -> None:
    check(
        f"""{COMMITTED}
    > x appends 2
    send 3: 1..1
    > A B store 3
    feed x: 1..1
    mark 1
    > y mounts at -1
    send 4: barrier
    read y: 0
    > A B store 4
    > y is given
    read y: 0
    > y is given 0
    feed y: 0..0
    feed y: 1..1
    answer y: ready at 1
    """,
        cache_bytes_max=1,
    )


def test_a_mount_is_fed_a_turns_worth_and_then_its_connection_is_asked() -> None:
    check(f"""{READY}
    > x appends 1!300000
    send 2: 0..0
    > A B store 2
    feed x: 0..0
    mark 0
    room x
    > x appends 2
    send 3: 1..1
    > A B store 3
    mark 1
    > x has room
    feed x: 1..1
    """)


# ------------------------------------------------------------------ mounts that replace each other


def test_appends_of_an_older_mount_are_void() -> None:
    talk = Talk()
    for event in ("x mounts at -1", "x appends 1", "x mounts at -1", "x appends 2", "session 1 at -1"):
        done = talk(event)
    assert done == ["confirm -1", "send 1: 0..0", "mark -1"], "one append, and the later mount's"
    assert talk.owner.counts["void_appends"] == 1
    assert talk("A B store 1") == ["feed x: 0..0", "answer x: ready at 0", "mark 0"], "answered once"


def test_a_mount_is_ready_only_after_the_appends_of_the_older_one_are_decided() -> None:
    check(f"""{SENT}
    > x mounts at -1
    turn
    > turn
    send 3: barrier
    > A B store 2
    feed x: 0..0
    mark 0
    > A B store 3
    answer x: ready at 0
    """)


def test_a_refusal_reaches_the_clients_present_mount() -> None:
    check(f"""{READY}
    > x appends 1:k 2:k
    send 2: 0..0
    > x mounts at -1
    turn
    > A B store 2
    send 3: barrier
    tell x: 2 LOCK_CONFLICT 0
    feed x: 0..0
    mark 0
    """)


@pytest.mark.parametrize("events", [("x leaves",), ("x leaves", "x mounts at -1", "x leaves")])
def test_a_client_that_has_left_is_told_nothing(events: tuple[str, ...]) -> None:
    talk = Talk.ready().hear("x appends 1:k 2:k", "x flushes", *events)
    for event in ("turn", "A B store 2", "A B store 3", "A B store 4"):
        assert not [line for line in talk(event) if " x" in line]


# ------------------------------------------------------------------ bounds


def test_what_is_beyond_a_mounts_window_is_refused_and_the_others_are_not() -> None:
    check(
        """
    > x mounts at -1
    > y mounts at -1
    > x appends 1!3000
    > x appends 2!3000
    tell x: 2 OVERLOADED -1
    > y appends 1
    > x flushes
    > session 1 at -1
    confirm -1
    send 1: 0..1
    mark -1
    > A B store 1
    feed x: 0..1
    feed y: 0..1
    answer x: ready at 1
    answer y: ready at 1
    answer x: flushed 1
    mark 1
    """,
        append_window_bytes=5_000,
    )


def test_one_frame_always_fits_however_small_the_window_is() -> None:
    check(
        """
    > x mounts at -1
    > x appends 1!3000
    > x appends 2
    tell x: 2 OVERLOADED -1
    """,
        append_window_bytes=1,
    )


def test_all_mounts_together_have_a_bound() -> None:
    check(
        """
    > x mounts at -1
    > y mounts at -1
    > x appends 1!3000
    > x appends 2!3000
    > y appends 1!3000
    > y appends 2!3000
    tell y: 2 OVERLOADED -1
    """,
        inbox_bytes_max=12_000,
    )


def test_appends_of_one_client_that_expire_leave_room_for_more() -> None:
    talk = Talk.ready(append_window_bytes=5_000).hear("C fails")
    assert talk("x appends 1!4000") == []
    assert talk("x appends 2!4000") == ["tell x: 2 OVERLOADED -1"]
    assert talk("time 11")[0] == "tell x: 1 DEADLINE -1"
    assert talk("x appends 3!4000") == []
