"""What an active player delivers of a log that was put back to an earlier state: nothing."""

from __future__ import annotations

from polonaise.player.protocol.deliveryhealth import targets_health
from polonaise.player.protocol.effects import AskMark, FollowPartition, ReadForTarget, SendBatches
from polonaise.player.protocol.entries import RoutedEntry
from rigs.activeplayer import Player, served


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
