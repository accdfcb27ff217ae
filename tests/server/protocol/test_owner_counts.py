"""What an owner counts: commits with their latencies, conflicts by how certain they are, how far replicas are."""

from __future__ import annotations

from polonaise.histogram import BOUNDS_S
from rigs.owner import Talk


def test_a_batch_is_measured_from_its_oldest_append_to_its_commit() -> None:
    talk = Talk.ready().hear("x appends 1", "time 0.4", "x appends 2 3", "turn", "time 0.004", "A B store 2")
    counts, latencies = talk.owner.counts, talk.owner.counts._latencies
    assert (counts["committed_batches"], counts["committed_transactions"]) == (1, 1)
    assert latencies.counts[BOUNDS_S.index(0.5)] == 1
    talk("A B store 3")
    assert (counts["committed_batches"], counts["committed_transactions"]) == (2, 3)
    assert latencies.counts[BOUNDS_S.index(0.005)] == 1, "the second batch waited for the first one's sync only"
    assert counts["committed_bytes"] == sum(len(batch.raw) for batch in talk.sealed.values())


def test_what_a_recovery_kept_is_measured_with_the_pause() -> None:
    talk = Talk.ready().hear("x appends 1", "C fails", "time 3", "session 2 at 0 of A B")
    latencies = talk.owner.counts._latencies
    assert talk.owner.counts["committed_transactions"] == 1
    assert latencies.counts[BOUNDS_S.index(5.0)] == 1


def test_an_append_that_was_refused_does_not_make_the_next_one_look_older() -> None:
    talk = Talk.ready().hear("x appends 1:k", "A B store 2", "x appends 2:k", "time 2", "x appends 3", "A B store 3")
    latencies = talk.owner.counts._latencies
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
