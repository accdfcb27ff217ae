"""What commit times are judged by: when somebody first knew of what is in the log, and not of what was before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from polonaise_proving.judges.committimes import CommitTimes
from polonaise_proving.record.observations import History

DAY_US = 86_400_000_000


class Scene:
    """What is known of one partition, and the true time."""

    def __init__(self) -> None:
        self.history, self.true_us = History(1), 0
        self.history.true_us = lambda: self.true_us
        self.judge = CommitTimes(self.history, partitions=1, off_s_max=10.0)

    def known(self, id: int, at: int) -> None:
        self.true_us = at
        self.history._is_committed(0, id)

    def wrong(self, *times_us: int) -> list[str]:
        """What is found in a log of one batch at each of these times, whose first ids are 0, 1, …"""
        batches = [SimpleNamespace(first=id, last=id, commit_time_us=at) for id, at in enumerate(times_us)]
        log: Any = SimpleNamespace(partition=0, batches=batches, bodies=[None] * len(batches))
        return [found.seen.partition(" were")[0] for found in self.judge.check(log)]


def test_a_commit_time_behind_the_moment_at_which_somebody_knew_of_it_is_wrong() -> None:
    scene = Scene()
    scene.known(1, 1)
    scene.known(2, 2)
    assert scene.wrong(1, 1, 2) == []
    assert scene.wrong(1, DAY_US, DAY_US) == ["1 to 1", "2 to 2"]


@pytest.mark.parametrize("kept", [-1, 0, 1, 4])
def test_what_was_known_of_the_log_before_a_reset_of_the_head_judges_nothing_of_the_log_after(kept: int) -> None:
    scene = Scene()
    for id in range(5):
        scene.known(id, id)
    scene.history.head_reset(0, kept, kept, (), ())
    before = list(range(kept + 1))
    assert scene.wrong(*before, *[DAY_US] * (4 - kept)) == [], "nobody knows of the log after it yet"
    scene.known(6, DAY_US)
    after = [DAY_US] * (6 - kept)
    assert scene.wrong(*before, *after) == []
    assert scene.wrong(*before, *(3 * at for at in after)) == [f"{id} to {id}" for id in range(kept + 1, 7)]
