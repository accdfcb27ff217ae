"""The nouns of Polonaise as types, each with its one meaning; `docs/glossary.md` says the same in prose.

The words are those of Waltz internals (`docs/references.md`). Ids are plain integers: they live in columns, and a
wrapper per record would cost more than the record.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

PartitionId: TypeAlias = int
"""The number of a partition, which is one independent log: 0, 1, 2, … within a cluster, or within a topic."""

PARTITIONS_MAX: Final = 4_096
"""The most partitions of a cluster, those of all topics together."""

TransactionId: TypeAlias = int
"""The position of a transaction in its partition: dense, from 0, assigned by the owner. 64 bits, signed."""

NO_TRANSACTION: Final[TransactionId] = -1
"""The high-water mark of an empty partition, and of a client that has applied nothing."""

ClientId: TypeAlias = int
"""The number of a connected client, unique in the cluster for ever, given out by the coordinator. 32 bits."""

ServerId: TypeAlias = int
"""The number of one life of a server process, unique in the cluster for ever."""

Generation: TypeAlias = int
"""The count of a partition's owners, raised whenever the partition gets a new owner. 32 bits."""

SessionId: TypeAlias = int
"""The count of the epochs in which an owner writes to replicas, raised by compare-and-set in the coordinator."""

NO_SESSION: Final[SessionId] = -1
"""Stands for no session: none was joined, or there was none."""

UNRESOLVED: Final[TransactionId] = -(2**63)
"""The closing mark of a session with an undecided end. In a replica's promises: nothing is lost, all is believed."""

StorageId: TypeAlias = str
"""The name of a storage node, which it keeps on its disk: a word, or the address it was first reached under."""


class RequestId(NamedTuple):
    """The name of one append, for ever: who sent it, under which generation of which partition, and its sequence.

    A client's sequences rise by one with each append to a partition, above the time at which it got its id, in
    microseconds: two clients with one id, given out by a coordinator of an older state, have none in common.
    """

    client_id: ClientId
    generation: Generation
    partition: PartitionId
    sequence: int


class PeerClock(NamedTuple):
    """A peer's wall clock, measured by a request and its answer."""

    offset_us: int
    """The peer's wall clock less this side's monotonic clock, in microseconds."""
    within_us: int
    """How far `offset_us` may be off."""
    at_s: float
    """When the answer came, in monotonic seconds."""


def clock_words(seconds: float) -> str:
    """Return in words how far a clock is ahead of another (above 0), or behind it."""
    size, side = abs(seconds), "ahead of" if seconds > 0 else "behind"
    for unit, length in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if size >= 2 * length:
            return f"{size / length:.1f} {unit} {side}"
    return f"{size:.1f} s {side}"


class Transaction(NamedTuple):
    """One committed transaction as a consumer gets it.

    `data` is the application's bytes (checked against the writing client's CRC-32), or empty if the reading client's
    `wants` refused them; `header` its 32-bit integer; `commit_time_us` microseconds UTC, never decreasing in a
    partition.
    """

    partition: PartitionId
    id: TransactionId
    header: int
    data: bytes
    commit_time_us: int
    client_id: ClientId
    generation: Generation
    """The generation of the owner that ordered it; its bitwise complement, below 0, for an own transaction."""
    sequence: int

    @property
    def own(self) -> bool:
        """Whether the library wrote this transaction for itself: no application is given it."""
        return self.generation < 0

    @property
    def request_id(self) -> RequestId:
        """The request id of the append that this transaction came from."""
        generation = ~self.generation if self.generation < 0 else self.generation
        return RequestId(self.client_id, generation, self.partition, self.sequence)


class OwnKind(enum.IntEnum):
    """The kinds of the library's own transactions, kept in their headers."""

    PRODUCER = 0
    """A producer was opened: the register that the transaction changed says which. Without a body."""
    ONCE = 1
    """The transactions before this one in its group were appended under a key of `log.once`."""
    BATCH = 2
    """A named batch of the Spark sink had no rows, or the number of partitions that it is divided by was agreed: the
    register says which. Without a body."""
    RESET_HEAD = 3
    """An operator has reset the log's head to the id before this one: the body says in JSON what was given up."""
    GROUP = 4
    """A worker of a group has taken the partition over, or noted how far it is, in the register. Without a body."""


class LockMode(enum.IntEnum):
    """The relation of a transaction to the state that a lock stands for."""

    READ = 0
    """Built on the state behind the lock: checked, not raised."""
    WRITE = 1
    """Built on the state behind the lock, and changes it: checked and raised."""
    APPEND = 2
    """Changes the state behind the lock without having looked at it: raised, not checked."""


class MountState(enum.IntEnum):
    """A server's answer to a mount, and later news on whether this client's appends are committed."""

    READY = 0
    """Every append of this client's older mounts is decided, and fed if committed; the client may append."""
    NOT_READY = 1
    """The partition has no session, or can't prove a commit just now; the reason comes with it."""
    CLIENT_AHEAD = 2
    """The client claims transactions that the log does not have."""


class BodyForm(enum.IntEnum):
    """The ways in which the bodies of fed transactions travel."""

    INLINE = 0
    """Bodies come with the batch."""
    LAZY = 1
    """The consumer fetches those bodies that it wants."""
    FILTERED = 2
    """All bodies of a batch come with it if one of its headers matches the filter; others are fetched."""


class ExpectationKind(enum.IntEnum):
    """The demands that an append can make of a register, its own position or the replicas, before it is ordered."""

    EQUALS = 0
    """The register holds exactly this value."""
    ABSENT = 1
    """The register is not set."""
    PRESENT = 2
    """The register is set, to any value."""
    POSITION = 3
    """The first id that the append gets is exactly this one (value: 8 bytes little-endian, signed)."""
    COPIES = 4
    """The replicas of the session can be so many copies in so many zones (value: a byte for each of the two)."""


class ChangeKind(enum.IntEnum):
    """The changes that an append can make to a register, in one atomic step with itself."""

    SET = 0
    """Give the register this value."""
    DELETE = 1
    """Remove the register."""
    PRODUCE = 2
    """Take an idempotent producer's next number: the key names it, the value holds its epoch and sequence."""
    OWN = 3
    """Mark the transaction as the library's own (`OwnKind`). Key and value are empty."""


class FailureReason(enum.IntEnum):
    """The reasons why an append was not ordered, or not committed. A number, the *value*, goes with each; it has a
    meaning only where one is told."""

    LOCK_CONFLICT = 0
    """May have been built on stale state; the value is the id to have applied before trying again."""
    EXPECTATION_FAILED = 1
    """A register or the position is not as demanded; the value is the position that the append would have got."""
    SESSION_ENDED = 2
    """The session ended before the append, or one on which its refusal rests, was committed. It never will be."""
    INSUFFICIENT_REPLICAS = 3
    """Fewer copies, or in fewer zones, can be had than each commit, or this append, needs; nothing was written."""
    DUPLICATE = 4
    """An idempotent producer sent this sequence before; the value is the id that it got the first time."""
    PRODUCER_FENCED = 5
    """The producer was opened again later, in whichever process; the value is the newer epoch."""
    PRODUCER_GAP = 6
    """The number is neither the producer's next one nor one of its last 16; the value is its last number."""
    DEADLINE = 7
    """The append waited in the owner's queue past its deadline."""
    GENERATION = 8
    """Sent under a generation that is not the owner's, which is the value."""
    REGISTERS_FULL = 9
    """The registers would grow past their bound in bytes, the value; or a key or value is too long."""
    PRODUCER_DIFFERS = 10
    """An idempotent producer sent this sequence before, with another body or header; the value is the earlier id."""
    MARK_BEYOND_LOG = 11
    """The client high-water mark is above the committed high-water mark, which is the value; or it is below -1."""
    OVERLOADED = 12
    """More appends wait to be ordered than the owner keeps; this one was not taken."""


def partition_words(numbers: Sequence[object], most: int | None = None) -> str:
    """Return partitions in words, `partition 3`, `partitions 1, 3`; with `most`, so many by number."""
    more = f" and {len(numbers) - most} more" if most is not None and len(numbers) > most else ""
    return f"partition{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:most]))}{more}"


def in_ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers in words, each run of neighbours shortened: `4-7, 9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 partition`, `2 partitions`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_topic_name(name: str) -> bool:
    """Tell whether a topic may have this name: in addresses, none of its characters may need quoting."""
    return _NAME.fullmatch(name) is not None


class ClusterTopics(NamedTuple):
    """The partitions of a whole cluster in one version of its description: its own ones and its topics'."""

    partitions: int
    """The log's own partitions, whose ids are 0 to `partitions - 1`."""
    topics: Mapping[str, tuple[PartitionId, ...]]
    """By topic: the ids of its partitions, by their numbers in it."""

    @property
    def total(self) -> int:
        return self.partitions + sum(map(len, self.topics.values()))

    def number_of(self, partition: PartitionId) -> tuple[str, PartitionId]:
        """Return the topic and number of the partition with this id; an empty name and the id if no topic has it."""
        for name, ids in self.topics.items():
            if partition in ids:
                return name, ids.index(partition)
        return "", partition

    def may_follow(self, before: ClusterTopics) -> bool:
        """Tell whether the cluster can have grown from `before` to this: no number has another id."""
        return self.partitions == before.partitions and all(
            self.topics.get(name, ())[: len(ids)] == ids for name, ids in before.topics.items()
        )


def check_topics(own: int, topics: object) -> dict[str, tuple[PartitionId, ...]]:
    """Return the ids of each topic's partitions, as read from JSON; they begin after the `own` partitions of the log.
    Raises `TypeError` and `ValueError` unless names are valid and no id is left out or there twice."""
    if not isinstance(topics, dict) or not all(isinstance(ids, list) and ids for ids in topics.values()):
        raise TypeError(f"topics is {topics!r} instead of a list of partitions for each topic")
    if bad := [name for name in topics if not is_topic_name(name)]:
        raise ValueError(f"no topic may have the name {bad[0]!r}")
    ids = [partition for listed in topics.values() for partition in listed]
    if not all(type(partition) is int for partition in ids) or sorted(ids) != [*range(own, own + len(ids))]:
        raise ValueError(f"the ids of the topics' partitions are not each number from {own} on once")
    return {name: tuple(listed) for name, listed in topics.items()}
