"""A `load()` is a snapshot: the same however often it is used, of committed transactions only, while others append."""

from __future__ import annotations

import threading
import time
from typing import Any
from zlib import crc32

from polonaise.client.protocol.group import Group
from polonaise.errors import PolonaiseError
from polonaise_proving.judges.rows import GROUP, judge_figures
from polonaise_proving.scenarios.pipeline.drivers import wait_for
from polonaise_proving.scenarios.pipeline.ground import BUSY, Ground
from polonaise_proving.scenarios.pipeline.scenarios import Rig

PAUSE_S = 0.01
"""Between groups: 5,000 transactions a second, if the machine has time for it."""


class Appender(threading.Thread):
    """A thread that appends while its context manager is open, without waiting for answers."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(daemon=True)
        self._log = ground.log
        self._over = threading.Event()
        self._sent = 0

    def __enter__(self) -> Appender:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        began_s = time.monotonic()
        while not self._over.is_set():
            group = Group.of([f"busy {self._sent + place}".encode() for place in range(GROUP)])
            try:
                self._log.ready(BUSY, timeout=10)
                self._log.append_group(group, BUSY)
            except PolonaiseError:
                time.sleep(PAUSE_S)  # the server is away
            self._sent += GROUP
            time.sleep(max(0.0, began_s + self._sent / GROUP * PAUSE_S - time.monotonic()))


def snapshots_agree(rig: Rig) -> list[str]:
    """Check snapshots while 5,000 transactions a second are appended and the server is killed amid unanswered ones."""
    ground, driver = rig.ground, rig.drivers.current()
    job = {"job": "snapshot", "cluster": ground.cluster, "partitions": str(BUSY), "split": {"minPartitions": "3"}}
    seen: list[tuple[int, dict[str, Any]]] = []
    began = ground.end(BUSY)
    with Appender(ground):
        wait_for(lambda: ground.end(BUSY) > began + 500, "appends")
        seen.append((ground.end(BUSY), driver.run({**job, "times": 3})["value"]))
        before = ground.end(BUSY)
        driver.ask({**job, "times": 2})
        ground.break_server(lambda: None)
        seen.append((before, driver.answer()["value"]))
    ground.log.flush(BUSY, timeout=60)
    return [each for mark, answer in seen for each in judge_snapshot(answer, mark, ground)]


def judge_snapshot(answer: dict[str, Any], mark: int, ground: Ground) -> list[str]:
    """Return the mistakes of a snapshot that was taken when `mark` was committed, once all appends are decided."""
    final = [crc32(body.encode()) for body in ground.written({BUSY: -1})[BUSY]]
    return judge_figures(answer["figures"], [tuple(each) for each in answer["crcs"]], mark, final)
