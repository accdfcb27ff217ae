"""Exit statuses of the command line."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """The exit statuses of the command line, except 0 (success) and 2 (an invalid command line)."""

    FAILED = 1
    """A fault, told in one line on standard error, or a check that did not pass."""
    DEGRADED = 3
    """`log health`, `cluster status`: every partition is ready, but something is wrong all the same."""
    SETTINGS = 78
    """A node can't run with its settings, however often it is started: EX_CONFIG of sysexits.h."""
    INTERRUPTED = 130
    """Ctrl-C ended the command: 128 + SIGINT, as shells report it."""
    READER_GONE = 141
    """The reader of the output went away: 128 + SIGPIPE, as shells report it."""


EXIT_STATUS = (
    f"Exit status: 0 success, {ExitStatus.FAILED} a fault (one line on standard error) or a failed check, 2 an invalid "
    f"command line, {ExitStatus.DEGRADED} degraded health, {ExitStatus.INTERRUPTED} interrupted, "
    f"{ExitStatus.READER_GONE} the reader of the output went away."
)
"""The last paragraph of a command's help. Status 2 is typer's own. Commands that run nodes do without the paragraph:
their statuses are in `docs/tools.md`."""
