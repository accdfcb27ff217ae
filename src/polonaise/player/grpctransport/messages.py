"""The messages of `proto/delivery.proto`: from and to bytes.

The contract is loaded from what protoc has made of it, into a pool of its own: any version of protobuf will do, and an
application may have classes of the same contract in the same process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, NamedTuple, Protocol

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from polonaise.errors import ProtocolError
from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.endpoint import TargetAnswers
from polonaise.player.protocol.entries import NAME_CHARACTERS_MAX, DeliveryBatch, Fence, RoutedEntry
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

SERVICE: Final = "polonaise.delivery.v1.DeliveryTarget"
METHOD: Final = "Deliver"
VERSION: Final = 1
"""The version of the contract, in the hello."""
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest message that the player sends: above the largest transaction of a log."""
GATHERED_BYTES_MAX: Final = 512 * 1024
"""No further batch joins a message that it would bring above this; a larger one goes alone."""
_LOG_KEY_BYTES_MAX: Final = 64


def _message_classes() -> Any:
    compiled = descriptor_pb2.FileDescriptorSet.FromString(
        (files("polonaise.player.grpctransport") / "delivery.binpb").read_bytes()
    )
    pool = descriptor_pool.DescriptorPool()
    for file in compiled.file:
        pool.AddSerializedFile(file.SerializeToString())
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"polonaise.delivery.v1.{name}"))


_class_of = _message_classes()
_ToTarget: Final = _class_of("ToTarget")
_ToPlayer: Final = _class_of("ToPlayer")


class Greeting(NamedTuple):
    """The first message of a stream."""

    version: int
    source: DeliverySource
    fence: Fence


class AnswersTaken(TargetAnswers, Protocol):
    """Takes a target's answers, one after the other."""

    def accepted(self, applied: dict[PartitionId, TransactionId]) -> None:
        """`applied` has the last id that the target has applied, by partition."""

    def ended(self, reason: str) -> None: ...


# ---------------------------------------------------------------------- to the target


def hello_bytes(fence: Fence, source: DeliverySource) -> bytes:
    message = _ToTarget()
    hello = message.hello
    hello.version = VERSION
    try:
        hello.log_key, hello.player, hello.target = source
    except UnicodeError:
        raise ProtocolError(f"the names {source.player!r} and {source.target!r} can't be sent as UTF-8") from None
    hello.epoch, hello.term = fence
    return message.SerializeToString()  # type: ignore[no-any-return]


def batches_bytes(batches: Sequence[DeliveryBatch]) -> Iterator[bytes]:
    """Yield the messages of these batches, as few as there may be."""
    message, size = _ToTarget(), 0
    for batch in batches:
        batch_bytes = batch.size
        if size and size + batch_bytes > GATHERED_BYTES_MAX:
            yield message.SerializeToString()
            message, size = _ToTarget(), 0
        size += batch_bytes
        to = message.batches.add()
        to.partition, to.previous, entries = batch
        add = to.entries.add
        for id, payload in entries:
            if payload is None:
                add(id=id)
            else:
                add(id=id, payload=payload)
    yield message.SerializeToString()


def read_by_target(data: bytes) -> Greeting | list[DeliveryBatch]:
    """Return what a message from the player says. Raises `ProtocolError` for what no player sends."""
    message = _parsed(_ToTarget, data)
    if message.HasField("hello"):
        if message.batches:
            raise ProtocolError("a message has a hello and batches: the hello comes alone")
        return _greeting(message.hello)
    if not message.batches:
        raise ProtocolError("a message has neither a hello nor a batch")
    return [_batch(batch) for batch in message.batches]


def _greeting(hello: Any) -> Greeting:
    if min(hello.epoch, hello.term) < 1:
        raise ProtocolError(f"a hello has epoch {hello.epoch} and term {hello.term}: both count from 1")
    if max(len(hello.player), len(hello.target)) > NAME_CHARACTERS_MAX or len(hello.log_key) > _LOG_KEY_BYTES_MAX:
        raise ProtocolError(
            f"a hello has a name of more than {NAME_CHARACTERS_MAX} characters, or a log's key of more than "
            f"{_LOG_KEY_BYTES_MAX} bytes"
        )
    source = DeliverySource(hello.log_key, hello.player, hello.target)
    return Greeting(hello.version, source, Fence(hello.epoch, hello.term))


def _batch(batch: Any) -> DeliveryBatch:
    entries = [RoutedEntry(entry.id, entry.payload if entry.HasField("payload") else None) for entry in batch.entries]
    last = batch.previous
    for entry in entries:
        if entry.id <= last:
            raise ProtocolError(f"a batch of partition {batch.partition} has id {entry.id} after {last}: ids rise")
        last = entry.id
    if not entries or batch.partition < 0 or batch.previous < NO_TRANSACTION:
        raise ProtocolError(
            f"a batch of partition {batch.partition} after id {batch.previous} has {len(entries)} entries: partitions "
            "count from 0 and ids from -1, and no batch is empty"
        )
    return DeliveryBatch(batch.partition, batch.previous, entries)


# ---------------------------------------------------------------------- to the player


class UnsentAnswers:
    """Gathers a target's answers until they are sent; see `SessionAnswers`."""

    def __init__(self) -> None:
        self._message = _ToPlayer()
        self._acknowledged: dict[PartitionId, Any] = {}
        """The acknowledgement of each partition that nothing else of it follows: a later one takes its place."""

    def __len__(self) -> int:
        return len(self._message.answers)

    def accepted(self, applied: Mapping[PartitionId, TransactionId]) -> None:
        """`applied` has the last id that is applied of each partition."""
        told = self._message.answers.add().accepted
        told.SetInParent()
        for partition, last in applied.items():
            told.applied.add(partition=partition, last=last)

    def fenced(self, kept: Fence) -> None:
        told = self._message.answers.add().fenced
        told.SetInParent()
        told.epoch, told.term = kept

    def acknowledged(self, partition: PartitionId, through: TransactionId) -> None:
        told = self._acknowledged.get(partition)
        if told is None:
            told = self._acknowledged[partition] = self._message.answers.add().acknowledged
            told.SetInParent()
        told.partition, told.through = partition, through

    def refused(self, partition: PartitionId, last: TransactionId, reason: str) -> None:
        self._acknowledged.pop(partition, None)
        told = self._message.answers.add().refused
        told.SetInParent()
        told.partition, told.last, told.reason = partition, last, _sendable(reason)

    def ended(self, reason: str) -> None:
        told = self._message.answers.add().ended
        told.SetInParent()
        told.reason = _sendable(reason)

    def take(self) -> bytes:
        message, self._message = self._message, _ToPlayer()
        self._acknowledged.clear()
        return message.SerializeToString()  # type: ignore[no-any-return]


def tell_answers(data: bytes, to: AnswersTaken) -> None:
    """Hand over the answers in a message from a target. Raises `ProtocolError` for what is none, after those before."""
    for answer in _parsed(_ToPlayer, data).answers:
        kind = answer.WhichOneof("kind")
        if kind == "acknowledged":
            to.acknowledged(answer.acknowledged.partition, answer.acknowledged.through)
        elif kind == "refused":
            refused = answer.refused
            to.refused(refused.partition, refused.last, refused.reason)
        elif kind == "accepted":
            applied = {each.partition: each.last for each in answer.accepted.applied}
            if any(last < NO_TRANSACTION for last in applied.values()):
                raise ProtocolError(f"the target has told the last ids {applied}: ids count from 0, and -1 is for none")
            to.accepted(applied)
        elif kind == "fenced":
            to.fenced(Fence(answer.fenced.epoch, answer.fenced.term))
        elif kind == "ended":
            to.ended(answer.ended.reason)
        else:
            raise ProtocolError("the target has sent an answer of an unknown kind: it follows another contract")


def _sendable(text: str) -> str:
    """Return the text without what UTF-8 can't have: an error's text is anybody's."""
    return text.encode(errors="replace").decode()


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"a message of {len(data)} bytes is not of {SERVICE}: {error}") from None
