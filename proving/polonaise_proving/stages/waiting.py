"""Waiting for processes, with an end: a machine may be busy, and what never comes is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 60.0
"""Seconds that any wait may take before a run gives up: long, because the machine may be busy."""


class GaveUp(Exception):
    """An awaited event did not happen in time; the message says which."""


def wait_until(holds: Callable[[], T | None], what: str, within_s: float = PATIENCE_S, every_s: float = 0.005) -> T:
    """Wait until this gives something true, and return that. Raises `GaveUp`."""
    until_s = time.monotonic() + within_s
    while not (held := holds()):
        if time.monotonic() >= until_s:
            raise GaveUp(f"{what}: not within {within_s:g} s")
        time.sleep(every_s)
    return held
