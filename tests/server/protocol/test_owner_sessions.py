"""What becomes of appends and requests when a session ends, or none is there."""

from __future__ import annotations

from rigs.owner import COMMITTED, READY, SENT, Talk, check

PACED = READY.replace("> session 1 at -1", "> session 1 at -1 pace 2")
"""The beginning of a session that a quorum took 2 seconds to join."""

# ------------------------------------------------------------------ sessions that end


def test_what_was_in_flight_is_told_when_the_next_session_is_engaged() -> None:
    """The batch with 1 was found by the recovery, the one with 2 was not: its fate is known only now."""
    check(f"""{SENT}
    > x appends 2
    turn
    > turn
    send 3: 1..1
    > C fails
    news for x: hindered by storage node C: [connection_lost] gone
    end: C: [connection_lost] gone
    > x appends 3
    > session 2 at 0 of A B
    confirm 0
    send 1: 1..1
    tell x: 2 SESSION_ENDED 0
    feed x: 0..0
    news for x: commits again
    mark 0
    mark 0
    > A B store 1
    feed x: 1..1
    mark 1
    """)


def test_a_refusal_whose_ground_went_with_its_session_is_told_as_that() -> None:
    check(f"""{SENT}
    > x appends 2:k
    turn
    > x appends 3:k
    > turn
    send 3: 1..1
    > C fails
    news for x: hindered by storage node C: [connection_lost] gone
    end: C: [connection_lost] gone
    > session 2 at 0 of A B
    confirm 0
    tell x: 2 SESSION_ENDED 0
    tell x: 3 SESSION_ENDED 0
    feed x: 0..0
    news for x: commits again
    mark 0
    mark 0
    """)


def test_a_refusal_whose_ground_was_kept_by_the_recovery_is_told_before_it_is_fed() -> None:
    check(f"""{READY}
    > x appends 1:k
    send 2: 0..0
    > x appends 2:k 3
    turn
    > C fails
    news for x: hindered by storage node C: [connection_lost] gone
    end: C: [connection_lost] gone
    > session 2 at 0 of A B
    confirm 0
    send 1: 1..1
    tell x: 2 LOCK_CONFLICT 0
    feed x: 0..0
    news for x: commits again
    mark 0
    mark 0
    > A B store 1
    feed x: 1..1
    mark 1
    """)


def test_what_was_never_sent_is_ordered_in_the_next_session_before_what_came_since() -> None:
    check(f"""{SENT}
    > x appends 2 3
    turn
    > x flushes
    > ends
    end: asked to
    > x appends 4
    > session 2 at 0
    confirm 0
    send 1: 1..3
    feed x: 0..0
    mark 0
    mark 0
    > A B store 1
    feed x: 1..3
    answer x: flushed 3
    mark 3
    """)


def test_a_refusal_that_rests_on_what_was_never_sent_is_judged_anew() -> None:
    """Append 2 would have been refused because of append 1, which now finds the lock raised by the session's start."""
    check(f"""{SENT}
    > x appends 2:k 3:k 4
    turn
    > ends
    end: asked to
    > session 2 at 0
    confirm 0
    send 1: 1..1
    tell x: 2 LOCK_CONFLICT 0
    tell x: 3 LOCK_CONFLICT 0
    feed x: 0..0
    mark 0
    mark 0
    > A B store 1
    feed x: 1..1
    mark 1
    """)


def test_of_a_frame_that_was_never_sent_what_was_refused_is_not_judged_again() -> None:
    check(f"""{COMMITTED}
    > x appends 2
    send 3: 1..1
    > x appends 3@-1:k 4 5@7
    tell x: 5 MARK_BEYOND_LOG 0
    turn
    > C fails
    news for x: hindered by storage node C: [connection_lost] gone
    end: C: [connection_lost] gone
    > session 2 at 1 of A B
    confirm 1
    send 1: 2..2
    tell x: 3 LOCK_CONFLICT 1
    feed x: 1..1
    news for x: commits again
    mark 1
    mark 1
    """)


def test_what_was_never_sent_is_void_when_its_client_has_mounted_anew() -> None:
    check(f"""{SENT}
    > x appends 2
    turn
    > ends
    end: asked to
    > x mounts at -1
    > session 2 at 0
    confirm 0
    send 1: barrier
    feed x: 0..0
    mark 0
    mark 0
    > A B store 1
    answer x: ready at 0
    """)


def test_requests_live_on_in_the_next_session() -> None:
    check(f"""{READY}
    > x asks for the mark
    send 2: barrier
    > ends
    end: asked to
    > session 2 at -1
    confirm -1
    answer x: the mark is -1
    mark -1
    """)


def test_acknowledgements_of_an_older_session_or_of_an_unengaged_replica_count_for_nothing() -> None:
    check("""
    > session 1 at -1 of A B
    confirm -1
    mark -1
    > x mounts at -1
    send 1: barrier
    > A C store 1
    > B store 1
    answer x: ready at -1
    > x appends 1
    send 2: 0..0
    > C fails
    > A C store 2
    > B store 2
    feed x: 0..0
    mark 0
    """)


def test_a_replica_that_is_late_ends_the_session() -> None:
    check(f"""{READY}
    > C store 1
    > x appends 1
    send 2: 0..0
    > A B store 2
    feed x: 0..0
    mark 0
    > time 2
    > time 2
    news for x: hindered by storage node C: did not sync within 3 s
    end: C: did not sync within 3 s late C
    """)


def test_while_no_quorum_syncs_the_session_waits_and_clients_are_told() -> None:
    """All disks are slow: another session would be as slow, and its start would need syncs, too."""
    check(f"""{READY}
    > C store 1
    > x appends 1
    send 2: 0..0
    > A store 2
    > time 2
    > time 2
    news for x: hindered by the disks of B, C are slow: a sync takes seconds, and commits wait for it
    > time 10
    > B store 2
    feed x: 0..0
    mark 0
    > time 1
    news for x: commits again
    """)


def test_a_replica_may_take_several_times_as_long_as_the_others_need() -> None:
    check(f"""{READY}
    > C store 1
    > x appends 1
    send 2: 0..0
    > time 2
    > A B store 2
    feed x: 0..0
    mark 0
    > time 5
    > time 2
    news for x: hindered by storage node C: did not sync within 3 s
    end: C: did not sync within 3 s late C
    """)


def test_a_replica_may_take_several_times_as_long_as_the_others_needed_to_join() -> None:
    """What is quick says nothing about disks: a barrier is not synced."""
    check(f"""{PACED}
    > time 7
    > time 2
    news for x: hindered by storage node C: did not sync within 3 s
    end: C: did not sync within 3 s late C
    """)


def test_where_joining_took_long_a_quorum_is_waited_for_longer_too() -> None:
    check(f"""{PACED}
    > C store 1
    > x appends 1
    send 2: 0..0
    > time 150
    news for x: hindered by the disks of A, B, C are slow: a sync takes seconds, and commits wait for it
    turn
    > time 15
    news for x: hindered by storage node A: did not sync within 3 s; storage node B: did not sync within 3 s; \
storage node C: did not sync within 3 s
    end: A, B, C: did not sync within 3 s late A B C
    """)


def test_a_session_does_not_wait_for_ever_for_a_quorum() -> None:
    check(f"""{READY}
    > C store 1
    > x appends 1
    send 2: 0..0
    > time 59
    news for x: hindered by the disks of A, B, C are slow: a sync takes seconds, and commits wait for it
    > time 2
    news for x: hindered by storage node A: did not sync within 3 s; storage node B: did not sync within 3 s; \
storage node C: did not sync within 3 s
    end: A, B, C: did not sync within 3 s late A B C
    """)


def test_an_idle_partition_is_asked_whether_it_is_alive() -> None:
    check(f"""{READY}
    > C store 1
    > time 50
    > time 11
    send 2: barrier
    """)


def test_a_checkpoint_ends_the_session_after_everything_was_told() -> None:
    check(
        f"""{READY}
    > x appends 1 2 3
    send 2: 0..2
    > x flushes
    turn
    > A B store 2
    feed x: 0..2
    mark 2
    end: checkpoint
    > session 2 at 2
    confirm 2
    answer x: flushed 2
    mark 2
    """,
        checkpoint_transactions=3,
    )


# ------------------------------------------------------------------ waiting, and the end


def test_without_a_session_requests_expire_and_say_what_is_waited_for() -> None:
    check("""
    > x mounts at -1
    > x asks for the mark
    > x lists
    > time 3
    > time 2
    answer x: not ready: partition 2 is not ready: its first session has not begun
    refuse x: partition_not_ready
    refuse x: partition_not_ready
    """)


def test_who_waits_when_the_partition_moves_is_sent_elsewhere() -> None:
    talk = Talk.ready().hear("y mounts at -1", "x asks for r", "x lists")
    assert talk("stops") == [
        "answer y: not ready: moved",
        "refuse x: not_owner",
        "refuse x: not_owner",
        "refuse x its mount: not_owner",
        "mark -1",
        "end: moved",
    ]
    assert talk("stops") == []
