"""The host of a client: the machine, shared with an application, which a client must not stop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from polonaise.client.waiting import cancelled_elsewhere, ended_here
from polonaise.errors import trace_of
from polonaise.host.real import RealHost
from polonaise.host.tls import TlsIdentity

_log = logging.getLogger("polonaise.client")


class ApplicationHost(RealHost):
    """A `RealHost` on which a mistake of the client's own ends the client, and not the process."""

    def __init__(self, tls: TlsIdentity | None = None) -> None:
        super().__init__(disk_threads=1, tls=tls)
        self.on_fail: Callable[[BaseException], None] | None = None
        self._closed = False
        self._pid = os.getpid()

    def fail(self, error: BaseException) -> None:
        _log.critical("this client stops: %s", error, exc_info=trace_of(error))
        if self.on_fail is not None:
            self.on_fail(error)

    def close(self) -> None:
        """End the disk's threads. What is cancelled from now on ends nothing."""
        self._closed = True
        super().close()

    def _done(self, task: asyncio.Task[None]) -> None:
        """End the client if the task died of an error, or somebody else cancelled it: nobody would do its work."""
        super()._done(task)
        if (
            task.cancelled()
            and self._pid == os.getpid()
            and not self._closed
            and not ended_here(task)
            and self.on_fail is not None
        ):
            error = cancelled_elsewhere(task)
            on_fail, self.on_fail = self.on_fail, None  # the others are cancelled in the same moment
            _log.warning("%s", error)
            on_fail(error)
