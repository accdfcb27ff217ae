"""The limits of a process and of its machine on open files and sockets, as errors of their own."""

from __future__ import annotations

import errno
import os
import resource

from polonaise.errors import TooManyOpenFiles


def too_many_open(error: OSError, what: str) -> TooManyOpenFiles | None:
    """Return the fault if the system has no descriptor left for `what`; None for any other error."""
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return TooManyOpenFiles(
            f"{what}: this process has {limit} files and sockets open, as many as it may: raise its limit of open "
            "files (ulimit -n, LimitNOFILE of systemd)"
        )
    if error.errno == errno.ENFILE:
        return TooManyOpenFiles(f"{what}: this machine has as many files open as it may: raise fs.file-max")
    return None


def check_room(count: int, what: str) -> None:
    """Raise `TooManyOpenFiles` unless the system gives this process `count` files or sockets more."""
    descriptors: list[int] = []
    try:
        for _ in range(count):
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        exhausted = too_many_open(error, what)
        if exhausted is None:
            raise
        raise exhausted from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
