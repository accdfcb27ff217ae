"""The answers to clients' requests: what each is told once it is proved, or when it can't be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from polonaise.errors import PolonaiseError
from polonaise.server.protocol.committedregisters import CommittedRegisters
from polonaise.server.protocol.effects import Answer, Effect, RefuseRequest
from polonaise.server.protocol.feeds import Feeds
from polonaise.server.protocol.inbox import (
    Inbox,
    PendingFlush,
    PendingLeases,
    PendingMark,
    PendingMount,
    PendingRegisters,
    PendingRequest,
    Pulse,
)
from polonaise.server.protocol.leasetable import LeaseTable
from polonaise.server.protocol.mounts import ClientMount
from polonaise.server.protocol.settings import OwnerSettings
from polonaise.terms import NO_TRANSACTION, Generation, MountState, TransactionId
from polonaise.wire.messages import Flushed, HighWaterMarkIs, Mounted


class Given(NamedTuple):
    """The answer to a request that is proved, as effects."""

    effects: list[Effect]
    mount: ClientMount | None = None
    """The mount that keeps the answer until it was fed, and which the caller feeds; None for any other answer."""


class Answers:
    """Makes the answers to requests that the owner says are proved."""

    __slots__ = ("_feeds", "_generation", "_leases", "_registers", "_settings", "unanswered")

    def __init__(
        self,
        generation: Generation,
        settings: OwnerSettings,
        feeds: Feeds,
        registers: CommittedRegisters,
        leases: LeaseTable,
    ) -> None:
        self._generation = generation
        self._settings = settings
        self._feeds = feeds
        self._registers = registers
        self._leases = leases
        self.unanswered: list[PendingRequest] = []
        """Requests whose session ended before they were proved."""

    def left_unanswered(self, requests: Iterable[PendingRequest]) -> None:
        self.unanswered += requests

    def take_unanswered(self) -> list[PendingRequest]:
        requests, self.unanswered = self.unanswered, []
        return requests

    def give(self, pending: PendingRequest, committed: TransactionId, now_s: float) -> Given:
        """Answer a request that is proved at `committed`, at the monotonic time `now_s`.

        The answer to a mount or a flush is kept with its mount until that was fed up to `committed`; any other goes out
        at once. Requests on a mount that is void by now, and pulses, get none.
        """
        match pending:
            case PendingMount(_, request, mount, mark) if self._feeds.is_current(mount):
                # Proved, so there is no doubt: the client has applied what this log does not have. Feeding it would
                # hide that, and its appends would be built on something else than the log.
                if mark > committed:
                    ended, reason = self._feeds.end(mount), f"the log ends at {committed}"
                    return Given([*ended, self._mounted(mount, request, MountState.CLIENT_AHEAD, committed, reason)])
                window = self._settings.append_window_bytes
                ready = Mounted(MountState.READY, self._generation, committed, window, reason="")
                mount.answer_after(committed, request, ready)
                return Given([], mount)
            case PendingFlush(_, request, mount) if self._feeds.is_current(mount):
                mount.answer_after(committed, request, Flushed(committed))
                return Given([], mount)
            case PendingMark(_, request, connection):
                return Given([Answer(connection, request, HighWaterMarkIs(self._generation, committed))])
            case PendingRegisters(_, request, connection, asked):
                return Given([Answer(connection, request, self._registers.answer(asked, committed))])
            case PendingLeases(_, request, connection, leases):
                return Given([Answer(connection, request, self._leases.answer(leases, now_s))])
        return Given([])

    def refuse(self, pending: PendingRequest, error: PolonaiseError) -> list[Effect]:
        """Refuse a request that was not proved in time, or can't be. A mount is ended, and its client asks again."""
        match pending:
            case PendingMount(_, request, mount, _):
                if not self._feeds.is_current(mount):
                    return []
                ended = self._feeds.end(mount)
                return [*ended, self._mounted(mount, request, MountState.NOT_READY, NO_TRANSACTION, error.text)]
            case PendingFlush(_, request, mount):
                return [RefuseRequest(mount.connection, request, error)]
            case PendingMark(_, request, connection) | PendingLeases(_, request, connection, _):
                return [RefuseRequest(connection, request, error)]
            case PendingRegisters(_, request, connection, asked):
                self._registers.release(asked)
                return [RefuseRequest(connection, request, error)]
            case Pulse():
                return []

    def expire(self, inbox: Inbox, error: PolonaiseError, is_due: Callable[[PendingRequest], bool]) -> list[Effect]:
        """Refuse the requests for which `is_due` holds: of those that an ended session left, and of the inbox."""
        due = [pending for pending in self.unanswered if is_due(pending)]
        if due:
            self.unanswered = [pending for pending in self.unanswered if not is_due(pending)]
        due += inbox.take_requests(is_due)
        return [effect for pending in due for effect in self.refuse(pending, error)]

    def _mounted(self, mount: ClientMount, request: int, state: MountState, mark: TransactionId, reason: str) -> Effect:
        return Answer(mount.connection, request, Mounted(state, self._generation, mark, 0, reason=reason))
