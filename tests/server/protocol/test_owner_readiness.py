"""What an owner says of what keeps appends from being committed."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import ConsistencyLost, CoordinatorUnavailable
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.protocol.recovery import ReplicaAnswer
from rigs.owner import Talk


def test_sessions_that_end_one_after_the_other_without_a_commit_are_a_trouble_until_one_commits() -> None:
    talk = Talk.ready().hear("x appends 1", "A fails", "session 2 at -1")
    assert talk.owner.readiness.trouble(talk.now.monotonic_s) == "", "a fault alone is none"
    talk.hear("x appends 2", "A fails", "session 3 at -1")
    assert "2 sessions in a row" in talk.owner.readiness.trouble(talk.now.monotonic_s)
    assert "gone" in talk.owner.readiness.trouble(talk.now.monotonic_s)
    assert talk.owner.readiness.trouble(talk.now.monotonic_s + 60) == "", "nothing has failed for long"
    talk.hear("x appends 3", "A B store 1")
    assert talk.owner.readiness.trouble(talk.now.monotonic_s) == ""


def test_faults_that_end_sessions_while_nobody_waits_for_a_commit_are_no_trouble() -> None:
    talk = Talk.ready()
    for number in (2, 3, 4):
        if number % 2:
            talk("x asks for the mark")  # on its way: but the session has worked, and nobody has appended
        talk.hear("C fails", f"session {number} at -1")
        assert talk.owner.readiness.trouble(talk.now.monotonic_s) == ""
        assert talk("time 1")[-1:] == ["news for x: commits again"]
        talk.hear("x asks for the mark", "A B store 1")


def test_sessions_that_sync_nothing_are_a_trouble_though_nobody_appends() -> None:
    talk = Talk()
    for number in (1, 2):
        talk.hear(f"session {number} at -1", "x mounts at -1", "A fails")
    assert "2 sessions in a row" in talk.owner.readiness.trouble(talk.now.monotonic_s)


def test_sessions_whose_appends_wait_behind_synced_barriers_are_a_trouble() -> None:
    talk = Talk()
    for number in (1, 2):
        talk.hear(f"session {number} at -1", "x mounts at -1", "A B store 1", f"x appends {number}", "A fails")
    assert "2 sessions in a row" in talk.owner.readiness.trouble(talk.now.monotonic_s)


def test_faults_far_apart_are_two_troubles_and_those_that_are_found_late_are_one() -> None:
    def after(*, idle_s: float, found_s: float) -> str:
        talk = Talk.ready(acknowledge_s_max=30.0, pulse_s=1000.0).hear("x appends 1", "A fails", "session 2 at -1")
        talk.hear(f"time {idle_s}", "x appends 2", f"time {found_s}", "A fails")
        return talk.owner.readiness.trouble(talk.now.monotonic_s)

    assert after(idle_s=60, found_s=0) == ""
    assert "2 sessions in a row" in after(idle_s=0, found_s=20)


def test_mounts_are_told_what_keeps_their_appends_once_and_when_nothing_does_any_more() -> None:
    talk = Talk.ready().hear("x appends 1")
    a, both = "storage node A: [connection_lost] gone", "storage node B: [connection_lost] gone"
    assert talk("A fails")[0] == f"news for x: hindered by {a}", "before it is told that its append has failed"
    assert "tell x: 1 SESSION_ENDED -1" in talk("session 2 at -1")
    assert talk("time 1") == ["news for x: commits again"], "as far as is known: one fault is none"
    talk("x appends 2")
    assert talk("B fails")[0] == f"news for x: hindered by {a}; {both}"
    talk("session 3 at -1")
    assert talk("time 1") == [], "it is known already, and sessions prove nothing"
    talk("y mounts at -1")
    assert talk("A B store 1")[-2:] == ["answer y: ready at -1", f"news for y: hindered by {a}; {both}"]
    talk("x appends 3")
    assert talk("A B store 2")[-3:-1] == ["news for x: commits again", "news for y: commits again"]
    assert talk("time 1") == []


def lagging_mount() -> Talk:
    """A fault, and behind it a mount that is proved and does not know it yet: its feed waits for credit."""
    talk = Talk().hear(
        "session 1 at -1", "y mounts at -1", "A B C store 1", "y appends 1 2 3", "A B C store 2", "C fails"
    )
    talk.hear("session 2 at 2 of A B", "x mounts at -1 credit 0", "A B store 1")
    return talk


def test_what_is_over_by_the_time_that_a_mount_is_ready_is_not_told_to_it() -> None:
    talk = lagging_mount()
    assert talk("time 0.25") == ["news for y: commits again"]
    assert talk("x gives 100000") == ["feed x: 0..2", "answer x: ready at 2"]


def test_what_began_before_a_mount_was_told_that_it_is_ready_is_told_behind_that() -> None:
    talk = lagging_mount()
    talk.hear("time 0.25", "y appends 4")
    gone = "[connection_lost] gone"
    hindered = f"hindered by storage node C: {gone}; storage node B: {gone}"
    assert talk("B fails")[0] == f"news for y: {hindered}"
    assert talk("x gives 100000") == ["feed x: 0..2", "answer x: ready at 2", f"news for x: {hindered}"]


def test_mounts_are_told_what_a_session_that_does_not_start_waits_for() -> None:
    talk = Talk.ready().hear("ends")
    talk.owner.readiness.attempt_waits("its next session waits for a quorum: no answer from A, B")
    assert talk("time 1") == [], "most that end are followed by the next one at once"
    assert talk("time 1") == ["news for x: hindered by its next session waits for a quorum: no answer from A, B"]
    assert talk("time 1") == []
    talk("session 2 at -1")
    assert talk("time 1") == ["news for x: commits again"]


def test_replicas_that_fail_after_the_session_has_ended_are_named_too() -> None:
    talk = Talk.ready().hear("x appends 1", "A fails")
    a, both = "storage node A: [connection_lost] gone", "storage node B: [connection_lost] gone"
    assert talk("B fails") == [f"news for x: hindered by {a}; {both}"]
    assert talk("B fails") == []


def test_what_replicas_failed_with_long_ago_is_not_blamed_again() -> None:
    talk = Talk().hear("session 1 at -1", "x mounts at -1", "A fails", "session 2 at -1", "time 30")
    assert talk("B fails")[0] == "news for x: hindered by storage node B: [connection_lost] gone"


def test_a_member_that_takes_no_part_is_known_with_its_reason() -> None:
    talk = Talk().hear("session 1 at -1 of A B")
    assert talk.owner.readiness.late == {"C": ""}
    talk.owner.readiness.replica_late("C", "was trimmed, and there are no fragments")
    talk.owner.readiness.replica_late("A", "is engaged")
    assert talk.owner.readiness.late == {"C": "was trimmed, and there are no fragments"}
    talk.hear("C fails", "ends", "session 2 at -1")
    assert talk.owner.readiness.late == {}


def test_requests_wait_again_once_a_start_fails_for_what_may_pass() -> None:
    talk = Talk()
    readiness, only_an_operator_helps = talk.owner.readiness, ConsistencyLost("two histories")
    talk.owner.session_not_started(only_an_operator_helps, operator=True)
    readiness.attempt_waits("a quorum")
    assert (readiness.blocked, readiness.waits_for) == (only_an_operator_helps, str(only_an_operator_helps))
    talk.owner.session_not_started(CoordinatorUnavailable("away"))
    readiness.attempt_waits("a quorum")
    assert (readiness.blocked, readiness.waits_for) == (None, "a quorum")


def test_what_replicas_said_before_a_session_is_forgotten_with_its_start() -> None:
    """It may be a tail that the session gave up: no later reset of the head gives up so much."""
    talk, connected = Talk(), SimpleNamespace(closed=None)
    answer = ReplicaAnswer(joined=1, prepared=4, confirmed=4, max_synced=9, last_crc=7, lost_above=None)
    talk.owner.readiness.replica_answered("A", answer, connected)
    assert (talk.owner.readiness.known, talk.owner.readiness.answers) == (9, {"A": answer})
    talk.hear("session 2 at 4 of B C")
    assert (talk.owner.readiness.known, talk.owner.readiness.answers) == (-1, {})


EVENTS = (
    "starts", "starts of A B", "waits", "waits elsewhere", "can't start", "ends", "A fails", "B fails", "members A B",
    "members A B C D", "members", "x appends 1", "A B store 1", "time 1", "stops",
)  # fmt: skip


def fares(owner: PartitionOwner) -> object:
    """What those who look at all partitions look at."""
    readiness, session = owner.readiness, owner.session
    return (
        session is None, None if session is None else session.value, owner.stopped, readiness.elsewhere,
        readiness.faults.total, sorted(readiness.late),
    )  # fmt: skip


@given(st.lists(st.sampled_from(EVENTS)))
def test_as_long_as_the_count_of_changes_stands_still_a_partition_fares_as_before(events: list[str]) -> None:
    talk, sessions, count = Talk.ready(), 1, -1
    owner, counted = talk.owner, talk.changes
    seen = fares(owner)
    for event in events:
        match event:
            case "starts" | "starts of A B":
                if owner.session is None and owner.stopped is None:
                    sessions += 1
                    talk(f"session {sessions} at -1{event.removeprefix('starts')}")
            case "waits" | "waits elsewhere":
                if owner.session is None:
                    owner.readiness.attempt_waits("a quorum", event == "waits elsewhere")
            case "can't start":
                if owner.session is None:
                    owner.session_not_started(CoordinatorUnavailable("away"), operator=False)
            case _:
                talk(event)
        if counted.count != count:
            count, seen = counted.count, fares(owner)
        assert fares(owner) == seen, event
