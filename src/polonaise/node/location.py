"""Where a log is, as `polonaise.connect` found it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from polonaise.client.applicationhost import ApplicationHost
from polonaise.client.settings import ClientSettings
from polonaise.coordination import Coordinator


class LogLocation(NamedTuple):
    """Where a log is, and what a client there needs."""

    host: ApplicationHost
    coordinator: Coordinator
    settings: ClientSettings
    tell_failures: Callable[[Callable[[BaseException], None]], None] = lambda listener: None
    """Told of whatever ends this process's part in the log."""
    whereabouts: Callable[[], str] = lambda: ""
    """What is known at this moment of who serves the log, for whoever waits for it; empty for nothing."""
