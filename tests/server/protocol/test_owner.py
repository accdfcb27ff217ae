"""When the owner of a partition sends, feeds and tells: the order that everybody else relies on."""

from __future__ import annotations

import pytest

from rigs.owner import COMMITTED, READY, SENT, check

# ------------------------------------------------------------------ nothing before it is committed


def test_a_batch_is_fed_when_a_quorum_has_synced_it_and_not_before() -> None:
    check(f"""{READY}
    > x appends 1 2
    send 2: 0..1
    > C store 2
    > C store 2
    > A store 2
    feed x: 0..1
    mark 1
    """)


def test_a_request_is_answered_by_a_message_that_is_sent_after_it() -> None:
    check(f"""{SENT}
    > x asks for the mark
    turn
    > A B store 2
    send 3: barrier
    feed x: 0..0
    mark 0
    > A C store 3
    answer x: the mark is 0
    """)


# ------------------------------------------------------------------ when it sends


def test_what_arrives_behind_a_batch_goes_out_together_at_the_end_of_the_turn() -> None:
    check(f"""{SENT}
    > x appends 2
    turn
    > x appends 3 4
    > turn
    send 3: 1..3
    """)


def test_a_full_window_waits_for_the_acknowledgement_that_makes_room() -> None:
    check(
        f"""{SENT}
    > x appends 2
    turn
    > turn
    send 3: 1..1
    > x appends 3
    > x appends 4
    > A B store 2
    send 4: 2..3
    feed x: 0..0
    mark 0
    """,
        window=2,
    )


# ------------------------------------------------------------------ refuse before feed


def test_a_refusal_that_rests_on_committed_state_is_told_at_once() -> None:
    check(f"""{READY}
    > x appends 1:k
    send 2: 0..0
    > A B store 2
    feed x: 0..0
    mark 0
    > x appends 2:k
    tell x: 2 LOCK_CONFLICT 0
    """)


def test_a_refusal_is_told_before_a_younger_append_of_the_same_client_is_fed() -> None:
    """The client that is fed append 3 and has heard nothing of append 2 would take it for lost, and append it again."""
    check(f"""{READY}
    > x appends 1:k 2:k 3
    send 2: 0..1
    > A B store 2
    tell x: 2 LOCK_CONFLICT 0
    feed x: 0..1
    mark 1
    """)


def test_a_refusal_that_rests_on_another_clients_append_waits_for_that() -> None:
    check(f"""{READY}
    > y mounts at -1
    send 2: barrier
    > A B store 2
    answer y: ready at -1
    > y appends 1:k
    send 3: 0..0
    > x appends 1:k
    > x appends 2
    turn
    > turn
    send 4: 1..1
    > A B store 4
    tell x: 1 LOCK_CONFLICT 0
    feed x: 0..0
    feed y: 0..0
    feed x: 1..1
    feed y: 1..1
    mark 0
    mark 1
    """)


def test_refusals_are_told_in_the_order_of_what_they_rest_on_whatever_the_order_they_were_made_in() -> None:
    check(f"""{READY}
    > x appends 1:k 2:j
    send 2: 0..1
    > x appends 3:j
    > x appends 4:k
    > x appends 5:k
    > A B store 2
    tell x: 4 LOCK_CONFLICT 0
    tell x: 5 LOCK_CONFLICT 0
    tell x: 3 LOCK_CONFLICT 1
    feed x: 0..1
    mark 1
    """)


def test_an_append_with_a_mark_beyond_the_log_is_refused_alone() -> None:
    check(f"""{READY}
    > x appends 1 2@1000000000 3
    send 2: 0..1
    tell x: 2 MARK_BEYOND_LOG -1
    > A B store 2
    feed x: 0..1
    mark 1
    """)


def test_an_append_of_another_generation_is_void_and_the_client_told_which_one_is_right() -> None:
    check(f"""{READY}
    > x appends 1 stale
    tell x: 1 GENERATION 1
    """)


# ------------------------------------------------------------------ feed before answer


def test_a_flush_is_answered_behind_the_feed_of_what_came_before_it() -> None:
    check(f"""{SENT}
    > x flushes
    turn
    > turn
    send 3: barrier
    > A B store 3
    feed x: 0..0
    answer x: flushed 0
    mark 0
    """)


def test_an_answer_waits_for_a_client_that_takes_no_feed() -> None:
    check("""
    > session 1 at -1
    confirm -1
    mark -1
    > x mounts at -1 credit 1
    send 1: barrier
    > A B store 1
    answer x: ready at -1
    > x appends 1 2
    send 2: 0..1
    > A B store 2
    feed x: 0..1
    mark 1
    > x appends 3
    send 3: 2..2
    > A B store 3
    mark 2
    > x flushes
    send 4: barrier
    > A B store 4
    > x gives 1000
    feed x: 2..2
    answer x: flushed 2
    """)


def test_a_mount_is_ready_once_everything_up_to_its_mark_was_fed() -> None:
    check(f"""{COMMITTED}
    > y mounts at -1
    send 3: barrier
    feed y: 0..0
    > A B store 3
    answer y: ready at 0
    """)


def test_a_mount_that_claims_more_than_there_is_is_told_so_and_fed_nothing() -> None:
    check(f"""{READY}
    > y mounts at 4
    send 2: barrier
    > A B store 2
    answer y: ahead of -1
    """)


# ------------------------------------------------------------------ members that are to change


RESET = f"""{COMMITTED}
    > x appends 2
    send 3: 1..1
    > A B store 3
    feed x: 1..1
    mark 1
    > ends
    end: asked to
"""
"""The client x was fed the ids 0 and 1, of which 1 is given up."""


@pytest.mark.parametrize("session", [2, 3], ids=["heard of", "the answer that it was engaged was lost"])
def test_the_mounts_of_clients_end_with_the_session_that_resets_the_head(session: int) -> None:
    check(f"""{RESET}
    > session {session} at 0 by 2
    confirm 0
    send 1: 1..1
    refuse x its mount: partition_not_ready
    mark 0
    """)


def test_mounts_go_on_in_sessions_after_a_reset_that_the_owner_knows_of() -> None:
    check(f"""{READY}
    > ends
    end: asked to
    > session 2 at -1 by 0
    confirm -1
    send 1: 0..0
    mark -1
    """)


def test_a_session_ends_at_once_for_a_copy_that_is_to_go() -> None:
    check(f"""{READY}
    > members A B
    end: its members change
    """)


def test_a_session_goes_on_while_a_copy_that_is_to_come_is_not_there_yet() -> None:
    check(f"""{READY}
    > members A B C D
    > x appends 1
    send 2: 0..0
    > D store 2
    > A store 2
    > B store 2
    feed x: 0..0
    mark 0
    > members
    """)


def test_a_copy_is_not_given_up_without_a_quorum_of_those_that_stay() -> None:
    check("""
    > session 1 at -1 of A C
    confirm -1
    mark -1
    > members A B
    """)
