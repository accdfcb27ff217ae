"""How long an answer is waited for follows what is measured."""

from __future__ import annotations

import pytest

from polonaise.patience import SyncPatience
from polonaise.server.protocol.recovery import gather_s, pace_s


def exceeded(patience: SyncPatience, times: int, now_s: float = 0.0) -> None:
    for _ in range(times):
        patience.exceeded(patience.seconds, now_s)


def test_patience_grows_until_a_slow_answer_comes_in_time() -> None:
    patience = SyncPatience(5.0, 60.0)
    exceeded(patience, 2)
    assert patience.seconds == 20.0
    patience.answered(17.0, 100.0)
    patience.answered(0.1, 101.0)
    assert patience.seconds == 20.0, "an answer that comes late is no reason to wait for less"


def test_patience_has_an_end_and_falls_again_with_quick_answers() -> None:
    patience = SyncPatience(5.0, 60.0)
    exceeded(patience, 10)
    assert patience.seconds == 60.0
    for _ in range(30):
        patience.answered(0.1, 61.0)
    assert patience.seconds == 5.0


def test_answers_from_memory_beside_slow_syncs_are_no_reason_to_wait_for_less() -> None:
    patience = SyncPatience(5.0, 60.0)
    exceeded(patience, 2)
    for now_s in range(0, 600, 30):
        patience.answered(12.0, now_s)
        for _ in range(30):
            patience.answered(0.001, now_s)
    assert patience.seconds == 20.0


def test_requests_that_are_late_together_double_the_patience_once() -> None:
    patience = SyncPatience(5.0, 60.0)
    for _ in range(8):
        patience.exceeded(5.0, 0.0)
    assert patience.seconds == 10.0


@pytest.mark.parametrize(
    ("took_s", "pace", "gathers_s"),
    [
        ([], 0.0, 0.2),
        ([3.0], 0.0, 0.2),
        ([0.01, 0.02], 0.02, 0.2),
        ([3.0, 2.0], 3.0, 6.0),
        ([2.0, 40.0, 3.0], 3.0, 6.0),
    ],
)
def test_others_are_waited_for_as_a_quorum_has_shown_what_answers_take(
    took_s: list[float], pace: float, gathers_s: float
) -> None:
    assert pace_s(took_s, 2) == pace
    assert gather_s(0.2, pace) == gathers_s
