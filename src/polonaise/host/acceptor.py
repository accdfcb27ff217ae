"""Accepting connections, for listeners of every kind.

The event loops' own servers would spin in a process without descriptors left: uvloop's may lose its spare descriptor to
another thread for ever, and asyncio's sets a new timer for each failed try.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from polonaise.host.address import HostPort
from polonaise.host.filelimits import too_many_open

_log = logging.getLogger(__name__)

BACKLOG: Final = 1024
"""The most connections that wait in the system, at one socket."""
_TOGETHER_MAX: Final = 64
_PAUSE_S: Final = 0.1
"""Nothing is accepted for so long after a failure: the socket stays readable, so that the loop would spin."""
_WARNING_S: Final = 10.0

Accepted: TypeAlias = Callable[[socket.socket, Any], None]
"""Takes over a connected socket, with the peer's address."""


async def bind_port(address: HostPort) -> list[socket.socket]:
    """Return listening sockets at every IP address of the host's name, on one port. Raises `OSError`, `ValueError`.

    Addresses that this machine lacks are left out as long as one remains: `localhost` stands for ::1 even without IPv6.
    """
    loop = asyncio.get_running_loop()
    resolved = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    port = address.port
    missing: OSError | None = None
    with contextlib.ExitStack() as opened:
        sockets = []
        for family, kind, protocol, _, where in dict.fromkeys(resolved):
            try:
                each = _bound_to(family, kind, protocol, (where[0], port, *where[2:]))
            except OSError as error:
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                missing = missing or error
                continue
            sockets.append(opened.enter_context(each))
            port = each.getsockname()[1]  # for port 0, the system chose one, which the other sockets take, too
            each.listen(BACKLOG)
        if missing is not None and not sockets:
            raise missing
        opened.pop_all()
        return sockets


def _bound_to(family: int, kind: int, protocol: int, where: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
    except BaseException:
        made.close()
        raise
    return made


class Acceptor:
    """Hands each connection that arrives at some listening sockets to a function, until it is closed.

    While there is no descriptor left, it accepts and closes new connections, so that a peer tries again or goes
    elsewhere instead of waiting. It gives up a spare descriptor for that; if another thread takes it, they wait in the
    system.
    """

    def __init__(self, sockets: list[socket.socket], address: str, accepted: Accepted) -> None:
        """The sockets listen and don't block; `address` is for the log."""
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._address = address
        self._accepted = accepted
        self._spare: int | None = None
        self._refill()
        self._resume: asyncio.TimerHandle | None = None
        self._held = False
        self._warned_s = float("-inf")
        self._listen()

    def hold(self) -> None:
        """Accept nothing until `go_on`."""
        self._held = True
        self._ignore()

    def go_on(self) -> None:
        self._held = False
        if self._resume is None:
            self._listen()

    def close(self) -> None:
        """Stop accepting, and close the sockets. Connections that were handed over stay."""
        self._ignore()
        if self._resume is not None:
            self._resume.cancel()
        for each in self._sockets:
            each.close()
        self._sockets = []
        self._give_up_spare()

    def _listen(self) -> None:
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)

    def _ignore(self) -> None:
        for each in self._sockets:
            self._loop.remove_reader(each)

    def _accept(self, listening: socket.socket) -> None:
        """Accept connections that wait at a socket; what is left comes in the loop's next turn."""
        for _ in range(_TOGETHER_MAX):
            if self._held or not self._sockets:  # by the function that took over the connection before
                return
            try:
                connected, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._warn(error)
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away(listening)
                self._pause()
                return
            connected.setblocking(False)
            if connected.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):  # the peer may have left
                    # Not every loop does this for a socket that it did not accept itself.
                    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._accepted(connected, peer)

    def _turn_away(self, listening: socket.socket) -> None:
        """Close the connections that wait at a socket, with the spare descriptor for each in turn."""
        if self._spare is None:
            return
        self._give_up_spare()
        with contextlib.suppress(OSError):  # there are no more of them, or another thread has taken the descriptor
            for _ in range(BACKLOG):
                listening.accept()[0].close()
        self._refill()

    def _refill(self) -> None:
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def _give_up_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _pause(self) -> None:
        self._ignore()
        if self._resume is None:
            self._resume = self._loop.call_later(_PAUSE_S, self._end_pause)

    def _end_pause(self) -> None:
        self._resume = None
        self._refill()
        if not self._held:
            self._listen()

    def _warn(self, error: OSError) -> None:
        if self._loop.time() >= self._warned_s + _WARNING_S:
            self._warned_s = self._loop.time()
            what = f"{self._address} can accept no connection, which is tried again"
            _log.warning("%s", too_many_open(error, what) or f"{what}: {error}")
