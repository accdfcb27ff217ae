"""A TCP proxy on loopback that can stop passing anything on, with its connections open: a host that is cut off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Proxy:
    """Passes bytes between those who connect to `address` and a target, while it is not `cut`."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self.address = ""

    def cut(self) -> None:
        """Pass nothing on, in either direction, and tell nobody."""
        self._open.clear()

    def heal(self) -> None:
        """Pass on what was held back, and all that follows."""
        self._open.set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        host, _, port = self._target.rpartition(":")
        try:
            others = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, others[1]), (others[0], writer)):
            task = asyncio.get_running_loop().create_task(self._pass(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            try:
                while chunk := await source.read(65_536):
                    await self._open.wait()
                    sink.write(chunk)
                    await sink.drain()
            finally:
                sink.close()


@contextlib.asynccontextmanager
async def proxied(target: str) -> AsyncIterator[Proxy]:
    """Yield a started proxy to this address."""
    proxy = Proxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
