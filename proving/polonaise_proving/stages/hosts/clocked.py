"""Runs a command by a wall clock that another process sets: `python -m polonaise_proving.stages.hosts.clocked FILE …`.

The file holds by how many nanoseconds the clock is ahead. What follows it is the ordinary command, as
`python -m polonaise.cli …`: nothing in it knows of this program, which replaces the functions of `time` below it.
"""

from __future__ import annotations

import mmap
import runpy
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_AHEAD: Final = struct.Struct("=q")


def set_clock(path: Path, ahead_s: float) -> None:
    """Have the clock that goes by this file be ahead of the machine's by so many seconds. Raises `OSError`."""
    # Written in place, in one piece: the process that goes by it has the file in its memory.
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(_AHEAD.pack(int(ahead_s * 1e9)))


def clock_of(path: Path, machine_ns: Callable[[], int]) -> Callable[[], int]:
    """Return a function for the time by the clock that goes by this file, in nanoseconds. Raises `OSError`."""
    with path.open("rb") as file:
        ahead = mmap.mmap(file.fileno(), _AHEAD.size, access=mmap.ACCESS_READ)

    def time_ns() -> int:
        return machine_ns() + int(_AHEAD.unpack_from(ahead)[0])

    return time_ns


def main() -> None:
    """Set the clock, and run the command in this process."""
    path, _, *command = sys.argv[1:]  # the interpreter is this one
    time_ns = clock_of(Path(path), time.time_ns)
    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
    if command[:1] != ["-m"]:
        raise SystemExit(f"only a module can be run, and not {command[:1]}")
    sys.argv = command[1:]
    runpy.run_module(command[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
