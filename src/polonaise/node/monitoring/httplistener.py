"""A small HTTP listener with bounds, in the node's own event loop. The only file that imports aiohttp.

Each connection carries one request and has a deadline, and their number is bounded. An answer is cancelled when the
peer disconnects, and counts as a connection until it has ended. An error in a connection or in aiohttp ends that
connection, and never the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

from aiohttp import web

from polonaise.errors import PolonaiseError
from polonaise.host import Host, Listener, plain_network

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 32
"""The most connections at a time, with lost ones whose answer is still being made; others are closed at once."""
CONNECTION_S_MAX: Final = 10.0
"""The longest that a connection may take until its answer is sent."""
_SHUTDOWN_S: Final = 0.2
"""How long answers under way may take when the node stops."""
_LINE_BYTES_MAX: Final = 4_096
_HEADERS_MAX: Final = 64
_METHODS: Final = ("GET", "HEAD")


class HttpRequest(NamedTuple):
    """What an HTTP request asks for."""

    path: str
    query: Mapping[str, str]
    accept: str
    """The header `Accept`."""


class HttpAnswer(NamedTuple):
    status: int
    content_type: str
    body: bytes


Answering = Callable[[HttpRequest], Awaitable[HttpAnswer]]
"""A `PolonaiseError` that it raises becomes an answer with status 503."""


class HttpListener:
    """Serves HTTP, from `open` until `close`."""

    def __init__(self, host: Host, answering: Answering) -> None:
        self._host = host
        self._answering = answering
        self._connections: set[_OneRequest] = set()
        self._listener: Listener | None = None
        # No access log: a line for each scrape is noise. No lingering: the bodies of requests are not read anyway.
        self._server = web.Server(
            self._answer,
            handler_cancellation=True,
            access_log=None,
            logger=_log,
            max_line_size=_LINE_BYTES_MAX,
            max_field_size=_LINE_BYTES_MAX,
            max_headers=_HEADERS_MAX,
            lingering_time=0.0,
        )

    async def open(self, address: str) -> str:
        """Listen, and return the address. Raises `AddressInUse`, `BadOption` or `TooManyOpenFiles`."""
        # Plain even if the node has TLS: a supervisor's probes and most scrapers have no certificate of this CA.
        network = plain_network(self._host.network)
        self._listener = await network.listen(address, lambda: _OneRequest(self._server, self._connections))
        return self._listener.address

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._listener is not None:
            await self._listener.close()
        await self._server.shutdown(_SHUTDOWN_S)
        for connection in list(self._connections):
            connection.abort()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request; its connection counts towards `CONNECTIONS_MAX` until this has ended."""
        connection = next((each for each in self._connections if each.handler is request.protocol), None)
        if connection is None:  # it was lost in the same turn of the event loop
            raise asyncio.CancelledError
        with connection.being_answered():
            return await self._answered(request)

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in _METHODS:
            answer = _text(405, f"{', '.join(_METHODS)} only")
        else:
            try:
                query = dict(request.query.items())
                accept = ",".join(request.headers.getall("Accept", []))
                answer = await self._answering(HttpRequest(request.path, query, accept))
            except PolonaiseError as error:
                answer = _text(503, str(error))
        headers = {"Content-Type": answer.content_type, "Cache-Control": "no-store", "Server": "polonaise"}
        if answer.status == 405:
            headers["Allow"] = ", ".join(_METHODS)
        response = web.Response(status=answer.status, body=answer.body, headers=headers)
        response.force_close()
        return response


def _text(status: int, text: str) -> HttpAnswer:
    return HttpAnswer(status, "text/plain; charset=utf-8", f"{text}\n".encode())


class _OneRequest(asyncio.Protocol):
    """A connection between the event loop and aiohttp: it has a deadline, and an exception of aiohttp's ends it, which
    would stop the node if it reached the event loop.
    """

    def __init__(self, server: web.Server, others: set[_OneRequest]) -> None:
        self._others = others
        self.handler: asyncio.Protocol = cast(asyncio.Protocol, server())
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._lost = False
        self._being_answered = False

    @contextmanager
    def being_answered(self) -> Iterator[None]:
        """Keep the connection's place during the block, also when the connection is lost meanwhile."""
        self._being_answered = True
        try:
            yield
        finally:
            self._being_answered = False
            if self._lost:
                self._others.discard(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._others) >= CONNECTIONS_MAX:
            self._transport.abort()
            return
        self._others.add(self)
        self._deadline = asyncio.get_running_loop().call_later(CONNECTION_S_MAX, self.abort)
        self._guarded(lambda: self.handler.connection_made(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is None:  # it was one too many, and aiohttp never heard of it
            return
        self._deadline.cancel()
        self._lost = True
        if not self._being_answered:
            self._others.discard(self)
        self._guarded(lambda: self.handler.connection_lost(exc))

    def data_received(self, data: bytes) -> None:
        if self._deadline is not None:
            self._guarded(lambda: self.handler.data_received(data))

    def eof_received(self) -> bool | None:
        return self._guarded(self.handler.eof_received) if self._deadline is not None else None

    def pause_writing(self) -> None:
        self._guarded(self.handler.pause_writing)

    def resume_writing(self) -> None:
        self._guarded(self.handler.resume_writing)

    def _guarded(self, call: Callable[[], bool | None]) -> bool | None:
        try:
            return call()
        except Exception:  # noqa: BLE001 - whatever it is, the node goes on
            _log.exception("an HTTP connection was ended by an unexpected error; the node goes on")
            self.abort()
            return None
