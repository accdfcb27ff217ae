"""What a state of the model is: hashable values, one *column* per replica and one *head* for the rest.

A batch is a letter, the session that wrote it: one owner writes each id of its session once, so id and session are the
content. A log is a string of them, its length the next id, and the string itself stands for the CRC of its last batch:
equal digests mean equal logs, as each batch carries the CRC of the one before.

Everything that concerns one replica is in its column, the attempts' view of it included. So permuting the replicas is
permuting the columns, and a state is canonical when they are sorted.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from polonaise.terms import NO_SESSION, NO_TRANSACTION, UNRESOLVED

NAMES = "ABCDE"


class ModelReplica(NamedTuple):
    """What is on one storage node's disk; of `log` the last `unsynced` batches are written only."""

    fence: int = NO_SESSION
    joined: int = NO_SESSION
    prepared: int = NO_TRANSACTION
    confirmed: int = NO_TRANSACTION
    log: str = ""
    unsynced: int = 0
    lost: int | None = None
    """It may have lost what is above this; None when it has not."""
    untrusted: int | None = None
    """Bytes that nobody may believe may be there above this, and have to be cut before anything is written."""


class ModelStanding(NamedTuple):
    """What the coordinator says of one replica."""

    member: bool
    coming: bool
    """It is in the pending membership."""
    session: int = NO_SESSION
    """The last session that it was engaged in; NO_SESSION when there was none."""
    closing: int = UNRESOLVED


class ModelTold(NamedTuple):
    """What a replica answered when it was fenced."""

    joined: int
    prepared: int
    confirmed: int
    log: str
    lost: int | None


class Fencing(NamedTuple):
    """One replica in an attempt that has not decided."""

    standing: ModelStanding
    """As it was when the session was claimed."""
    wanted: bool
    """It is to be fenced."""
    told: ModelTold | None = None
    broken: bool = False
    """The connection it answered on is gone: it counts in the decision, and takes no part after it."""
    kind: str = "fencing"


class Cleaning(NamedTuple):
    """One replica in an attempt that has decided."""

    stage: str
    """"out" (did not answer in time, or its connection broke), "truncate", "copy" (and then join), "joined", or
    "joined-broken": joined, on a connection that is gone."""
    mark: int = NO_TRANSACTION
    """What it is truncated to."""
    source: bool = False
    kind: str = "cleaning"


class Engaged(NamedTuple):
    """One replica that is engaged in the attempt's session."""

    progress: int = 0
    """0 joined, 1 the mark is confirmed, 1 + n the first n batches of the session are synced and acknowledged."""
    broken: bool = False
    kind: str = "engaged"


class Late(NamedTuple):
    """One member that is not engaged in the attempt's session."""

    standing: ModelStanding
    """As the engagement has left it: what the catch-up goes by."""
    straggler: str = "none"
    """What of the cleaning may still arrive, long after the owner gave up on it: a stage of `Cleaning`."""
    straggler_mark: int = NO_TRANSACTION
    catch_up: str = "none"
    """"none", "truncate", "copy" or "confirm"."""
    mark: int = NO_TRANSACTION
    kind: str = "late"


class Gone(NamedTuple):
    """One replica for an attempt that can do nothing to it any more."""

    kind: str = "gone"


Part: TypeAlias = Fencing | Cleaning | Engaged | Late | Gone


class ModelColumn(NamedTuple):
    replica: ModelReplica
    standing: ModelStanding
    image: ModelReplica | None
    """An earlier durable state that may be put back."""
    parts: tuple[Part, ...]
    """By session: how far that attempt is with this replica."""


class Attempt(NamedTuple):
    """One owner's attempt at a session, and the session if it gets that far."""

    phase: str
    """"fencing", "cleaning", "writing", or "over" when it can do nothing any more."""
    log: str = ""
    """What it decided the log to be before this session."""


class ModelBudget(NamedTuple):
    """What may yet happen."""

    rots: int
    wipes: int
    snapshots: int
    images: int
    """Taken, and not put back."""
    crashes: int
    failures: int
    edits: int

    @property
    def fences_may_fall(self) -> bool:
        """A fence is as lasting as its disk."""
        return self.wipes + self.snapshots + self.images > 0


class Head(NamedTuple):
    published: str
    """Everything that any owner ever knew to be committed or decided. It only grows."""
    attempts: tuple[Attempt, ...]
    """By session: that of the last one is the coordinator's."""
    claimed: bool
    """The coordinator's value is still the one that the last attempt claimed: its compare-and-set would succeed."""
    left: ModelBudget


def letter(session: int) -> str:
    return chr(ord("a") + session)


def replaced(parts: tuple[Part, ...], session: int, part: Part) -> tuple[Part, ...]:
    return (*parts[:session], part, *parts[session + 1 :])
