"""`polonaise.connect`: opens the log at an address."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from polonaise.client.applicationhost import ApplicationHost
from polonaise.client.discovery import Discovery
from polonaise.client.log import Log
from polonaise.client.options import Serializer, check_options
from polonaise.client.partitions import Partitioner
from polonaise.client.protocol.arguments import checked_seconds, wrong
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.serverdiscovery import ServerDiscovery
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View
from polonaise.errors import (
    BadOption,
    CoordinatorUnavailable,
    DeadlineExceeded,
    DiskFailed,
    DiskFull,
    NotFound,
    NotInitialized,
    PolonaiseError,
    Retry,
    fresh,
)
from polonaise.host import broken_off
from polonaise.host.tls import CLIENT, TlsFiles, tls_identity
from polonaise.node.addresses import LOG_FORMS, LOG_SCHEMES, SERVERS, coordinator_at, servers_at, split_topic
from polonaise.node.location import LogLocation
from polonaise.redaction import redacted_address
from polonaise.terms import BodyForm, PartitionId

_TRY_S = 1.0
"""So long the first attempt has at least, however short `wait` is."""


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
    wait: float | None = None,
    tls: TlsFiles | None = None,
) -> AsyncIterator[Log]:
    """Open the log at `address`, and close it when the context ends.

    ::

        async with polonaise.connect("embedded:./bank", view=balances) as log:
            await log.append(b"1 100", partition=0)

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
    """
    if not isinstance(address, str):
        raise wrong("address", address, f"an address is text: {LOG_FORMS}")
    wait_s = checked_seconds("wait", wait)
    options: dict[str, Any] = {
        "view": view, "serializer": serializer, "partitioner": partitioner, "partitions": partitions,
        "bodies": bodies, "wants": wants, "header_filter": header_filter,
    }  # fmt: skip
    check_options(settings=settings, **options)
    if tls is not None and not isinstance(tls, TlsFiles):
        raise wrong("tls", tls, "the TLS files are polonaise.TlsFiles(ca=…, certificate=…, key=…)")
    settings = settings or ClientSettings()
    async with AsyncExitStack() as stack:
        if wait_s is None:
            log = await stack.enter_async_context(_opened(address, settings, options, tls))
        else:
            log = await _waited_for(wait_s, address, settings, options, tls, stack)
        yield log


async def _waited_for(
    wait_s: float,
    address: str,
    settings: ClientSettings,
    options: dict[str, Any],
    tls: TlsFiles | None,
    stack: AsyncExitStack,
) -> Log:
    """Return the log as soon as it can be opened. Raises `DeadlineExceeded` after `wait_s` seconds.

    An error that waiting can't mend is raised at once.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    deadline_s = began_s + wait_s
    backoff = Backoff(settings.retry_s_min, settings.retry_s_max)
    trouble: PolonaiseError | None = None
    silence = ""
    while True:
        limit = asyncio.timeout_at(max(deadline_s, began_s + _TRY_S))
        try:
            async with limit:
                return await stack.enter_async_context(_opened(address, settings, options, tls))
        except TimeoutError as error:
            if not limit.expired():
                raise
            silence = broken_off(error)
        except PolonaiseError as error:
            # A cluster that does not exist is an error of its own, but may be about to be made.
            if error.retry is not Retry.AGAIN and not isinstance(error, NotInitialized | NotFound):
                raise
            trouble = error
        left_s = deadline_s - loop.time()
        if left_s < settings.retry_s_min:
            why = silence or (str(trouble) if trouble is not None else "it did not answer")
            raise DeadlineExceeded(f"no log at {redacted_address(address)} within {wait_s:g} s: {why}") from trouble
        # Never more than half of the time that is left, so that the last attempt is close to its end.
        await asyncio.sleep(min(backoff.pause_s(random.random()), left_s / 2))


@asynccontextmanager
async def _opened(
    address: str, settings: ClientSettings, options: dict[str, Any], tls: TlsFiles | None
) -> AsyncIterator[Log]:
    address, topic = split_topic(address)
    scheme = address.partition(":")[0]
    if scheme == "embedded":
        from polonaise.node.attachment import attached  # loads a server: not for a client of a cluster

        location = attached(address, settings)
    elif scheme in LOG_SCHEMES:
        location = _cluster(address, settings, tls)
    else:
        raise BadOption(
            f"{redacted_address(address)!r} is no address of a log: write embedded:PATH for a log in a "
            "directory of its own; for a cluster, some of its servers, polonaise://HOST:PORT,…, or its "
            "coordinator, file:PATH or zookeeper://HOST:PORT,…/ROOT"
        )
    async with AsyncExitStack() as stack:
        try:
            at = await stack.enter_async_context(location)
            log = Log(at.host, at.discovery, settings=at.settings, topic=topic, **options)
            # Before the log is started: its first task may fail already.
            at.host.on_fail = log.fail
            at.tell_failures(log.fail)
            log.whereabouts = at.whereabouts
            try:
                await stack.enter_async_context(log)
            except asyncio.CancelledError as cancelled:  # for who waits no longer, see `polonaise.host.broken_off`
                if told := at.discovery.trouble:
                    cancelled.add_note(told)
                raise
        except (DiskFull, DiskFailed, CoordinatorUnavailable) as error:
            raise _with_reading_hint(error, address) from error
        yield log


def _with_reading_hint(error: PolonaiseError, address: str) -> PolonaiseError:
    """Return the fault; for an existing embedded log, with a hint how to read its storage directories."""
    if not address.startswith("embedded:"):
        return error
    from polonaise.node.embedded import is_there, parse_embedded, storage_directory

    fault, first = fresh(error), storage_directory(parse_embedded(address).directory, 0)
    if is_there(address):
        fault.args = (
            f"{error.text}. The log can't be opened until that is mended; what each storage directory holds can be "
            f"read without it: polonaise segment read {first} --partition 0",
        )
    return fault


@asynccontextmanager
async def _cluster(address: str, settings: ClientSettings, tls: TlsFiles | None) -> AsyncIterator[LogLocation]:
    identity = tls_identity(CLIENT, tls)
    pid, host = os.getpid(), ApplicationHost(identity)
    discovery: Discovery | None = None
    try:
        if address.partition(":")[0] == SERVERS:
            discovery = ServerDiscovery(host, servers_at(address), settings)
        else:
            discovery = coordinator_at(host, address, identity)
        yield LogLocation(host, discovery, settings)
    finally:
        if os.getpid() == pid:  # in a forked child, which ends, they are its parent's
            try:
                if discovery is not None:
                    await discovery.close()
            finally:
                host.close()
