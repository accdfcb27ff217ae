"""A `load()` is a snapshot: the same however often it is used, of committed transactions only, while others append."""

from __future__ import annotations

import threading
import time
from typing import Any
from zlib import crc32

from polonaise.client.protocol.group import Group
from polonaise.errors import PolonaiseError
from polonaise_proving.torture.ground import BUSY, Ground
from polonaise_proving.torture.processes import wait_for
from polonaise_proving.torture.scenarios import Rig

GROUP = 50
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


def judge_figures(figures: list[list[int]], crcs: list[tuple[int, int]], mark: int, final: list[int]) -> list[str]:
    """`figures`: rows, largest id and sum of ids, each time; `crcs`: of each id; `final`: those of the whole log."""
    wrong = []
    if any(each != figures[0] for each in figures):
        wrong.append(f"one snapshot, used {len(figures)} times, is {figures}")
    count, last, total = figures[0][:3]
    if count != last + 1 or total != last * (last + 1) // 2:
        wrong.append(f"{count} rows up to {last} with the sum {total}: there are gaps, or repetitions")
    if count % GROUP:
        wrong.append(f"{count} rows, appended in groups of {GROUP}: one is there in part")
    if last < mark:
        wrong.append(f"a snapshot ends with {last}, and {mark} was committed before it was taken")
    if [id for id, _ in crcs] != list(range(count)):
        wrong.append(f"the rows of a snapshot of {count} are others when they are collected")
    dirty = [id for id, crc in crcs if id >= len(final) or final[id] != crc]
    if dirty:
        wrong.append(f"{len(dirty)} rows of a snapshot are not in the log, such as {dirty[0]}")
    return wrong
