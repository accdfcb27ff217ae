"""Ends drivers whose test has died: `python -m polonaise_proving.torture.watchdog`, before anything else is started.

On standard input it is told of each session (`+PID`, `-PID` when it is over). When that ends without a word, because
the test was killed, all that are left are killed too: also those that are stopped and could not see it.
"""

from __future__ import annotations

import signal
import sys

from polonaise_proving.torture.faults import signal_session


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it goes when its test has gone
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
