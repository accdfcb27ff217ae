"""For how long silent servers of ZooKeeper are waited for, and which are tried next: values in, values out."""

from __future__ import annotations

from polonaise.coordination.patience import AnswerPatience, HostTrials


def test_quick_answers_keep_the_patience_short() -> None:
    patience = AnswerPatience(1.0, 4.0)
    for _ in range(100):
        patience.answered(0.01)
    assert patience.seconds == 1.0


def test_the_patience_grows_with_what_answers_take_and_stays_grown_while_they_do() -> None:
    """With a disk that takes 1.5 s for a sync, a server is left once or twice, and not for ever."""
    patience = AnswerPatience(1.0, 4.0)
    for _ in range(50):
        patience.answered(0.01)
    left = 0
    for _ in range(50):
        if patience.seconds < 1.5:
            patience.gave_up()
            left += 1
        else:
            patience.answered(1.5)
    assert left <= 2


def test_the_patience_grows_when_nothing_comes_and_is_short_again_after_some_quick_answers() -> None:
    patience = AnswerPatience(1.0, 4.0)
    waits = []
    for _ in range(4):
        waits.append(patience.seconds)
        patience.gave_up()
    assert waits == [1.0, 2.25, 4.0, 4.0]
    patience = AnswerPatience(1.0, 4.0)
    patience.gave_up()
    for _ in range(12):
        patience.answered(0.01)
    assert patience.seconds == 1.0


def test_a_silent_server_is_left_out_while_others_end_connections_and_for_longer_each_time() -> None:
    trials = HostTrials()
    servers = ["a", "b", "c"]
    assert trials.order(servers, 0.0) == servers
    trials.silent("a", 0.0)
    trials.spoke("b")
    assert trials.order(servers, 0.1) == ["b", "c"]
    assert trials.order(servers, HostTrials.LEFT_OUT_S) == servers
    trials.silent("a", 10.0)
    assert trials.order(servers, 10.0 + HostTrials.LEFT_OUT_S) == ["b", "c"]
    trials.spoke("a")
    assert trials.order(servers, 10.1) == servers


def test_all_are_tried_when_all_are_silent_and_the_one_that_was_so_first_goes_first() -> None:
    trials = HostTrials()
    for now_s, server in enumerate(["c", "a", "b"]):
        trials.silent(server, float(now_s) / 10)
    assert trials.order(["a", "b", "c"], 0.3) == ["c", "a", "b"]


def test_a_silent_server_is_tried_last_when_nobody_listens_at_the_others() -> None:
    trials = HostTrials()
    trials.silent("a", 0.0)
    trials.refused("b")
    assert trials.order(["a", "b"], 0.1) == ["b", "a"], "it may be slow, and the only one that runs"
    trials.spoke("b")
    assert trials.order(["a", "b"], 0.1) == ["b"]


def test_a_server_that_is_not_named_any_more_is_forgotten() -> None:
    trials = HostTrials()
    trials.silent("a", 0.0)
    assert trials.order(["b"], 0.1) == ["b"]
    assert trials.order(["a", "b"], 0.1) == ["a", "b"]
