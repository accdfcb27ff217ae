"""`polonaise.connect`: from an address to a log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from polonaise.client.log import Log, Partitioner, Serializer
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View
from polonaise.coordination import Coordinator
from polonaise.errors import BadOption
from polonaise.host import Host
from polonaise.terms import BodyForm, PartitionId

_FILE = "file:"


@asynccontextmanager
async def connect(
    address: str,
    *,
    view: View | RunView | None = None,
    settings: ClientSettings | None = None,
    serializer: Serializer | None = None,
    partitioner: Partitioner | None = None,
    partitions: Collection[PartitionId] | None = None,
    bodies: BodyForm = BodyForm.INLINE,
    wants: Callable[[int], bool] | None = None,
    header_filter: tuple[int, int] | None = None,
) -> AsyncIterator[Log]:
    """Connect to the cluster whose coordinator is at `address`: `async with polonaise.connect("file:PATH") as log`.

    `file:PATH` is the directory of a coordinator on this machine. For the other options see `Log`. Raises `BadOption`
    for an address that cannot be meant, `NotInitialized` when there is no cluster.
    """
    from polonaise.client.applicationhost import ApplicationHost

    host = ApplicationHost()
    coordinator = coordinator_at(address, host)
    try:
        log = Log(
            host,
            coordinator,
            view=view,
            settings=settings,
            serializer=serializer,
            partitioner=partitioner,
            partitions=partitions,
            bodies=bodies,
            wants=wants,
            header_filter=header_filter,
        )
        host.on_fail = log.fail
        async with log:
            yield log
    finally:
        await coordinator.close()
        host.close()


def coordinator_at(address: str, host: Host) -> Coordinator:
    """The coordinator that an address names. Raises `BadOption` for one that cannot be meant."""
    from polonaise.coordination.file import FileCoordinator

    path = address.removeprefix(_FILE)
    if not address.startswith(_FILE) or not path:
        raise BadOption(f"{address!r} is no address of a log: this version takes file:PATH, a coordinator's directory")
    return FileCoordinator(host, path)
