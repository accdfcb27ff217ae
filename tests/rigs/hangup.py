"""SIGHUP as programs find it that no `nohup` has started, also in tests that one has."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sighup_by_default() -> Iterator[None]:
    """Let SIGHUP end the programs that are started within, unless they have it handled or ignored themselves."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
