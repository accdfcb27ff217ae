"""The floor: programs that only send the same bytes at the same rate to the same targets, with gRPC and with streams.

No order, fence, queue, batch or log; each message is answered with eight bytes.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Mapping
from typing import Any, Protocol

import grpc
from benchmarks.deliveries.form import Notes

SERVICE, METHOD = "bare.Delivery", "Send"
LENGTH = struct.Struct("<I")
ANSWER = bytes(8)


class BareServer(Protocol):
    """Receives for one target."""

    address: str

    async def close(self) -> None: ...


class BareSender:
    """Sends to one target: a task writes one message after the other, and one reads the answers."""

    def __init__(self) -> None:
        self.answered = 0
        """The number of messages that were answered."""
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._write_all()), asyncio.create_task(self._read_all())]

    def send(self, payload: bytes) -> None:
        """Have a message sent."""
        self._unsent.put_nowait(payload)

    def check(self) -> None:
        """Raise what is wrong."""
        for task in self._tasks:
            if task.done():
                task.result()
                raise ConnectionError("the target has gone")

    async def close(self) -> None:
        """End the connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._end()

    async def _write_all(self) -> None:
        while True:
            await self._write(await self._unsent.get())

    async def _write(self, payload: bytes) -> None:
        raise NotImplementedError

    async def _read_all(self) -> None:
        raise NotImplementedError

    async def _end(self) -> None:
        raise NotImplementedError


# ---------------------------------------------------------------------- gRPC


class GrpcServer:
    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(self._receive)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        self.address = ""

    async def start(self) -> None:
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def _receive(self, _: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            self._notes.received([message], time.monotonic_ns())
            await context.write(ANSWER)

    async def close(self) -> None:
        await self._server.stop(None)


class GrpcSender(BareSender):
    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._call: Any = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        super().__init__()

    async def _write(self, payload: bytes) -> None:
        await self._call.write(payload)

    async def _read_all(self) -> None:
        while await self._call.read() is not grpc.aio.EOF:
            self.answered += 1

    async def _end(self) -> None:
        await self._channel.close()


# ---------------------------------------------------------------------- asyncio's streams


class StreamServer:
    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._server: asyncio.Server | None = None
        self.address = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._receive, "127.0.0.1", 0, limit=2**20)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                self._notes.received([await reader.readexactly(length)], time.monotonic_ns())
                writer.write(ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()


class StreamSender(BareSender):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        super().__init__()

    async def _write(self, payload: bytes) -> None:
        self._writer.write(LENGTH.pack(len(payload)) + payload)
        await self._writer.drain()

    async def _read_all(self) -> None:
        while await self._reader.readexactly(len(ANSWER)):
            self.answered += 1

    async def _end(self) -> None:
        self._writer.close()


# ---------------------------------------------------------------------- both

BARE_GRPC, BARE_STREAMS = "bare gRPC", "bare asyncio streams"


async def serve_bare(kind: str, notes: Notes) -> BareServer:
    """Begin to receive for one target."""
    server = GrpcServer(notes) if kind == BARE_GRPC else StreamServer(notes)
    await server.start()
    return server


async def bare_senders(kind: str, addresses: Mapping[str, str]) -> dict[str, BareSender]:
    """Return a sender for each target, by name."""
    if kind == BARE_GRPC:
        return {name: GrpcSender(address) for name, address in addresses.items()}
    senders: dict[str, BareSender] = {}
    for name, address in addresses.items():
        host, _, port = address.rpartition(":")
        senders[name] = StreamSender(*await asyncio.open_connection(host, int(port), limit=2**20))
    return senders
