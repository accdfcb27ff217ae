"""What clients have sent to a partition and nobody has looked at yet: appends and requests, in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from polonaise.server.protocol.mounts import ClientMount
from polonaise.server.protocol.pendingrequests import PendingRequest
from polonaise.server.protocol.settings import OwnerSettings
from polonaise.wire.appends import ReceivedAppends, inbox_bytes

COUNT_MAX: Final = 20_000


class WaitingAppends(NamedTuple):
    """An append frame in the inbox."""

    until_s: float
    mount: ClientMount
    appends: ReceivedAppends
    bytes: int


class Inbox:
    """A queue with bounds: of each mount, so that none fills it alone, and of all of them.

    What is beyond them is refused on the spot: nobody's connection is left unread for it, for a connection is shared
    by all of its client's partitions.
    """

    __slots__ = ("_bytes", "_entries", "_settings")

    def __init__(self, settings: OwnerSettings) -> None:
        self._settings = settings
        self._entries: deque[WaitingAppends | PendingRequest] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, mount: ClientMount, appends: ReceivedAppends, until_s: float) -> bool:
        """Whether there was room for these: one frame of a mount always finds some, as long as all together fit."""
        size, settings = inbox_bytes(appends.size), self._settings
        if mount.inbox_bytes:
            fits = (
                mount.inbox_bytes + size <= settings.append_window_bytes
                and self._bytes + size <= settings.inbox_bytes_max
            )
        else:
            fits = self._bytes + size <= 2 * settings.inbox_bytes_max
        if not fits or len(self._entries) >= COUNT_MAX:
            return False
        self._entries.append(WaitingAppends(until_s, mount, appends, size))
        self._bytes += size
        mount.inbox_bytes += size
        return True

    def ask(self, pending: PendingRequest) -> bool:
        """Whether there was room for this."""
        if len(self._entries) >= COUNT_MAX:
            return False
        self._entries.append(pending)
        return True

    def take(self) -> WaitingAppends | PendingRequest:
        """The oldest entry."""
        entry = self._entries.popleft()
        if isinstance(entry, WaitingAppends):
            self._leave(entry)
        return entry

    def take_late_appends(self, now_s: float) -> list[WaitingAppends]:
        """The appends that have waited too long."""
        late = [entry for entry in self._entries if isinstance(entry, WaitingAppends) and entry.until_s < now_s]
        if late:
            self._entries = deque(
                entry for entry in self._entries if not isinstance(entry, WaitingAppends) or entry.until_s >= now_s
            )
        for entry in late:
            self._leave(entry)
        return late

    def take_requests(self, is_due: Callable[[PendingRequest], bool]) -> list[PendingRequest]:
        """The requests for which this holds."""
        due: list[PendingRequest] = []
        kept: deque[WaitingAppends | PendingRequest] = deque()
        for entry in self._entries:
            if not isinstance(entry, WaitingAppends) and is_due(entry):
                due.append(entry)
            else:
                kept.append(entry)
        if due:
            self._entries = kept
        return due

    def clear(self) -> None:
        """Forget everything: nobody will be told."""
        for entry in self._entries:
            if isinstance(entry, WaitingAppends):
                self._leave(entry)
        self._entries.clear()

    def _leave(self, entry: WaitingAppends) -> None:
        self._bytes -= entry.bytes
        entry.mount.inbox_bytes -= entry.bytes
