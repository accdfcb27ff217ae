"""Ends the processes of a run that has died: `python -m polonaise_proving.stages.watchdog`, started before they are.

On standard input it is told of each session (`+PID`, `-PID` when it is over). When that ends, all that are left are
killed: also those that are stopped, and could not see that their run was killed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Self

from polonaise_proving.stages.processes import signal_session


class Watchdog:
    """The watchdog of this process. Use as a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, start_new_session=True
        )

    def watch(self, pid: int | None) -> None:
        """Note a session, by the process that leads it."""
        self._tell(f"+{pid}")

    def forget(self, pid: int) -> None:
        """Note that a session is over."""
        self._tell(f"-{pid}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it goes when its run has gone
    sessions: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            sessions.add(int(line[1:]))
        else:
            sessions.discard(int(line[1:]))
    for leader in sessions:
        while signal_session(leader, signal.SIGKILL):
            pass


if __name__ == "__main__":
    main()
