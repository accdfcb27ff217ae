"""Addresses as text: `host:port` and `unix:/path`, read the same way by every host."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple, TypeAlias

from polonaise.errors import BadOption
from polonaise.redaction import redacted_address

_UNIX = "unix:"


class HostPort(NamedTuple):
    """A TCP endpoint, without the brackets in which an IPv6 host is written."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class UnixPath(NamedTuple):
    path: str

    def __str__(self) -> str:
        return _UNIX + self.path


Address: TypeAlias = HostPort | UnixPath


def parse_address(text: str) -> Address:
    """Return the address in the text; raises `BadOption`."""
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if not path or "\0" in path:
            raise BadOption(f"{redacted_address(text)!r} is not the address of a socket: write unix:/path/to/socket")
        return UnixPath(path)
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadOption(
            f"{redacted_address(text)!r} is not an address: an IPv6 host is written in brackets, [::1]:9000, "
            "and commas separate addresses"
        )
    # The length first: Python refuses to make a number of thousands of digits.
    if not colon or not host or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65_535:
        raise BadOption(
            f"{redacted_address(text)!r} is not an address: write host:port (port 0 to 65535) or unix:/path"
        )
    if not _may_be_host(host):
        raise BadOption(
            f"{redacted_address(text)!r} is not an address: no host has this name; write host:port, where the "
            "parts of host between dots have 1 to 63 letters each"
        )
    return HostPort(host, int(port))


def _may_be_host(host: str) -> bool:
    """Whether a host's name can be encoded for look-up. A socket would raise `ValueError`."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return "\0" not in host


def is_every_interface(address: Address) -> bool:
    """Whether this names all interfaces, as `0.0.0.0` and `[::]` do: nobody can connect to that."""
    if not isinstance(address, HostPort):
        return False
    if ":" not in address.host:
        # Systems read short forms as well, such as 0 and 0x0.0.
        return address.host.startswith("0") and set(address.host.lower()) <= set("0x.")
    try:
        parsed = ipaddress.IPv6Address(address.host)
    except ValueError:
        return False
    return parsed.is_unspecified or (parsed.ipv4_mapped is not None and parsed.ipv4_mapped.is_unspecified)
