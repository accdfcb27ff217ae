"""What goes wrong in a process of Spark's, and at which step: handed to it as an option, and done there, once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from polonaise.errors import ConnectionLost
from polonaise.link.connection import Connection

GATE_S = 170.0
"""Seconds that a gate waits to be opened: until the slowest of the other queries has come to its own step, on a busy
machine, and less than a query may take (`driver.STREAM_S_MAX`), so that a forgotten gate says so itself."""
DEAF_S = 0.05
"""Seconds between the first answer that is not heard and the end of the connection."""


class Planted(RuntimeError):
    """A fault that was asked for."""


@dataclass(frozen=True)
class SparkFault:
    """One thing that goes wrong.

    `step` is a place in `faulty` or `driver`; `at` the how-manieth time that it is reached (from
    0) in one task or commit; `batch` and `task` narrow it down. `directory` remembers that it was done: it is done
    once.
    """

    step: str
    do: str
    """kill_worker, fail, deaf, or gate: wait there until `open_gate`."""
    directory: str
    at: int = 0
    batch: int | None = None
    task: int | None = None

    def pack(self) -> str:
        return json.dumps(asdict(self))

    @property
    def hit(self) -> bool:
        return Path(self.directory, "hit").exists()

    def open_gate(self) -> None:
        Path(self.directory, "open").touch()


class SparkFaults:
    """The steps of one task or commit, and the fault at one of them, if any."""

    def __init__(self, fault: SparkFault | None, batch: int | None = None, task: int | None = None) -> None:
        self._fault = fault
        self._batch = batch
        self._task = task
        self._reached: Counter[str] = Counter()

    def reach(self, step: str) -> None:
        """Mark a step: the fault happens here, if this is its place. Called at every step."""
        fault, count = self._fault, self._reached[step]
        self._reached[step] += 1
        if fault is None or (fault.step, fault.at) != (step, count):
            return
        if fault.batch not in (None, self._batch) or fault.task not in (None, self._task):
            return
        try:
            os.close(os.open(Path(fault.directory, "hit"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        _ACTIONS[fault.do](fault)


def _kill_worker(_: SparkFault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fail(fault: SparkFault) -> None:
    raise Planted(f"at {fault.step}")


def _gate(fault: SparkFault) -> None:
    until_s = time.monotonic() + GATE_S
    while not Path(fault.directory, "open").exists():
        if time.monotonic() >= until_s:
            raise Planted(f"nobody opened the gate at {fault.step} for {GATE_S:g} s")
        time.sleep(0.005)


def _deaf(_: SparkFault) -> None:
    """Receive nothing more on the open connections: each breaks a moment after something came in."""
    hear = Connection.data_received
    fresh: set[Connection] = set()
    deaf: set[Connection] = set()

    def data_received(self: Connection, data: bytes) -> None:
        if not self.is_greeted:
            fresh.add(self)
        if self in fresh:
            hear(self, data)
        elif self not in deaf:
            deaf.add(self)
            asyncio.get_running_loop().call_later(DEAF_S, self.abort, ConnectionLost("cut by a test"))

    Connection.data_received = data_received  # type: ignore[method-assign]


_ACTIONS = {
    "kill_worker": _kill_worker,
    "fail": _fail,
    "gate": _gate,
    "deaf": _deaf,
}
