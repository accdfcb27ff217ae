"""How quickly late replicas are copied to, and how long answers are waited for, follows what is measured."""

from __future__ import annotations

import pytest

from polonaise.patience import SyncPatience
from polonaise.server.protocol.copythrottle import Commits, CopyProgress, CopyThrottle, ThrottleSettings
from polonaise.server.protocol.readiness import Readiness
from polonaise.server.protocol.recovery import gather_s, pace_s

MB = 1_000_000
NONE = Commits(0, 0.0)


class Copying:
    """Copies of 1 MB, each of which takes 10 ms, as soon as the throttle lets them begin."""

    def __init__(
        self, share: float = 1.0, latency_s: float = 0.01, least: float = 1 * MB, most: float = 64 * MB
    ) -> None:
        self.throttle = CopyThrottle(ThrottleSettings(most, least, share, latency_s))
        self.now_s = 100.0
        self._commits = NONE

    def commit(self, latency_s: float, batches: int = 10) -> None:
        self._commits = Commits(self._commits.batches + batches, self._commits.total_s + batches * latency_s)

    def copy(self, appends_take_s: float | None = None, *, took_s: float = 0.01, copied: int = MB) -> float:
        """Make a copy, during which appends take so long; return how long it had to wait to begin."""
        wait_s = self.throttle.wait_s(self.now_s)
        self.now_s += wait_s
        self.throttle.begin(self.now_s, MB, self._commits)
        self.now_s += took_s
        if appends_take_s is not None:
            self.commit(appends_take_s)
        self.throttle.end(self.now_s, MB, copied, took_s, self._commits)
        return wait_s


def test_no_more_bytes_a_second_are_copied_than_allowed() -> None:
    copying = Copying(most=10 * MB)
    began_s = copying.now_s
    for _ in range(21):
        copying.copy()
    assert copying.now_s - began_s == pytest.approx(2.0, abs=0.02)
    assert copying.throttle.copied_bytes == 21 * MB


def test_a_copy_that_was_smaller_than_announced_costs_what_it_was() -> None:
    copying = Copying(most=1 * MB)
    copying.copy(copied=1_000)
    assert copying.copy() == 0


def test_a_copy_that_failed_costs_nothing() -> None:
    copying = Copying(share=0.5, most=1 * MB)
    copying.copy(took_s=5.0, copied=0)
    assert copying.copy() == 0
    assert copying.throttle.under_way == 0


def test_the_share_of_the_time_is_kept() -> None:
    copying = Copying(share=0.25)
    copying.copy(took_s=0.1)
    assert copying.throttle.wait_s(copying.now_s) == pytest.approx(0.3)


def test_copies_side_by_side_rest_together_for_what_one_would() -> None:
    throttle = CopyThrottle(ThrottleSettings(1_000 * MB, 1, 0.5, 0.01))
    for _ in range(2):
        throttle.begin(1.0, MB, NONE)
    for _ in range(2):
        throttle.end(2.0, MB, MB, 1.0, NONE)
    assert throttle.wait_s(2.0) == pytest.approx(1.5)  # a half, and then alone: as much as it took


def test_a_slow_disk_rests_no_longer_than_the_least_rate_allows() -> None:
    copying = Copying(share=0.01, least=1 * MB)
    copying.copy(took_s=0.4)
    assert copying.throttle.wait_s(copying.now_s) == pytest.approx(0.6), "a megabyte a second, work and rest together"
    copying.copy(took_s=3.0)
    assert copying.throttle.wait_s(copying.now_s) == 0.0


def test_copying_slows_down_while_appends_take_longer_and_recovers_when_they_do_not() -> None:
    copying = Copying()
    copying.commit(0.005)
    copying.copy(0.005)
    fast = copying.throttle.bytes_per_s
    for _ in range(3):
        copying.copy(0.1)
    slow = copying.throttle.bytes_per_s
    assert slow < fast / 2
    for _ in range(60):
        copying.copy(0.005)
    assert copying.throttle.bytes_per_s == fast


def test_appends_that_are_slow_anyway_slow_nothing_down() -> None:
    copying = Copying()
    copying.commit(0.2)  # without any copy
    for _ in range(10):
        copying.copy(0.3)
    assert copying.throttle.bytes_per_s == 64 * MB


def test_what_is_committed_just_after_a_copy_counts_as_disturbed_by_it() -> None:
    copying = Copying(least=1)
    copying.commit(0.005)
    copying.copy()
    copying.now_s += 0.05
    copying.commit(0.5)
    copying.copy()
    assert copying.throttle.bytes_per_s < 64 * MB


def test_it_never_gets_slower_than_the_least_rate_and_without_appends_it_gets_fast_at_once() -> None:
    copying = Copying(least=2 * MB)
    for _ in range(100):
        copying.copy(5.0)
    assert copying.throttle.bytes_per_s == 2 * MB
    assert copying.copy(5.0) <= 0.5
    for _ in range(6):
        copying.copy()
    assert copying.throttle.bytes_per_s == 64 * MB


def test_a_replica_falls_behind_when_it_comes_no_nearer_for_so_long() -> None:
    progress = CopyProgress()
    for now_s, missing in enumerate((100, 90, 95, 90, 92, 90)):
        assert not progress.falls_behind(missing, now_s, 5.0)
    assert progress.falls_behind(90, 7, 5.0)
    assert progress.lost
    assert not progress.falls_behind(89, 8, 5.0)
    assert not progress.lost


def test_a_replica_whose_copies_wait_long_for_their_turns_is_said_to_fall_behind() -> None:
    progress = CopyProgress()
    assert not progress.falls_behind(10, 0, 5.0)
    assert progress.falls_behind(5_000, 60, 5.0)


def test_a_replica_that_was_away_is_not_said_to_fall_behind_at_once() -> None:
    readiness = Readiness(0)
    readiness.session_started(["a"])
    assert not readiness.replica_lacks("a", 10, 0.0, 5.0)
    assert readiness.replica_lacks("a", 20, 6.0, 5.0)
    assert readiness.falling_behind == ["a"]
    readiness.replica_not_copied("a")
    assert readiness.falling_behind == []
    assert not readiness.replica_lacks("a", 5_000, 60.0, 5.0)


def test_old_disturbance_does_not_keep_the_rate_low_when_appends_come_between_copies() -> None:
    copying = Copying()
    copying.copy(5.0)
    slow = copying.throttle.bytes_per_s
    for _ in range(3):
        copying.now_s += 1.0
        copying.commit(0.001)
        copying.copy()
    assert copying.throttle.bytes_per_s > slow


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
