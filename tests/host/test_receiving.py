"""What arrives takes the memory of what has arrived, and nobody gets another connection's bytes."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from polonaise.host.real import RealHost
from rigs.waiting import wait_until


class Ends(asyncio.Protocol):
    """One end of a connection: keeps what it receives, and sends it back if it is the accepted one."""

    def __init__(self, echoes: bool = False) -> None:
        self.echoes = echoes
        self.transport: asyncio.Transport
        self.received: list[bytes] = []
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received.append(data)
        if self.echoes:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True


@asynccontextmanager
async def connected(host: RealHost, address: str) -> AsyncIterator[tuple[Ends, Ends]]:
    """Yield the dialling and the accepted end of a connection."""
    accepted = Ends(echoes=True)
    listener = await host.network.listen(address, lambda: accepted)
    transport, dialling = await host.network.connect(listener.address, Ends)
    assert isinstance(dialling, Ends), "the protocol that the factory made"
    try:
        yield dialling, accepted
    finally:
        transport.close()
        await wait_until(lambda: dialling.ended and accepted.ended)
        await listener.close()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_a_few_bytes_take_a_few_bytes_of_memory_on_their_way(kind: str, tmp_path: Path) -> None:
    """asyncio asks for 256 KiB for each read, and gives most of it back: that leaves a heap full of holes."""
    host = RealHost()
    async with connected(host, "127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path / 's'}") as (dialling, accepted):
        dialling.transport.write(b"first")
        await wait_until(lambda: dialling.received)
        tracemalloc.start()
        try:
            for number in range(50):
                dialling.transport.write(b"%05d" % number)
                await wait_until(lambda number=number: len(dialling.received) == number + 2)  # type: ignore[misc]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 100_000
        assert dialling.received == accepted.received == [b"first", *(b"%05d" % number for number in range(50))]
    host.close()


def test_threads_with_loops_of_their_own_receive_what_was_sent_to_each() -> None:
    """They receive at the same time, because a read lets other threads go on."""
    mixed: list[bytes] = []

    async def exchange(letter: bytes) -> None:
        host = RealHost()
        async with connected(host, "127.0.0.1:0") as (dialling, _):
            for _ in range(200):
                dialling.received.clear()
                dialling.transport.write(letter * 100_000)
                await wait_until(lambda: sum(map(len, dialling.received)) == 100_000, every_s=0)
                mixed.extend(part for part in dialling.received if part != letter * len(part))
        host.close()

    threads = [threading.Thread(target=asyncio.run, args=(exchange(letter),)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mixed
