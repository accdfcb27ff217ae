"""What the owner of a partition wants done: the effects that `PartitionOwner` returns, in the order to do them in."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeAlias

from polonaise.errors import PolonaiseError
from polonaise.server.protocol.mounts import ClientMount
from polonaise.server.protocol.order import SealedBatch
from polonaise.terms import SessionId, StorageId, TransactionId
from polonaise.wire.appends import FailedAppend
from polonaise.wire.codec import Message


class ConfirmClean(NamedTuple):
    """Tell each engaged replica that its copy is certainly clean up to this id."""

    session: SessionId
    closing: TransactionId


class Replicate(NamedTuple):
    """Send each engaged replica one numbered message of the session: a batch, or a barrier without one."""

    session: SessionId
    number: int
    committed: TransactionId
    batch: SealedBatch | None


class TellFailures(NamedTuple):
    """Tell a client which of its appends are not in the log and never will be, and why."""

    mount: ClientMount
    failures: Sequence[FailedAppend]


class FeedBatch(NamedTuple):
    """Feed a mount one committed batch, which holds the id that it gets next."""

    mount: ClientMount
    committed: TransactionId
    payload: bytes
    shared: bool
    """The payload is in memory for everybody, and not on account of this mount."""


class Answer(NamedTuple):
    """Answer a client's request."""

    connection: Hashable
    request: int
    message: Message


class RefuseRequest(NamedTuple):
    """Answer a client's request with an error; request 0 ends the client's mount of this partition."""

    connection: Hashable
    request: int
    error: PolonaiseError


class CutOff(NamedTuple):
    """Close the connection of a client that breaks the protocol, after it was told how."""

    connection: Hashable
    error: PolonaiseError


class ReadHistory(NamedTuple):
    """Read batches from `first` on, which are not in memory any more; then call `history_read` or `history_failed`."""

    mount: ClientMount
    first: TransactionId


class AwaitRoom(NamedTuple):
    """Call `room` once the mount's connection has taken enough of what it was sent."""

    mount: ClientMount


class AwaitTurn(NamedTuple):
    """Call `turn` at the end of this turn of the loop: what else arrives in it goes into the same batch."""


class MarkMoved(NamedTuple):
    """The committed high-water mark has moved: whoever waits for it may look again."""

    committed: TransactionId


class EndSession(NamedTuple):
    """The session has ended: stop what belongs to it, and start the next one."""

    session: SessionId
    reason: str
    late: Sequence[StorageId]
    """Replicas that did not answer in time: their connections are of no use any more."""


Effect: TypeAlias = (
    ConfirmClean
    | Replicate
    | TellFailures
    | FeedBatch
    | Answer
    | RefuseRequest
    | CutOff
    | ReadHistory
    | AwaitRoom
    | AwaitTurn
    | MarkMoved
    | EndSession
)


class EffectsInOrder:
    """Collects the effects of one event, and puts them in their order.

    The order is a promise, whatever the order in which they were decided:

    1. **send to replicas**: so that their disks work while clients are told;
    2. **refuse before feed**: a client that is fed a younger append of its own takes an older one that it has heard
       nothing of for lost. So whatever was refused is told before anything is fed that was decided after it;
    3. **feed before answer**: an answer speaks for a committed high-water mark; everything up to there goes out first;
    4. what the shell is asked to wait for or to read, and who may look again;
    5. **the end last**: a session that ends has told everything that it had proved.
    """

    __slots__ = ("_answers", "_asked", "_ends", "_failures", "_feeds", "_sends")

    def __init__(self) -> None:
        self._sends: list[Effect] = []
        self._failures: dict[ClientMount, list[FailedAppend]] = {}
        self._feeds: list[Effect] = []
        self._answers: list[Effect] = []
        self._asked: list[Effect] = []
        self._ends: list[Effect] = []

    def send(self, effect: ConfirmClean | Replicate) -> None:
        self._sends.append(effect)

    def fail(self, mount: ClientMount, failure: FailedAppend) -> None:
        """All failures of a mount in one event travel together."""
        self._failures.setdefault(mount, []).append(failure)

    def feed(self, effect: FeedBatch) -> None:
        self._feeds.append(effect)

    def answer(self, effect: Answer | RefuseRequest) -> None:
        self._answers.append(effect)

    def ask(self, effect: ReadHistory | AwaitRoom | AwaitTurn | MarkMoved) -> None:
        self._asked.append(effect)

    def end(self, effect: CutOff | EndSession) -> None:
        self._ends.append(effect)

    def taken(self) -> list[Effect]:
        """The effects in their order; none are left."""
        effects = self._sends
        self._sends = []
        if self._failures:
            effects += [TellFailures(mount, failures) for mount, failures in self._failures.items()]
            self._failures = {}
        for part in (self._feeds, self._answers, self._asked, self._ends):
            if part:
                effects += part
                part.clear()
        return effects
