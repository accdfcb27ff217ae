"""The machine as a client finds it: shared with an application, which is not the client's to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable

from polonaise.host.real import RealHost

_log = logging.getLogger("polonaise.client")


class ApplicationHost(RealHost):
    """As `RealHost`, but a mistake of the client's own ends the client and not the whole process."""

    def __init__(self) -> None:
        super().__init__(disk_threads=1)
        self.on_fail: Callable[[BaseException], None] | None = None

    def fail(self, error: BaseException) -> None:
        _log.critical("this client stops: %s", error, exc_info=error)
        if self.on_fail is not None:
            self.on_fail(error)
