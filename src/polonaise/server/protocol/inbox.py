"""The inbox of a partition: clients' appends and requests in order of arrival, before the owner judges them.

The next message to the replicas has to prove what is requested, as it does for the pulse of an idle partition.
`until_s` is a request's deadline in monotonic seconds, and `request` the number under which it is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple, TypeAlias

from polonaise.server.protocol.committedregisters import AskedRegisters
from polonaise.server.protocol.leasetable import AskedLeases, ReleasedLeases
from polonaise.server.protocol.mounts import ClientMount
from polonaise.server.protocol.settings import OwnerSettings
from polonaise.terms import TransactionId
from polonaise.wire.appends import ReceivedAppends, inbox_bytes


class PendingMount(NamedTuple):
    """Asks whether a mount may append: all appends of its client's older mounts are decided, and fed if committed."""

    until_s: float
    request: int
    mount: ClientMount
    client_high_water_mark: TransactionId


class PendingFlush(NamedTuple):
    """Asks to be told when every earlier append of a mount is decided, and fed if it is committed."""

    until_s: float
    request: int
    mount: ClientMount


class PendingMark(NamedTuple):
    """Asks for the committed high-water mark."""

    until_s: float
    request: int
    connection: Hashable


class PendingRegisters(NamedTuple):
    """Asks for the value of a register, or for a page of registers."""

    until_s: float
    request: int
    connection: Hashable
    asked: AskedRegisters


class PendingLeases(NamedTuple):
    """Asks for leases, or releases some."""

    until_s: float
    request: int
    connection: Hashable
    asked: AskedLeases | ReleasedLeases


class Pulse(NamedTuple):
    """Has the replicas of an idle partition acknowledge a barrier: so a fault is found before a writer finds it."""

    until_s: float


PendingRequest: TypeAlias = PendingMount | PendingFlush | PendingMark | PendingRegisters | PendingLeases | Pulse

PULSE: Final = Pulse(float("inf"))
"""No client waits for it, so it has no deadline."""


COUNT_MAX: Final = 20_000
"""The most append frames and requests in an inbox, together."""


class WaitingAppends(NamedTuple):
    """An append frame in the inbox."""

    until_s: float
    """The deadline, in monotonic seconds: if nothing has judged the frame by then, it is refused."""
    mount: ClientMount
    appends: ReceivedAppends
    bytes: int
    """The size that `inbox_bytes` reckons."""


class Inbox:
    """Queues appends and requests, at most `COUNT_MAX`.

    The bytes of appends have a bound for each mount, so that none fills the inbox alone, and one for all. What is
    beyond is refused: to stop reading the connection, which all partitions of the client share, would stop the others
    with this one.
    """

    __slots__ = ("_entries", "_settings", "bytes")

    def __init__(self, settings: OwnerSettings) -> None:
        self._settings = settings
        self._entries: deque[WaitingAppends | PendingRequest] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, mount: ClientMount, appends: ReceivedAppends, until_s: float) -> bool:
        """Add an append frame; return False, with nothing added, if that would pass a bound.

        The frame of a mount that has none in the inbox may use a second allowance of the size of `inbox_bytes_max`. So
        mounts with little to send are not shut out, and no frame is too large for its mount's window.
        """
        size, settings = inbox_bytes(appends.size), self._settings
        if mount.inbox_bytes:
            fits = (
                mount.inbox_bytes + size <= settings.append_window_bytes
                and self.bytes + size <= settings.inbox_bytes_max
            )
        else:
            fits = self.bytes + size <= 2 * settings.inbox_bytes_max
        if not fits or len(self._entries) >= COUNT_MAX:
            return False
        self._entries.append(WaitingAppends(until_s, mount, appends, size))
        self.bytes += size
        mount.inbox_bytes += size
        return True

    def ask(self, pending: PendingRequest) -> bool:
        if len(self._entries) >= COUNT_MAX:
            return False
        self._entries.append(pending)
        return True

    def put_back(self, entries: Sequence[WaitingAppends | PendingRequest]) -> None:
        """Put entries back before everything else, in this order and whatever the bounds."""
        self._entries.extendleft(reversed(entries))
        for entry in entries:
            if isinstance(entry, WaitingAppends):
                self.bytes += entry.bytes
                entry.mount.inbox_bytes += entry.bytes

    def take(self) -> WaitingAppends | PendingRequest:
        """Take out the oldest entry; there must be one."""
        entry = self._entries.popleft()
        if isinstance(entry, WaitingAppends):
            self._leave(entry)
        return entry

    def take_late_appends(self, now_s: float) -> list[WaitingAppends]:
        """Take out the append frames whose deadline has passed."""
        late = [entry for entry in self._entries if isinstance(entry, WaitingAppends) and entry.until_s < now_s]
        if late:
            self._entries = deque(
                entry for entry in self._entries if not isinstance(entry, WaitingAppends) or entry.until_s >= now_s
            )
        for entry in late:
            self._leave(entry)
        return late

    def take_requests(self, is_due: Callable[[PendingRequest], bool]) -> list[PendingRequest]:
        """Take out the requests for which `is_due` holds."""
        due = [entry for entry in self._entries if not isinstance(entry, WaitingAppends) and is_due(entry)]
        if due:
            self._entries = deque(
                entry for entry in self._entries if isinstance(entry, WaitingAppends) or not is_due(entry)
            )
        return due

    def clear(self) -> None:
        """Drop all entries. No client is told."""
        for entry in self._entries:
            if isinstance(entry, WaitingAppends):
                self._leave(entry)
        self._entries.clear()

    def _leave(self, entry: WaitingAppends) -> None:
        self.bytes -= entry.bytes
        entry.mount.inbox_bytes -= entry.bytes
