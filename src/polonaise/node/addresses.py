"""Coordinator addresses, as options and `polonaise.connect` take them."""

from __future__ import annotations

import os
from typing import Final

from polonaise.coordination import Coordinator
from polonaise.coordination.file import coordinator_in
from polonaise.errors import BadOption
from polonaise.host import Host
from polonaise.host.address import HostPort, parse_address
from polonaise.redaction import redacted

MARKER: Final = "polonaise-embedded"
"""Says in a directory that it is an embedded log's."""
COORDINATOR: Final = "coordinator"
"""The directory of an embedded log's coordinator, in its own."""


def coordinator_at(host: Host, address: str) -> Coordinator:
    """The coordinator behind `file:PATH`. Raises `BadOption` for anything else, and for that of an embedded log."""
    scheme, separator, location = address.partition(":")
    if not separator or not location:
        raise BadOption(f"{redacted(address)!r} is no coordinator address: write file:PATH")
    if "\0" in location:
        raise BadOption(f"{redacted(address)!r} is no file:PATH: no path holds a zero byte")
    if scheme != "file":
        raise BadOption(f"no coordinator of kind {scheme!r}: this version knows file:PATH")
    path = os.path.abspath(location)
    parent, own = os.path.split(path)
    for directory in (path, parent) if own == COORDINATOR else (path,):
        if os.path.exists(os.path.join(directory, MARKER)):
            raise BadOption(
                f"{redacted(address)!r} is of an embedded log, which is reached through its directory alone: write "
                f"embedded:{redacted(directory)}"
            )
    return coordinator_in(host, path)


def check_storage_address(address: str) -> None:
    """Raises `BadOption` unless a storage node can be reached under this, also after it was started again."""
    parsed = parse_address(address)
    if isinstance(parsed, HostPort) and not parsed.port:
        raise BadOption(f"{redacted(address)!r} is no storage node's address: port 0 is another one at every start")
