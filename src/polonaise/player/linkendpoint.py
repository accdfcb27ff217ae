"""Streams to a target in another process, over the project's own link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from polonaise.errors import Closed, InvariantViolated, PolonaiseError, ProtocolError
from polonaise.host import Host
from polonaise.link import connection as link
from polonaise.link.connection import Connection
from polonaise.link.protocol import greeting
from polonaise.link.protocol.peertext import printable
from polonaise.link.settings import LinkSettings
from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.endpoint import DeliveryStream, StreamEvents
from polonaise.player.protocol.entries import REASON_CHARACTERS_MAX, DeliveryBatch, Fence, RoutedEntry
from polonaise.terms import PartitionId
from polonaise.wire.codec import Message
from polonaise.wire.deliveries import (
    DeliveryAccepted,
    DeliveryEnded,
    DeliveryFenced,
    EntriesApplied,
    EntryRefused,
    OpenDelivery,
    entries_frame,
    parse_applied,
)
from polonaise.wire.messages import ROLE_PLAYER, ROLE_TARGET


class LinkEndpoint:
    """Opens streams to a target at an address, each over a connection of its own."""

    tells_kept = True

    def __init__(
        self, host: Host, address: str, settings: LinkSettings | None = None, release: Callable[[], None] | None = None
    ) -> None:
        """`address` is `host:port` or `unix:/path`. `close` calls `release`, which lets go of the host."""
        self._host = host
        self._address = address
        self._settings = settings or LinkSettings()
        self._release = release

    def stream(self, fence: Fence, events: StreamEvents) -> DeliveryStream:
        return LinkStream(self._host, self._address, self._settings, fence, events)

    async def close(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class LinkStream:
    """One stream over one connection. Answers become events as they arrive, without a task in between."""

    def __init__(self, host: Host, address: str, settings: LinkSettings, fence: Fence, events: StreamEvents) -> None:
        self._host = host
        self._address = address
        self._settings = settings
        self._fence = fence
        self._events = events
        self._connection: Connection | None = None
        self._accepted = False
        self._over = False
        """Whether nothing more is to be told."""
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the stream has ended, with the reason, or with what `serve` is to raise."""

    def send(self, batches: Sequence[DeliveryBatch]) -> bool:
        connection = self._connection
        if self._over or connection is None:
            return False
        for partition, previous, entries in batches:
            frame = entries_frame(partition, previous, entries)
            size = sum(map(len, frame))
            if size > self._settings.frame_bytes_max:
                self._end(
                    f"{_named(entries)} of partition {partition} take {size} bytes as a "
                    f"message, and the link carries {self._settings.frame_bytes_max} at most: have the route function "
                    "return less"
                )
                return False
            connection.send_frame(frame)
        if connection.writable:
            return True
        self._host.spawn(self._written_later(connection), f"player: wait for {self._address} to read")
        return False

    def close(self) -> None:
        self._over = True
        self._end("")
        self._abort()

    async def serve(self, source: DeliverySource, open_s_max: float) -> None:
        if self._over:
            return
        loop = asyncio.get_running_loop()
        hello = greeting.hello(ROLE_PLAYER, f"player {source.player}")

        def make() -> Connection:
            self._connection = Connection(
                self._host,
                hello=hello,
                peer_roles=(ROLE_TARGET,),
                on_message=self._received,
                on_closed=lambda _, error: self._end(str(error)),
                settings=self._settings,
            )
            return self._connection

        timer = loop.call_later(
            open_s_max, self._end_unless_accepted, f"the target did not answer within {open_s_max:g} s"
        )
        try:
            try:
                connection = await link.connect(self._host, self._address, make, deadline_s=open_s_max)
            except InvariantViolated:
                raise
            except PolonaiseError as error:
                reason = str(error)
            else:
                connection.send(OpenDelivery(*self._fence, source.log_key, source.player, source.target))
                reason = await self._ended
            if not self._over:
                self._over = True
                if "[wrong_role]" in reason:
                    reason = f"{self._address} serves no targets; it says: {reason}"
                self._events.disconnected(reason)
            if self._ended.done():
                self._ended.result()  # raises what went wrong meanwhile
        finally:
            self._over = True
            timer.cancel()
            self._abort()

    # ------------------------------------------------------------------ what comes in

    def _received(self, _: Connection, message: Message, request: int, partition: PartitionId) -> None:
        """Handle a message of the target. Raises `ProtocolError` for one that no target sends now."""
        if self._over:
            return
        try:
            self._handle(message, partition)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - raised by `serve`
            self._fail(error)

    def _handle(self, message: Message, partition: PartitionId) -> None:
        events = self._events
        match message:
            case EntriesApplied(through) if self._accepted and partition >= 0:
                events.acknowledged(partition, through)
            case EntryRefused(last, reason) if self._accepted and partition >= 0:
                events.refused(partition, last, printable(reason, REASON_CHARACTERS_MAX))
            case DeliveryAccepted() if not self._accepted:
                self._accepted = True
                events.connected(parse_applied(message))
            case DeliveryFenced(epoch, term):
                self._over = True
                self._end("")
                events.fenced(Fence(epoch, term))
            case DeliveryEnded(reason):
                self._end(printable(reason, REASON_CHARACTERS_MAX))
            case _:
                raise ProtocolError(f"a target sent {type(message).__name__} for partition {partition} out of turn")

    async def _written_later(self, connection: Connection) -> None:
        try:
            await connection.wait_writable()
        except PolonaiseError:
            return  # it has closed, which is told otherwise
        if self._over:
            return
        try:
            self._events.written()
        except Exception as error:  # noqa: BLE001 - raised by `serve`
            self._fail(error)

    # ------------------------------------------------------------------ the end

    def _end(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)

    def _abort(self) -> None:
        """Close the connection, and drop what was not sent."""
        if self._connection is not None:
            self._connection.abort(Closed("the stream has ended"))

    def _end_unless_accepted(self, reason: str) -> None:
        if not self._accepted:
            self._end(reason)

    def _fail(self, error: Exception) -> None:
        self._over = True
        if self._ended.done():
            # The reason was not told yet: this is worse.
            self._ended = asyncio.get_running_loop().create_future()
        self._ended.set_exception(error)


def _named(entries: Sequence[RoutedEntry]) -> str:
    return f"entry {entries[0].id}" if len(entries) == 1 else f"entries {entries[0].id} to {entries[-1].id}"
