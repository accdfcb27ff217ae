"""Keeps what a test does off the network's name service, whose answers would be part of it; and one that is silent."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any, Final

_real: Final = socket.getaddrinfo
_looked_up: list[str] = []
_WAIT_S: Final = 20.0


def keep_to_this_machine() -> None:
    """Have every name that this machine does not know by itself be unknown at once; for programs, within a second."""
    socket.getaddrinfo = _answered_here
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # read by the C library


def looked_up() -> list[str]:
    """Return the names that the network would have been asked for since the last call.

    Those that end with `.invalid` (RFC 2606) are no mistake: a test that means a host that is none says so by it.
    """
    names, _looked_up[:] = [name for name in _looked_up if not name.endswith(".invalid")], []
    return names


def _answered_here(host: Any, port: Any, *rest: int, **named: int) -> list[Any]:
    if host in (None, "", b"", "localhost", socket.gethostname()):
        return _real(host, port, *rest, **named)
    family, kind, number, flags = (*rest, *(0,) * (4 - len(rest)))
    family, kind = named.get("family", family), named.get("type", kind)
    number, flags = named.get("proto", number), named.get("flags", flags)
    try:
        return _real(host, port, family, kind, number, flags | socket.AI_NUMERICHOST)
    except socket.gaierror:
        if not flags & socket.AI_NUMERICHOST:
            _looked_up.append(host if isinstance(host, str) else str(host))
        raise


class SilentNameService:
    """Answers `socket.getaddrinfo` for names only once it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.answered: list[str] = []
        self.errors: list[Exception] = []
        """What it fails with first."""
        self.addresses: dict[str, str] = {}
        """By name that it knows."""

    def answer(self, **addresses: str) -> None:
        """Answer all that was asked, and know these names from now on; return once all lookups under way are over."""
        self.addresses.update(addresses)
        self.answers.set()
        for thread in threading.enumerate():
            if thread.name == "name lookup":
                thread.join(_WAIT_S)

    def getaddrinfo(self, host: str, port: int, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0) -> Any:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "a name")
        self.asked.append(host)
        assert self.answers.wait(_WAIT_S)
        self.answered.append(host)
        if self.errors:
            raise self.errors.pop()
        if host in self.addresses:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.addresses[host], port))]
        raise socket.gaierror(socket.EAI_NONAME, "nobody knows it")
