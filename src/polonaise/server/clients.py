"""The translation between clients and an owner: messages become its events, its effects become messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from polonaise.errors import ProtocolError
from polonaise.link.connection import Connection
from polonaise.server.protocol.effects import Answer, CutOff, Effect, FeedBatch, RefuseRequest, TellFailures
from polonaise.server.protocol.moment import Moment
from polonaise.server.protocol.order import INLINE_BYTES_MAX, check_bodies, check_frame
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.terms import Generation, PartitionId
from polonaise.wire.appends import ReceivedAppends, encode_failures
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    Append,
    AppendsFailed,
    Credit,
    Feed,
    Flush,
    GetRegister,
    HighWaterMark,
    ListRegisters,
    Mount,
    Unmount,
)


def receive(
    owner: PartitionOwner,
    connection: Connection,
    message: Message,
    request: int,
    now: Moment,
    inline_bytes_max: int = INLINE_BYTES_MAX,
) -> list[Effect]:
    """Bring the owner a client's message. Raises the `PolonaiseError` with which it is to be refused."""
    assert connection.peer is not None
    client_id = connection.peer.node
    match message:
        case Append():
            # Size, structure, sums: each check makes the next one affordable.
            check_frame(message.count, len(message.columns) + sum(map(len, message.payload)))
            appends = ReceivedAppends(message)
            check_bodies(appends, inline_bytes_max)
            return owner.append(client_id, connection, message.generation, appends, now)
        case Credit():
            return owner.credit(client_id, connection, message.bytes)
        case Flush():
            return owner.flush(client_id, connection, request, now)
        case Mount():
            return owner.mount(client_id, connection, request, message, now)
        case Unmount():
            return owner.unmount(client_id, connection)
        case HighWaterMark():
            return owner.ask_mark(connection, request, now)
        case GetRegister() | ListRegisters():
            return owner.ask_registers(connection, request, message, now)
        case _:
            raise ProtocolError(f"{type(message).__name__} is nothing that a client says")


class ClientMessages:
    """Sends clients the messages that the effects of one partition's owner ask for."""

    def __init__(self, partition: PartitionId, generation: Generation) -> None:
        self._partition = partition
        self._generation = generation
        self.senders: dict[type[Effect], Callable[[Any], None]] = {
            FeedBatch: self._feed,
            TellFailures: self._tell_failures,
            Answer: self._answer,
            RefuseRequest: self._refuse,
            CutOff: self._cut_off,
        }
        """The method that carries out each kind of effect."""

    def _feed(self, effect: FeedBatch) -> None:
        message = Feed(effect.committed, payload=[effect.payload])
        _connection(effect.mount.connection).send(message, partition=self._partition, shared=effect.shared)

    def _tell_failures(self, effect: TellFailures) -> None:
        message = AppendsFailed(self._generation, encode_failures(effect.failures))
        _connection(effect.mount.connection).send(message, partition=self._partition)

    def _answer(self, effect: Answer) -> None:
        _connection(effect.connection).send(effect.message, request=effect.request, partition=self._partition)

    def _refuse(self, effect: RefuseRequest) -> None:
        _connection(effect.connection).refuse(effect.error, request=effect.request, partition=self._partition)

    def _cut_off(self, effect: CutOff) -> None:
        _connection(effect.connection).close(effect.error)


def _connection(given: object) -> Connection:
    """Return the connection, which the owner knows only as something to compare."""
    return cast(Connection, given)
