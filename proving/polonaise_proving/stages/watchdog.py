"""Ends the processes of a run that has died: `python -m polonaise_proving.stages.watchdog RUN`, started before them.

They have the name of the run in their environment, as have those that they start themselves. When the standard input of
the watchdog ends, all that are left are killed: also those that are stopped, and could not see that their run has died.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

RUN: Final = "PROVING_RUN"
"""The environment variable that names the run of a process."""
GONE_S: Final = 60.0
"""How long killed processes are waited for: one whose disk hangs may never go."""


@contextlib.contextmanager
def watched(run: str = "") -> Iterator[None]:
    """Have all processes that are started within the block end with it, also if this process is killed before that."""
    # Not above: the watchdog needs nothing of production.
    from polonaise.host.environment import variables

    run = run or secrets.token_hex(8)
    command = [sys.executable, "-m", __name__, run]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True), variables({RUN: run}):
        yield


def unwatched() -> contextlib.AbstractContextManager[None]:
    """Have what is started within the block outlive a run that this process is in, such as a server of all tests."""
    from polonaise.host.environment import variables

    return variables({RUN: ""})


def kill_all(run: str) -> None:
    """Kill the processes of a run, and wait until they are gone; say which are not after `GONE_S`."""
    until_s = time.monotonic() + GONE_S
    while pids := list(_processes_of(run)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= until_s:
            sys.stderr.write(f"processes of run {run} do not end, and are left: {', '.join(map(str, pids))}\n")
            return
        time.sleep(0.01)


def _processes_of(run: str) -> Iterator[int]:
    """Yield those that this user may look at; none where there is no /proc."""
    named = f"{RUN}={run}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        # One that has ended meanwhile, or that is somebody else's, can't be read.
        with contextlib.suppress(OSError):
            if named in environment.read_bytes().split(b"\0"):
                yield int(environment.parent.name)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it goes when its run has gone
    sys.stdin.read()
    kill_all(sys.argv[1])


if __name__ == "__main__":
    main()
