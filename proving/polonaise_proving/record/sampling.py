"""What a process holds at a moment, as the kernel says."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple


class Sample(NamedTuple):
    """One look at one process."""

    at_s: float
    files: int
    """Open descriptors of files and directories."""
    sockets: int
    other: int
    """Descriptors of anything else: pipes, events, polls."""
    threads: int
    memory_mb: float
    """Resident memory in MB."""
    tasks: int
    """Tasks in the process's event loop; -1 if the process does not say."""


FIGURES: Final = ("files", "sockets", "other", "threads", "tasks", "memory_mb")


def look(pid: int, at_s: float, tasks: int = -1) -> Sample | None:
    """Return what the process holds; None if it has ended."""
    try:
        kinds = Counter(_kind(f"/proc/{pid}/fd/{descriptor}") for descriptor in os.listdir(f"/proc/{pid}/fd"))
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        memory_mb = int(status["VmRSS"].split()[0]) / 1024
        return Sample(at_s, kinds["files"], kinds["sockets"], kinds["other"], int(status["Threads"]), memory_mb, tasks)
    except (FileNotFoundError, ProcessLookupError, KeyError):  # a dead one has no memory
        return None


def _kind(link: str) -> str:
    try:
        target = os.readlink(link)
    except FileNotFoundError:  # closed since it was listed
        return "none"
    return "files" if target.startswith("/") else "sockets" if target.startswith("socket:") else "other"
