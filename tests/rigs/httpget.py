"""Asks a node over HTTP, with bytes on a socket: tests see what is really said."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

from rigs.waiting import PATIENCE_S


class HttpSaid(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    """By their names in small letters."""
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        """The body as a JSON object."""
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed


async def dialled(address: str, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection on which nothing was said yet."""
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), **options)


async def exchanged(address: str, sent: bytes) -> bytes:
    """Send these bytes, and return all that comes until the other side ends the connection."""
    reader, writer = await dialled(address)
    try:
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def http_get(address: str, path: str, *, method: str = "GET", accept: str = "") -> HttpSaid:
    """Ask for a path, and return the answer."""
    headers = f"Accept: {accept}\r\n" if accept else ""
    return parsed(await exchanged(address, f"{method} {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n".encode()))


def parsed(raw: bytes) -> HttpSaid:
    """Parse an answer."""
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return HttpSaid(int(status.split()[1]), headers, body)
