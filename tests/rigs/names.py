"""Keeps what a test does off the network's name service: what that answers, and when, would be part of the test."""

from __future__ import annotations

import os
import socket
from typing import Any, Final

_real: Final = socket.getaddrinfo
_looked_up: list[str] = []


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
