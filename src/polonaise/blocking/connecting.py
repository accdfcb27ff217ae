"""`polonaise.blocking.connect`: opens a log, and keeps it open in a background thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from polonaise.blocking.background import Background
from polonaise.blocking.log import Log
from polonaise.client.options import Serializer
from polonaise.client.partitions import Partitioner
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View
from polonaise.errors import Closed
from polonaise.host.tls import TlsFiles
from polonaise.node import connecting
from polonaise.redaction import redacted_address
from polonaise.terms import BodyForm, PartitionId

T = TypeVar("T")
F = TypeVar("F")


def connect(
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
    wait: float | None = None,
    tls: TlsFiles | None = None,
) -> Log:
    # ---- from polonaise.node.connecting by `make blocking`: change it there
    """Open the log at `address`, and return it, connected; use it as a context manager, or `close` it.

    ::

        with polonaise.blocking.connect("embedded:./bank", view=balances) as log:
            log.append(b"1 100", partition=0).result()

    Addresses:

    - `embedded:PATH` is a log in a directory of a local disk, with nothing to set up or start. If there is none, it is
      made, with `?storage=N` copies on this disk (default 1) and `&partitions=N` (default 1). Several processes may
      have it open: the first one hosts it for all, and another takes over within about a second when that one ends.
      With `?host=no` this process only attaches to an existing log, and waits while no process hosts it. With
      `?fragments=URL` (quoted as in any URL) the log has that fragment store: what was trimmed is read from there, and
      `polonaise archive run` writes to it. The directory remembers the store, so that others need not name it.
    - `polonaise://HOST:PORT,HOST:PORT` names some servers of a cluster, two or three of them. Any one that answers
      tells this client which server owns what, and each change of it: it needs no access to the coordinator.
    - `file:PATH` is the coordinator's directory of a cluster on this machine.
    - `zookeeper://HOST:PORT,…/ROOT` is the coordinator of a cluster in a ZooKeeper ensemble. Needs the extra
      `polonaise[zookeeper]`.

    A cluster may have topics, whose partitions are 0, 1, 2, … each. `polonaise://HOST:PORT,HOST:PORT/TOPIC`,
    `zookeeper://HOST:PORT,…/ROOT?topic=TOPIC` and `file:PATH?topic=TOPIC` open one. Without a topic these addresses
    open the log's own partitions, which are in no topic.

    `wait`: for how many seconds to wait for a cluster that does not exist yet, or does not answer; after that raises
    `DeadlineExceeded`, with the last error. Without `wait` that error is raised at once. By its coordinator's address
    a cluster without a server is connected to at once in any case; requests to it wait.

    `tls`: the files of this process's TLS identity, for a cluster whose nodes have TLS, with a certificate for the role
    of a client. Without it those that POLONAISE_TLS_CA, POLONAISE_TLS_CERTIFICATE and POLONAISE_TLS_KEY name in the
    environment; without these either, connections are plain. An embedded log has sockets in its directory, and no TLS.

    For the other options see `Log`. Raises `BadOption` for an invalid address or option, or an address that contradicts
    the existing log; `UnknownTopic` for a topic that the cluster lacks; `NotInitialized` if there is no cluster (no
    embedded log, with `host=no`); `servers_unavailable` if none of the servers answers, and `WrongRole`,
    `WrongClusterKey`, `UnsupportedVersion`, `TlsRequired`, `TlsNotSpoken` or `CertificateRefused` if for that reason
    none of them can; `CoordinatorUnavailable` without an answer of the coordinator, the one that is named or that of
    the servers, and `ExtraMissing` without the library for it; `not_embedded_log`,
    `UnsupportedFormat`, `CoordinatorDamaged`, `AccessDenied`, `DiskFull`, and other faults of the directory;
    `CertificateUnusable` for TLS files; `host_failed` if this process should host the log and can't run its nodes; and
    `half_patched`.

    Which thread calls the view, the partitioner and the serializer is said in `polonaise.blocking`.
    """
    return _connect(
        address,
        view=view,
        settings=settings,
        serializer=serializer,
        partitioner=partitioner,
        partitions=partitions,
        bodies=bodies,
        wants=wants,
        header_filter=header_filter,
        wait=wait,
        tls=tls,
    )


# ---- by hand: what differs for threads


def _connect(address: str, **options: Any) -> Log:
    return hold(lambda: connecting.connect(address, **options), f"polonaise {redacted_address(address)}", Log)


def hold(
    make: Callable[[], AbstractAsyncContextManager[T]],
    name: str,
    face: Callable[[Background, T, Callable[[], Awaitable[None]]], F],
) -> F:
    """Enter an asynchronous context manager in a new background thread; return its face for threads, made of the
    thread, of what entering returns, and of what leaves it. Raises what entering raises."""
    context = TaskBoundContext(make)
    background = Background(name)
    try:
        return face(background, background.call(context.open), context.close)
    except BaseException:  # also when broken off by a handler of signals
        background.close(context.close)
        raise


class TaskBoundContext(Generic[T]):
    """An asynchronous context manager that one task enters and leaves, whichever task calls `open` and `close`. Each
    `Background.call` has a task of its own, and a timeout may be left only by the task that entered it."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._task: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._is_open = False

    async def open(self) -> T:
        """Enter the context manager, and return what entering returns. Raises what entering raises."""
        opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(opened))
        return await opened

    async def _hold(self, opened: asyncio.Future[T]) -> None:
        try:
            async with self._make() as value:
                self._is_open = True
                opened.set_result(value)
                await self._leave.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
        finally:
            if not opened.done():
                opened.set_exception(Closed("the log was closed before it was open: connect a new one"))

    async def close(self) -> None:
        """Leave the context manager, or break off entering it. Raises what leaving raises."""
        self._leave.set()
        if self._task is not None:
            if not self._is_open:
                self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()
