"""The effects that `PartitionOwner` returns, and the order in which they are carried out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeAlias

from polonaise.errors import PolonaiseError
from polonaise.server.protocol.mounts import ClientMount
from polonaise.server.protocol.order import SealedBatch
from polonaise.terms import SessionId, StorageId, TransactionId
from polonaise.wire.appends import FailedAppend
from polonaise.wire.codec import Message


class ConfirmClean(NamedTuple):
    """Tell each engaged replica that its copy is certainly the log up to `closing`."""

    session: SessionId
    closing: TransactionId


class Replicate(NamedTuple):
    """Send each engaged replica one numbered message of the session: a batch, or a barrier without one."""

    session: SessionId
    number: int
    committed: TransactionId
    batch: SealedBatch | None


class TellFailures(NamedTuple):
    """Tell a client which of its appends are, under these request ids, not in the log and never will be, and why."""

    mount: ClientMount
    failures: Sequence[FailedAppend]


class FeedBatch(NamedTuple):
    """Feed a mount one committed batch: the one with the id that the mount gets next."""

    mount: ClientMount
    committed: TransactionId
    payload: bytes
    shared: bool
    """Whether the payload lies in the cache for all mounts, and so takes no memory for this one."""


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
    """Close the connection of a client that broke the protocol; a `RefuseRequest` before it says how."""

    connection: Hashable
    error: PolonaiseError


class ReadHistory(NamedTuple):
    """Read batches from `first` on, which the cache lacks; then call `history_read` or `history_failed`."""

    mount: ClientMount
    first: TransactionId


class AwaitRoom(NamedTuple):
    """Call `room` once little enough is unsent on the mount's connection for more to be written to it."""

    mount: ClientMount


class AwaitTurn(NamedTuple):
    """Call `turn` at the end of this turn of the loop: appends that still arrive in it go into the same batch."""


class MarkMoved(NamedTuple):
    """Wake the readers that wait for the committed high-water mark: it may have moved, or will never move again."""

    committed: TransactionId


class EndSession(NamedTuple):
    """Stop what belongs to the session, which has ended; the next one is to start, unless the ownership has ended."""

    session: SessionId
    reason: str
    late: Sequence[StorageId]
    """Replicas that did not acknowledge in time; their connections are to be closed, because they may hang."""


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
    """Collects the effects of one event, and returns them in the order in which they must be carried out.

    The order is a promise, whatever the order in which they were decided:

    1. **send to replicas**: so that their disks work while clients are told;
    2. **refuse before feed**: when a client is fed one of its appends, it takes for lost every older one whose fate it
       was not told. So every refusal is told before anything is fed that was decided after it;
    3. **feed before answer**: the answer to a mount or flush tells a mark; everything up to that mark goes out first;
    4. **requests to the shell**: what to read or to wait for, and which readers to wake;
    5. **the end last**: a session that ends, and a client that is cut off, has been told everything that was proved.
    """

    __slots__ = ("_answers", "_asked", "_ends", "_failures", "_feeds", "_sends")

    def __init__(self) -> None:
        self._sends: list[Effect] = []
        self._failures: dict[ClientMount, list[FailedAppend]] = {}
        self._feeds: list[Effect] = []
        self._answers: list[Effect] = []
        self._asked: list[Effect] = []
        self._ends: list[Effect] = []

    def add(self, *effects: Effect) -> None:
        """Add effects in the order in which they were decided. All failures of a mount travel in one message."""
        for effect in effects:
            match effect:
                case FeedBatch():
                    self._feeds.append(effect)
                case TellFailures(mount, failures):
                    self._failures.setdefault(mount, []).extend(failures)
                case Answer() | RefuseRequest():
                    self._answers.append(effect)
                case ConfirmClean() | Replicate():
                    self._sends.append(effect)
                case ReadHistory() | AwaitRoom() | AwaitTurn() | MarkMoved():
                    self._asked.append(effect)
                case CutOff() | EndSession():
                    self._ends.append(effect)

    def taken(self) -> list[Effect]:
        """Return the effects in their order, and forget them."""
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


class EffectQueue:
    """Carries out effects one after the other, even when carrying out one of them causes others.

    A send may find its connection broken, which is an event: its effects come after all that are queued, because the
    owner decided them later and took the earlier ones for done.
    """

    def __init__(self, carry_out: Callable[[Effect], None]) -> None:
        self._carry_out = carry_out
        self._effects: deque[Effect] = deque()
        self._carrying_out = False

    def __call__(self, effects: Sequence[Effect]) -> None:
        """Queue effects; carry out all that is queued, unless a call further up the stack does so already."""
        self._effects += effects
        if self._carrying_out:
            return
        self._carrying_out = True
        try:
            while self._effects:
                self._carry_out(self._effects.popleft())
        finally:
            self._carrying_out = False
