"""The translation between clients and an owner: messages become its events, its effects become messages."""

from __future__ import annotations

from typing import TypeAlias, cast

from polonaise.errors import ProtocolError
from polonaise.link.connection import Connection
from polonaise.server.protocol.effects import Answer, CutOff, Effect, FeedBatch, RefuseRequest, TellFailures
from polonaise.server.protocol.moment import Moment
from polonaise.server.protocol.mounts import ClientMount
from polonaise.server.protocol.order import INLINE_BYTES_MAX, check_bodies, check_frame
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.terms import Generation, PartitionId
from polonaise.wire.appends import ReceivedAppends, encode_failures
from polonaise.wire.codec import Message
from polonaise.wire.copies import ProveCopies
from polonaise.wire.leases import HoldLeases, ReleaseLeases
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

ClientEffect: TypeAlias = FeedBatch | TellFailures | Answer | RefuseRequest | CutOff


def receive(
    owner: PartitionOwner,
    connection: Connection,
    message: Message,
    request: int,
    now: Moment,
    inline_bytes_max: int = INLINE_BYTES_MAX,
) -> list[Effect]:
    """Bring the owner a client's message, and return the effects; raises the `PolonaiseError` to refuse it with."""
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
        case ProveCopies():
            return owner.prove_copies(connection, request, message, now)
        case HoldLeases() | ReleaseLeases():
            return owner.ask_leases(connection, request, message, now)
        case GetRegister() | ListRegisters():
            return owner.ask_registers(connection, request, message, now)
        case _:
            raise ProtocolError(f"{type(message).__name__} is not a message that a client sends")


def send(effect: ClientEffect, partition: PartitionId, generation: Generation) -> None:
    """Carry out an effect that concerns one client: send it a message, or close its connection."""
    match effect:
        case FeedBatch(mount, committed, payload, shared):
            connection_of(mount).send(Feed(committed, payload=[payload]), partition=partition, shared=shared)
        case TellFailures(mount, failures):
            message = AppendsFailed(generation, encode_failures(failures))
            connection_of(mount).send(message, partition=partition)
        case Answer():
            connection_of(effect).send(effect.message, request=effect.request, partition=partition)
        case RefuseRequest():
            connection_of(effect).refuse(effect.error, request=effect.request, partition=partition)
        case CutOff():
            connection_of(effect).close(effect.error)


def connection_of(holder: ClientMount | Answer | RefuseRequest | CutOff) -> Connection:
    """Return the connection of a mount or an effect, which the owner knows only as a value to compare."""
    return cast(Connection, holder.connection)
