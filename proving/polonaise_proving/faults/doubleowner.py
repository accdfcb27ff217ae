"""The double owner: misuses two connections to a storage node, in a partition of its own, as no server does.

Servers end a session with the first thing that goes wrong in it, so they never try what a storage node has to keep
them from. This owner goes on: on another connection, after a refusal, with a copy that ends elsewhere, in a session
that a later one has fenced out. Then it reads the disk, to see whether the node's answers were true.

It speaks only to nodes whose disks the nemesis leaves whole. They may die and fill up like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from polonaise.errors import ConnectionLost, PolonaiseError
from polonaise.host import Host
from polonaise.link.connection import Connection, connect
from polonaise.link.protocol.greeting import hello
from polonaise.link.settings import LinkSettings
from polonaise.log.batch import Batch, Columns, seal
from polonaise.terms import PartitionId, SessionId, TransactionId
from polonaise.wire.codec import Message
from polonaise.wire.messages import ROLE_SERVER, ROLE_STORAGE, Join, LastSessionInfo, SessionInfo, Store, Stored
from polonaise_proving.judges.moments import acknowledged_is_held, fenced_out, joined_where_it_ends
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.observations import History
from polonaise_proving.stages.simulated.cluster import CLUSTER_KEY, Cluster, Node

_DEADLINE_S: Final = 2.0
_PAUSE_S: Final = 0.5
_SERVER: Final = 2**30
"""The server id of this owner: one that the coordinator gives to nobody."""


class _Conversation:
    """One connection to a storage node, for one partition."""

    def __init__(self, partition: PartitionId) -> None:
        self._partition = partition
        self._heard = asyncio.Event()
        self.link: Connection
        self.acknowledged = 0
        """The highest number of a `Store` that was acknowledged on this connection; 0 for none."""
        self.sent: dict[int, Batch] = {}
        """By number of a `Store` of the session: its batch, even if it was lost or never sent. Barriers have none: they
        are left out."""

    @classmethod
    async def opened(cls, host: Host, address: str, partition: PartitionId, settings: LinkSettings) -> _Conversation:
        made = cls(partition)
        made.link = await connect(host, address, lambda: made._connection(host, settings), deadline_s=_DEADLINE_S)
        return made

    def _connection(self, host: Host, settings: LinkSettings) -> Connection:
        return Connection(
            host,
            hello=hello(ROLE_SERVER, "an owner with two connections", cluster_key=CLUSTER_KEY, node=_SERVER),
            peer_roles=(ROLE_STORAGE,),
            on_message=self._on_message,
            on_closed=lambda *_: self._heard.set(),
            settings=settings,
        )

    def _on_message(self, _: Connection, message: Message, request: int, partition: int) -> None:
        if isinstance(message, Stored):
            self.acknowledged = max(self.acknowledged, request)
        self._heard.set()

    async def ask(self, message: Message) -> Message:
        return await self.link.request(message, partition=self._partition, deadline_s=_DEADLINE_S)

    async def fence(self, session: SessionId) -> SessionInfo:
        info = await self.ask(LastSessionInfo(session))
        assert isinstance(info, SessionInfo)
        return info

    async def store(self, session: SessionId, number: int, batch: Batch | None) -> None:
        """Send a `Store`, with a batch or as a barrier, and wait for any answer or the end of the connection.

        Raises `TimeoutError` after `_DEADLINE_S` virtual seconds.
        """
        self._heard.clear()
        payload = () if batch is None else (batch.view,)
        self.link.send(Store(session, -1, payload=payload), request=number, partition=self._partition)
        async with asyncio.timeout(_DEADLINE_S):
            await self._heard.wait()

    def lose(self, number: int, batch: Batch) -> None:
        """Break the connection as if this batch had been on its way to the node."""
        self.sent[number] = batch
        self.link.abort(ConnectionLost("broken off"))


Mischief = Callable[["DoubleOwner", Node, _Conversation, _Conversation], Awaitable[None]]


class DoubleOwner:
    """An owner that misuses its connections, over all lives of its process."""

    def __init__(self, cluster: Cluster, nodes: list[Node], history: History) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._history = history
        self._random: random.Random = cluster.world.random("double owner")
        self._partition = cluster.knobs.partitions
        self._session: SessionId = 0
        self._wall_us = 0
        self.resting = False

    async def run(self, node: Node, host: Host) -> None:
        """Run one life of the process: hold conversations until `resting` is set."""
        while not self.resting:
            await asyncio.sleep(_PAUSE_S * self._random.random())
            with contextlib.suppress(PolonaiseError, TimeoutError):
                await self._converse(host, self._random.choice(self._nodes))
        await asyncio.get_running_loop().create_future()

    async def _converse(self, host: Host, node: Node) -> None:
        address, settings = self._cluster.places[node.name], self._cluster.knobs.link
        first = await _Conversation.opened(host, address, self._partition, settings)
        second = await _Conversation.opened(host, address, self._partition, settings)
        self._wall_us = host.clock.wall_us()
        try:
            await self._random.choice(_MISCHIEF)(self, node, first, second)
            self._cluster.world.faults.count("second_connection")
        finally:
            for each in (first, second):
                each.link.abort(ConnectionLost("this conversation is over"))

    # ------------------------------------------------------------------ mischief

    async def join_elsewhere(self, node: Node, first: _Conversation, second: _Conversation) -> None:
        """Join a session with another end of the log than the node's copy has, as if an old answer were still true."""
        info = await self._begin(first)
        prepared, crc = self._random.choice(
            ((info.max_synced + 1, info.last_crc), (info.max_synced, info.last_crc ^ 1))
        )
        try:
            await first.ask(Join(self._session, prepared, crc))
        except PolonaiseError:
            return
        self._judged(joined_where_it_ends(node.replica(self._partition), prepared, crc))

    async def go_on_elsewhere(self, node: Node, first: _Conversation, second: _Conversation) -> None:
        """Go on with the session on the second connection after the first one broke with a batch on its way."""
        following = await self._write(node, first)
        first.lose(2, following)
        second.sent = first.sent
        await second.store(self._session, 3, None)
        self._check(node, second)

    async def go_on_after_refusal(self, node: Node, first: _Conversation, second: _Conversation) -> None:
        """Go on after a batch that was refused because the one before it was left out."""
        following = await self._write(node, first)
        first.sent[2] = following
        first.sent[3] = self._batch(following.last + 1, following.crc)
        await first.store(self._session, 3, first.sent[3])
        await first.store(self._session, 4, None)
        self._check(node, first)

    async def wake_up_late(self, node: Node, first: _Conversation, second: _Conversation) -> None:
        """Go on with a session that a later one has fenced out; half of the time, try to begin it again first."""
        following = await self._write(node, first)
        fenced = self._session
        self._session += 1
        end = await second.fence(self._session)
        if self._random.random() < 0.5:
            with contextlib.suppress(PolonaiseError):
                await first.fence(fenced)
                await first.ask(Join(fenced, end.max_synced, end.last_crc))
        with contextlib.suppress(TimeoutError):
            await first.store(fenced, 2, following)
        promised = node.promised(self._partition)
        fence = None if promised is None else promised.promises.fence
        self._judged(fenced_out(node.replica(self._partition), end.max_synced, fence, fenced, self._session))

    # ------------------------------------------------------------------ what an owner does

    async def _begin(self, first: _Conversation) -> SessionInfo:
        self._session += 1
        return await first.fence(self._session)

    async def _write(self, node: Node, first: _Conversation) -> Batch:
        """Begin a session and write its first batch. Return the batch that would follow it."""
        info = await self._begin(first)
        await first.ask(Join(self._session, info.max_synced, info.last_crc))
        batch = first.sent[1] = self._batch(info.max_synced + 1, info.last_crc)
        await first.store(self._session, 1, batch)
        self._check(node, first)
        return self._batch(batch.last + 1, batch.crc)

    def _batch(self, first: TransactionId, previous_crc: int) -> Batch:
        columns = Columns()
        for number in range(self._random.randrange(1, 4)):
            columns.add(_SERVER, 1, first + number, 0, self._random.randbytes(self._random.choice((5, 60))))
        raw = seal(
            columns, partition=self._partition, first=first, session=self._session, generation=1,
            commit_time_us=self._wall_us, previous_crc=previous_crc,
        )  # fmt: skip
        return Batch.parse(memoryview(raw))

    # ------------------------------------------------------------------ whether it is true

    def _check(self, node: Node, conversation: _Conversation) -> None:
        replica = node.replica(self._partition)
        self._judged(acknowledged_is_held(replica, conversation.sent, conversation.acknowledged))

    def _judged(self, found: Iterable[Violation]) -> None:
        self._history.violations.extend(found)


_MISCHIEF: Final[tuple[Mischief, ...]] = (
    DoubleOwner.join_elsewhere,
    DoubleOwner.go_on_elsewhere,
    DoubleOwner.go_on_after_refusal,
    DoubleOwner.wake_up_late,
)
