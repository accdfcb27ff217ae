"""What `polonaise.connect` finds behind an address."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from polonaise.client.applicationhost import ApplicationHost
from polonaise.client.discovery import Discovery
from polonaise.client.settings import ClientSettings


class LogLocation(NamedTuple):
    """What a client needs to connect to a log."""

    host: ApplicationHost
    discovery: Discovery
    settings: ClientSettings
    tell_failures: Callable[[Callable[[BaseException], None]], None] = lambda listener: None
    """Registers a listener for the error that ends this process's part in an embedded log."""
    whereabouts: Callable[[], str] = lambda: ""
    """Describes, for error messages, which other process hosts an embedded log, or that none does; empty if there is
    nothing to tell."""
