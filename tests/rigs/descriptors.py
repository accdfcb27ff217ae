"""A process that has no file descriptor left."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def no_descriptors_left(but: int = 0) -> Iterator[None]:
    """As many files are open as this process may have, or fewer by this many at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    following = os.open(os.devnull, os.O_RDONLY)
    os.close(following)
    resource.setrlimit(resource.RLIMIT_NOFILE, (following + but, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
