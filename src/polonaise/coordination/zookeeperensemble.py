"""Asks each server of a ZooKeeper ensemble whether it serves: a session only tells of the one that it found."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from polonaise.coordination.backend import NotAsked
from polonaise.coordination.zookeeperdata import NOT_SERVING
from polonaise.coordination.zookeepersession import dialling_context
from polonaise.errors import CertificateUnusable
from polonaise.host import broken_off
from polonaise.host.address import HostPort, parse_address
from polonaise.host.files import too_many_open
from polonaise.host.sockets import dial
from polonaise.host.tls import TlsFiles, TlsIdentity

_WORD: Final = b"srvr"
"""Answered by default, also over TLS: it says whether the server serves."""
_SERVES: Final = "Mode: "
_NO_TLS: Final = bytes(8)
"""No message of TLS begins so. A server with TLS waits for more than `_WORD`, as if it hung; after these bytes it ends
the connection."""
_TLS_ALERT: Final = b"\x15\x03"
_ONLY_TLS: Final = "only TLS"
_ANSWER_BYTES_MAX: Final = 65_536


async def ensemble_troubles(hosts: str, tls: TlsFiles | None, timeout_s: float) -> dict[str, str]:
    """Return why each server of an ensemble does not serve, by its address; an empty text for one that does. `hosts`
    are addresses, joined by commas; each has `timeout_s` seconds, at the same time. What keeps this process itself from
    asking is a `NotAsked`."""
    addresses = [address.strip() for address in hosts.split(",")]
    asked = [_trouble_of(address, tls, timeout_s) for address in addresses]
    return dict(zip(addresses, await asyncio.gather(*asked), strict=True))


async def _trouble_of(address: str, tls: TlsFiles | None, timeout_s: float) -> str:
    parsed = parse_address(address)
    assert isinstance(parsed, HostPort)
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _answer(parsed, None if tls is None else dialling_context(TlsIdentity(tls)), timeout_s / 2)
    except CertificateUnusable as error:
        return NotAsked(f"can't be asked: {error}")
    except TimeoutError as error:
        return f"did not answer within {timeout_s:g} s: {broken_off(error) or 'it hangs, or is cut off'}"
    except ssl.SSLError as error:
        return f"TLS failed: {error.reason or error}"
    except OSError as error:
        if (exhausted := too_many_open(error, "can't be asked")) is not None:
            return NotAsked(exhausted.text)
        return f"can't be reached: {error.strerror or error}"
    if answer == _ONLY_TLS:
        return "ends connections without TLS: it has TLS only; name this process's files (POLONAISE_TLS_CA, …)"
    if _SERVES in answer:
        return ""
    if NOT_SERVING in answer:
        return "does not serve: it has not joined a majority of the ensemble"
    # One that may not tell, by its `4lw.commands.whitelist`, has answered all the same.
    return "" if answer else "closed the connection without an answer"


async def _answer(address: HostPort, context: ssl.SSLContext | None, patience_s: float) -> str:
    """Return all that a server answers; `_ONLY_TLS` if it says nothing for `patience_s` and takes no plain bytes."""
    name = None if context is None else address.host
    reader, writer = await asyncio.open_connection(sock=await dial(address), ssl=context, server_hostname=name)
    try:
        writer.write(_WORD)
        reading = asyncio.ensure_future(_all_of(reader))
        try:
            await asyncio.wait([reading], timeout=patience_s)
            if is_tried := context is None and not reading.done():
                writer.write(_NO_TLS)
            try:
                answer = await reading
            except ConnectionError:
                if not is_tried:
                    raise
                answer = b""
        finally:
            reading.cancel()
        refused = is_tried and (not answer or answer.startswith(_TLS_ALERT))
        return _ONLY_TLS if refused else answer.decode(errors="replace")
    finally:
        writer.close()


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    received = b""
    while len(received) < _ANSWER_BYTES_MAX and (part := await reader.read(4096)):
        received += part
    return received
