"""A node of the soak: `python -m polonaise_proving.stages.soaknode storage DIRECTORY` or `server COORDINATOR`.

As `polonaise storage run` and `polonaise server run`, with settings that make an hour pass in minutes: small caches and
segments are full soon, short deadlines expire often.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

from polonaise.host.real import Main, run
from polonaise.host.stopsignals import stop_when_stdin_ends
from polonaise.node.processes import run_server, run_storage
from polonaise.server.settings import ServerSettings
from polonaise.storage.settings import StorageSettings

PARTITIONS: Final = 2
SEGMENT_BYTES: Final = 64 * 1024


def body(operation: str, padding: int = 0) -> bytes:
    """Return a transaction's body: the operation that it belongs to, and meaningless bytes."""
    return f"{operation} ".encode() + bytes(padding)


def partition_of(operation: str) -> int:
    return int(operation.split("/")[1])


def ready(address: str) -> None:
    print(f"listening {address}", flush=True)  # noqa: T201


def storage(directory: str) -> Main:
    settings = StorageSettings(directory=directory, segment_bytes_max=SEGMENT_BYTES)
    return lambda host: run_storage(host, settings, ready)


def server(coordinator: str) -> Main:
    settings = ServerSettings(
        cache_bytes_max=128 * 1024,
        lock_entries=1 << 12,
        coordinator_s_max=1.0,
        pulse_s=2.0,
        checkpoint_transactions=5_000,
    )
    return lambda host: run_server(host, coordinator, {}, PARTITIONS, settings, ready)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop_when_stdin_ends()
    if sys.argv[1] == "storage":
        run(storage(sys.argv[2]), syncs_in_loop=True)
    else:
        run(server(sys.argv[2]))
