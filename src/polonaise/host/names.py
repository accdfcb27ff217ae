"""Names of hosts, looked up in threads of their own: a name service that is silent holds up nobody else.

It takes its time then, and no call to it can be ended. In the event loop's own threads such calls would hold up other
work, and the end of the process, which waits for those threads; so does whatever thread calls `socket.getaddrinfo`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from polonaise.host.address import HostPort

_PATIENCE_S: Final = 30.0
"""A lookup under way is joined by all who ask for the same name, but not for longer than this: it may hang for ever.
Each that follows such a one is joined for twice as long, so that few threads hang."""

Addresses: TypeAlias = list[tuple[Any, ...]]
"""What `socket.getaddrinfo` returns."""
Found: TypeAlias = Addresses | BaseException
Told: TypeAlias = Callable[[Found], object]
"""Called in any thread, with what was found or why nothing was."""


class _Lookup:
    def __init__(self, patience_s: float) -> None:
        self.begun_s = time.monotonic()
        self.patience_s = patience_s
        self.told: dict[Told, None] = {}


class NameLookups:
    """The lookups of a process that are under way."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a child that was forked: the threads are its parent's, and so may be who holds the lock."""
        self._guard = threading.Lock()
        self._under_way: dict[tuple[str, int], _Lookup] = {}

    def ask(self, host: str, tell: Told, flags: int = 0) -> Callable[[], object]:
        """Look a name up, or join a lookup of it that is under way. Return what is called by one who waits no more."""
        with contextlib.suppress(socket.gaierror):  # what is no name needs no thread
            tell(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=flags | socket.AI_NUMERICHOST))
            return lambda: None
        key = host, flags
        with self._guard:
            lookup, joined = self._under_way.get(key), True
            if lookup is None or time.monotonic() - lookup.begun_s > lookup.patience_s:
                lookup, joined = _Lookup(_PATIENCE_S if lookup is None else 2 * lookup.patience_s), False
                self._under_way[key] = lookup
            told = lookup.told
            told[tell] = None
        if not joined:
            # Not under the lock: where threads are greenlets, the new one may run at once, and to its end.
            self._begin(key, lookup)
        return lambda: told.pop(tell, None)

    def _begin(self, key: tuple[str, int], lookup: _Lookup) -> None:
        try:
            threading.Thread(target=self._look_up, args=(key, lookup), name="name lookup", daemon=True).start()
        except BaseException as error:  # such as: as many threads as this process may have
            self._over(key, lookup, OSError(errno.EAGAIN, f"no thread to look up {key[0]!r}: {error}"))
            if not isinstance(error, Exception):
                raise

    def _look_up(self, key: tuple[str, int], lookup: _Lookup) -> None:
        found: Found
        host, flags = key
        try:
            found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=flags)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            found = error.with_traceback(None)  # which would hold all who wait
        self._over(key, lookup, found)

    def _over(self, key: tuple[str, int], lookup: _Lookup, found: Found) -> None:
        with self._guard:
            if self._under_way.get(key) is lookup:
                del self._under_way[key]
            told = list(lookup.told)
            lookup.told.clear()
        for tell in told:
            tell(found)

    async def addresses(self, address: HostPort, flags: int = 0) -> Addresses:
        """Return the socket addresses of a host's name, as `socket.getaddrinfo` does. Raises `OSError`, `ValueError`.
        The `CancelledError` of one that is broken off has a note which says so: see `polonaise.host.broken_off`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Found] = loop.create_future()

        def settle(found: Found) -> None:
            if not done.done():
                done.set_result(found)

        def tell(found: Found) -> None:
            with contextlib.suppress(Exception):  # the loop has ended: nobody waits
                loop.call_soon_threadsafe(settle, found)

        leave = self.ask(address.host, tell, flags)
        try:
            found = await done
        except asyncio.CancelledError as cancelled:
            if done.cancelled():
                cancelled.add_note(unanswered(address.host))
            raise
        finally:
            leave()
        if isinstance(found, BaseException):
            raise _own(found)
        return [(*each, (place[0], address.port, *place[2:])) for *each, place in found]


def unanswered(*hosts: str) -> str:
    """Return that the name service has not answered for these hosts."""
    return f"the name service has not answered for {', '.join(map(repr, hosts))}"


def _own(error: BaseException) -> Exception:
    """Return the error for one of those who wait: raised by several, one would have the tracebacks of all."""
    if isinstance(error, OSError | ValueError):
        with contextlib.suppress(TypeError):  # a class of its own may take other arguments
            return type(error)(*error.args)
    return OSError(f"{type(error).__name__}: {error}")


names: Final = NameLookups()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=names.forget)
