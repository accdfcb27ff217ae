"""A small HTTP listener with bounds, in the node's own event loop. The only file that imports aiohttp.

Every connection carries one request, has a few seconds for all of it, and there are few at a time. What answers a
request is cancelled when its asker leaves, and has its place among the few until it has ended. Whatever is wrong with
one of them, or with the library, ends that connection, and never the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

from aiohttp import web

from polonaise.errors import PolonaiseError
from polonaise.host import Host, Listener

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 32
"""The most connections at a time, with those that are gone while their answer is still being made; more are closed at
once."""
CONNECTION_S_MAX: Final = 10.0
"""The longest that a connection may take, from its beginning until its answer is sent, in seconds."""
_SHUTDOWN_S: Final = 0.2
"""How long answers under way may take when the node stops, in seconds."""
_LINE_BYTES_MAX: Final = 4_096
"""The longest line of a request, in bytes."""
_HEADERS_MAX: Final = 64
"""The most headers of a request."""
_METHODS: Final = ("GET", "HEAD")


class HttpRequest(NamedTuple):
    """What an HTTP request asks for."""

    path: str
    query: Mapping[str, str]
    accept: str
    """The formats that the asker takes, as its header `Accept` says."""


class HttpAnswer(NamedTuple):
    """The answer to an HTTP request."""

    status: int
    content_type: str
    body: bytes


Answering = Callable[[HttpRequest], Awaitable[HttpAnswer]]
"""Answers a request. A `PolonaiseError` becomes an answer with the status 503 and its text."""


class HttpListener:
    """Serves HTTP, from `open` until `close`."""

    def __init__(self, host: Host, answering: Answering) -> None:
        self._host = host
        self._answering = answering
        self._connections: set[_OneRequest] = set()
        self._listener: Listener | None = None
        # No access log: a line for each scrape is noise. Bodies are not read, so nobody has to wait for their end.
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
        self._listener = await self._host.network.listen(address, lambda: _OneRequest(self._server, self._connections))
        return self._listener.address

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._listener is not None:
            await self._listener.close()
        await self._server.shutdown(_SHUTDOWN_S)
        for connection in list(self._connections):
            connection.abort()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request, which keeps its connection's place until it has ended."""
        connection = next((each for each in self._connections if each.handler is request.protocol), None)
        if connection is None:  # lost in the same turn of the loop
            raise asyncio.CancelledError
        with connection.being_answered():
            return await self._answered(request)

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request by its path."""
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
    """A connection, between the loop and the library: it has a deadline, and what the library raises ends it.

    An exception that reaches the loop would stop the node (`host.real.stop_at_mistakes`).
    """

    def __init__(self, server: web.Server, others: set[_OneRequest]) -> None:
        self._others = others
        self.handler: asyncio.Protocol = cast(asyncio.Protocol, server())
        """The library's part of the connection."""
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
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many connections."""
        self._transport = cast(asyncio.Transport, transport)
        if len(self._others) >= CONNECTIONS_MAX:
            self._transport.abort()
            return
        self._others.add(self)
        self._deadline = asyncio.get_running_loop().call_later(CONNECTION_S_MAX, self.abort)
        self._guarded(lambda: self.handler.connection_made(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._deadline is None:  # it never began
            return
        self._deadline.cancel()
        self._lost = True
        if not self._being_answered:
            self._others.discard(self)
        self._guarded(lambda: self.handler.connection_lost(exc))

    def data_received(self, data: bytes) -> None:
        """Hand bytes on."""
        if self._deadline is not None:
            self._guarded(lambda: self.handler.data_received(data))

    def eof_received(self) -> bool | None:
        """Hand the end of the request on."""
        return self._guarded(self.handler.eof_received) if self._deadline is not None else None

    def pause_writing(self) -> None:
        """Have the library wait until the peer reads."""
        self._guarded(self.handler.pause_writing)

    def resume_writing(self) -> None:
        """Let the library go on."""
        self._guarded(self.handler.resume_writing)

    def _guarded(self, call: Callable[[], bool | None]) -> bool | None:
        """Make the call; if it raises, end the connection."""
        try:
            return call()
        except Exception:  # noqa: BLE001 - whatever it is, the node goes on
            _log.exception("an HTTP connection ends by a mistake")
            self.abort()
            return None
