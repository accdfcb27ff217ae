"""Every message: who says it, when, and what it means. `docs/formats.md` lists them with their numbers.

Answers carry the request number of what they answer. `Refused` answers anything. Numbers below 10 are common to all
connections, 10-63 are between client and server, 64-127 between server and storage node, which is also asked with
`Health`.
"""

from __future__ import annotations

from typing import Final

from polonaise.wire.codec import (
    I32,
    I64,
    U8,
    U16,
    U32,
    Blob,
    Key,
    Message,
    Payload,
    Text,
    message,
    payload,
)

PROTOCOL_VERSION: Final = 1
WHOLE: Final = -1
"""Asked for in one piece. Parts of a range are asked for side by side: each batch is in the one that it begins in."""

ROLE_CLIENT: Final = 1
ROLE_SERVER: Final = 2
ROLE_STORAGE: Final = 3

# ------------------------------------------------------------------ common


@message(1)
class Hello(Message):
    """The first frame of each side; who was connected to says it only after hearing one that belongs here.

    `node` is a client's or server's id, a number that a storage node's process has drawn; 0 for others or unknown.
    """

    version_min: U16
    version_max: U16
    role: U8
    node: I32
    cluster_key: Key
    name: Text


@message(2)
class Refused(Message):
    """A fault, by its stable code. Without request number and partition it is about the connection, which closes."""

    detail: I64
    """What the code calls for: a newer session, generation or id, or the first id that is held; else 0."""
    code: Text
    text: Text


@message(3)
class Ping(Message):
    """Sent on an idle connection; anything at all from the peer answers it."""


@message(4)
class Pong(Message):
    """The answer of a side with nothing else to say."""


# ------------------------------------------------------------------ client → server and back


@message(10)
class Mount(Message):
    """Start the feed of a partition after a high-water mark, and void this client's older connections."""

    connection_sequence: I64
    """Rises with each connection of this client; a smaller one is refused."""
    generation_known: I32
    """The largest generation of the partition that the client has seen; a server below it must not answer ready."""
    client_high_water_mark: I64
    form: U8
    """A `BodyForm`."""
    filter_mask: U32
    filter_value: U32
    """FILTERED: bodies come with headers for which `header & mask == value`."""
    credit: I64
    """Bytes of feed that may be sent before more credit is given."""


@message(11)
class Mounted(Message):
    """The outcome of a mount. READY comes after the feed of everything up to `high_water_mark`.

    With request number 0, to a mount that is ready, news of its appends: NOT_READY while they are not committed, with
    what keeps them; READY when nothing does any more. The mount stays what it is.
    """

    state: U8
    generation: I32
    high_water_mark: I64
    """The committed high-water mark, proved in the current session after the mount arrived."""
    append_window: I64
    """READY: bytes of appends (`wire.appends.inbox_bytes`) that may be undecided at a time; one frame always may."""
    reason: Text
    """NOT_READY: what the partition waits for, or what keeps its appends."""


@message(12)
class Unmount(Message):
    """End the feed of a partition on this connection."""


@message(13)
class Append(Message):
    """Transactions to append, in order, as columns (`wire.appends`). Nothing answers success: the feed tells."""

    generation: I32
    count: U32
    flags: U8
    columns: Blob
    """All that the owner judges by; in the head, so that the frame's CRC covers it."""
    payload: Payload = payload()
    """The bodies, each with its own CRC among the columns."""


@message(14)
class AppendsFailed(Message):
    """Appends that are not in the log and never will be."""

    generation: I32
    rows: Blob
    """One after the other: sequence i64, value i64, reason u8 (a `FailureReason`)."""


@message(15)
class Feed(Message):
    """Committed batches, in order, without gaps on one mount: one batch in the payload."""

    committed: I64
    """The committed high-water mark when this was sent."""
    payload: Payload = payload()


@message(16)
class Credit(Message):
    """More bytes of feed may be sent."""

    bytes: I64


@message(17)
class Flush(Message):
    """Answered when every append that came before it on this connection is decided, and fed if committed."""


@message(18)
class Flushed(Message):
    high_water_mark: I64


@message(19)
class HighWaterMark(Message):
    """Asks for the committed high-water mark, proved in the current session after this arrived."""


@message(20)
class HighWaterMarkIs(Message):
    generation: I32
    high_water_mark: I64


@message(21)
class Read(Message):
    """Committed batches from an id on, as they lie on disk."""

    first: I64
    bytes_max: U32
    """Stop after the batch with which the answer reaches this size (at least one batch is sent)."""
    wait_ms: U32
    """With nothing to send yet: wait this long for it."""
    with_data: U8
    after_time_us: I64
    """If not 0: from the first batch with this commit time or a later one, if that is after `first`."""
    part_last: I64 = WHOLE
    """If 0 or above: only batches that begin at `first` or above and at this id or below."""


@message(22)
class Batches(Message):
    """The answer to `Read` and `ReadBatches`: whole batches one after the other; none if there is nothing."""

    committed: I64
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
    """Asks for a register, proved like a high-water mark."""

    key: Blob


@message(26)
class RegisterIs(Message):
    present: U8
    high_water_mark: I64
    value: Blob


@message(27)
class Health(Message):
    """Asks a server how it is: its partitions, sessions and storage connections; or a storage node, for its scrub.

    A server that is asked about a partition answers only if it owns it; about none, it answers in any case.
    """


@message(28)
class HealthIs(Message):
    """A JSON document."""

    document: Blob


@message(29)
class TrimLog(Message):
    """Asks the owner to have its replicas drop what lies below an id and is archived. Some of it each time."""

    before: I64
    fragments: Blob
    """What was verified: `fragments.protocol.names.fingerprint` of the fragments that hold everything below."""


@message(30)
class LogTrimmed(Message):
    first: I64
    """From here on every replica of the session holds the log; the highest of their answers."""
    done: U8
    """Nothing is left to be dropped below the id that was named; if not, ask again."""


@message(31)
class ListRegisters(Message):
    """Asks which registers there are, from the key `first` on, proved like a high-water mark."""

    first: Blob
    prefix: Blob
    """Only keys that begin so."""


@message(32)
class RegistersListed(Message):
    """The answer to `ListRegisters`: the first of them, by their keys, as many as go into one answer."""

    high_water_mark: I64
    more: U8
    """There are others behind them, to be asked for."""
    snapshot: Blob
    """In the encoding of `log.registers`."""


# ------------------------------------------------------------------ server → storage node and back


@message(64)
class LastSessionInfo(Message):
    """Raises the fence to `session`, durably, and asks what this copy has promised. The only message that does."""

    session: I64


@message(65)
class SessionInfo(Message):
    """What one replica can prove. All of it is durable when this is sent."""

    fence: I64
    joined: I64
    """The session it took part in last; NO_SESSION for a new or wiped copy."""
    prepared: I64
    """The high-water mark at which it joined."""
    confirmed: I64
    """Up to here it is certainly clean."""
    max_synced: I64
    """The last id it holds, synced; NO_TRANSACTION when empty."""
    last_crc: U32
    """CRC of the batch that ends there; 0 when empty."""
    lost_above: I64
    """It may have lost ids above this one; UNRESOLVED (the smallest integer) when it has not."""


@message(66)
class Truncate(Message):
    """Cut everything above `last`, which ends a batch. Answered with `Done`."""

    session: I64
    last: I64


@message(67)
class Copy(Message):
    """Committed or decided batches from another replica, for a copy that has not joined `session`."""

    session: I64
    payload: Payload = payload()


@message(68)
class Join(Message):
    """Become clean: the log ends at exactly `prepared`, with this CRC. Durable before the answer; clears the loss."""

    session: I64
    prepared: I64
    last_crc: U32


@message(69)
class Confirm(Message):
    """Ids up to `low_water_mark` are certainly clean. Never lowers what was confirmed."""

    session: I64
    low_water_mark: I64


@message(70)
class Store(Message):
    """Batches of a joined session, in order; none is a barrier (a pulse). The request number counts these messages
    within session and connection; `Stored` acknowledges it and all before it."""

    session: I64
    committed: I64
    """What the owner has committed: this copy may serve reads up to there while engaged."""
    payload: Payload = payload()


@message(71)
class Stored(Message):
    """Everything up to the `Store` of this request number is synced. Cumulative."""

    session: I64
    last: I64


@message(72)
class Done(Message):
    """The answer to `Truncate`, `Copy`, `Join` and `Confirm`: how the log ends now, synced."""

    last: I64
    last_crc: U32


@message(73)
class ReadBatches(Message):
    """Batches from the one that holds `first` on, up to the one that ends at or before `last`."""

    session: I64
    first: I64
    last: I64
    bytes_max: U32
    with_data: U8
    after_time_us: I64
    part_last: I64 = WHOLE
    """As in `Read`."""


@message(74)
class GetRegisters(Message):
    """The registers as they are at the end of this copy's log."""

    session: I64


@message(75)
class RegistersAre(Message):
    """A snapshot in the encoding of `log.registers`."""

    last: I64
    snapshot: Blob


@message(76)
class Digest(Message):
    """For audits: a digest of this copy's batches, from the one that begins at `first` to that which ends at `last`."""

    session: I64
    first: I64
    last: I64


@message(77)
class DigestIs(Message):
    last: I64
    last_crc: U32
    digest: Blob
    """SHA-256 over the CRCs of the batches (u32 each) from `first` to `last`."""


@message(78)
class Trim(Message):
    """Drop what lies below `before`, whole segments only, one at a time. Never above the confirmed mark."""

    session: I64
    before: I64


@message(79)
class Trimmed(Message):
    """The answer to `Trim`."""

    first: I64
    """The first id that this copy still holds."""
    done: U8
    """No further segment lies wholly below `before`."""
