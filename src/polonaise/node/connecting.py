"""`polonaise.connect`: from an address to a log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from polonaise.client.applicationhost import ApplicationHost
from polonaise.client.connected import Partitioner
from polonaise.client.log import Log, Serializer
from polonaise.client.protocol.arguments import wrong
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View
from polonaise.errors import BadOption
from polonaise.node.addresses import coordinator_at
from polonaise.node.place import Place
from polonaise.terms import BodyForm, PartitionId


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
    """Open the log at `address`: `async with polonaise.connect("embedded:./bank") as log`.

    - `embedded:PATH` is a log in a directory of a local disk, without anything to set up or start. It is made when
      there is none, with `?storage=N` copies on this disk (1 unless said) and `&partitions=N` (1). Several processes
      may have it open: the first one hosts it for all, another takes over within about a second when that one goes.
      With `?host=no` this process only attaches to a log that is there, and waits while nobody hosts it. With
      `?fragments=URL` (quoted as in any URL) it is archived to that store, from which it reads what was trimmed; the
      directory remembers it, so that no other process has to say it.
    - `file:PATH` is the coordinator's directory of a cluster on this machine.

    For the other options see `Log`. Raises `BadOption` for an address that cannot be meant, or that speaks of another
    log than the one that is there; `NotInitialized` when there is no cluster (no embedded log, with `host=no`);
    `NotEmbeddedLog`, `UnsupportedFormat`, `AccessDenied`, `DiskFull` and what else is wrong with the directory.
    """
    if not isinstance(address, str):
        raise wrong("address", address, "an address is text: embedded:PATH or file:PATH")
    scheme = address.partition(":")[0]
    if scheme == "embedded":
        from polonaise.node.attachment import attached  # loads a server: not for a client of a cluster

        place = attached(address, settings or ClientSettings())
    elif scheme == "file":
        place = _cluster(address, settings or ClientSettings())
    else:
        raise BadOption(
            f"{address!r} is no address of a log: write embedded:PATH for a log in a directory of its own, or "
            "file:PATH, the directory of a cluster's coordinator"
        )
    async with place as at:
        log = Log(
            at.host,
            at.coordinator,
            view=view,
            settings=at.settings,
            serializer=serializer,
            partitioner=partitioner,
            partitions=partitions,
            bodies=bodies,
            wants=wants,
            header_filter=header_filter,
        )
        at.host.on_fail = log.fail
        at.tell_failures(log.fail)
        async with log:
            yield log


@asynccontextmanager
async def _cluster(address: str, settings: ClientSettings) -> AsyncIterator[Place]:
    host = ApplicationHost()
    try:
        coordinator = coordinator_at(host, address)
        try:
            yield Place(host, coordinator, settings)
        finally:
            await coordinator.close()
    finally:
        host.close()
