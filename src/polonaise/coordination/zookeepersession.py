"""A session with ZooKeeper, kept by kazoo's threads, and its connections with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from polonaise.errors import CertificateUnusable
from polonaise.host.tls import TlsFiles, TlsIdentity

_QUIET: Final = logging.getLogger("polonaise.kazoo")
_QUIET.setLevel(logging.ERROR)  # a lost connection is told by the call that it fails


def _tls_options(tls: TlsFiles | None) -> dict[str, Any]:
    """Return kazoo's options for TLS."""
    return {} if tls is None else {"use_ssl": True, "handler": TlsHandler(tls)}


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's handler, which makes connections with the TLS files as they are at that time.

    kazoo's own way believes the system's CAs besides, fails while certificate and key are being replaced, and does
    not close the socket after a failed handshake.
    """

    def __init__(self, files: TlsFiles) -> None:
        super().__init__()
        self._files = files
        self._identity: TlsIdentity | None = None

    def create_connection(
        self, address: tuple[Any, ...], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> ssl.SSLSocket:
        """Return a connection after its handshake. Raises `OSError`, which kazoo takes for a reason to try again."""
        try:
            if self._identity is None:
                self._identity = TlsIdentity(self._files)
            context = self._identity.dialling()
        except CertificateUnusable as error:
            raise ConnectionError(str(error)) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # ZooKeeper speaks 1.3 only if it is told to
        plain = socket.create_connection(address[:2], timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(plain, server_hostname=hostname or address[0])
        finally:
            plain.close()  # it is empty if the other has taken its place


class ZooKeeperSession:
    """A session with ZooKeeper, kept by kazoo's threads; a new one after its end. Belongs to one event loop."""

    def __init__(self, hosts: str, session_s: float, tls: TlsFiles | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.live = asyncio.Event()
        """Set while there is a connection."""
        self.granted_s = session_s
        """The seconds after which ZooKeeper ends the session of a process that it does not hear from: what this process
        asks for, until ZooKeeper has granted less."""
        self._client = KazooClient(
            hosts,
            timeout=session_s,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0, ignore_expire=False),
            logger=_QUIET,
            **_tls_options(tls),
        )
        self._client.add_listener(self._heard)
        self._learn_granted(session_s)
        self._client.start_async()

    def number(self) -> int:
        """Return the number by which ZooKeeper knows the session; -1 while there is no connection."""
        client_id = self._client.client_id
        return -1 if client_id is None else int(client_id[0])

    async def ask(self, begin: Callable[[KazooClient], Any], catch_up: str | None = None) -> Any:
        """Send a request and return its answer, or raise what kazoo says. `catch_up` as in `ZooKeeperBackend._ask`."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any) -> None:
            if answer.done():  # nobody waits any more, or the server did not catch up
                return
            if result.successful():
                answer.set_result(result.get_nowait())
            else:
                answer.set_exception(result.exception)

        def caught_up(result: Any) -> None:
            # Requests of one session are carried out in order, unless the connection breaks between the two: then the
            # answer may come from a server that has not caught up.
            if not result.successful() and not answer.done():
                answer.set_exception(result.exception)

        if catch_up is not None:
            self._client.sync_async(catch_up).rawlink(lambda result: self._in_loop(caught_up, result))
        begin(self._client).rawlink(lambda result: self._in_loop(settle, result))
        return await answer

    def resolving(self, future: asyncio.Future[None]) -> Callable[..., None]:
        """Return a function that resolves the future, for kazoo to call in its thread."""

        def resolve() -> None:
            if not future.done():
                future.set_result(None)

        return lambda *_: self._in_loop(resolve)

    def close(self) -> None:
        """End the session and kazoo's threads. Blocks: to be called in a thread."""
        self._client.remove_listener(self._heard)
        self._client.stop()
        self._client.close()

    def _learn_granted(self, session_s: float) -> None:
        """Take note of how long a session ZooKeeper grants, at each connection: kazoo keeps it to itself."""
        connection = self._client._connection
        invoke = connection._invoke

        def listening(*arguments: Any, **options: Any) -> Any:
            answer = invoke(*arguments, **options)
            granted_ms = getattr(answer[0], "time_out", 0) if isinstance(answer, tuple) else 0
            if granted_ms > 0:
                self.granted_s = min(session_s, granted_ms / 1000)
            return answer

        connection._invoke = listening

    def _heard(self, state: str) -> None:
        """Take note, in kazoo's thread, that the connection was made or lost."""
        self._in_loop(self.live.set if state == KazooState.CONNECTED else self.live.clear)

    def _in_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and nobody waits any more
            self._loop.call_soon_threadsafe(callback, *arguments)
