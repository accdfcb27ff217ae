"""`polonaise cluster start` as a process of its own, and what it prints."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rigs.hangup import sighup_by_default
from rigs.programs import start_polonaise
from rigs.waiting import PATIENCE_S, block_until


class StartedCluster:
    """A running `cluster start`, whose events are read as they are printed."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        command = ("cluster", "start", "--directory", directory, "--json", *options)
        with sighup_by_default():
            self.process = start_polonaise(*command, stdin=None)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def until(self, event: str, within_s: float = 2 * PATIENCE_S) -> dict[str, Any]:
        """Wait for an event of this kind, and return it; what comes before it is passed over."""
        until_s = time.monotonic() + within_s
        while line := self._lines.get(timeout=max(0.0, until_s - time.monotonic())):
            told: dict[str, Any] = json.loads(line)
            if told["event"] == event:
                return told
        assert self.process.stderr is not None
        raise AssertionError(f"the command ended before {event}: {self.process.stderr.read()}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def started_cluster(directory: Path, *options: str) -> Iterator[StartedCluster]:
    """Start a cluster, and see to it that no process is left of it."""
    cluster = StartedCluster(directory, *options)
    try:
        yield cluster
    finally:
        if cluster.process.poll() is None:
            cluster.process.kill()
            cluster.process.wait()
        for stream in (cluster.process.stdout, cluster.process.stderr):
            assert stream is not None
            stream.close()
        ended = "all processes of the cluster have ended"
        block_until(lambda: not processes_in(directory), ended, every_s=0.05)  # each look is at all processes


def processes_in(directory: Path) -> dict[int, str]:
    """Return the processes that name this directory in their command line, by process id, but for this one."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(directory) in line:
                found[int(entry.name)] = line
    return found


def node_of(directory: Path, words: str) -> int:
    """Return the process id of the one process of the cluster whose command line has these words."""
    (pid,) = [pid for pid, line in processes_in(directory).items() if words in line]
    return pid
