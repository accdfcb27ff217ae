"""A server that does what a test tells it: one log per partition in memory, committed at once unless held back."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from zlib import crc32

from polonaise.errors import NotOwner, PolonaiseError
from polonaise.link.connection import Connection
from polonaise.link.protocol.greeting import hello
from polonaise.log import registers
from polonaise.log.batch import Batch, Columns, seal
from polonaise.server.protocol.locktable import LockTable
from polonaise.server.protocol.order import Order, Refusal
from polonaise.terms import (
    NO_TRANSACTION,
    BodyForm,
    ClientId,
    FailureReason,
    Generation,
    MountState,
    PartitionId,
    TransactionId,
)
from polonaise.testing.memory import KEY
from polonaise.testing.memoryserver import BEGINNING_US, STEP_US
from polonaise.wire.appends import FailedAppend, ReceivedAppends, encode_failures
from polonaise.wire.codec import Message
from polonaise.wire.copies import CopiesProved, ProveCopies
from polonaise.wire.fetches import encode_bodies, parse_fetch
from polonaise.wire.messages import (
    PROTOCOL_VERSION,
    ROLE_CLIENT,
    ROLE_SERVER,
    Append,
    AppendsFailed,
    Batches,
    Bodies,
    Credit,
    Feed,
    Fetch,
    Flush,
    Flushed,
    GetRegister,
    Health,
    HealthIs,
    HighWaterMark,
    HighWaterMarkIs,
    ListRegisters,
    Mount,
    Mounted,
    Read,
    RegisterIs,
    RegistersListed,
    Unmount,
)

_SESSION: Final = 1
_LOCK_ENTRIES: Final = 1 << 16


class FakeLog:
    """One partition's committed log, shared by every fake server that is told to own it.

    Appends are judged and ordered as by an owner, and committed at once.
    """

    def __init__(self, partition: PartitionId) -> None:
        self.partition = partition
        self.batches: list[Batch] = []
        self.time_us = BEGINNING_US
        self._order = self._ordering({}, 1)

    def _ordering(self, held: dict[bytes, bytes], generation: Generation) -> Order:
        return Order(
            partition=self.partition,
            generation=generation,
            session=_SESSION,
            closing=self.mark,
            last_crc=self.batches[-1].crc if self.batches else 0,
            commit_time_us=self.time_us,
            registers=held,
            locks=LockTable(self.mark, _LOCK_ENTRIES),
            evidence=False,
        )

    @property
    def mark(self) -> TransactionId:
        """The committed high-water mark."""
        return self.batches[-1].last if self.batches else NO_TRANSACTION

    @property
    def registers(self) -> dict[bytes, bytes]:
        return self._order.registers

    def append(self, client_id: ClientId, appends: ReceivedAppends) -> list[Refusal]:
        """Judge these appends, and commit the accepted ones as one batch. Raises `ProtocolError`."""
        refusals = self._order.judge(client_id, appends, self.mark)
        if self._order.forming_count:
            self.time_us += STEP_US
            self.batches.append(Batch.parse(self._order.seal(self.time_us).raw))
        return refusals

    def commit(self, columns: Columns, generation: Generation = 1) -> Batch:
        """Commit transactions as if another owner had: what was locked before is unknown afterwards."""
        self.time_us += STEP_US
        raw = seal(
            columns,
            partition=self.partition,
            first=self.mark + 1,
            session=_SESSION,
            generation=generation,
            commit_time_us=self.time_us,
            previous_crc=self.batches[-1].crc if self.batches else 0,
        )
        batch = Batch.parse(raw)
        self.batches.append(batch)
        self._order = self._ordering(self.registers, generation)
        return batch

    def reset_head(self, count: int) -> None:
        """Give up all but the first batches, as an operator does who has lost the rest for good."""
        del self.batches[count:]
        self._order = self._ordering(self.registers, 1)

    def from_id(self, first: TransactionId) -> list[Batch]:
        """Return the batches from the one that holds the id `first` on."""
        return self.batches[bisect_left(self.batches, first, key=lambda batch: batch.last) :]

    def fill(
        self, *bodies: bytes, client: int = 1, sequence: int | None = None, header: int = 0, each: bool = False
    ) -> None:
        """Commit transactions, of another client mostly: in one batch or, with `each`, in a batch each."""
        for chunk in [[body] for body in bodies] if each else [list(bodies)]:
            columns = Columns()
            for body in chunk:
                columns.add(client, 1, self.mark + 1 if sequence is None else sequence, header, body)
            self.commit(columns)

    def bodies(self) -> list[bytes]:
        return [tx.data for batch in self.batches for tx in batch.transactions()]


@dataclass
class FakeMount:
    connection: Connection
    client: int
    next_id: int
    credit: int
    asked: Mount
    when_fed: tuple[TransactionId, Callable[[], None]] | None = None
    """What to do once it was given all up to this id."""


@dataclass
class Heard:
    """The messages that clients sent, for tests that check them."""

    mounts: list[Mount] = field(default_factory=list)
    appends: list[tuple[Append, ReceivedAppends]] = field(default_factory=list)
    flushes: int = 0
    unmounts: int = 0
    credits: int = 0
    reads: list[Read] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    """The first ids of the batches that answered the reads."""
    fetches: list[list[int]] = field(default_factory=list)
    proofs: list[ProveCopies] = field(default_factory=list)


class FakeServer:
    """Owns the partitions in `logs`, under one generation.

    Knobs: `hold` keeps appends until `release`; `lose` drops them silently; `not_ready` answers that many mounts with
    NOT_READY; `refuse` answers appends with a reason; `on_append` sees each frame first and may return True to have
    dealt with it.
    """

    def __init__(self, host: Any, logs: dict[int, FakeLog], address: str = "server:1", generation: int = 1) -> None:
        self.host = host
        self.address = address
        self.logs = logs
        self.generation = generation
        self.heard = Heard()
        self.mounts: dict[int, dict[int, FakeMount]] = {}
        self.connections: list[Connection] = []
        self.hold = False
        self.listed: RegistersListed | None = None
        """The answer to every listing of registers; None to answer from the log."""
        self.lose = False
        self.not_ready = 0
        self.silent_mounts = False
        self.window_bytes = 1 << 22
        self.answers_anybody = False
        self.damage_bodies = False
        self.fetch_s = 0.0
        """How long after a request for bodies they are sent, as from a slow disk."""
        self.lags_at = 2**63
        """The first id that the replica which answers reads lacks."""
        self.refuse: FailureReason | None = None
        self.refuse_value = 0
        self.version_max = PROTOCOL_VERSION
        """The newest version of the protocol that it says it speaks."""
        self.proves = True
        """Whether it answers at once that an append is on the copies that it needs; else `prove` does."""
        self.held_proofs: list[tuple[Connection, FakeLog, ProveCopies, int]] = []
        self.on_append: Callable[[FakeMount, FakeLog, Append], bool] | None = None
        self.damage: Callable[[bytes], bytes] | None = None
        self.held: list[tuple[FakeMount, FakeLog, ReceivedAppends]] = []
        self.held_flushes: list[tuple[Connection, FakeLog, int]] = []
        host.network.listening[address] = self._accept

    def _accept(self) -> Connection:
        connection = Connection(
            self.host,
            hello=replace(hello(ROLE_SERVER, "fake", cluster_key=KEY), version_max=self.version_max),
            peer_roles=(ROLE_CLIENT,),
            on_message=self._on_message,
        )
        self.connections.append(connection)
        return connection

    def crash(self) -> None:
        """Break every connection and stop listening."""
        self.host.network.listening.pop(self.address, None)
        self.break_connections()

    def restart(self) -> None:
        self.host.network.listening[self.address] = self._accept

    def break_connections(self) -> None:
        connections, self.connections = self.connections, []
        self.mounts.clear()
        for connection in connections:
            transport = connection._transport
            assert transport is not None
            transport.abort()

    # ------------------------------------------------------------------ messages

    def _on_message(self, connection: Connection, message: Message, request: int, partition: int) -> None:
        if isinstance(message, Health):
            connection.send(HealthIs(b'{"well": true}'), request=request)
            return
        log = self.logs.get(partition)
        if log is None:
            raise NotOwner(f"{self.address} does not own {partition}")
        if isinstance(message, Mount):
            self._mount(connection, log, message, request)
        elif isinstance(message, Append):
            self._append(connection, log, message)
        elif isinstance(message, Credit):
            self.heard.credits += message.bytes
            mount = self.mounts.get(partition, {}).get(_client(connection))
            if mount is not None:
                mount.credit += message.bytes
                self._feed(log, mount)
        elif isinstance(message, Flush):
            self.heard.flushes += 1
            if any(mount.connection is connection for mount, _, _ in self.held):
                self.held_flushes.append((connection, log, request))
            else:
                connection.send(Flushed(log.mark), request=request, partition=partition)
        elif isinstance(message, Unmount):
            self.heard.unmounts += 1
            self.mounts.get(partition, {}).pop(_client(connection), None)
        else:
            self._request(connection, log, message, request)

    def prove(self, error: PolonaiseError | None = None) -> None:
        """Answer the held requests for proofs; with an error, refuse them."""
        held, self.held_proofs = self.held_proofs, []
        for connection, log, asked, request in held:
            if error is None:
                connection.send(CopiesProved(max(asked.id, log.mark)), request=request, partition=log.partition)
            else:
                connection.refuse(error, request=request, partition=log.partition)

    def _request(self, connection: Connection, log: FakeLog, message: Message, request: int) -> None:
        answer: Message
        if isinstance(message, HighWaterMark):
            answer = HighWaterMarkIs(self.generation, log.mark)
        elif isinstance(message, GetRegister):
            value = log.registers.get(message.key)
            answer = RegisterIs(value is not None, log.mark, value or b"")
        elif isinstance(message, ListRegisters):
            page = registers.page(log.registers, sorted(log.registers), message.prefix, message.first)
            answer = self.listed or RegistersListed(log.mark, page.more, registers.encode(page.changes))
        elif isinstance(message, Read):
            self.heard.reads.append(message)
            answer = self._read(log, message)
        elif isinstance(message, Fetch):
            answer = self._fetch(log, message)
            if self.fetch_s:
                send = partial(connection.send, answer, request=request, partition=log.partition)
                asyncio.get_running_loop().call_later(self.fetch_s, send)
                return
        elif isinstance(message, ProveCopies):
            self.heard.proofs.append(message)
            self.held_proofs.append((connection, log, message, request))
            if self.proves:
                self.prove()
            return
        else:
            raise PolonaiseError(f"the fake does not know {message}")
        connection.send(answer, request=request, partition=log.partition)

    def _read(self, log: FakeLog, message: Read) -> Batches:
        found: list[bytes] = []
        size = 0
        for batch in log.from_id(message.first):
            if batch.first >= self.lags_at:
                break
            if message.after_time_us and batch.commit_time_us < message.after_time_us:
                continue
            if message.part_last >= 0 and not message.first <= batch.first <= message.part_last:
                continue
            raw = bytes(batch.view) if message.with_data else batch.without_data()
            found.append(self.damage(raw) if self.damage else raw)
            self.heard.sent.append(batch.first)
            size += batch.length
            if size >= message.bytes_max:
                break
        return Batches(log.mark, payload=found)

    def _fetch(self, log: FakeLog, message: Fetch) -> Bodies:
        ids = list(parse_fetch(message))
        self.heard.fetches.append(ids)
        held = {tx.id: tx.data for batch in log.batches for tx in batch.transactions()}
        bodies = [held[transaction] for transaction in ids]
        if self.damage_bodies:
            bodies = [body[::-1] for body in bodies]
        return encode_bodies(bodies, [crc32(body) for body in bodies])

    # ------------------------------------------------------------------ mounts and feed

    def _mount(self, connection: Connection, log: FakeLog, message: Mount, request: int) -> None:
        self.heard.mounts.append(message)
        if self.silent_mounts:
            return
        if message.generation_known > self.generation and not self.answers_anybody:
            raise NotOwner("a newer generation exists")
        partition = log.partition

        def answer(state: MountState, mark: int, window_bytes: int = 0, reason: str = "") -> None:
            mounted = Mounted(state, self.generation, mark, window_bytes, reason)
            connection.send(mounted, request=request, partition=partition)

        if self.not_ready:
            self.not_ready -= 1
            answer(MountState.NOT_READY, -1, reason="told so")
            return
        if message.client_high_water_mark > log.mark:
            answer(MountState.CLIENT_AHEAD, log.mark)
            return
        first = message.client_high_water_mark + 1
        mount = FakeMount(connection, _client(connection), first, message.credit, message)
        self.mounts.setdefault(partition, {})[mount.client] = mount
        self.held = [(old, of, appends) for old, of, appends in self.held if old.client != mount.client]
        mark = log.mark
        mount.when_fed = mark, lambda: answer(MountState.READY, mark, self.window_bytes)
        self._feed(log, mount)

    def _feed(self, log: FakeLog, mount: FakeMount) -> None:
        for batch in log.from_id(mount.next_id):
            if mount.credit <= 0:
                break
            raw = self._formed(batch, mount.asked)
            if self.damage:
                raw = self.damage(raw)
            mount.credit -= len(raw)
            mount.next_id = batch.last + 1
            mount.connection.send(Feed(log.mark, payload=[raw]), partition=log.partition)
        if mount.when_fed is not None and mount.next_id > mount.when_fed[0]:
            (_, ready), mount.when_fed = mount.when_fed, None
            ready()

    def _formed(self, batch: Batch, asked: Mount) -> bytes:
        if asked.form == BodyForm.INLINE:
            return bytes(batch.view)
        matches = any(header & asked.filter_mask == asked.filter_value for header in batch.headers.tolist())
        if asked.form == BodyForm.FILTERED and matches:
            return bytes(batch.view)
        return batch.without_data()

    def feed_all(self, partition: int = 0) -> None:
        for mount in list(self.mounts.get(partition, {}).values()):
            self._feed(self.logs[partition], mount)

    # ------------------------------------------------------------------ appends

    def _append(self, connection: Connection, log: FakeLog, message: Append) -> None:
        appends = ReceivedAppends(message)
        self.heard.appends.append((message, appends))
        mount = self.mounts.get(log.partition, {}).get(_client(connection))
        if mount is None or mount.connection is not connection or self.lose:
            return
        if self.on_append is not None and self.on_append(mount, log, message):
            return
        if message.generation != self.generation:
            self.tell(mount, log, [(s, self.generation, FailureReason.GENERATION) for s in appends.sequences.tolist()])
        elif self.refuse is not None:
            self.tell(mount, log, [(s, self.refuse_value, self.refuse) for s in appends.sequences.tolist()])
        elif self.hold:
            self.held.append((mount, log, appends))
        else:
            self.order(mount, log, appends)

    def release(self, *, hold: bool = False) -> None:
        """Commit what was held back, and with `hold` go on to hold back what comes."""
        self.hold = hold
        held, self.held = self.held, []
        for mount, log, appends in held:
            self.order(mount, log, appends)
        flushes, self.held_flushes = self.held_flushes, []
        for connection, log, request in flushes:
            connection.send(Flushed(log.mark), request=request, partition=log.partition)

    def order(self, mount: FakeMount, log: FakeLog, appends: ReceivedAppends) -> None:
        """Judge and commit the appends of a frame."""
        refusals = log.append(mount.client, appends)
        if refusals:
            self.tell(mount, log, [(refusal.sequence, refusal.value, refusal.reason) for refusal in refusals])
        self.feed_all(log.partition)

    def tell(self, mount: FakeMount, log: FakeLog, rows: list[tuple[int, int, FailureReason]]) -> None:
        payload = encode_failures([FailedAppend(*row) for row in rows])
        mount.connection.send(AppendsFailed(self.generation, payload), partition=log.partition)


def _client(connection: Connection) -> int:
    return connection.peer.node
