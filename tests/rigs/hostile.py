"""Tools of hostile peers: raw connections, frames with one mistake; and measurements of a node's processes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import polonaise
from polonaise.admin.opening import opened_coordinator
from polonaise.link.protocol.greeting import hello
from polonaise.node.local import ChildNode, LocalCluster
from polonaise.wire import codec
from polonaise.wire.appends import AppendColumns
from polonaise.wire.codec import HEADER_BYTES, Frame, Frames, Message
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER, Hello, Mount, Ping, Refused
from rigs.cluster import nodes

RESIDENT_BYTES_MAX = 300 * 2**20
SERVED_S_MAX = 20.0
"""Seconds within which a client must be served: long, because speed is measured elsewhere."""
ANSWER_S_MAX = 5.0


class Target:
    """One open port of a node, and the role and key with which a peer may say hello."""

    def __init__(self, cluster: LocalCluster, name: str, node: ChildNode, role: int, key: bytes) -> None:
        self.cluster = cluster
        self.name = name
        self.node = node
        self.role = role
        self.key = key
        host, _, port = node.address.rpartition(":")
        self.host, self.port = host, int(port)
        self.next_client_id = 1_000_000

    def hello(self, **changes: Any) -> Hello:
        self.next_client_id += 1
        return replace(hello(self.role, "a stranger", cluster_key=self.key, node=self.next_client_id), **changes)


class Peer:
    """A raw connection: sends any bytes, and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = Frames(64 * 2**20)
        self._ready: list[Frame] = []

    @property
    def socket(self) -> Any:
        return self.writer.get_extra_info("socket")

    def say(self, what: bytes | Message, *, request: int = 0, partition: int = -1) -> None:
        """Send bytes or a message without waiting."""
        self.writer.write(what if isinstance(what, bytes) else bytes_of(what, request=request, partition=partition))

    async def hear(self, within_s: float = ANSWER_S_MAX) -> Message | None:
        """Return the next message that is no keep-alive; None when the other side has ended the connection."""
        deadline_s = time.monotonic() + within_s
        while True:
            while self._ready:
                message = codec.decode(self._ready.pop(0))
                if not isinstance(message, Ping):
                    return message
            try:
                async with asyncio.timeout(deadline_s - time.monotonic()):
                    data = await self.reader.read(65_536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._ready += self._frames.feed(data)

    async def answer(self, message: Message, *, partition: int = 0) -> Message | None:
        """Send a message and return the answer."""
        self.say(message, request=7, partition=partition)
        return await self.hear()

    async def refused(self, message: Message, *, partition: int = 0) -> str:
        """Send a message and return the code of its refusal; `closed` if the connection ends without one."""
        answer = await self.answer(message, partition=partition)
        return answer.code if isinstance(answer, Refused) else "closed" if answer is None else type(answer).__name__

    async def ended(self, within_s: float = ANSWER_S_MAX) -> list[str]:
        """Wait until the other side ends the connection. Return the codes of its refusals."""
        codes: list[str] = []
        deadline_s = time.monotonic() + within_s
        while (message := await self.hear(deadline_s - time.monotonic())) is not None:
            if isinstance(message, Refused):
                codes.append(message.code)
        return codes

    def reset(self) -> None:
        """End the connection with an RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def dial(target: Target) -> AsyncIterator[Peer]:
    """Open a connection on which nothing was said yet."""
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def greet(target: Target, **changes: Any) -> AsyncIterator[Peer]:
    """Open a connection on which both sides have said hello."""
    async with dial(target) as peer:
        peer.say(target.hello(**changes))
        answer = await peer.hear()
        assert isinstance(answer, Hello), answer
        yield peer


def mount(mark: int = -1, credit: int = 2**62, **changes: Any) -> Mount:
    return replace(Mount(1, 0, mark, 0, 0, 0, credit), **changes)


def bytes_of(message: Message, *, request: int = 0, partition: int = -1) -> bytes:
    return b"".join(bytes(part) for part in message.frame(request=request, partition=partition))


def raw_frame(kind: int, head: bytes = b"", payload: bytes = b"", **wrong: int) -> bytes:
    """Return a frame with these fields, however wrong, and a right checksum over them."""
    length = wrong.get("length", HEADER_BYTES + len(head) + len(payload))
    summed = struct.pack(
        "<IHHIiI", length, kind, wrong.get("flags", 0), wrong.get("request", 1), wrong.get("partition", 0),
        wrong.get("head_bytes", len(head)),
    )  # fmt: skip
    return summed + struct.pack("<I", wrong.get("crc", crc32(head, crc32(summed)))) + head + payload


def peak_bytes(pid: int) -> int:
    """Return the peak of resident memory since `forget_peak`, in bytes."""
    with open(f"/proc/{pid}/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def forget_peak(pid: int) -> None:
    with open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("5")


@contextlib.contextmanager
def unharmed(cluster: LocalCluster) -> Iterator[None]:
    """Check that the same processes run afterwards, never took too much memory, and wrote no traceback."""
    pids = [node.pid for node in nodes(cluster)]
    for pid in pids:
        assert pid is not None
        forget_peak(pid)
    yield
    for node, pid in zip(nodes(cluster), pids, strict=True):
        assert node.alive, f"{node.name} is dead: {node.log[-3000:]}"
        assert node.pid == pid
        assert pid is not None
        peak = peak_bytes(pid)
        print(f"{node.name}: {peak / 2**20:.0f} MB at most")  # noqa: T201
        assert peak < RESIDENT_BYTES_MAX, f"{node.name} took {peak / 2**20:.0f} MB"
        assert "Traceback" not in node.log, node.log[-3000:]


async def assert_served(cluster: LocalCluster) -> None:
    """Check that a well-behaved client is served as usual."""
    async with asyncio.timeout(SERVED_S_MAX), polonaise.connect(cluster.coordinator) as log:
        receipt = await log.append(b"served", partition=0)
        assert (await log.transaction(receipt.id, 0)).data == b"served"


async def target_of(cluster: LocalCluster, name: str) -> Target:
    """Return a node's port as a target, with the key that lets a stranger in."""
    async with opened_coordinator(cluster.coordinator) as (_, coordinator):
        key = (await coordinator.describe()).key
    if name == "server":
        assert cluster.server is not None
        return Target(cluster, name, cluster.server, ROLE_CLIENT, key)
    return Target(cluster, name, cluster.storage[0], ROLE_SERVER, key)


def one_append(
    data: bytes,
    *,
    sequence: int = 1,
    mark: int = -1,
    generation: int = 1,
    locks: Sequence[tuple[int, int]] = (),
    operations: Sequence[tuple[int, bytes, bytes]] = (),
    data_crc: int | None = None,
) -> bytes:
    """Return an append frame of one transaction for partition 0."""
    columns = AppendColumns()
    crc = crc32(data) if data_crc is None else data_crc
    columns.add(sequence, mark, 0, data, crc, locks, operations=operations)
    return bytes_of(columns.message(generation), partition=0)
