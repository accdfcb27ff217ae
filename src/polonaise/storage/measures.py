"""Measurements of a storage node, and of each of its replicas, with what it has refused lately."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from polonaise.errors import DiskFull, PolonaiseError
from polonaise.histogram import Histogram
from polonaise.host import Clock
from polonaise.storage.protocol.scrubschedule import Scrubbed
from polonaise.terms import PartitionId, SessionId, StorageId, TransactionId


class ReplicaMeasures(NamedTuple):
    """Measurements of one replica at one moment."""

    partition: PartitionId
    usable: bool
    """Whether the replica's files are open and usable. If not, only the queue is measured: ids are -1, sizes 0."""
    session: SessionId
    """The session that the replica obeys; -1 for none."""
    last: TransactionId
    """The last id that the replica holds, synced; if it holds none, the id before its first, -1 without a segment."""
    confirmed: TransactionId
    """The highest id that the replica knows to be committed; -1 for none."""
    segments: int
    """The number of segment files."""
    log_bytes: int
    """The bytes of the segments, each up to the end of its last batch."""
    queue_entries: int
    """The number of messages that wait in the queue."""
    queue_bytes: int
    """The memory that these messages take, in bytes."""


class StorageNodeHealth(NamedTuple):
    """The health of a storage node: the fields of a JSON document, in order. No trouble is an empty text.

    What a node of an older version does not tell has its default.
    """

    name: StorageId | None = None
    """The name by which the cluster knows the node; None before its directory has one."""
    directory: str = ""
    gone: str = ""
    """Why the storage directory is not this node's any more, so that nothing is stored."""
    tls: str = ""
    unreachable: str = ""
    refused: str = ""
    """`Strangers`."""
    partitions: int = 0
    """The number of partitions that have files in the storage directory, or are about to get them."""
    given_up: int = 0
    """The number of these whose copies were given up, as far as servers have told; their files are left."""
    noted: int = -1
    """The version of the cluster's description that it has noted; -1 for none."""
    disk: Mapping[str, int] | None = None
    """`DiskSpace` at the last look; None before."""
    no_room: str = ""
    """`NoRoom`."""
    disk_waits_s: float = 0.0
    """For how many seconds the oldest call to the disk has not returned; 0 if none is under way."""
    scrub: Mapping[str, Any] = {}
    """The scrub's rate, 0 if it is switched off, and what it has done and found: `Scrubbed`."""
    resent: Mapping[str, float] = {}
    """By server, of those with losses, the share of what was sent lately that had to be sent again."""
    unavailable: Mapping[str, str] = {}
    """Why partitions can't be used, of the first ones that can't."""
    counts: Mapping[str, int] = {}
    """The sums of `PartitionReplica.counts` over all partitions, by the same names, since the node's start."""

    def document(self) -> dict[str, Any]:
        """Return it as a JSON-ready document, in which the wait for the disk is in tenths of a second."""
        return {**self._asdict(), "disk_waits_s": round(self.disk_waits_s, 1)}

    @classmethod
    def told(cls, document: Mapping[str, Any]) -> StorageNodeHealth:
        """Return the health in a document, which a node of another version, or a server, may have written.

        What is not of the form that this version reads counts as not told.
        """
        return cls(
            **{name: document[name] for name in cls._fields if name in document and _reads(name, document[name])}
        )


def _reads(name: str, told: object) -> bool:
    """Whether a field of `StorageNodeHealth` is told in the form that this version reads."""
    match name:
        case "name":
            return isinstance(told, str)
        case "scrub":
            return _reads_scrub(told)
        case "unavailable":
            return _has_all(told, str)
        case "disk" | "counts":
            return _has_all(told, int)
        case "resent":
            return _has_all(told, (int, float))
        case "disk_waits_s":
            return isinstance(told, int | float)
    return isinstance(told, type(StorageNodeHealth._field_defaults[name]))


def _has_all(told: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(told, Mapping) and all(isinstance(each, kind) for each in told.values())


def _reads_scrub(told: object) -> bool:
    if not isinstance(told, Mapping) or not all(isinstance(told.get(each, 0), int) for each in ("found", "repaired")):
        return False
    damages = told.get("damages", [])
    return isinstance(damages, list) and all(
        isinstance(each, Mapping)
        and isinstance(each.get("partition"), int)
        and isinstance(each.get("what"), str)
        and isinstance(each.get("repaired_us"), int)
        for each in damages
    )


class StorageMeasures(NamedTuple):
    """Measurements of a storage node as a whole at one moment."""

    health: StorageNodeHealth
    scrubbed: Scrubbed
    """What the scrub has done and found."""
    syncs: Histogram
    """The times to write and sync what arrived for a replica at once: one for each sync."""
    connections: int
    """The number of connections: two of each server, those of operators, and those without a hello so far."""
    connections_bytes: int
    """The bytes held for all connections: frames not handled yet, and answers not taken yet."""
    reads: int
    """The number of unanswered reads, and of unanswered requests that name the node."""
    open_files: int
    """The number of open files: those of partitions, the control file, and the lock of the directory."""
    open_files_max: int
    """The most files of partitions that stay open."""


_log = logging.getLogger(__name__)

_TOLD_S: Final = 60.0
"""For how many seconds a refusal counts as present trouble, as servers try again every few seconds; and the least time
between two lines about strangers in the log, as anybody may connect as often as they like."""


class Strangers:
    """The servers of other clusters that a storage node has refused lately.

    A refused server says so in its own log, but the mistake is as likely on this side: the node may run on the disk of
    another cluster, and would else look well.
    """

    def __init__(self, clock: Clock, directory: str) -> None:
        self._clock = clock
        self._directory = directory
        self._last = ""
        self._last_s = float("-inf")
        self._logged_s = float("-inf")

    def refused(self, name: str, address: str) -> None:
        """Take note of a server that was refused, and log it unless a refusal was logged just before."""
        self._last = f"{name} at {address}" if address else name
        self._last_s = self._clock.monotonic_s()
        if self._last_s - self._logged_s >= _TOLD_S:
            self._logged_s = self._last_s
            _log.warning("storage node %s: %s", self._directory, self)

    def __str__(self) -> str:
        """Return which server was refused lately, and what to do; empty if none was."""
        if self._clock.monotonic_s() - self._last_s >= _TOLD_S:
            return ""
        return (
            f"{self._last} was refused, because this directory belongs to another cluster than that server: correct "
            "the node's directory, or the address by which the server finds the node. If the server belongs to a "
            "cluster that was made in the place of this one, its coordinator has lost this one's values, or is another "
            f"one's: stop that server, and bring them back (polonaise cluster recover). Keep the directory: it may "
            "be the only copy of a log"
        )


class NoRoom:
    """The last refusal of a storage node for want of room on its disk.

    The free bytes of the disk don't tell all: a quota may be used up, a file may have reached the limit of its process,
    or a batch may be larger than what is left.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = ""
        self._last_s = float("-inf")

    def note(self, error: PolonaiseError) -> None:
        """Take note of a refusal, if it is one for want of room."""
        if isinstance(error, DiskFull):
            self._last, self._last_s = error.text, self._clock.monotonic_s()

    def __str__(self) -> str:
        """Return what found no room within the last minute; empty if nothing did."""
        return self._last if self._clock.monotonic_s() - self._last_s < _TOLD_S else ""
