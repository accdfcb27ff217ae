"""The server of targets over the project's own link: each connection is one stream of a player."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from polonaise.errors import Closed, DeadlineExceeded, PolonaiseError, ProtocolError
from polonaise.host import Host, Listener, network_trouble, unreachable
from polonaise.link.connection import Budget, Connection
from polonaise.link.protocol import greeting
from polonaise.link.protocol.peertext import printable
from polonaise.link.settings import LinkSettings
from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.protocol.entries import NAME_CHARACTERS_MAX, DeliveryBatch, Fence, RoutedEntry, shut_out_by
from polonaise.player.targetsession import ACKNOWLEDGE_S, ServedTargets, TargetSession, stream_health
from polonaise.terms import PartitionId, TransactionId
from polonaise.wire.codec import Message
from polonaise.wire.deliveries import (
    DeliverEntries,
    DeliveryEnded,
    DeliveryFenced,
    EntryRefused,
    OpenDelivery,
    applied_frame,
    encode_applied,
    parse_entries,
)
from polonaise.wire.messages import ROLE_PLAYER, ROLE_TARGET

_log = logging.getLogger("polonaise.player")

_CONNECTIONS_BYTES_MAX: Final = 256 * 1024 * 1024
"""The most bytes of frames not handled yet, of all connections together; beyond it, those with the most are cut off."""
_OPEN_S_MAX: Final = 5.0
"""Seconds that a player may take to open its stream once it has said hello."""
_FULL: Final = "batches that are not applied yet"
"""Why the reading of a player is paused that has sent too much."""


class LinkServer:
    """Serves targets at an address: `start`, and in the end `close`. The targets stay the application's."""

    def __init__(self, host: Host, targets: ServedTargets, settings: LinkSettings | None = None) -> None:
        self._host = host
        self.targets = targets
        self._settings = settings or LinkSettings()
        self._budget = Budget(_CONNECTIONS_BYTES_MAX)
        self._listener: Listener | None = None
        self.closing = False
        """Whether nothing more is accepted."""
        self.streams: dict[ServedStream, None] = {}
        """Those whose connections are open."""

    async def start(self, address: str) -> str:
        """Accept streams at an address, `host:port` or `unix:/path`; return it with the port that the system chose."""
        self._listener = await self._host.network.listen(address, self._accept)
        return self._listener.address

    async def close(self, within_s: float) -> None:
        """Accept nothing more, answer what is being applied, for `within_s` seconds at most, and end all streams."""
        self.closing = True
        if self._listener is not None:
            await self._listener.close()
        streams = list(self.streams)
        await asyncio.gather(*(stream.finish(within_s) for stream in streams))
        gone = [asyncio.ensure_future(stream.gone()) for stream in streams]
        if gone:
            _, left = await asyncio.wait(gone, timeout=within_s)
            for each in left:
                each.cancel()
                _log.warning("a target goes on applying although its server was closed, and it was cancelled")

    def health(self) -> list[dict[str, Any]]:
        return [stream.health() for stream in self.streams if stream.source is not None]

    def trouble(self) -> str:
        """Return what is wrong with this side of the network, such as its certificate; empty if nothing is."""
        return unreachable(self._host.network) or network_trouble(self._host.network)

    def _accept(self) -> Connection:
        stream = ServedStream(self._host, self, self._settings, self._budget)
        self.streams[stream] = None
        if self.closing:
            stream.connection.close()
        return stream.connection


class ServedStream:
    """One stream of a player, with the session that serves it. Batches go to the session as they arrive."""

    def __init__(self, host: Host, server: LinkServer, settings: LinkSettings, budget: Budget) -> None:
        self.connection = Connection(
            host,
            # The log's key is in the stream's own hello: its memory tells a target which log it is of.
            hello=greeting.hello(ROLE_TARGET, "server of targets"),
            peer_roles=(ROLE_PLAYER,),
            on_message=self._received,
            on_closed=self._closed,
            on_greeted=self._greeted,
            settings=settings,
            accepted=True,
            budget=budget,
        )
        self._host = host
        self._server = server
        self._session: TargetSession | None = None
        self._opening: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._unsent: dict[PartitionId, TransactionId] = {}
        """By partition, the last id that was applied and that the player is not told yet."""
        self.source: DeliverySource | None = None
        """Where the stream comes from, once the player has said it."""

    # ------------------------------------------------------------------ what the connection brings

    def _greeted(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(
            _OPEN_S_MAX, connection.turn_away, DeadlineExceeded(f"no stream was opened within {_OPEN_S_MAX:g} s")
        )

    def _received(self, connection: Connection, message: Message, request: int, partition: PartitionId) -> None:
        """Handle a message of the player. Raises `ProtocolError` for one that no player sends now."""
        session = self._session
        if isinstance(message, DeliverEntries) and session is not None and session.accepted and partition >= 0:
            entries = [RoutedEntry(id, payload) for id, payload in parse_entries(message)]
            session.take(DeliveryBatch(partition, message.previous, entries))
            if session.full:
                connection.pause(_FULL)
        elif isinstance(message, OpenDelivery) and session is None:
            self._open(message)
        else:
            raise ProtocolError(f"a player sent {type(message).__name__} for partition {partition} out of turn")

    def _closed(self, _: Connection, error: PolonaiseError) -> None:
        self._server.streams.pop(self, None)
        for timer in (self._deadline, self._telling):
            if timer is not None:
                timer.cancel()
        if self._session is not None:
            self._session.close()
            _log.info("the stream of %s has ended: %s", self._name, error)

    # ------------------------------------------------------------------ the session

    def _open(self, message: OpenDelivery) -> None:
        names = (message.player, message.target)
        if message.epoch < 0 or message.term < 0 or not all(0 < len(name) <= NAME_CHARACTERS_MAX for name in names):
            raise ProtocolError(f"a stream takes a fence from 0 on, and names of 1 to {NAME_CHARACTERS_MAX} characters")
        if self._deadline is not None:
            self._deadline.cancel()
        self.source = source = DeliverySource(message.log_key, message.player, message.target)
        session = self._server.targets.session(message.target, Fence(message.epoch, message.term), self)
        if session is not None:
            self._session = session
            self._opening = self._host.spawn(self._greet(session, source), f"open the stream of {self._name}")

    async def _greet(self, session: TargetSession, source: DeliverySource) -> None:
        applied = await session.greet(source)
        if applied is not None:
            self.connection.send(encode_applied(applied))
            _log.info("the stream of %s is accepted under %s", self._name, session.fence)

    async def finish(self, within_s: float) -> None:
        if self._session is not None:
            await self._session.finish("the server of the target closes", within_s)
        self.connection.close(Closed("the server of the target closes"))

    async def gone(self) -> None:
        if self._opening is not None:
            await asyncio.wait((self._opening,))
        if self._session is not None:
            await self._session.gone()

    def health(self) -> dict[str, Any]:
        assert self.source is not None
        return stream_health(self.source, self.connection.peer_address, self._session)

    @property
    def _name(self) -> str:
        if self.source is None:
            return "a player"
        player, target = printable(self.source.player, 200), printable(self.source.target, 200)
        return f"player {player} to target {target}"

    # ------------------------------------------------------------------ what the session answers

    def acknowledged(self, partition: PartitionId, through: TransactionId) -> None:
        """Tell the player, a little later: what arrives meanwhile, for any target here, is applied first."""
        if not self._unsent:
            self._telling = asyncio.get_running_loop().call_later(ACKNOWLEDGE_S, self._send_applied)
        self._unsent[partition] = through

    def _send_applied(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        unsent, self._unsent = self._unsent, {}
        for partition, through in unsent.items():
            self.connection.send_frame(applied_frame(partition, through))

    def refused(self, partition: PartitionId, last: TransactionId, reason: str) -> None:
        self._send_applied()
        self.connection.send(EntryRefused(last, reason), partition=partition)

    def fenced(self, kept: Fence) -> None:
        self._send_applied()
        self.connection.send(DeliveryFenced(*kept))
        assert self._session is not None
        self.connection.close(Closed(shut_out_by(kept, self._session.fence)))

    def ended(self, reason: str) -> None:
        if not self._server.closing:
            _log.warning("the stream of %s ends: %s", self._name, reason)
        self._send_applied()
        self.connection.send(DeliveryEnded(reason))
        self.connection.close(Closed(reason))

    def failed(self, error: BaseException) -> None:
        """Stop what runs on this host: it is a mistake of the library's own."""
        self._host.fail(error)

    def eased(self) -> None:
        self.connection.resume(_FULL)
