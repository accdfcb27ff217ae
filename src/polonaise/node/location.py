"""`LogLocation`: what `polonaise.connect` finds behind an address."""

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
    """Registers a listener, which is called with the error that ends this process's part in the log."""
    whereabouts: Callable[[], str] = lambda: ""
    """Describes which process serves the log at the moment, for error messages; empty if unknown."""
