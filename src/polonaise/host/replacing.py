"""Write a file that a user has named: a regular one is replaced in one step, anything else is written into."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from polonaise.errors import BadOption
from polonaise.host.files import sync_path

_MODE: Final = 0o666


@contextlib.contextmanager
def replaced(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Give a file to write to. If the `with` statement ends without an error, it has replaced the one at `path`.
    Readers see the file before, or the new one, durably. A symbolic link stays, and what it points to is replaced. What
    is no regular file, as a pipe or the standard output, is written into. Without `mode` a file keeps the one that it
    had. Raises `BadOption` for what can't be written so, and `OSError`."""
    if (output := _output_at(path)) is not None:
        with open(os.dup(output), "wb") as file:  # with its own position: what is said later comes behind
            yield file
        return
    there = check_replaceable(path)
    if there is not None and not stat.S_ISREG(there.st_mode):
        with _opened(path) as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".polonaise-{os.urandom(8).hex()}.new")
    # A mode that is asked for is set as the file is made: no other user may read a key, not even for a moment.
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE if mode is None else mode)
    try:
        with open(descriptor, "wb") as file:
            if mode is None and there is not None:
                os.fchmod(descriptor, stat.S_IMODE(there.st_mode))
            yield file
        sync_path(unfinished)
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_path(target.parent, os.O_DIRECTORY)  # else a loss of power could take the name back


def check_replaceable(path: Path) -> os.stat_result | None:
    """Return what is at a path, if anything. Raises `BadOption` for what `replaced` refuses, and `OSError`."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadOption(f"{str(path)!r} is a link that leads to itself: name another file") from error
        raise
    if stat.S_ISDIR(there.st_mode):
        raise BadOption(f"{str(path)!r} is a directory: name a file in it")
    if stat.S_ISBLK(there.st_mode) or stat.S_ISSOCK(there.st_mode):
        what = "a disk" if stat.S_ISBLK(there.st_mode) else "a socket"
        raise BadOption(f"{str(path)!r} is {what}, which is not written to: name a file")
    return there


def may_be_replaced(path: Path) -> bool:
    """Whether `replaced` would take a path, as far as can be seen without writing."""
    try:
        there = check_replaceable(path)
    except (BadOption, OSError):
        return False
    if there is not None and not stat.S_ISREG(there.st_mode):
        return os.access(path, os.W_OK)
    return os.access(os.path.dirname(os.path.realpath(path)), os.W_OK | os.X_OK)


def is_standard_output(path: Path) -> bool:
    """Whether a path stands for this process's standard output, as `/dev/stdout` does."""
    return sys.stdout is not None and _output_at(path) == 1


def _output_at(path: Path) -> int | None:
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
    return None


def _opened(path: Path) -> BinaryIO:
    """Open a device or a pipe. Raises `BadOption` for a pipe that nobody reads: it would be waited for without end."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise BadOption(
                f"nobody reads from the pipe {str(path)!r}: start who does first, or name a file"
            ) from error
        raise
    os.set_blocking(descriptor, True)
    return open(descriptor, "wb")
