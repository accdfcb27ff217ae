"""Appends that need copies: refused at once where they can't have them, and proved as soon as replicas have synced."""

from __future__ import annotations

import pytest

from polonaise.errors import ProtocolError
from polonaise.wire.copies import NEEDED_MAX, Needs, parse_needs
from rigs.owner import COMMITTED, READY, SENT, check

ON_TWO = READY.replace("session 1 at -1", "session 1 at -1 of A B")

# ------------------------------------------------------------------ let in, or refused at once


def test_an_append_that_can_have_what_it_needs_is_ordered_and_committed_like_any_other() -> None:
    check(f"""{READY}
    > x appends 1 needs 3 2
    send 2: 0..0
    > A B store 2
    feed x: 0..0
    mark 0
    """)


@pytest.mark.parametrize("needs", ["4 0", "4 2", "3 3"])
def test_an_append_that_needs_more_than_is_engaged_is_refused_and_nothing_is_written(needs: str) -> None:
    check(f"""{READY}
    > x appends 1 needs {needs}
    tell x: 1 INSUFFICIENT_REPLICAS -1
    > x appends 2
    send 2: 0..0
    """)


@pytest.mark.parametrize("needs", ["3 0", "2 2"])
def test_only_engaged_replicas_count_for_what_an_append_needs(needs: str) -> None:
    check(f"""{ON_TWO}
    > x appends 1 needs {needs}
    tell x: 1 INSUFFICIENT_REPLICAS -1
    """)


def test_the_others_of_a_frame_are_ordered_all_the_same() -> None:
    check(f"""{READY}
    > x appends 1 2 needs 4 0
    send 2: 0..0
    tell x: 2 INSUFFICIENT_REPLICAS -1
    """)


def test_a_refusal_for_want_of_replicas_does_not_wait_for_earlier_appends() -> None:
    """It rests on none of them: whatever becomes of them, nothing was written."""
    check(f"""{SENT}
    > x appends 2 needs 4 0
    tell x: 2 INSUFFICIENT_REPLICAS -1
    """)


# ------------------------------------------------------------------ proved


def test_copies_are_proved_when_so_many_replicas_have_synced_and_not_by_a_quorum() -> None:
    check(f"""{READY}
    > x appends 1 needs 3 0
    send 2: 0..0
    > A B store 2
    feed x: 0..0
    mark 0
    > x proves 0 on 3 0
    > C store 1
    > C store 2
    answer x: proved 0
    """)


def test_what_is_synced_already_is_proved_at_once() -> None:
    check(f"""{COMMITTED}
    > x proves 0 on 2 0
    answer x: proved 0
    > x proves 0 on 2 1
    answer x: proved 0
    """)


def test_zones_are_proved_by_a_replica_in_each() -> None:
    check(f"""{COMMITTED}
    > x proves 0 on 2 2
    > C store 2
    answer x: proved 0
    """)


def test_a_replica_that_is_engaged_holds_everything_from_before_its_session() -> None:
    check(f"""{COMMITTED}
    > x proves 0 on 3 0
    > ends
    refuse x: partition_not_ready
    end: asked to
    > x proves 0 on 3 0
    refuse x: partition_not_ready
    > session 2 at 0
    confirm 0
    mark 0
    > x proves 0 on 3 2
    answer x: proved 0
    """)


def test_what_the_session_cant_prove_is_refused_so_that_the_client_asks_in_the_next_one() -> None:
    check(f"""{ON_TWO}
    > x appends 1
    send 2: 0..0
    > A B store 2
    feed x: 0..0
    mark 0
    > x proves 0 on 3 0
    refuse x: partition_not_ready
    > C store 2
    """)


def test_nothing_is_proved_of_what_is_not_committed() -> None:
    check(f"""{SENT}
    > A store 2
    > x proves 0 on 1 0
    refuse x: beyond_log
    """)


def test_an_acknowledgement_that_proves_and_commits_is_told_in_this_order() -> None:
    """The proof is of an older transaction; the commit may end the session, which voids what is not proved."""
    check(f"""{COMMITTED}
    > x proves 0 on 3 0
    > x appends 2
    send 3: 1..1
    > C store 3
    answer x: proved 0
    """)


def test_a_request_that_is_not_proved_in_time_is_refused() -> None:
    check(
        f"""{COMMITTED}
    > x proves 0 on 3 0
    > time 6
    refuse x: partition_not_ready
    > C store 2
    """,
        acknowledge_s_max=1e9,
        request_s_max=5.0,
    )


def test_needs_that_do_not_parse_are_a_broken_protocol() -> None:
    assert parse_needs(Needs(NEEDED_MAX, 2).encode()) == Needs(255, 2)
    for value in (b"", b"\3", b"\3\0\0"):
        with pytest.raises(ProtocolError):
            parse_needs(value)
