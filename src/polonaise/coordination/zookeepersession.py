"""A session with ZooKeeper, kept by kazoo's threads, and its connections, with TLS or without.

kazoo gives a silent server the time of the whole session, and may try the same one again next: a lease would run out
meanwhile. Here a silent server costs about a second, the others are tried at once, and it is left out for a while
(`coordination.patience`). ZooKeeper keeps the session, however often the server is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from polonaise.coordination.patience import AnswerPatience, HostTrials
from polonaise.coordination.zookeeperdata import DataTrial, why_ended
from polonaise.errors import CertificateUnusable
from polonaise.host.names import Found, Told, names, unanswered
from polonaise.host.sockets import refuse_itself
from polonaise.host.tls import TlsFiles, TlsIdentity, handshake_fault

SILENCE_S: Final = 1.0
"""How long a connected server may say nothing to a request until another one is tried."""
_NAMES_S: Final = 1.0
"""How long the servers' names may take to be looked up before those are tried that are known."""
REACH_S: Final = 1.0
"""How long a connection may take to be made, and then its TLS handshake."""
ATTACH_S: Final = 0.5
"""How long a server may at first take to answer that it goes on with this process's session."""
BEGIN_S: Final = 1.0
"""The same for a new session, which takes a write of the ensemble."""

_log: Final = logging.getLogger(__name__)
_QUIET: Final = logging.getLogger("polonaise.kazoo")
_QUIET.setLevel(logging.ERROR)  # a lost connection is told by the call that it fails
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.25
"""The first and about the longest pause before all servers are tried again: they may be electing a leader."""
_FAREWELL_S: Final = 1.0
_REFUSAL_S: Final = 0.3
"""How long a server is listened to that may refuse this process's certificate."""
_ELECTED_S: Final = 15.0
_STATE_S: Final = 0.5
"""How long a server that has ended a connection may take to say how it is; it is not asked more often."""
_STATE_BYTES_MAX: Final = 4_096
_LONG_PAUSE_S_MAX: Final = 2.0
"""The longest pause once there was no connection for `_ELECTED_S`: nobody is being elected any more."""


class PatientHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's handler, which gives up a connection that is not made in `reach_s` seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.reach_s = REACH_S
        self.suspected: set[tuple[str, int]] = set()
        """Addresses at which a connection was made, and ended before the session began."""

    def create_connection(self, address: tuple[Any, ...], timeout: float | None = None, **_: Any) -> socket.socket:
        plain = refuse_itself(socket.create_connection(address[:2], min(timeout or self.reach_s, self.reach_s)))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain


def dialling_context(identity: TlsIdentity) -> ssl.SSLContext:
    context = identity.dialling()
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # ZooKeeper speaks 1.3 only if it is told to
    return context


class TlsHandler(PatientHandler):
    """The same, with the TLS files as they are at that time. kazoo's own way believes the system's CAs besides, fails
    while certificate and key are being replaced, and does not close the socket after a failed handshake."""

    def __init__(self, files: TlsFiles) -> None:
        super().__init__()
        self._files = files
        self._identity: TlsIdentity | None = None

    def create_connection(
        self, address: tuple[Any, ...], timeout: float | None = None, hostname: str | None = None, **_: Any
    ) -> ssl.SSLSocket:
        try:
            if self._identity is None:
                self._identity = TlsIdentity(self._files)
            context = dialling_context(self._identity)
        except CertificateUnusable as error:
            raise ConnectionError(str(error)) from error
        plain = super().create_connection(address, timeout)
        try:
            made = context.wrap_socket(plain, server_hostname=hostname or address[0])
        finally:
            plain.close()  # it is empty if the other has taken its place
        if address[:2] in self.suspected:
            self._hear_refusal(made)
        return made

    def _hear_refusal(self, made: ssl.SSLSocket) -> None:
        """Listen for a moment whether the server refuses this process's certificate; raise `OSError` if it does. In TLS
        1.3 it sees that only after the handshake, and what is sent to it then destroys the reason on its way."""
        made.settimeout(_REFUSAL_S)
        try:
            if made.recv(1) == b"":
                raise ConnectionResetError("the server ended the connection after the handshake")
        except TimeoutError:
            made.settimeout(self.reach_s)  # it says nothing unasked, as it should
        except OSError:
            made.close()
            raise


class _Connections(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's keeper of the connection, which leaves silent servers soon. All but `leave` belongs to kazoo's thread."""

    def __init__(self, client: KazooClient, session_s: float, on_granted: Callable[[float], None]) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=_QUIET)
        self._session_s = session_s
        self._on_granted = on_granted
        self._trials = HostTrials()
        self._data = DataTrial(2 * session_s)
        self._stated: dict[str, tuple[float, str]] = {}
        self._attach_s = ATTACH_S
        self._lost_s = time.monotonic()
        self._is_left = False
        """Whether the present connection was ended because the server is silent."""
        self.is_alone = True
        """Whether no other server could be tried instead."""
        self.speaks = False
        """Whether the server that was asked last how it is has said so: it takes connections such as these."""
        self._servers = 1
        self.number = 0
        self._answers: queue.SimpleQueue[tuple[str, Found]] = queue.SimpleQueue()
        self._hear: dict[str, Told] = {}
        """By name: what takes its answers. One for each, so that a lookup under way is joined once, however often."""
        self._addresses: dict[str, list[str]] = {}
        """By name: what the name service has answered last."""
        self.troubles: dict[str, str] = {}
        """By server, why it was not connected to when it was last tried; empty while any is."""

    def leave(self, number: int) -> None:
        """End the connection of this number, if it is the present one, to a silent server. In any thread."""
        connected = self._socket
        if connected is not None and number == self.number:
            self._is_left = True
            with contextlib.suppress(OSError):
                # As a plain socket: TLS would want to say farewell.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def stop(self, timeout: float | None = None) -> bool:
        """Wait until kazoo's thread has ended. A server that holds it up is left."""
        if not self.connection_stopped.wait(_FAREWELL_S if self.client.connected else 0):
            self.leave(self.number)
        return bool(super().stop(timeout))

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        hosts = [(name.strip(), port) for name, port in self.client.hosts]
        silent = self._look_up({name for name, _ in hosts})
        found = {
            _server(address, port): (name, address, port)
            for name, port in hosts
            for address in self._addresses.get(name, ())
        }
        unknown = "" if found else "none of their names is known: see that they are right, and that names are resolved"
        others = {server: why for server, why in self.troubles.items() if server and found}
        why = unanswered(*sorted(silent)) if silent else unknown
        self.troubles = {**others, "": why} if why else others
        self.is_alone = len(found) < 2
        self._servers = max(len(self.client.hosts), 1)
        return [found[server] for server in self._trials.order(list(found), time.monotonic())]

    def _look_up(self, hosts: set[str]) -> set[str]:
        """Ask for the addresses of the servers' names; return those for which nothing is known within `_NAMES_S`. kazoo
        asks for one after the other: one that the name service is silent about would keep it from the others, and from
        its end. An answer that comes later counts the next time, beside a new question."""
        while not self._answers.empty():  # of long ago, perhaps
            self._take_answer(0.0)
        for name in hosts:
            names.ask(name, self._hear.setdefault(name, functools.partial(self._heard_of, name)))
        until_s, left = time.monotonic() + _NAMES_S, set(hosts)
        while left and (left_s := until_s - time.monotonic()) > 0:
            left.discard(self._take_answer(left_s))
        return {name for name in left if not self._addresses.get(name)}

    def _heard_of(self, name: str, found: Found) -> None:
        self._answers.put((name, found))

    def _take_answer(self, within_s: float) -> str:
        """Take the next answer of the name service; return the name that it is for, or "" if none comes in time."""
        try:
            name, found = self._answers.get(timeout=within_s)
        except queue.Empty:
            return ""
        if not isinstance(found, BaseException):
            self._addresses[name] = [place[0] for *_, place in found]
        return name

    def _connect_loop(self, retry: Any) -> Any:
        is_long = time.monotonic() - self._lost_s > _ELECTED_S
        retry.max_delay = _LONG_PAUSE_S_MAX if is_long else _PAUSE_S_MAX
        return super()._connect_loop(retry)

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        self._is_left = False
        before = self.number
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        finally:
            if self.number != before:
                self._lost_s = time.monotonic()
            if self._is_left:
                _log.info("ZooKeeper at %s:%d is silent: the others are tried", host, port)
                self._trials.silent(_server(hostip, port), time.monotonic())

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        """Connect to a server and go on with the session there, or begin one."""
        server, began_s = _server(hostip, port), time.monotonic()
        self.handler.reach_s = self._session_s if self.is_alone else max(self._attach_s, REACH_S)
        try:
            times = super()._connect(host, hostip, port)
        except (AuthFailedError, SessionExpiredError):
            self._trials.spoke(server)
            raise
        except Exception as error:
            now_s = time.monotonic()
            if any(isinstance(each, KazooTimeoutError | TimeoutError) for each in _chain(error)):
                self._trials.silent(server, now_s)
                # All may be slow: each is given more time then, up to that of the session.
                self._attach_s = min(2 * self._attach_s, self._session_s)
                self._note(server, f"{host}:{port} is silent: it said nothing for {now_s - began_s:.1f} s")
            else:
                if self._socket is None:
                    self._trials.refused(server)
                    self._note(server, _why(f"{host}:{port}", error))
                else:  # it is reached, and ends the connection: it may be electing a leader
                    self._trials.spoke(server)
                    self._refused(server, (hostip, port), host, error)
            raise
        self._trials.spoke(server)
        self._data.connected()
        self._attach_s = ATTACH_S
        self.handler.suspected.clear()
        self.troubles = {}
        self.number += 1
        _log.info("connected to ZooKeeper at %s:%d", host, port)
        return times

    def _refused(self, server: str, address: tuple[str, int], host: str, error: Exception) -> None:
        """Ask a server that has ended the connection how it is. Raises `SessionExpiredError` if no server will ever go
        on with the session, as ZooKeeper has lost what it had seen: kazoo then begins another one."""
        named, seen = f"{host}:{address[1]}", int(self.client.last_zxid or 0)
        answer = self._state_of(server, address, host)
        self.speaks = bool(answer)
        self.handler.suspected.add(address)
        why = why_ended(named, answer, seen)
        self._note(server, why or _why(named, error))
        if self._data.refused(server, answer, seen, self._servers, time.monotonic()):
            self._data.connected()
            _log.warning("%s. A new session begins there: what ZooKeeper holds now is judged by its contents", why)
            raise SessionExpiredError(why) from error

    def _state_of(self, server: str, address: tuple[str, int], host: str) -> str:
        asked_s, answer = self._stated.get(server, (float("-inf"), ""))
        if time.monotonic() - asked_s < _STATE_S:
            return answer
        received = b""
        with (
            contextlib.suppress(OSError),  # also if it is slow, or if TLS fails
            self.handler.create_connection(address, _STATE_S, hostname=host) as connection,
        ):
            connection.settimeout(_STATE_S)
            connection.sendall(b"srvr")
            while len(received) < _STATE_BYTES_MAX and (part := connection.recv(_STATE_BYTES_MAX)):
                received += part
        answer = received.decode(errors="replace")
        self._stated[server] = time.monotonic(), answer
        return answer

    def _note(self, server: str, why: str) -> None:
        _log.debug("no connection to ZooKeeper: %s", why)
        self.troubles = {**self.troubles, server: why}  # replaced as a whole: other threads read it

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        """Send a request that begins a connection; the first answer tells the session's time."""
        if not self.is_alone:
            timeout = self._attach_s if self.client._session_id else max(self._attach_s, BEGIN_S)
        answer = super()._invoke(timeout, request, xid)
        granted_ms = getattr(answer[0], "time_out", 0) if isinstance(answer, tuple) else 0
        if granted_ms > 0:
            self._on_granted(granted_ms / 1000)
        return answer


def _server(address: str, port: int) -> str:
    return f"{address}:{port}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _why(server: str, error: BaseException) -> str:
    for each in _chain(error):
        if isinstance(each, CertificateUnusable):
            return f"no connection to {server} can be made: {each.text}"
        if isinstance(each, ssl.SSLError):
            return handshake_fault(server, each).text
        if isinstance(each, ConnectionRefusedError):
            return f"{server} refuses connections: nobody listens there"
        if isinstance(each, OSError) and each.errno and not isinstance(each, ConnectionError):
            return f"{server} can't be reached: {each.strerror}"
    return f"{server} ends connections at once, and does not answer: it serves nobody now, or with TLS or without only"


class ZooKeeperSession:
    """A session with ZooKeeper, kept by kazoo's threads; a new one after its end. Belongs to one event loop."""

    def __init__(self, hosts: str, session_s: float, tls: TlsFiles | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.live = asyncio.Event()
        self.granted_s = session_s
        """After so long ZooKeeper ends a silent session: what was asked for, until it has granted less."""
        self._asking = AnswerPatience(SILENCE_S, session_s * 2 / 3)
        self._changing = AnswerPatience(SILENCE_S, session_s * 2 / 3)
        self._changes = 0
        """Changes under way: the session's questions are answered after them."""
        self._heard_s = 0.0
        """Monotonic, written in kazoo's thread."""
        self._client = KazooClient(
            hosts,
            timeout=session_s,
            connection_retry=KazooRetry(max_tries=-1, delay=_PAUSE_S, max_delay=_PAUSE_S_MAX, ignore_expire=False),
            logger=_QUIET,
            handler=PatientHandler() if tls is None else TlsHandler(tls),
            use_ssl=tls is not None,
        )

        def learn_granted(granted_s: float) -> None:
            self.granted_s = min(session_s, granted_s)

        self._connections = self._client._connection = _Connections(self._client, session_s, learn_granted)
        self._client.add_listener(self._heard)
        self._client.start_async()

    @property
    def troubles(self) -> list[str]:
        """Why there is no connection: a sentence for each server that was tried in vain."""
        return sorted(self._connections.troubles.values())

    @property
    def speaks(self) -> bool:
        """Whether the server that was tried last says how it is, though it does not go on with the session."""
        return self._connections.speaks

    def number(self) -> int:
        """Return ZooKeeper's number of the session; -1 while there is no connection."""
        client_id = self._client.client_id
        return -1 if client_id is None else int(client_id[0])

    async def ask(
        self, begin: Callable[[KazooClient], Any], catch_up: str | None = None, *, changes: bool = False
    ) -> Any:
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

        def passing(told: Callable[[Any], None]) -> Callable[[Any], None]:
            def pass_on(result: Any) -> None:
                self._heard_s = time.monotonic()
                self._in_loop(told, result)

            return pass_on

        number = self._connections.number
        if catch_up is not None:
            self._client.sync_async(catch_up).rawlink(passing(caught_up))
        begin(self._client).rawlink(passing(settle))
        self._changes += changes
        try:
            return await self._unless_silent(answer, number, changes)
        finally:
            self._changes -= changes
            answer.cancel()  # if this was cancelled, nobody waits for it any more

    async def _unless_silent(self, answer: asyncio.Future[Any], number: int, changes: bool) -> Any:
        """Wait for an answer, but leave a server that answers nothing at all for too long."""
        sent_s = time.monotonic()
        patience = self._changing if self._changes else self._asking
        while not answer.done() and not self._connections.is_alone:
            left_s = max(sent_s, self._heard_s) + patience.seconds - time.monotonic()
            if left_s <= 0:
                patience.gave_up()
                self._connections.leave(number)
                return await answer
            await asyncio.wait([answer], timeout=left_s)
        result = await answer
        if changes or patience is self._asking:  # a question after a change tells nothing of either
            patience.answered(time.monotonic() - sent_s)
        return result

    def resolving(self, future: asyncio.Future[None]) -> Callable[..., None]:
        """Return a function that resolves the future, for kazoo to call in its thread."""

        def resolve() -> None:
            if not future.done():
                future.set_result(None)

        return lambda *_: self._in_loop(resolve)

    def close(self) -> None:
        """End the session and kazoo's threads. Blocks."""
        self._client.remove_listener(self._heard)
        self._client.stop()
        self._client.close()

    def _heard(self, state: str) -> None:
        self._in_loop(self.live.set if state == KazooState.CONNECTED else self.live.clear)

    def _in_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and nobody waits any more
            self._loop.call_soon_threadsafe(callback, *arguments)
