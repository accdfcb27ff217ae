"""Commit: what a quorum of the members has synced, and the copies of an append that were asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.coordination.values import Requirement
from polonaise.errors import InvariantViolated, ProtocolError
from polonaise.server.protocol.commit import Acknowledgements, losses_that_stop, zones_that_stop
from polonaise.wire.copies import NEEDED_MAX, Needs, parse_needs
from rigs.owner import COMMITTED, READY, SENT, check

NAMES = "ABCDE"
ZONES = {"A": "north", "B": "north", "C": "south"}


def told(members: str, engaged: str, dialogue: str, required: Requirement | None = None) -> list[int]:
    """The committed number after each of `A3 B2 …`."""
    acknowledgements = Acknowledgements(members, engaged, required)
    committed: list[int] = []
    for word in dialogue.split():
        before = acknowledgements.committed
        moved = acknowledgements.acknowledge(word[0], int(word[1:]))
        assert moved == (acknowledgements.committed > before)
        committed.append(acknowledgements.committed)
    return committed


@pytest.mark.parametrize(
    ("members", "engaged", "dialogue", "committed"),
    [
        pytest.param("A", "A", "A1 A5", [1, 5], id="alone"),
        pytest.param("ABC", "ABC", "A1 B1 C1", [0, 1, 1], id="two of three"),
        pytest.param("ABC", "ABC", "A3 B1 C2 B3", [0, 1, 2, 3], id="the second highest of three"),
        pytest.param("ABC", "AB", "A1 C9 B1", [0, 0, 1], id="who is not engaged does not count"),
        pytest.param("ABC", "AB", "A2 B1", [0, 1], id="two of two engaged"),
        pytest.param("ABCDE", "ABCDE", "A4 B4 C2 D3 E9", [0, 0, 2, 3, 4], id="three of five"),
        pytest.param("ABCDE", "ABC", "A2 B2 C1 C2", [0, 0, 1, 2], id="three engaged of five: still three"),
        pytest.param("ABCDE", "ABCD", "A2 B2 E2 D1", [0, 0, 0, 1], id="four engaged of five: still three"),
        pytest.param("ABC", "ABC", "A5 B5 A3 B1 C4", [0, 5, 5, 5, 5], id="an acknowledgement that goes back"),
        pytest.param("ABC", "ABC", "A1 A1 A1", [0, 0, 0], id="the same replica again and again"),
        pytest.param("ABC", "ABC", "X9 Y9 Z9", [0, 0, 0], id="strangers"),
        pytest.param("ABCD", "ABCD", "A1 B1 C1", [0, 0, 1], id="three of four"),
    ],
)
def test_a_number_is_committed_when_a_quorum_of_the_members_has_it(
    members: str, engaged: str, dialogue: str, committed: list[int]
) -> None:
    assert told(members, engaged, dialogue) == committed


@pytest.mark.parametrize(("members", "engaged"), [("ABC", "A"), ("ABCDE", "AB"), ("ABC", "AAA"), ("A", "")])
def test_a_session_without_a_quorum_engaged_does_not_begin(members: str, engaged: str) -> None:
    with pytest.raises(InvariantViolated):
        Acknowledgements(members, engaged)


@pytest.mark.parametrize(
    ("engaged", "copies", "zones", "dialogue", "committed"),
    [
        pytest.param("ABC", 3, 0, "A1 B1 C1", [0, 0, 1], id="all three"),
        pytest.param("ABC", 1, 0, "A1 B1", [0, 1], id="never less than a quorum"),
        pytest.param("ABC", 2, 2, "A2 B2 C1 C2", [0, 0, 1, 2], id="A and B are in one zone"),
        pytest.param("ABC", 2, 2, "A2 C2", [0, 2], id="two copies in two zones"),
        pytest.param("ABC", 3, 2, "A2 C2 B1", [0, 0, 1], id="zones are not copies"),
    ],
)
def test_a_number_is_committed_with_the_copies_and_zones_that_are_required(
    engaged: str, copies: int, zones: int, dialogue: str, committed: list[int]
) -> None:
    assert told("ABC", engaged, dialogue, Requirement(1, copies, zones, ZONES)) == committed


@pytest.mark.parametrize(("engaged", "copies", "zones"), [("AB", 3, 0), ("AB", 2, 2), ("CD", 2, 2)])
def test_a_session_without_the_required_copies_and_zones_does_not_begin(engaged: str, copies: int, zones: int) -> None:
    with pytest.raises(InvariantViolated):
        Acknowledgements("ABC", engaged, Requirement(1, copies, zones, ZONES))


@given(
    count=st.sampled_from([1, 3, 5]),
    said=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 30)), max_size=40),
    missing=st.integers(0, 2),
)
def test_the_commit_is_the_highest_number_on_a_quorum_and_never_goes_back(
    count: int, said: list[tuple[str, int]], missing: int
) -> None:
    members = NAMES[:count]
    needed = count // 2 + 1
    engaged = members[: max(needed, count - missing)]
    acknowledgements = Acknowledgements(members, engaged)
    synced = dict.fromkeys(engaged, 0)
    for name, number in said:
        acknowledgements.acknowledge(name, number)
        if name in synced:
            synced[name] = max(synced[name], number)
            assert acknowledgements.synced(name) == synced[name]
        highest = max(n for n in range(31) if sum(s >= n for s in synced.values()) >= needed)
        assert acknowledgements.committed == highest


@pytest.mark.parametrize(
    ("members", "engaged", "required", "nodes", "zones"),
    [
        pytest.param("ABC", "ABC", None, "", [], id="three of three have one to spare"),
        pytest.param("ABC", "AB", None, "AB", [], id="two of three have none"),
        pytest.param("A", "A", None, "A", [], id="the only one"),
        pytest.param("ABCD", "ABC", None, "ABC", [], id="four need three"),
        pytest.param("ABC", "ABC", Requirement(1, 3, 0, ZONES), "ABC", ["north", "south"], id="three are required"),
        pytest.param("ABC", "ABC", Requirement(1, 0, 2, ZONES), "C", ["north", "south"], id="both of two zones"),
        pytest.param("ABC", "ABC", Requirement(1, 0, 1, ZONES), "", ["north"], id="one zone has the majority"),
    ],
)
def test_what_must_not_be_lost(
    members: str, engaged: str, required: Requirement | None, nodes: str, zones: list[str]
) -> None:
    assert losses_that_stop(members, engaged, required) == [*nodes]
    assert zones_that_stop(members, engaged, required, ZONES if required else {}) == zones


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
