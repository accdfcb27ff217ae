"""The host of a client: the machine, shared with an application, which a client must not stop."""

from __future__ import annotations

import logging
from collections.abc import Callable

from polonaise.host.real import RealHost
from polonaise.host.tls import TlsIdentity

_log = logging.getLogger("polonaise.client")


class ApplicationHost(RealHost):
    """A `RealHost` on which a mistake of the client's own ends the client, and not the process."""

    def __init__(self, tls: TlsIdentity | None = None) -> None:
        super().__init__(disk_threads=1, tls=tls)
        self.on_fail: Callable[[BaseException], None] | None = None

    def fail(self, error: BaseException) -> None:
        """Log the error and call `on_fail`, which ends the client; leave the process alone."""
        _log.critical("this client stops: %s", error, exc_info=error)
        if self.on_fail is not None:
            self.on_fail(error)
