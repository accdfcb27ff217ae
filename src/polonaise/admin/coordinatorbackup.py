"""Back a coordinator's values up to a file, and make them again after the coordinator has lost them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from polonaise.admin.asking import ask_health, ask_noted, values_in
from polonaise.admin.belief import SHUT_OUT, outdated_in, some
from polonaise.checksum import crc32
from polonaise.coordination import Coordinator
from polonaise.coordination.backend import PUT_BACK, newer
from polonaise.coordination.rebuilding import (
    Lack,
    NodeAnswer,
    Noted,
    all_noted,
    lacking,
    newest_description,
    newest_expected,
    rebuilt,
    told_descriptions,
)
from polonaise.coordination.values import ClusterDescription, ExpectedServers
from polonaise.errors import (
    AlreadyInitialized,
    BadOption,
    CoordinatorDamaged,
    CoordinatorLost,
    CoordinatorNewer,
    CoordinatorOutdated,
    DirectoryInUse,
    NotInitialized,
    PolonaiseError,
    RecoveryUnsafe,
    UnsupportedFormat,
    fault,
)
from polonaise.host import Host
from polonaise.host.files import try_lock, with_own_errors
from polonaise.host.replacing import replaced
from polonaise.log.control import CONTROL_FILE
from polonaise.node.embedded import (
    STORAGE_MAX,
    EmbeddedHost,
    clear_sockets,
    coordinator_of,
    is_log,
    lock_path,
    parse_embedded,
    storage_directory,
    storage_names,
    storage_settings,
)
from polonaise.redaction import redacted
from polonaise.storage.node import StorageNode
from polonaise.terms import ServerId, StorageId
from polonaise.wire.messages import ROLE_SERVER

_MAGIC: Final = "polonaise-coordinator-backup"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class RecoveredCluster:
    """What `recover` has made."""

    description: ClusterDescription
    silent: Mapping[StorageId, str]
    """The storage nodes that did not answer, and were not needed, with the reason."""
    lacking: Lack = field(default_factory=Lack)
    """What the description lacks that was to be believed although values and promises tell of more."""


async def backup(coordinator: Coordinator) -> Noted:
    described = await coordinator.description()
    partitions = await values_in(coordinator, range(described.value.total))
    unique_id, expected = await coordinator.unique_ids_given(), await coordinator.expected_servers()
    return Noted(
        described.value, described.version, unique_id, partitions,
        expected.version, expected.value if expected.version >= 0 else None,
    )  # fmt: skip


def write_backup(path: Path, noted: Noted) -> None:
    """Write a backup to a file, or keep what is there. Raises faults of the disk, and `BadOption`."""
    document = json.dumps(noted.document(), sort_keys=True).encode()
    raw = f"{_MAGIC} {_FORMAT} {crc32(document):08x}\n".encode() + document + b"\n"

    def write() -> None:
        with replaced(path) as file:
            file.write(raw)

    with_own_errors(str(path), write)


def check_replaces_no_later(path: Path, noted: Noted) -> None:
    """Raise `CoordinatorOutdated` if the file is a backup with later values, and `BadOption` if of another cluster.

    Raises what `read_backup` does for one that may be either, as it can't be read: of a newer version, or the disk's
    fault.
    """
    consent = "Nothing was written: name another file, or replace it with --force"
    try:
        kept = read_backup(path) if path.is_file() else None
    except PolonaiseError as error:
        if isinstance(error, CoordinatorDamaged) and not isinstance(error, UnsupportedFormat):
            return  # no backup, or a damaged one: nothing is lost with it
        raise type(error)(f"{error.text}. {consent}") from error
    if kept is None or kept.description is None or noted.description is None:
        return
    if kept.description.key != noted.description.key:
        raise BadOption(f"{path} is a backup of another cluster, {kept.description.key.hex()}. {consent}")
    if kept.version > noted.version:
        later = "of the cluster's description"
    elif behind := [
        partition
        for partition, value in sorted(noted.partitions.items())
        if (before := kept.partitions.get(partition)) is not None
        and (before.session > value.session or before.generation > value.generation)
    ]:
        later = f"of partitions {some(behind)}"
    # Each try to start a session has raised the numbers since.
    elif (outdated := outdated_in(noted.partitions)) and not outdated_in(kept.partitions):
        later = f"of partitions {some(outdated)}"
    elif kept.unique_id > noted.unique_id or kept.expected_version > noted.expected_version:
        later = "of how many ids were given out, or of which servers there are to be"
    else:
        return
    raise CoordinatorOutdated(
        f"{path} is a later backup of this cluster: it has later values than the coordinator, {later}. So the "
        f"coordinator {PUT_BACK}: keep that backup. {consent}"
    )


def read_backup(path: Path) -> Noted:
    """Return the values in a backup. Raises `CoordinatorDamaged`, `UnsupportedFormat`, and faults of the disk."""
    raw = with_own_errors(str(path), path.read_bytes)
    head, _, document = raw.partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if words[0] == _MAGIC and len(words) > 1 and words[1] != str(_FORMAT):
        raise UnsupportedFormat(
            f"{path} is of format {redacted(words[1], 20)}; this version of Polonaise reads {_FORMAT}"
        )
    document = document.removesuffix(b"\n")
    if words[0] != _MAGIC or len(words) != 3 or words[2] != f"{crc32(document):08x}":
        raise CoordinatorDamaged(f"{path} is no backup of a coordinator, or damaged: take another one")
    try:
        return Noted.of(json.loads(document))
    except CoordinatorNewer as error:
        raise newer(str(path), error.text) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CoordinatorDamaged(f"{path} is no valid backup of a coordinator: {error}") from error


async def recover(
    host: Host,
    coordinator: Coordinator,
    known: Noted | None,
    nodes: Mapping[StorageId, str],
    timeout_s: float,
    confirmed: str = "",
    believed: str = "",
) -> RecoveredCluster:
    """Make the values of a coordinator that has lost them again, from a backup and what the storage nodes tell.

    `nodes` are storage nodes that are asked first; the description that they or the backup know names the others. While
    a server is connected to a storage node, or answers itself, `cluster_in_use` is raised, unless `confirmed` is the
    cluster's key. Raises `AlreadyInitialized`, and `RecoveryUnsafe` with every reason; nothing was changed then.
    `believed`, one of the names of `told_descriptions`, says whose description counts if two can't both be right, or
    the latest can't be.
    """
    try:
        await coordinator.describe()
    except (NotInitialized, CoordinatorLost):
        pass
    else:
        raise AlreadyInitialized(
            f"{coordinator} holds a cluster, and nothing was changed: "
            "if it is an older copy, or one of its values is missing or damaged, move it away first (with ZooKeeper: "
            "recover into another path, and start the servers with that); else there is nothing to recover"
        )
    answers: dict[StorageId, NodeAnswer] = {}
    silent: dict[StorageId, str] = {}
    others: dict[StorageId, str] = {}
    to_ask = dict(nodes) if known is None or known.description is None else {**known.description.nodes, **nodes}
    if not to_ask:
        raise RecoveryUnsafe("no storage node is known: name some with --storage, or give a backup's file")
    # Once more with those that the first ones tell of.
    for _ in range(2):
        await _ask_all(host, to_ask, answers, silent, others, timeout_s)
        try:
            _, description = newest_description(all_noted(known, answers))
        except RecoveryUnsafe as error:
            raise _with_whys(error, silent) from None
        _, description = told_descriptions(known, answers).get(believed, (0, description))
        to_ask = {name: address for name, address in description.nodes.items() if name not in answers}
    expected = newest_expected(all_noted(known, answers))
    running = await _running(host, expected, description.key, timeout_s)
    # A node that only the command's user names so has answered under its own name.
    silent |= {name: why for name, why in others.items() if name in description.nodes}
    unanswered = {name: why for name, why in silent.items() if name not in answers}
    try:
        description, beginning = rebuilt(known, answers, confirmed, running, believed)
    except RecoveryUnsafe as error:
        raise _with_whys(error, unanswered) from None
    await coordinator.initialize(description, beginning)
    return RecoveredCluster(description, unanswered, lacking(description, known, answers))


def _with_whys(error: RecoveryUnsafe, silent: Mapping[StorageId, object]) -> RecoveryUnsafe:
    """Return the error with what kept each of these storage nodes from telling."""
    told = "; ".join(f"{name}: {why}" for name, why in silent.items())
    return RecoveryUnsafe(f"{error.text}. {told}" if told else error.text)


async def _running(
    host: Host, expected: ExpectedServers | None, cluster_key: bytes, timeout_s: float
) -> dict[ServerId, str]:
    """Return the servers that answer, each with its address: cut off from storage nodes, they may work all the same."""
    # By their addresses: of several that had one, the last is the one that may answer there.
    last = {each.address: each.server for each in sorted(expected.servers.values())} if expected is not None else {}
    told = await asyncio.gather(*(ask_health(host, each, ROLE_SERVER, cluster_key, timeout_s) for each in last))
    running: dict[ServerId, str] = {}
    for (address, server), each in zip(last.items(), told, strict=True):
        if isinstance(each, dict):
            # One that tells no number is running all the same.
            number = each.get("server")
            running[number if isinstance(number, int) else server] = address
        elif isinstance(each, SHUT_OUT):
            # One that says so is running. An earlier version lets nobody in with the certificate of this command.
            running[server] = address
    return running


async def _ask_all(
    host: Host,
    nodes: Mapping[StorageId, str],
    answers: dict[StorageId, NodeAnswer],
    silent: dict[StorageId, str],
    others: dict[StorageId, str],
    timeout_s: float,
) -> None:
    async def ask(given: StorageId, address: str) -> None:
        try:
            name, answer = await ask_noted(host, address, timeout_s)
        except PolonaiseError as error:
            silent[given] = str(error)
            return
        answers[name or given] = answer
        if name not in (None, given):
            others[given] = f"storage node {name} answers at {address}: give its own address with --storage"

    await asyncio.gather(*(ask(name, address) for name, address in nodes.items()))


_log = logging.getLogger(__name__)


async def recover_embedded(address: str, known: Noted | None, timeout_s: float, believed: str = "") -> RecoveredCluster:
    """Make the values of an embedded log's coordinator again, as `recover` does, from its storage directories.

    Raises `DirectoryInUse` if the log is open anywhere, `not_embedded_log`, and what `recover` raises.
    """
    directory = parse_embedded(address).directory
    host = EmbeddedHost(directory)
    try:
        if not await is_log(host.disk, directory):
            raise fault("not_embedded_log", f"there is no embedded log in {directory}: correct the path")
        try:
            lock = try_lock(lock_path(directory))
        except DirectoryInUse:
            raise DirectoryInUse(f"a process has the log in {directory} open: close it everywhere first") from None
        try:
            return await _recover(host, directory, known, timeout_s, believed)
        finally:
            lock.release()
    finally:
        host.close()


async def _recover(
    host: EmbeddedHost, directory: str, known: Noted | None, timeout_s: float, believed: str
) -> RecoveredCluster:
    """Recover with the storage nodes running in this process. The caller holds the host's lock."""
    await clear_sockets(host.disk, directory)
    unusable: dict[StorageId, PolonaiseError] = {}
    async with contextlib.AsyncExitStack() as closing:
        coordinator = coordinator_of(host, directory)
        closing.push_async_callback(coordinator.close)
        nodes = {}
        for number, name in enumerate(storage_names(STORAGE_MAX)):
            # A node would make a directory that is missing, and an empty one would tell of a cluster without a log.
            if await host.disk.exists(posixpath.join(storage_directory(directory, number), CONTROL_FILE)):
                node = StorageNode(host, storage_settings(directory, number, name, None))
                try:
                    await node.start()
                except PolonaiseError as error:
                    _log.warning("%s can't be used: %s", storage_directory(directory, number), error)
                    unusable[name] = error
                    continue
                closing.push_async_callback(node.close)
                nodes[name] = name
        try:
            return await recover(host, coordinator, known, nodes, timeout_s, believed=believed)
        except RecoveryUnsafe as error:
            raise _with_whys(error, unusable) from None
