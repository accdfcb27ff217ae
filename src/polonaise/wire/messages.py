"""The messages: which side sends each of them, when, and what it means. `docs/formats.md` lists them by number.

An answer carries the request number of its request. `Refused` answers anything. Message types below 10 are common to
all connections, 10 to 63 are between client and server, 64 to 127 between server and storage node, 128 to 159 between
player and target. `Health`, `HealthIs` and `Batches` are used with storage nodes as well.
"""

from __future__ import annotations

import re
from typing import Final

from polonaise.wire.codec import I32, I64, U8, U16, U32, Blob, Key, Message, Payload, Text, message, payload

PROTOCOL_VERSION: Final = 6
PROTOCOL_VERSION_MIN: Final = 1
NAMES_VERSION: Final = 2
"""From here on a storage node says whether it has the name by which a server knows it."""
EMPTYING_VERSION: Final = 3
"""From here on a storage node empties copies."""
CLOCK_VERSION: Final = 5
"""From here on a side tells its time."""
NOTES_VERSION: Final = 5
"""From here on a storage node notes the coordinator's values."""
BATCHES_VERSION: Final = 6
"""From here on a storage node tells operators of its batches."""
MARKS_VERSION: Final = 6
"""From here on a storage node lowers the marks of a copy and keeps what it holds."""
DISCOVERY_VERSION: Final = 2
"""From here on a server takes clients that do not know its cluster, and tells them of it."""
WHOLE: Final = -1
"""The `part_last` of a read that is not one of several parts. Of parts that are read side by side, a batch belongs to
the one in which it begins."""

ROLE_CLIENT: Final = 1
ROLE_SERVER: Final = 2
ROLE_STORAGE: Final = 3
ROLE_OPERATOR: Final = 4
"""An operator's command, which may ask a storage node for its health and for the batch of an id only."""
ROLE_PLAYER: Final = 5
ROLE_TARGET: Final = 6
"""A process that serves targets to players."""

# ------------------------------------------------------------------ common


@message(1)
class Hello(Message):
    """The first frame of each side that does not refuse. The accepting side says it only after a fitting one.

    `node` is the id of a client or server, or a random number of a storage node's process; 0 for others or if unknown.
    """

    version_min: U16
    version_max: U16
    role: U8
    node: I32
    cluster_key: Key
    name: Text


@message(2)
class Refused(Message):
    """A fault, by its stable code. Without request number and partition it is about the connection, which closes.

    With a partition and without a number, from a storage node: its copy has no part in the owner's session any more.
    """

    detail: I64
    """From a storage node: for `fenced` the session that the replica obeys, for `history_trimmed` the first id that it
    still holds. For other codes, and from a server, 0."""
    code: Text
    text: Text


@message(3)
class Ping(Message):
    """A sign of life, when nothing was sent or nothing heard for a while. Anything at all from the peer answers it."""


@message(4)
class Pong(Message):
    """The answer to a `Ping`."""


@message(5)
class AskTime(Message):
    """Asks what time it is, and is a sign of life like a `Ping`. The side that has connected asks now and then."""


@message(6)
class TimeIs(Message):
    """The answer to `AskTime`, at once."""

    wall_us: I64
    """The wall clock of the side that answers, in microseconds UTC."""


# ------------------------------------------------------------------ client → server and back


@message(10)
class Mount(Message):
    """Starts the feed of a partition after the client high-water mark, and voids this client's earlier mount of it."""

    connection_sequence: I64
    """A number that rises with each connection of this client; one below that of its present mount is refused."""
    generation_known: I32
    """The largest generation that the client has seen; an owner of an older one refuses the mount."""
    client_high_water_mark: I64
    """The last id that the client has applied, or was fed."""
    form: U8
    """A `BodyForm`."""
    filter_mask: U32
    filter_value: U32
    """With FILTERED, a batch has its bodies if `header & mask == value & mask` for one of its headers."""
    credit: I64
    """The bytes of feed that may be sent before more credit is given; the last batch may exceed them."""


@message(11)
class Mounted(Message):
    """The outcome of a mount. READY comes after the feed of everything up to `high_water_mark`.

    With request number 0 it is news for a mount that is ready: NOT_READY, with the reason, while its appends are not
    committed; READY when nothing keeps them any more. The mount itself does not change.
    """

    state: U8
    """A `MountState`."""
    generation: I32
    high_water_mark: I64
    """When READY or CLIENT_AHEAD: the committed high-water mark, proved in the current session after the mount arrived.

    In news it is not proved anew. NO_TRANSACTION when the mount is answered with NOT_READY."""
    append_window: I64
    """When READY: the most bytes of undecided appends (`wire.appends.inbox_bytes`), but for one frame."""
    reason: Text
    """What the partition or its appends wait for (NOT_READY), where the log ends (CLIENT_AHEAD), or empty."""


@message(12)
class Unmount(Message):
    """Ends the client's mount of a partition, if it is on this connection. Has no answer."""


@message(13)
class Append(Message):
    """Transactions to append, in order, as columns (`wire.appends`). Success has no answer: the feed tells it."""

    generation: I32
    count: U32
    flags: U8
    columns: Blob
    """All but the bodies, such as locks and expectations, in the head, so that the frame's CRC covers them. The owner
    decides by these; bodies are compared only to recognize what a producer has repeated."""
    payload: Payload = payload()
    """The bodies, each with its own CRC among the columns."""


@message(14)
class AppendsFailed(Message):
    """Appends that are not in the log and never will be under these request ids; see `wire.appends.FailedAppend`."""

    generation: I32
    rows: Blob
    """Rows of sequence i64, value i64, reason u8 (a `FailureReason`)."""


@message(15)
class Feed(Message):
    """One committed batch. On one mount the batches come in order and without gaps."""

    committed: I64
    """The committed high-water mark when this was sent."""
    payload: Payload = payload()


@message(16)
class Credit(Message):
    """Lets the server send more bytes of a partition's feed. Has no answer."""

    bytes: I64
    """The bytes that are added to the credit."""


@message(17)
class Flush(Message):
    """Asks for an answer when all earlier appends of the client's mount are decided, and fed if committed."""


@message(18)
class Flushed(Message):
    """The answer to `Flush`, with the committed high-water mark."""

    high_water_mark: I64


@message(19)
class HighWaterMark(Message):
    """Asks for the committed high-water mark, proved in the current session after this arrived."""


@message(20)
class HighWaterMarkIs(Message):
    """The answer to `HighWaterMark`."""

    generation: I32
    high_water_mark: I64


@message(21)
class Read(Message):
    """Asks for committed batches, beginning with the one that holds `first`, byte for byte as replicas store them."""

    first: I64
    bytes_max: U32
    """About the most bytes of the answer: its last batch may bring it above. At least one batch is sent, if any.

    A part whose `first` lies within a batch may be answered with none: ask again from behind that batch."""
    wait_ms: U32
    """The longest that the server waits, in milliseconds, if there is nothing to send yet."""
    with_data: U8
    """1 for whole batches, 0 for batches without their bodies."""
    after_time_us: I64
    """Begin with the first batch of this commit time (µs UTC) or later; 0 for any time."""
    part_last: I64 = WHOLE
    """Only batches that begin at `first` or above and at this id or below; WHOLE for no part."""


@message(22)
class Batches(Message):
    """The answer to `Read` and `ReadBatches`: batches one after the other, or none."""

    committed: I64
    """The committed high-water mark; in the answer to a `ReadBatches`, the `last` of that request."""
    payload: Payload = payload()


@message(23)
class Fetch(Message):
    """Asks for the bodies of some committed transactions; `wire.fetches` has the column."""

    ids: Blob


@message(24)
class Bodies(Message):
    """The answer to `Fetch`, in its order; `wire.fetches` has the columns."""

    count: U32
    payload: Payload = payload()


@message(25)
class GetRegister(Message):
    """Asks for a register, as it is at a committed high-water mark that is proved after this arrived."""

    key: Blob


@message(26)
class RegisterIs(Message):
    """The answer to `GetRegister`."""

    present: U8
    """1 if the register exists, else 0."""
    high_water_mark: I64
    value: Blob


@message(27)
class Health(Message):
    """Asks a server or a storage node for its health.

    A server tells of partitions, sessions and storage nodes; a storage node, of its scrub and of what it can't use. A
    server that is asked about a partition answers only if it owns that one.
    """


@message(28)
class HealthIs(Message):
    """The answer to `Health`: a JSON document."""

    document: Blob


@message(29)
class TrimLog(Message):
    """Asks the owner to have its replicas drop archived history below an id. Each request drops some of it."""

    before: I64
    fragments: Blob
    """The `fragments.protocol.names.fingerprint` of verified fragments that hold everything below `before`."""


@message(30)
class LogTrimmed(Message):
    """The answer to `TrimLog`."""

    first: I64
    """The id from which every replica of the session holds the log."""
    done: U8
    """1 if nothing is left to be dropped below the id that was named; 0 to ask again."""


@message(31)
class ListRegisters(Message):
    """Asks for a page of registers, from the key `first` on, at a mark that is proved as with `GetRegister`."""

    first: Blob
    prefix: Blob
    """Only registers whose keys begin with this are listed."""


@message(32)
class RegistersListed(Message):
    """The answer to `ListRegisters`: as many registers as go into one answer, in the order of their keys."""

    high_water_mark: I64
    more: U8
    """1 if there are more registers behind these, to be asked for; else 0."""
    snapshot: Blob
    """The registers, in the encoding of `log.registers`."""


@message(33)
class DescribeCluster(Message):
    """Asks any server for the cluster's description. A client that knew no cluster key finds it in the server's hello.

    It and the other requests about the cluster (`GetUniqueId`, `GetAssignment`, `DescribeTopic` and `ListTopics`) are
    the only ones that a server takes on a connection whose client has named no cluster key.
    """


@message(34)
class ClusterIs(Message):
    """The answer to `DescribeCluster`."""

    partitions: U32
    """The number of the log's own partitions, those in no topic."""


@message(35)
class GetUniqueId(Message):
    """Asks any server for a unique id, for a client, which the coordinator gives out. No two answers are the same."""


@message(36)
class UniqueIdIs(Message):
    """The answer to `GetUniqueId`."""

    id: I32


@message(37)
class GetAssignment(Message):
    """Asks any server for an assignment newer than the one that the client knows; answered as soon as there is one.

    A client that finds its cluster through servers keeps one such request under way.
    """

    version_known: I64
    """The version of the assignment that the client knows; -1 for none."""
    wait_ms: U32
    """The longest that the server waits for a newer one, in milliseconds."""


@message(38)
class AssignmentIs(Message):
    """The answer to `GetAssignment`: the assignment as this server knows it, without rows if its version is not above
    `version_known`.
    """

    version: I64
    age_ms: U32
    """Milliseconds since the server last read the assignment from its coordinator, changed or not."""
    servers: U32
    """The number of servers among the rows."""
    partitions: U32
    """The number of partitions among the rows."""
    crc: U32
    """CRC of the rows."""
    trouble: Text
    """Why the server could not read the assignment the last time it tried; empty if it could."""
    payload: Payload = payload()
    """The rows (`wire.topics`)."""


# ------------------------------------------------------------------ server → storage node and back


@message(64)
class LastSessionInfo(Message):
    """Raises the fence to `session`, durably, and asks what this copy can prove.

    No other message of an owner raises the fence; an operator's `EmptyCopy` does, too.
    """

    session: I64


@message(65)
class SessionInfo(Message):
    """The answer to `LastSessionInfo`: what one replica can prove. All of it is durable when this is sent."""

    fence: I64
    """The largest session that it was told of."""
    joined: I64
    """The last session that it joined, or a later one for whose reset of the head it was cut; or NO_SESSION."""
    prepared: I64
    """The id with which its log ended when it joined a session last, or lower after a cut for a reset of the head."""
    confirmed: I64
    """The id up to which the copy, but for what it may have lost, is certainly the log."""
    max_synced: I64
    """The last id that it holds, synced; if it holds none, the id before its first one, or NO_TRANSACTION."""
    last_crc: U32
    """CRC of the batch that ends at `max_synced`; 0 if that is NO_TRANSACTION."""
    lost_above: I64
    """The id above which the copy may have lost something; or UNRESOLVED."""


@message(66)
class Truncate(Message):
    """Has a copy that has not joined `session` cut everything above `last`.

    Of a batch that goes on above `last`, all stays if an id in it is confirmed, and else nothing. Answered with `Done`.
    """

    session: I64
    last: I64


@message(90)
class CutForReset(Message):
    """Has a copy that has not joined `session` cut everything above `last`, also what it was told is committed.

    Sent after a reset of the log's head, which gave up what the copy holds above. Answered with `Done`.
    """

    session: I64
    last: I64
    since: I64
    """The session of the last reset that the copy was not cut for yet, which it notes as joined; NO_SESSION if there is
    none."""


@message(91)
class EmptyCopy(Message):
    """Has a copy that its partition needs no more drop all batches, and obey no session before `session`.

    Sent by an operator's command, in the role of a server: it destroys data. Answered with `CopyEmptied`.
    """

    session: I64
    """The session in the partition's value, by which the copy is no member and is not to become one."""


@message(92)
class CopyEmptied(Message):
    """The answer to `EmptyCopy`, once that is durable."""

    bytes: I64
    """How much smaller the copy's segments have become."""


@message(67)
class Copy(Message):
    """Gives committed or decided batches to a copy that has not joined `session`. Answered with `Done`."""

    session: I64
    payload: Payload = payload()


@message(68)
class Join(Message):
    """Makes a copy whose log ends at exactly `prepared`, with this CRC, part of the session, and clears its losses.

    It is durable before it is answered, with `Done`.
    """

    session: I64
    prepared: I64
    last_crc: U32


@message(69)
class Confirm(Message):
    """Tells a copy that its ids up to `low_water_mark` are certainly the log's. Never lowers what was confirmed.

    A batch ends there, except where a server of an earlier version trims. Answered with `Done`.
    """

    session: I64
    low_water_mark: I64


@message(70)
class Store(Message):
    """Batches of a joined session, in order; without batches it is a barrier.

    The request number counts these messages within session and connection; `Stored` acknowledges one and all before it.
    """

    session: I64
    committed: I64
    """The committed high-water mark when this was sent. Storage nodes of this version make no use of it."""
    payload: Payload = payload()


@message(71)
class Stored(Message):
    """Acknowledges that everything up to the `Store` with this request number is synced."""

    session: I64
    last: I64
    """The last id that the copy holds."""


@message(72)
class Done(Message):
    """The answer to `Truncate`, `CutForReset`, `Copy`, `Join` and `Confirm`: the end of the log, synced."""

    last: I64
    """The last id that the copy holds."""
    last_crc: U32
    """CRC of the batch that ends at `last`; 0 if that is NO_TRANSACTION."""


@message(73)
class ReadBatches(Message):
    """Asks for batches from the one that holds `first` on, up to the last one that ends at or below `last`.

    `with_data`, `after_time_us` and `part_last` mean the same as in `Read`.
    """

    session: I64
    first: I64
    last: I64
    bytes_max: U32
    """The most bytes of the answer, unless its first batch alone is larger."""
    with_data: U8
    after_time_us: I64
    part_last: I64 = WHOLE


@message(74)
class GetRegisters(Message):
    """Asks for the registers as they are at the end of this copy's log."""

    session: I64


@message(75)
class RegistersAre(Message):
    """The answer to `GetRegisters`: a snapshot in the encoding of `log.registers`."""

    last: I64
    """The id at which the snapshot was taken: the end of the log."""
    snapshot: Blob


@message(76)
class Digest(Message):
    """Asks for a digest of this copy's batches, to compare copies by. Servers of this version do not send it.

    The batches are those from the one that begins at `first` to the one that ends at `last`.
    """

    session: I64
    first: I64
    last: I64


@message(77)
class DigestIs(Message):
    """The answer to `Digest`."""

    last: I64
    last_crc: U32
    digest: Blob
    """SHA-256 over the CRCs of the batches (u32 each) from `first` to `last`."""


@message(78)
class Trim(Message):
    """Has the replica drop its oldest segment, unless that is the tail or reaches up to `before`.

    `before` must be confirmed already.
    """

    session: I64
    before: I64


@message(79)
class Trimmed(Message):
    """The answer to `Trim`."""

    first: I64
    """The first id that this copy still holds."""
    done: U8
    """1 if no further segment lies wholly below `before`; 0 to ask again."""


@message(80)
class Identify(Message):
    """Tells a storage node by which name the server knows it: the first request on a connection.

    A node without a name takes this one, durably, before it answers with `Identified`. One that has another name
    refuses with `wrong_storage_node`.
    """

    name: Text


@message(81)
class Identified(Message):
    """The answer to `Identify`: the node has that name."""

    name: Text


@message(93)
class NoteValues(Message):
    """Tells a storage node some of the coordinator's values, in JSON, to keep in case the coordinator loses them.

    Answered with `ValuesNoted`, once that is durable.
    """

    document: Blob


@message(94)
class ValuesNoted(Message):
    """The answer to `NoteValues`."""


@message(95)
class TellNoted(Message):
    """Asks a storage node for the values that it has noted, and for what its copies have promised.

    Sent by an operator's command in the role of a server, which need not know the cluster. Answered with `NotedAre`.
    """


@message(96)
class NotedAre(Message):
    """The answer to `TellNoted`: a JSON document."""

    document: Blob


@message(97)
class FindBatch(Message):
    """Asks a storage node, for an operator and in no session, which batch of its copy holds a transaction."""

    transaction: I64


@message(98)
class BatchFound(Message):
    """The answer to `FindBatch`: the first and the last id of that batch; NO_TRANSACTION twice if the copy has none."""

    first: I64
    last: I64


@message(99)
class LowerMarks(Message):
    """Has a copy that has not joined `session` forget that ids above `last` are certainly the log's, and keep them.

    Sent to the source of a reset of the log's head, which was not cut for an earlier reset. Answered with `Done`.
    """

    session: I64
    last: I64
    since: I64
    """The session of the last reset that the copy was not cut for yet, which it notes as joined."""


_ASKED: Final = {
    "HighWaterMark": "what is committed",
    "Health": "how it is",
    "Read": "batches",
    "ReadBatches": "batches",
    "ReadHistory": "batches",
    "Fetch": "the bodies of transactions",
    "GetRegister": "a register",
    "GetRegisters": "registers",
    "ListRegisters": "registers",
    "TrimLog": "a trim",
    "Trim": "a trim",
    "HoldLeases": "leases",
    "ReleaseLeases": "the end of leases",
    "ProveCopies": "a proof of copies",
    "DescribeCluster": "the cluster's description",
    "GetUniqueId": "an id",
    "GetAssignment": "the assignment",
    "DescribeTopic": "a topic",
    "ListTopics": "the topics",
    "LastSessionInfo": "what its copy holds",
    "FindBatch": "where a batch ends",
    "TellNoted": "what it has noted",
}


def request_words(request: Message) -> str:
    """Return what a request asks for, as a phrase."""
    name = type(request).__name__
    return _ASKED.get(name) or f"'{re.sub('(?<!^)(?=[A-Z])', ' ', name).lower()}'"
