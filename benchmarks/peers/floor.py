"""The floor under a sitting of a peer: what the least work takes on this machine, and who else works there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.floor import echo_ms, fdatasync_ms
from benchmarks.peers.figures import Floor


def busy(seconds: float = 0.5) -> float:
    """Return the share of the processors' time that others use while we sleep; 0 if the kernel doesn't tell it."""
    before = _processor_time()
    time.sleep(seconds)
    used, total = (now - then for now, then in zip(_processor_time(), before, strict=True))
    return used / total if total > 0 else 0.0


def _processor_time() -> tuple[int, int]:
    """Return the time that all processors have spent working (not waiting for a disk), and their time in all."""
    try:
        spent = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return 0, 0
    _user, _nice, _system, idle, waiting, *_ = spent
    return sum(spent) - idle - waiting, sum(spent)


def floor(directory: Path) -> Floor:
    return Floor(fdatasync_ms(directory), echo_ms(), busy())


def settled(directory: Path, reference: Floor | None, attempts: int = 5, pause_s: float = 2.0) -> Floor:
    """Measure the floor once the disk is idle: removing a peer's files slows syncs for seconds.

    With a floor from earlier to compare with, wait and try again while this one differs from it, a few times.
    """
    os.sync()
    measured = floor(directory)
    for _ in range(attempts - 1):
        if reference is None or not measured.differs(reference):
            break
        time.sleep(pause_s)
        measured = floor(directory)
    return measured
