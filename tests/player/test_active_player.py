"""The active player's decisions, event by event: what it sends, what changes meanwhile, and a log that was put back."""

from __future__ import annotations

import pytest

from polonaise.errors import InvariantViolated
from polonaise.player.protocol.deliveryhealth import targets_health
from polonaise.player.protocol.effects import (
    AskMark,
    CloseStream,
    FollowPartition,
    OpenStream,
    ReadForTarget,
    SendBatches,
    StandDown,
)
from polonaise.player.protocol.entries import NO_FENCE, TERM_MAX, Fence, RoutedEntry
from polonaise.player.protocol.targetpartition import Halt
from polonaise.player.protocol.targetqueue import QueueState
from polonaise.player.protocol.targetstream import StreamState
from rigs.activeplayer import Player, hindered, served

# ---------------------------------------------------------------------- the beginning


def test_a_main_stream_begins_once_every_target_has_told_what_it_has_applied() -> None:
    player = Player("a", "b")
    player.tick()
    assert player.all(OpenStream) == [OpenStream("a", 1), OpenStream("b", 1)]
    player.connect("a", applied={0: 7}, mark=9)
    assert player.all(FollowPartition) == []
    player.connect("b", applied={0: 5}, mark=9)
    assert player.all(FollowPartition) == [FollowPartition(0, 1, 6)]
    player.fetch(6, "a", "b")
    assert player.sent() == [("b", 0, 5, [6])]


def test_a_target_that_does_not_answer_is_waited_for_no_longer_than_the_patience() -> None:
    player = Player("a", "b", start_patience_s=2.0)
    player.tick()
    player.connect("a", applied={0: 7}, mark=9)
    player.tick(1.9)
    assert player.all(FollowPartition) == []
    player.tick(0.1)
    assert player.all(FollowPartition) == [FollowPartition(0, 1, 8)]
    player.connect("b", applied={0: 5}, mark=9)
    (read,) = player.all(ReadForTarget)
    assert (read.target, read.read.first, read.read.last) == ("b", 6, 7)


def test_while_no_target_has_told_anything_no_main_stream_begins() -> None:
    player = Player("a")
    player.tick()
    player.tick(1_000.0)
    assert player.all(FollowPartition) == []


def test_a_main_stream_does_not_begin_far_back_for_one_target() -> None:
    player = Player("a", "b", join_transactions=10)
    player.tick()
    player.connect("a", applied={0: 1_000}, mark=1_000)
    player.connect("b", applied={}, mark=1_000)
    assert player.all(FollowPartition) == [FollowPartition(0, 1, 991)]
    (read,) = player.all(ReadForTarget)
    assert (read.target, read.read.first, read.read.last) == ("b", 0, 990)


def test_a_target_of_another_log_is_refused_and_the_others_go_on() -> None:
    player = Player("a", "b")
    player.tick()
    player.connect("a", applied={0: 50}, mark=9)
    player.connect("b", applied={0: 5}, mark=9)
    assert player.all(FollowPartition) == [FollowPartition(0, 1, 6)]
    assert "served another log" in player.machine.targets["a"].pairs[0].trouble_now
    player.fetch(6, "a", "b")
    assert player.sent() == [("b", 0, 5, [6])]


def test_a_target_of_another_log_stays_refused_when_the_log_has_grown_as_far() -> None:
    """A log that was put back to a backup has other transactions under these ids by then."""
    player = Player("a", "b")
    player.tick()
    player.connect("a", applied={0: 50}, mark=9)
    player.connect("b", applied={0: 9}, mark=9)
    for number in range(10, 60):
        player.fetch(number, "a")
    player.tick(100.0)
    player.do("disconnected", "a", 1, "reset")
    player.tick(1.0)
    player.connect("a", term=2, applied={0: 50}, mark=59)
    assert not [each for each in player.sent() if each[0] == "a"]
    assert "served another log" in player.machine.targets["a"].pairs[0].trouble_now


def test_a_target_that_is_to_start_beyond_the_end_of_the_log_waits_and_keeps_no_other_waiting() -> None:
    player = Player("a", retry_s_min=1.0)
    player.machine.add_target("b", {0: 20})
    player.tick()
    player.connect("a", applied={0: 5}, mark=9)
    player.connect("b", mark=9)
    assert player.all(FollowPartition) == [FollowPartition(0, 1, 6)]
    assert player.machine.targets["b"].pairs[0].trouble_now == "it is to start after 20, and the log ends with 9"
    for number in range(6, 22):
        player.fetch(number, "a", "b")
    player.effects.clear()
    player.tick(1.0)
    assert player.sent() == []
    (read,) = player.all(ReadForTarget)
    assert (read.target, read.read.first) == ("b", 21)


def test_only_a_mark_that_was_asked_for_later_tells_that_a_target_is_ahead() -> None:
    player = served("a")
    player.machine.add_target("b")
    player.machine.add_target("c")
    player.tick()
    player.do("connected", "b", 1, {0: 10})
    (first,) = player.all(AskMark)
    player.do("connected", "c", 1, {0: 20})
    assert player.all(AskMark) == [], "one request at a time"
    player.do("mark_told", 0, first.number, 10)
    (second,) = player.all(AskMark)
    assert not isinstance(player.machine.targets["c"].pairs[0].state, Halt)
    player.do("mark_told", 0, second.number, 20)
    assert not isinstance(player.machine.targets["c"].pairs[0].state, Halt)
    queues = [player.machine.targets[name].pairs[0].queue for name in "bc"]
    assert [queue and queue.state for queue in queues] == [QueueState.NORMAL] * 2


def test_a_target_that_needs_what_was_trimmed_is_named_and_the_others_go_on() -> None:
    player = Player("a", "b", join_transactions=100)
    player.tick()
    player.connect("a", applied={0: 10}, mark=40)
    player.connect("b", applied={0: 30}, mark=40)
    (follow,) = player.all(FollowPartition)
    player.do("trimmed", 0, follow.number, 20)
    assert len(player.all(CloseStream)) == 2
    player.tick(1.0)
    player.connect("a", term=2, applied={0: 10}, mark=40)
    player.connect("b", term=2, applied={0: 30}, mark=40)
    assert player.all(FollowPartition) == [FollowPartition(0, 2, 31)]
    assert "which was trimmed: the log begins with 20" in player.machine.targets["a"].pairs[0].trouble_now


def test_what_an_earlier_main_stream_brings_is_passed_over() -> None:
    player = served("a")
    player.do("trimmed", 0, 1, 0)
    player.tick(1.0)
    player.connect("a", term=2)
    player.fetch(0, "a")  # of main stream 1
    assert player.sent() == []
    player.do("fetched", 0, 2, 0, 0, {"a": [RoutedEntry(0, b"")]})
    assert player.sent() == [("a", 0, -1, [0])]


def test_a_main_stream_with_a_gap_is_a_mistake_of_our_own() -> None:
    player = served("a")
    with pytest.raises(InvariantViolated, match="the main stream is at -1, and brings 1 to 1"):
        player.fetch(1, "a")


# ---------------------------------------------------------------------- sending


def test_entries_go_to_their_targets_and_others_get_none() -> None:
    player = served("a", "b")
    player.fetch(0, "a")
    player.fetch(1, "a", "b", "unknown")
    assert player.sent() == [("a", 0, -1, [0]), ("b", 0, -1, [1])]
    player.do("written", "a", 1)
    assert player.sent() == [("a", 0, 0, [1])]


def test_what_comes_while_a_stream_is_written_goes_in_one_batch() -> None:
    player = served("a")
    for number in range(4):
        player.fetch(number, "a")
    assert player.sent() == [("a", 0, -1, [0])]
    player.do("written", "a", 1)
    assert player.sent() == [("a", 0, 0, [1, 2, 3])]


def test_no_more_is_sent_than_the_window_allows_until_it_is_acknowledged() -> None:
    player = served("a", window_bytes=100)
    player.fetch(0, "a", size=90)
    player.do("written", "a", 1)
    player.fetch(1, "a")
    assert player.sent() == [("a", 0, -1, [0])]
    player.do("acknowledged", "a", 1, 0, 0)
    assert player.sent() == [("a", 0, 0, [1])]


def test_partitions_of_a_target_take_turns() -> None:
    player = served("a", partitions=2, batch_entries_max=1, batch_bytes_max=1)
    for number in range(2):
        for partition in range(2):
            player.fetch(number, "a", partition=partition)
    for _ in range(3):
        player.do("written", "a", 1)
    assert [(partition, ids) for _, partition, _, ids in player.sent()] == [
        (0, [0]), (1, [0]), (0, [1]), (1, [1])
    ]  # fmt: skip


def test_an_idle_target_is_sent_a_dummy_after_some_time() -> None:
    """Else the log could be trimmed above the last id that it keeps."""
    player = served("a", "b", dummy_s=60.0)
    for number in range(3):
        player.fetch(number, "a")
    player.do("written", "a", 1)
    player.do("acknowledged", "a", 1, 0, 2)
    player.sent()
    player.tick(59.0)
    assert player.sent() == []
    player.tick(1.0)
    assert player.sent() == [("b", 0, -1, [2])]
    player.do("written", "b", 1)
    player.do("acknowledged", "b", 1, 0, 2)
    player.tick(60.0)
    assert player.sent() == []


def test_a_player_has_finished_when_all_has_stopped_and_what_was_brought_is_delivered() -> None:
    player = served("a", partitions=2)
    player.fetch(0, "a")
    assert not player.machine.has_finished
    for partition in range(2):
        player.effects += player.machine.stopped(partition, 1, "it can't be routed")
    assert not player.machine.has_finished
    assert player.machine.why_never("a", 0, 0) == ""
    assert player.machine.why_never("a", 0, 1) == "it can't be routed"
    player.do("acknowledged", "a", 1, 0, 0)
    assert player.machine.has_finished


def test_a_partition_that_has_stopped_goes_on_where_it_was() -> None:
    player = served("a")
    player.fetch(0, "a")
    player.effects += player.machine.go_on(0)
    assert player.all(FollowPartition) == [], "it has not stopped"
    player.effects += player.machine.stopped(0, 1, "no target is called b")
    player.effects += player.machine.go_on(0)
    assert player.all(FollowPartition) == [FollowPartition(0, 2, 1)]
    assert player.machine.partitions[0].stopped == ""


# ---------------------------------------------------------------------- fences


def test_a_player_that_was_replaced_stands_down_and_says_nothing_more() -> None:
    player = served("a", "b")
    player.do("fenced", "a", 1, Fence(4, 1))
    (stand_down,) = player.all(StandDown)
    assert "epoch 4" in stand_down.reason
    player.fetch(0, "a", "b")
    player.tick(100.0)
    assert player.effects == []


def test_a_target_with_a_higher_term_of_the_same_epoch_is_taken_at_its_word() -> None:
    player = Player("a")
    player.tick()
    player.all(OpenStream)
    player.do("fenced", "a", 1, Fence(3, 6))
    player.tick(1.0)
    assert player.all(OpenStream) == [OpenStream("a", 7)]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (NO_FENCE, "the target holds no fence, and not that of this stream (epoch 3, term 1): its memory was emptied"),
        (Fence(2, 7), "holds the fence of an earlier stream (epoch 2, term 7), not that of this one (epoch 3, term 1)"),
        (
            Fence(3, 6),
            "holds the fence of another stream (epoch 3, term 6), which shuts out this one (epoch 3, term 1)",
        ),
    ],
)
def test_why_a_target_refuses_a_stream_is_told_as_it_is(kept: Fence, said: str) -> None:
    player = served("a")
    player.do("fenced", "a", 1, kept)
    (closed,) = player.all(CloseStream)
    assert said in closed.reason
    player.tick(1.0)
    assert player.all(OpenStream)


@pytest.mark.parametrize("term", [TERM_MAX + 1, 2**63 - 1])
def test_a_target_that_keeps_a_term_without_a_next_one_ends_its_own_stream_only(term: int) -> None:
    player = served("a", "b")
    player.do("fenced", "a", 1, Fence(3, term))
    (closed,) = player.all(CloseStream)
    assert "a term that no player has come to" in closed.reason
    player.tick(1.0)
    assert player.all(OpenStream) == [OpenStream("a", 2)]
    assert player.machine.targets["b"].state is StreamState.UP
    assert player.all(StandDown) == []


def test_events_of_an_earlier_stream_change_nothing() -> None:
    player = served("a")
    player.fetch(0, "a")
    player.do("disconnected", "a", 1, "reset")
    player.tick(1.0)
    player.effects.clear()
    for event, about in [
        ("connected", ({},)), ("written", ()), ("acknowledged", (0, 0)), ("refused", (0, -1, "why")),
        ("disconnected", ("again",)), ("fenced", (Fence(9, 9),)),
    ]:  # fmt: skip
        player.do(event, "a", 1, *about)
    assert player.effects == []
    assert player.machine.targets["a"].state is StreamState.OPENING


# ---------------------------------------------------------------------- what changes at run time


def test_a_target_that_is_added_gets_what_follows_the_id_that_it_starts_after() -> None:
    player = served("a")
    for number in range(5):
        player.fetch(number, "a")
    player.machine.add_target("b", {0: 2})
    player.tick()
    player.connect("b", mark=4)
    (effect,) = player.all(ReadForTarget)
    assert (effect.target, effect.read.first, effect.read.last) == ("b", 3, 4)


def test_a_target_that_is_removed_is_not_waited_for() -> None:
    player = Player("a", "b")
    player.tick()
    player.connect("a")
    player.do("remove_target", "b")
    assert player.all(CloseStream) == [CloseStream("b", 1, "the target was removed")]
    assert len(player.all(FollowPartition)) == 1
    player.do("connected", "b", 1, {})
    assert player.effects == [OpenStream("a", 1), OpenStream("b", 1)]


def test_what_was_read_for_a_target_before_it_was_moved_answers_nobody() -> None:
    """The new place is empty: what the old one lacked begins further on."""
    player = served("a", join_transactions=0)
    for number in range(10):
        player.fetch(number, "a")
    player.do("disconnected", "a", 1, "reset")
    player.tick(1.0)
    player.connect("a", term=2, applied={0: 4}, mark=9)
    (before,) = player.all(ReadForTarget)
    player.do("remove_target", "a")
    player.machine.add_target("a")
    player.effects.clear()
    player.tick()
    (opened,) = player.all(OpenStream)
    player.connect("a", term=opened.term, mark=9)
    (after,) = player.all(ReadForTarget)
    assert (before.read.first, after.read.first) == (5, 0)
    found = [RoutedEntry(number, b"") for number in range(5, 10)]
    player.do("recovered", "a", 0, before.read.number, found, 9)
    player.do("recovery_failed", "a", 0, before.read.number, "no server answers")
    assert (player.sent(), hindered(player, "a")) == ([], {})
    assert not player.machine.has_delivered("a", 0, 0)
    player.do("recovered", "a", 0, after.read.number, [RoutedEntry(0, b"")], 0)
    assert player.sent() == [("a", 0, -1, [0])]


def test_what_a_target_said_before_it_was_moved_is_passed_over() -> None:
    player = served("a", "b")
    player.fetch(0, "a")
    player.do("remove_target", "a")
    player.machine.add_target("a")
    player.tick()
    (opened,) = player.all(OpenStream)
    assert opened.term > 1, "a term that it has had stands for another stream"
    player.connect("a", term=opened.term)
    (read,) = player.all(ReadForTarget)
    player.do("recovered", "a", 0, read.read.number, [RoutedEntry(0, b"")], 0)
    player.effects.clear()
    for event, about in [
        ("connected", ({0: 0},)), ("written", ()), ("acknowledged", (0, 0)), ("refused", (0, -1, "why")),
        ("disconnected", ("again",)), ("fenced", (Fence(9, 9),)),
    ]:  # fmt: skip
        player.do(event, "a", 1, *about)
    assert (player.effects, player.machine.has_delivered("a", 0, 0)) == ([], False)


def test_a_mark_that_is_never_told_stops_its_partition_until_that_goes_on() -> None:
    player = served("a")
    player.machine.add_target("b")
    player.tick()
    player.do("connected", "b", 1, {0: 5})
    (ask,) = player.all(AskMark)
    player.effects += player.machine.mark_failed(0, ask.number, "no such topic")
    assert player.machine.why_never("b", 0, 5) == "no such topic"
    player.effects += player.machine.go_on(0)
    (again,) = player.all(AskMark)
    player.effects += player.machine.mark_failed(0, ask.number, "no such topic")
    assert player.machine.partitions[0].stopped == "", "that was the answer to the request before"
    player.do("mark_told", 0, again.number, 5)
    assert not isinstance(player.machine.targets["b"].pairs[0].state, Halt)


def test_a_main_stream_that_stops_delivers_what_it_has_brought_and_skips_nothing() -> None:
    player = served("a", partitions=2)
    player.fetch(0, "a")
    player.fetch(1, "a")
    player.effects += player.machine.stopped(0, 1, "transaction 2 can't be routed: no such account")
    player.sent()
    player.do("written", "a", 1)
    assert player.sent() == [("a", 0, 0, [1])]
    player.do("fetched", 0, 1, 3, 3, {})
    player.fetch(0, "a", partition=1)
    player.do("written", "a", 1)
    assert player.sent() == [("a", 1, -1, [0])]
    assert player.machine.partitions[0].current == 1


def put_back(player: Player) -> str:
    """Return why the player delivers nothing of partition 0, although the log has grown past all that it knew since."""
    player.all(SendBatches)
    main = player.machine.partitions[0]
    player.do("mark_seen", 0, main.mark, 50)
    player.do("fetched", 0, 1, 21, 21, {"a": [RoutedEntry(21, b"")]})
    player.do("connected", "b", 1, {0: 3})
    player.machine.add_target("later")
    player.tick()
    player.connect("later", mark=50)
    player.effects += player.machine.go_on(0)
    for _ in range(5):
        player.tick(100.0)
    assert not player.sent()
    assert not player.all(ReadForTarget) + player.all(FollowPartition)
    reason = main.stopped
    targets = player.machine.targets
    for each in ("a", "b", "later"):
        assert targets[each].pairs[0].given_up == reason if each != "b" else targets[each].term
    assert not player.machine.has_delivered("a", 0, 15), "it has applied up to 20 of another log"
    assert player.machine.why_never("a", 0, 15) == reason
    assert not player.machine.has_finished, "another player would go by ids alone"
    health = targets_health(player.machine)["a"]
    assert (health["lag"]["0"], health["hindered"]["0"]) == (None, reason)
    return reason


def player_at_20() -> Player:
    player = Player("a", "b", start_patience_s=0.0)
    player.tick()
    player.connect("a", applied={0: 20}, mark=20)
    player.tick()
    assert player.all(FollowPartition) == [FollowPartition(0, 1, 21)]
    return player


def test_a_log_that_ends_below_what_it_had_is_delivered_no_more_however_far_it_grows() -> None:
    player = player_at_20()
    player.do("mark_seen", 0, 20, 12)
    assert "the log reached 20, and ends with 12 now" in put_back(player)


def test_an_answer_for_a_target_that_is_below_what_was_read_is_another_log_s_too() -> None:
    player = player_at_20()
    player.do("connected", "b", 1, {0: 25})
    (ask,) = player.all(AskMark)
    player.do("mark_told", 0, ask.number, 12)
    assert "the log reached 20, and ends with 12 now" in put_back(player)


def test_a_log_that_goes_on_from_another_batch_than_was_read_is_delivered_no_more() -> None:
    player = player_at_20()
    player.do("forked", 0, 1, "it does not fit")
    assert put_back(player) == "it does not fit"


def test_an_answer_that_is_older_than_what_was_read_meanwhile_says_nothing() -> None:
    player = player_at_20()
    player.do("connected", "b", 1, {0: 25})
    (ask,) = player.all(AskMark)
    player.fetch(21, "a")
    player.do("mark_seen", 0, 20, 20)
    player.do("mark_told", 0, ask.number, 20)
    assert not player.machine.partitions[0].stopped
    assert player.sent() == [("a", 0, 20, [21])]


def test_the_other_partitions_of_a_log_that_was_put_back_go_on() -> None:
    player = served("a", partitions=2)
    player.fetch(0, "a")
    player.fetch(0, "a", partition=1)
    player.do("mark_seen", 0, 0, -1)
    player.do("written", "a", 1)
    assert player.sent() == [("a", 0, -1, [0]), ("a", 1, -1, [0])]
    player.do("written", "a", 1)
    player.fetch(1, "a", partition=1)
    assert player.sent() == [("a", 1, 0, [1])]
