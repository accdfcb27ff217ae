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
    """Registers a listener, which is called with the error that ends this process's part in an embedded log, and never
    for a cluster."""
    whereabouts: Callable[[], str] = lambda: ""
    """Describes which other process hosts the log at the moment, or that none does, for error messages. Empty if this
    one hosts it, if nothing is known, and for a cluster."""
