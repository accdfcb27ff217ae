"""Addresses of coordinators and storage nodes, as command-line options and `polonaise.connect` take them."""

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
"""The name of the file that makes a directory an embedded log's."""
COORDINATOR: Final = "coordinator"
"""The directory of an embedded log's coordinator, within the log's."""


def coordinator_at(host: Host, address: str) -> Coordinator:
    """Return the coordinator at `file:PATH`.

    Raises `BadOption` for any other address, and for the coordinator of an embedded log: a client or server that went
    around the embedded log's host would not be part of its election.
    """
    scheme, separator, location = address.partition(":")
    if not separator or not location:
        raise BadOption(f"invalid coordinator address {redacted(address)!r}: write file:PATH")
    if "\0" in location:
        raise BadOption(f"invalid coordinator address {redacted(address)!r}: write file:PATH, without a zero byte")
    if scheme != "file":
        raise BadOption(f"unknown kind of coordinator {scheme!r}: write file:PATH")
    path = os.path.abspath(location)
    parent, own = os.path.split(path)
    # The marker is in the embedded log's directory; PATH may name that, or the coordinator's directory within it.
    for directory in (path, parent) if own == COORDINATOR else (path,):
        if os.path.exists(os.path.join(directory, MARKER)):
            raise BadOption(
                f"{redacted(address)!r} is the coordinator of an embedded log, which is opened by its directory: write "
                f"embedded:{redacted(directory)}"
            )
    return coordinator_in(host, path)


def check_storage_address(address: str) -> None:
    """Raise `BadOption` unless a storage node can be reached at this address, also after it was started again."""
    parsed = parse_address(address)
    if isinstance(parsed, HostPort) and not parsed.port:
        raise BadOption(
            f"invalid storage node address {redacted(address)!r}: "
            "with port 0 it would be another one at every start; write a fixed port"
        )
