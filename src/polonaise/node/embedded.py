"""The embedded log: a whole cluster in one directory, hosted by one of the processes that have it open.

::

    <directory>/
      polonaise-embedded      says what the directory is, and of which format
      host.lock               locked for as long as a process hosts; holds its process id
      coordinator/            the coordinator, as `coordination.file` keeps it
      storage-<n>/            the directory of storage node n
      sockets/                where the nodes listen; without meaning while no process hosts
      staging/                rows on their way from Spark into the log, if there ever were any
      fragments               the address of the fragment store, where the log has one

The hosting process (`node.hostelection`) runs the same nodes as any cluster has, in one event loop. Every process, the
host's own application included, is a client of these nodes through the sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import posixpath
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, NoReturn
from urllib.parse import parse_qsl

from polonaise.coordination import Coordinator
from polonaise.coordination.file import coordinator_in
from polonaise.coordination.values import DESCRIPTION, ClusterDescription
from polonaise.errors import (
    BadOption,
    ConnectionLost,
    CoordinatorDamaged,
    DirectoryGone,
    NotFound,
    PolonaiseError,
    Retry,
    TooManyOpenFiles,
    UnsupportedFormat,
    fault,
    fresh,
)
from polonaise.host import Disk, Host, ProtocolFactory, write_whole
from polonaise.host.real import RealHost
from polonaise.host.sockets import SocketDirectory
from polonaise.log.control import LOCK_FILE
from polonaise.node.addresses import COORDINATOR, MARKER, SOCKETS, absolute_store, holds_embedded, lacks_only_marker
from polonaise.node.processes import cluster_at, give_store, history_in
from polonaise.redaction import has_unescaped_password, redacted, redacted_address, redacted_part, redacted_repr
from polonaise.server.node import Server
from polonaise.server.protocol.recovery import quorum
from polonaise.server.settings import ServerSettings
from polonaise.storage.node import StorageNode
from polonaise.storage.refusing import RefusingNode
from polonaise.storage.settings import StorageSettings
from polonaise.terms import PARTITIONS_MAX

_log = logging.getLogger(__name__)

SCHEME: Final = "embedded:"
FORMAT: Final = 1
"""The version of the directory's layout."""
HOST_LOCK: Final = "host.lock"
STORAGE_MAX: Final = 7
SEGMENT_BYTES_MAX: Final = 32 * 1024 * 1024
SEGMENT_BATCHES_MAX: Final = 32_768
"""Fewer than in other clusters: a process that takes over reads what the last segment's index does not cover, and all
of it when registers changed there, while every client waits."""

RESTORING: Final = "polonaise-restoring"
"""The file in a directory into which a log is being restored, until that log is whole."""
_MEMBERS_LOOKS_PER_S: Final = 1
"""Hardly anybody changes where copies are of a log in one directory."""
_STORAGE: Final = "storage-"
_FRAGMENTS: Final = "fragments"
_MARK: Final = f"{MARKER} {FORMAT}\n"
_USAGE: Final = (
    "write embedded:PATH, with ?storage=3, partitions=4, fragments=URL or host=no after it (joined by &) as needed"
)


@redacted_repr
class EmbeddedAddress(NamedTuple):
    """The parts of an address `embedded:PATH?…`."""

    directory: str
    """The directory, as an absolute path."""
    storage: int | None = None
    """The number of storage directories; None for what the existing log has, or 1."""
    partitions: int | None = None
    """The number of partitions; None for what the existing log has, or 1."""
    may_host: bool = True
    """False if this process may only attach to the log."""
    fragments: str | None = None
    """The address of the fragment store; None for the one that the log's directory names, if any."""

    def check(self, description: ClusterDescription) -> None:
        """Raise `BadOption` if the existing log has other numbers."""
        for option, given, existing in (
            ("storage", self.storage, len(description.storage)),
            ("partitions", self.partitions, description.partitions),
        ):
            if given is not None and given != existing:
                raise BadOption(
                    f"the log in {self.directory} was made with {option}={existing}, for good, but the address has "
                    f"{option}={given}: leave it out, or choose another directory for another log"
                )


def parse_embedded(address: str) -> EmbeddedAddress:
    """Parse an address; raises `BadOption`."""
    path, _, query = address.removeprefix(SCHEME).partition("?")
    if not path or "\0" in path:
        raise BadOption(f"{redacted_address(address)!r} names no directory: {_USAGE}")
    options: dict[str, str] = {}
    for option, value in parse_qsl(query, keep_blank_values=True):
        if option not in ("storage", "partitions", "host", "fragments") or option in options:
            raise BadOption(
                f"{redacted_address(address)!r}: unknown or repeated option {redacted_part(option, address)!r}: "
                f"{_USAGE}"
            )
        options[option] = value
    host = options.get("host", "yes")
    if host not in ("yes", "no"):
        raise BadOption(
            f"{redacted_address(address)!r}: invalid host={redacted_part(host, address)!r}: write host=no to "
            "attach only, or host=yes"
        )
    return EmbeddedAddress(
        os.path.abspath(path),
        _count(address, options, "storage", STORAGE_MAX),
        _count(address, options, "partitions", PARTITIONS_MAX),
        host == "yes",
        _store_address(address, options.get("fragments")),
    )


def _store_address(address: str, url: str | None) -> str | None:
    """Return a store's address that means the same in every process, whatever its working directory."""
    if url is None:
        return None
    if not url.strip() or any(ord(character) < 32 for character in url):
        raise BadOption(
            f"{redacted_address(address)!r}: invalid fragments={redacted_address(url)!r}: write a directory, or "
            "s3://…, gs://…, az://…"
        )
    if "://" in url and has_unescaped_password(url):
        raise BadOption(
            f"{redacted_address(address)!r}: invalid fragments={redacted_address(url)!r}: in a password, @ is written "
            "%40, / is written %2F and so on, and all of the URL is quoted once more"
        )
    return absolute_store(url)


def _count(address: str, options: dict[str, str], option: str, most: int) -> int | None:
    text = options.get(option)
    if text is None:
        return None
    # The length first: Python refuses to make a number of thousands of digits.
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise BadOption(
            f"{redacted_address(address)!r}: invalid {option}={redacted_part(text, address)}: write a number "
            f"from 1 to {most}"
        )
    return int(text)


# ---------------------------------------------------------------------- the directory


def storage_names(count: int) -> tuple[str, ...]:
    """Return the addresses of so many storage nodes."""
    return tuple(f"unix:storage-{number}" for number in range(count))


def storage_directory(directory: str, number: int) -> str:
    return posixpath.join(directory, f"{_STORAGE}{number}")


async def check_coordinator(disk: Disk, directory: str) -> None:
    """Raise `CoordinatorDamaged` if storage directories hold something and the description of the log is gone.

    A description is durable before storage directories are made, so it is looked for once more at the end: a log that
    is being made has not lost its coordinator.
    """
    coordinator = posixpath.join(directory, COORDINATOR)
    description = posixpath.join(coordinator, DESCRIPTION)
    if await disk.exists(description):
        return  # then a fault of a storage directory is its node's to tell
    not_empty = []
    for name in sorted(await disk.list(directory)):
        if name.startswith(_STORAGE) and name.removeprefix(_STORAGE).isdecimal():
            try:
                contents = set(await disk.list(posixpath.join(directory, name)))
            except PolonaiseError:  # a disk that is away may hold the log
                contents = {name}
            if contents - {LOCK_FILE}:
                not_empty.append(name)
    if not not_empty or await disk.exists(description):
        return
    first = posixpath.join(directory, not_empty[0])
    raise CoordinatorDamaged(
        f"the embedded log in {directory} has lost its coordinator: {description} is missing, but "
        f"{', '.join(not_empty)} hold data of the log. Nothing was changed. Restore {coordinator} as it was last, or "
        f"have it made again: polonaise cluster recover --coordinator {SCHEME}{directory}. What is in each storage "
        f"directory can be read without it: polonaise segment read {first} --partition 0, or Spark with the cluster "
        f"storage:{first}"
    )


def lock_path(directory: str) -> str:
    return posixpath.join(directory, HOST_LOCK)


def coordinator_of(host: Host, directory: str) -> Coordinator:
    """Return the log's coordinator. Nobody takes over from a host that lives."""
    return coordinator_in(host, posixpath.join(directory, COORDINATOR), alone=True)


async def is_log(disk: Disk, directory: str) -> bool:
    """Whether the directory holds an embedded log; False if one may be made there.

    Raises `not_embedded_log` for a directory with other contents, `UnsupportedFormat`, and faults of the disk.
    """
    try:
        names = await disk.list(directory)
    except NotFound:
        return False
    if MARKER in names:
        _check_marker(directory, await disk.load(posixpath.join(directory, MARKER)))
        return True
    if RESTORING in names:
        raise fault(
            "not_embedded_log", f"a restore into {directory} was not finished: run it again, with the same command"
        )
    if lacks_only_marker(names):
        raise fault(
            "not_embedded_log",
            f"{directory} holds an embedded log, of which only the file {MARKER} is missing: {_marker_back(directory)}",
        )
    # A process that died while it made one leaves no more than this.
    others = sorted(set(names) - {HOST_LOCK, f"{MARKER}.new"})
    if others:
        raise fault(
            "not_embedded_log",
            f"{directory} is not an embedded log and not empty (it holds {', '.join(others[:3])}): nothing was "
            "touched; choose an empty or a new directory, or for the coordinator of a cluster write file:PATH",
        )
    return False


def _marker_back(directory: str) -> str:
    """Return what brings a log back of which only the marker is missing or damaged, as an advice."""
    return (
        "leave the rest as it is, and put that file back; if this version has written the log, with: echo "
        f"'{_MARK.strip()}' > {shlex.quote(posixpath.join(directory, MARKER))}"
    )


def is_there(address: str) -> bool:
    """Whether the directory of this address holds an embedded log, even one that can't be opened. Blocks."""
    return holds_embedded(parse_embedded(address).directory)


def _check_marker(directory: str, raw: bytes) -> None:
    words = raw.decode("ascii", "replace").split()
    if len(words) != 2 or words[0] != MARKER or not words[1].isdigit():
        raise fault(
            "not_embedded_log",
            f"{directory}/{MARKER} is not what any version of Polonaise writes: nothing was touched; choose another "
            f"directory, or, if this one holds a log otherwise, {_marker_back(directory)}",
        )
    if words[1] != str(FORMAT):
        raise UnsupportedFormat(
            f"{directory} is an embedded log of format {words[1]}; this version of Polonaise reads format {FORMAT}: "
            "run the version that wrote it, or a newer one"
        )


async def make_log(disk: Disk, directory: str) -> None:
    """Mark the directory as an embedded log, durably. The caller holds the host's lock."""
    await write_whole(disk, directory, MARKER, [_MARK.encode()])


async def fragments_of(disk: Disk, directory: str) -> str | None:
    """Return the address of the fragment store that the log's directory names, if any.

    Raises `BadOption` for an empty file: the log has a store, and must not go on as one that has none.
    """
    file = posixpath.join(directory, _FRAGMENTS)
    try:
        contents = await disk.load(file)
    except NotFound:
        return None
    store = contents.decode(errors="replace").strip()
    if not store:
        raise BadOption(f"{file}, which says where the log's fragments are, is empty: write their address into it")
    return store


def check_fragments(address: EmbeddedAddress, existing: str | None) -> None:
    """Raise `BadOption` if the address names another fragment store than the log's directory: any process may host the
    log, and then relies upon the store.
    """
    if address.fragments is None or address.fragments == existing:
        return
    file, option = posixpath.join(address.directory, _FRAGMENTS), f"fragments={redacted(address.fragments)}"
    if existing is None:
        raise BadOption(
            f"the log in {address.directory} has no fragment store, and only the process that hosts it can add "
            f"{option}: close the log in all processes, then open it first with this address"
        )
    raise BadOption(
        f"the fragments of the log in {address.directory} are in {redacted(existing)}, according to {file}, but the "
        f"address has {option}: leave it out; or, if the fragments have moved, write their address into that file "
        "while no process has the log open"
    )


async def _settle_fragments(disk: Disk, address: EmbeddedAddress, cluster_key: bytes) -> str | None:
    """Return the fragment store of the log: the one that its directory names, or else the one of the address, which is
    then made, marked and written there.
    """
    existing = await fragments_of(disk, address.directory)
    if existing is None and address.fragments is not None:
        await give_store(address.fragments, cluster_key)
        await write_whole(disk, address.directory, _FRAGMENTS, [f"{address.fragments}\n".encode()])
        return address.fragments
    check_fragments(address, existing)
    return existing


async def clear_sockets(disk: Disk, directory: str) -> None:
    """Remove all sockets, which belong to hosts that have ended. The caller holds the host's lock."""
    sockets = posixpath.join(directory, SOCKETS)
    await disk.make_directory(sockets)
    for name in await disk.list(sockets):
        await disk.remove(posixpath.join(sockets, name))


# ---------------------------------------------------------------------- the machine


class EmbeddedSockets(SocketDirectory):
    """The network of an embedded log: Unix sockets in its directory, by bare names."""

    def __init__(self, directory: str, machine: RealHost) -> None:
        super().__init__(posixpath.join(directory, SOCKETS), machine.network)
        self._log_directory = directory

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect to a node; if it can't, `ConnectionLost` says that no process hosts the log."""
        try:
            return await super().connect(address, factory)
        except ConnectionLost as error:
            if isinstance(error.__cause__, TooManyOpenFiles):
                raise  # that says nothing of the host
            raise ConnectionLost(
                f"nobody hosts the embedded log in {self._log_directory} at the moment; an application that has it "
                f"open without host=no takes over within about a second ({error.text})"
            ) from error


class NodesStopped(BaseException):
    """Ends the task in which `EmbeddedHost.fail` stopped the nodes; no `Exception`, so that no handler of faults
    catches it.
    """


class EmbeddedHost(RealHost):
    """The host of nodes within an application's process: `fail` stops the nodes alone."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.network = EmbeddedSockets(directory, self)
        self.failure: BaseException | None = None
        """Why the nodes stopped themselves, if they have."""

    def fail(self, error: BaseException) -> None:
        """Stop the nodes as the end of their process would: cut them off from the disk, and end their loop.

        The first call raises `NodesStopped`; later ones do nothing.
        """
        if self.failure is not None:
            return
        self.failure = error
        # Of a directory that somebody took away, the place in our code says nothing.
        trace = None if isinstance(error, DirectoryGone) else error
        _log.critical("the embedded log stops here: %s", error, exc_info=trace)
        self.cut_off_disk()  # first: whatever still runs until the loop ends must not write
        asyncio.get_running_loop().stop()
        raise NodesStopped


# ---------------------------------------------------------------------- the nodes


def storage_settings(directory: str, number: int, listen: str, cluster_key: bytes | None) -> StorageSettings:
    return StorageSettings(
        directory=storage_directory(directory, number),
        listen=listen,
        cluster_key=cluster_key,
        segment_bytes_max=SEGMENT_BYTES_MAX,
        segment_batches_max=SEGMENT_BATCHES_MAX,
    )


async def _start_storage(
    host: Host, directory: str, description: ClusterDescription, closing: contextlib.AsyncExitStack
) -> None:
    """Start the storage nodes of all directories that can be opened, if they are a quorum.

    For each other directory a node runs that only tells servers what is wrong with it. Without a quorum raises the
    fault of the first, with the faults of all; and at once a fault that may pass.
    """
    unusable: list[tuple[StorageSettings, PolonaiseError]] = []
    for number, name in enumerate(description.storage):
        settings = storage_settings(directory, number, description.address_of(name), description.key)
        node = StorageNode(host, settings)
        try:
            await node.start()
        except PolonaiseError as error:
            if error.retry is not Retry.NEVER:
                raise
            unusable.append((settings, error))
        else:
            closing.push_async_callback(node.close)
    if len(description.storage) - len(unusable) < quorum(description.storage):
        raise _too_few(description, unusable)
    for settings, reason in unusable:
        _log.error(
            "the embedded log in %s goes on without %s, until it is mended and the log is opened again: %s",
            directory,
            settings.directory,
            reason,
        )
        refusing = await RefusingNode.start(host, settings, reason)
        closing.push_async_callback(refusing.close)


def _too_few(
    description: ClusterDescription, unusable: Sequence[tuple[StorageSettings, PolonaiseError]]
) -> PolonaiseError:
    """Return the fault of the first storage directory that can't be used, with the others in its message."""
    first = fresh(unusable[0][1])
    if len(unusable) > 1:
        reasons = "; ".join(f"{posixpath.basename(settings.directory)}: {error}" for settings, error in unusable)
        first.args = (
            f"{len(unusable)} of {len(description.storage)} storage directories can't be used, and "
            f"{quorum(description.storage)} are needed: {reasons}",
        )
    return first


async def host_log(host: EmbeddedHost, address: EmbeddedAddress, started: Callable[[], None]) -> None:
    """Run the nodes of the log until cancelled; make the log if there is none. The caller holds the host's lock.

    Calls `started` when the nodes serve. Raises what is wrong with the directory, and `BadOption` if the log
    contradicts the address.
    """
    directory = address.directory
    if await is_log(host.disk, directory):
        await check_coordinator(host.disk, directory)
    else:
        await make_log(host.disk, directory)
    await clear_sockets(host.disk, directory)
    async with contextlib.AsyncExitStack() as closing:
        coordinator = coordinator_of(host, directory)
        closing.push_async_callback(coordinator.close)
        # The description before any storage directory: data without one would look like a log that has lost its
        # coordinator. Then the comparison: an address that contradicts the log must not give it a fragment store.
        names, partitions = storage_names(address.storage or 1), address.partitions or 1
        description = await cluster_at(coordinator, dict(zip(names, names, strict=True)), partitions, address.fragments)
        address.check(description)
        fragments = await _settle_fragments(host.disk, address, description.key)
        await _start_storage(host, directory, description, closing)
        settings = ServerSettings(
            # A new name for each host: a connection to an earlier host's server is never taken for one to this server.
            listen=f"unix:server-{secrets.token_hex(4)}",
            members_looks_per_s=_MEMBERS_LOOKS_PER_S,
        )
        server = await Server.start(host, coordinator, settings, history_in(fragments))
        # Last, so that it is closed first: a server that closes still tells the storage nodes what is committed.
        closing.push_async_callback(server.close)
        started()
        files = {MARKER: _MARK} | ({} if fragments is None else {_FRAGMENTS: f"{fragments}\n"})
        await keep_files(host.disk, directory, files, beside=HOST_LOCK)


_KEPT_LOOK_S: Final = 1.0


async def keep_files(disk: Disk, directory: str, files: Mapping[str, str], *, beside: str) -> NoReturn:
    """Write those of the files again that somebody removes, empties or changes, as long as `beside` is there, too."""
    amiss: set[str] = set()
    logged = ""
    while True:
        await asyncio.sleep(_KEPT_LOOK_S)
        try:
            there = await disk.exists(posixpath.join(directory, beside))
            # Only what is amiss at two looks, and not without the other file: all of it may be being removed.
            before, amiss = amiss, {name for name in files if not await _is_whole(disk, directory, name, files[name])}
            for name in sorted(before & amiss) if there else ():
                await write_whole(disk, directory, name, [files[name].encode()])
                _log.warning("%s/%s was removed or changed while the log ran, and was written again", directory, name)
            logged = ""
        except PolonaiseError as error:
            if str(error) != logged:
                logged = str(error)
                _log.error("%s may lack one of its small files: %s", directory, error)


async def _is_whole(disk: Disk, directory: str, name: str, contents: str) -> bool:
    try:
        return await disk.load(posixpath.join(directory, name)) == contents.encode()
    except NotFound:
        return False
