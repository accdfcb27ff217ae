"""What code of an application may raise that a future or a task takes for something else than a failure."""

from __future__ import annotations

import asyncio
from concurrent import futures
from typing import Any

import pytest

IN_A_THREAD: list[Any] = [
    pytest.param(kind("no stomach"), id=f"{kind.__module__}.{kind.__name__}")
    for kind in (
        GeneratorExit,
        StopIteration,
        asyncio.CancelledError,
        futures.CancelledError,
        SystemExit,
        KeyboardInterrupt,
    )
]
"""Errors by which nothing else may be ended, raised in a thread."""
ON_THE_LOOP: list[Any] = IN_A_THREAD[:4]
"""As `IN_A_THREAD`, raised on the event loop of the main thread, where an exit ends the process."""
