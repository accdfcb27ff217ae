"""The coordinator of one machine: a directory that several processes share, durable, without a service to run.

::

    <directory>/
      description · assignment · unique-id · partition-<p>    one value each, replaced whole
      <value>.new                                             a change that was not finished; swept
      initializing                                            the cluster is being made: no description yet
      change.lock · members.lock                              held while a value, or the membership, changes
      members/<server id>                                     locked for its process's life; holds its registration

A value's file is one line, which names the format, the cluster, the value, its version and a CRC-32 over all, and
then the value as JSON: an operator can look at it with `cat`, and a file of another cluster or another partition does
not pass for the one it lies in place of.

**Network file systems are not supported.** Locks and renames do not keep their promises there, and nothing in the
disk port can tell such a directory from a local one: keeping it on a local disk is up to whoever chooses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from polonaise.coordination.directory import (
    CHANGE_LOCK,
    MEMBERS_LOCK,
    UNFINISHED,
    Sealed,
    ValueDirectory,
    damaged,
    seal,
    unseal,
)
from polonaise.coordination.values import (
    Assignment,
    Beginning,
    ClusterDescription,
    PartitionValue,
    Registration,
    Versioned,
)
from polonaise.errors import (
    AlreadyInitialized,
    BadOption,
    Closed,
    CoordinatorDamaged,
    CoordinatorUnavailable,
    DirectoryInUse,
    DiskFailed,
    DiskFull,
    NotADirectory,
    NotFound,
    NotInitialized,
    PolonaiseError,
    UnknownPartition,
    WrongClusterKey,
)
from polonaise.host import DirectoryLock, Host
from polonaise.terms import PartitionId, ServerId

UNIQUE_ID_MAX: Final = 2**31 - 1

_DESCRIPTION: Final = "description"
_ASSIGNMENT: Final = "assignment"
_UNIQUE_ID: Final = "unique-id"
_PARTITION: Final = "partition-"
_INITIALIZING: Final = "initializing"
_MEMBERS: Final = "members"
_SYNC_TRIES: Final = 3

T = TypeVar("T")


@contextlib.contextmanager
def _door(what: str, *, changes: bool = True) -> Iterator[None]:
    """What the disk says, in the coordinator's words."""
    try:
        yield
    except (DiskFull, DiskFailed) as error:
        doubt = ". The change may have been made: read again" if changes else ""
        raise CoordinatorUnavailable(f"{what}: {error.text}{doubt}") from error
    except NotFound as error:
        raise CoordinatorDamaged(
            f"{what}: {error.text}. The coordinator's directory was removed while in use: stop the cluster's "
            "processes and restore it as it was last"
        ) from error


class FileMembership:
    """A registration: a locked file. The kernel unlocks it at the process's death, however it dies."""

    def __init__(self, coordinator: FileCoordinator, server: ServerId, lock: DirectoryLock) -> None:
        self._coordinator = coordinator
        self._lock: DirectoryLock | None = lock
        self.server = server

    async def leave(self) -> None:
        """End the registration. Doing it twice is no error."""
        if self._lock is not None:
            await self._coordinator._leave(self)

    def release(self) -> None:
        """Unlock the file: from now on this is a dead member's."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


class FileCoordinator:
    """A coordinator in a directory on a local disk; any number of processes may have it open.

    A change holds an OS lock while it reads, compares and replaces, so no update is lost; it is durable before
    anybody is told of it, and a crash at any point leaves the old value or the new one. Readers take no lock. What a
    reader returns is durable too: at the first sight of a version it syncs the directory, or a power loss could take
    back a session that somebody has acted upon.

    A value that is missing, torn, damaged, or older than this process has seen it, is refused and never taken for an
    empty one. A process that is *stopped* (not dead) within a change holds the lock: the others wait `lock_wait_s`
    and then say so.
    """

    def __init__(self, host: Host, directory: str, *, lock_wait_s: float = 10.0, poll_s: float = 0.05) -> None:
        """`poll_s`: how often `assignment_after` looks."""
        self._values = ValueDirectory(host, directory, lock_wait_s)
        self._directory = directory
        self._poll_s = poll_s
        self._closed = False
        self._description: ClusterDescription | None = None
        self._seen: dict[str, int] = {}
        self._memberships: dict[ServerId, FileMembership] = {}

    # -------------------------------------------------------------- the port

    async def initialize(self, description: ClusterDescription, beginning: Beginning | None = None) -> None:
        """Make the cluster. Cut short at any point, it leaves no cluster, and can be done again.

        With `beginning`, of a log that was restored from elsewhere.
        """
        self._check_open()
        with _door(f"making {self._directory}", changes=False):
            await self._values.make()
        with _door(f"making a cluster in {self._directory}"):
            await self._values.alone(CHANGE_LOCK, lambda: self._initialize(description, beginning or Beginning()))

    async def describe(self) -> ClusterDescription:
        self._check_open()
        with _door(f"reading the cluster in {self._directory}", changes=False):
            try:
                return await self._describe()
            except NotADirectory as error:
                if self._description is not None:  # it was one: what happened to it may be put right
                    raise
                raise BadOption(
                    f"{self._directory} is not a directory: file:PATH names the directory that holds a cluster's "
                    "description, or that is made for a new cluster"
                ) from error

    async def partition(self, partition: PartitionId) -> Versioned[PartitionValue]:
        return await self._get(await self._partition_name(partition), PartitionValue.decode)

    async def set_partition(
        self, partition: PartitionId, value: PartitionValue, expected_version: int
    ) -> Versioned[PartitionValue] | None:
        name = await self._partition_name(partition)
        version = await self._compare_and_set(name, value.encode(), expected_version, PartitionValue.decode)
        return None if version is None else Versioned(version, value)

    async def assignment(self) -> Versioned[Assignment]:
        return await self._get(_ASSIGNMENT, Assignment.decode)

    async def assignment_after(self, version: int) -> Versioned[Assignment]:
        while True:
            current = await self.assignment()
            if current.version > version:
                return current
            await asyncio.sleep(self._poll_s)

    async def set_assignment(self, value: Assignment, expected_version: int) -> Versioned[Assignment] | None:
        version = await self._compare_and_set(_ASSIGNMENT, value.encode(), expected_version, Assignment.decode)
        return None if version is None else Versioned(version, value)

    async def unique_id(self) -> int:
        """A number never given out before: durable before it is returned. One that no caller got is not used again."""
        self._check_open()
        with _door(f"taking a unique id from {self._directory}"):
            await self._cluster()
            return await self._values.alone(CHANGE_LOCK, self._next_unique_id)

    async def register(self, registration: Registration) -> FileMembership:
        """Announce this process. Doing it again changes nothing, so that a lost result is no trouble.

        `DirectoryInUse` when another living process has registered under this server id.
        """
        self._check_open()
        with _door(f"registering server {registration.server} in {self._directory}"):
            cluster = await self._cluster()
            return await self._values.alone(MEMBERS_LOCK, lambda: self._enter(cluster.key, registration))

    async def members(self) -> list[Registration]:
        self._check_open()
        with _door(f"reading the members in {self._directory}", changes=False):
            cluster = await self._cluster()
            return await self._values.alone(MEMBERS_LOCK, lambda: self._living(cluster.key))

    async def close(self) -> None:
        """End this process's registrations and its use of the directory; changes under way are brought to their end.

        Later calls raise `Closed`. Waits at most as long as a change waits for its lock.
        """
        if self._closed:
            return
        self._closed = True
        for server in sorted(self._memberships):
            with contextlib.suppress(CoordinatorUnavailable, CoordinatorDamaged):
                await self._memberships[server].leave()
        await self._values.settle()

    # -------------------------------------------------------------- values

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the coordinator in {self._directory} was closed by this process")

    async def _get(self, name: str, decode: Callable[[bytes], T]) -> Versioned[T]:
        self._check_open()
        with _door(f"reading {self._values.path(name)}", changes=False):
            await self._cluster()
            await self._values.settle_abandoned()
            found = await self._read(name)
        return Versioned(found.version, self._decoded(name, found, decode))

    async def _compare_and_set(
        self, name: str, payload: bytes, expected_version: int, decode: Callable[[bytes], object]
    ) -> int | None:
        """The new version, or None when the value has another version than the expected one."""

        async def change() -> int | None:
            found = await self._read(name)
            self._decoded(name, found, decode)
            if found.version != expected_version:
                return None
            await self._replace(name, found.cluster_key, expected_version + 1, payload)
            return expected_version + 1

        self._check_open()
        with _door(f"changing {self._values.path(name)}"):
            await self._cluster()
            return await self._values.alone(CHANGE_LOCK, change)

    async def _next_unique_id(self) -> int:
        found = await self._read(_UNIQUE_ID)
        if found.version >= UNIQUE_ID_MAX:
            raise PolonaiseError(f"all {UNIQUE_ID_MAX} unique ids of {self._directory} have been given out")
        number = found.version + 1
        await self._replace(_UNIQUE_ID, found.cluster_key, number, b"{}")
        return number

    async def _partition_name(self, partition: PartitionId) -> str:
        self._check_open()
        with _door(f"reading the cluster in {self._directory}", changes=False):
            cluster = await self._cluster()
        if not 0 <= partition < cluster.partitions:
            raise UnknownPartition(f"partition {partition} of a cluster with {cluster.partitions} partitions")
        return f"{_PARTITION}{partition}"

    async def _cluster(self) -> ClusterDescription:
        """The description, which never changes, from memory when it was read before."""
        return self._description or await self._describe()

    async def _describe(self) -> ClusterDescription:
        raw = await self._values.load(_DESCRIPTION)
        if raw is None:
            await self._refuse_without_description()
            raw = await self._values.load(_DESCRIPTION) or b""
        found = self._checked(_DESCRIPTION, raw)
        description = self._decoded(_DESCRIPTION, found, ClusterDescription.decode)
        if description.key != found.cluster_key:
            raise damaged(self._values.path(_DESCRIPTION), "it names two cluster keys")
        await self._witness(_DESCRIPTION, found.version)
        self._description = description
        return description

    async def _refuse_without_description(self) -> None:
        """Say why there is no description; returns when it has appeared meanwhile."""
        path = self._values.path(_DESCRIPTION)
        if self._description is not None:
            raise damaged(path, "it is missing, and this process has read it before")
        names = await self._values.names()
        if _INITIALIZING not in names and any(_is_value(name) for name in names):
            if await self._values.disk.exists(path):
                return
            raise damaged(path, "it is missing, and other values of its cluster are there")
        if _DESCRIPTION not in names:
            raise NotInitialized(
                f"no cluster in {self._directory}: correct the path, or wait until the first server has made it "
                "(polonaise server run --coordinator … --storage …)"
            )

    def _decoded(self, name: str, found: Sealed, decode: Callable[[bytes], T]) -> T:
        try:
            return decode(found.payload)
        except CoordinatorDamaged as error:
            raise damaged(self._values.path(name), error.text) from error

    async def _read(self, name: str) -> Sealed:
        """The value's file, checked and durable."""
        floor = self._seen.get(name, -1)
        raw = await self._values.load(name)
        if raw is None:
            raise damaged(self._values.path(name), "it is missing, in a cluster that has it")
        found = self._checked(name, raw)
        if found.version < floor:
            raise damaged(self._values.path(name), f"it went back from version {floor} to {found.version}")
        await self._witness(name, found.version)
        return found

    def _checked(self, name: str, raw: bytes) -> Sealed:
        path = self._values.path(name)
        found = unseal(name, raw, path)
        if self._description is not None and found.cluster_key != self._description.key:
            raise WrongClusterKey(
                f"{path} belongs to cluster {found.cluster_key.hex()}, this process to "
                f"{self._description.key.hex()}: the directory was replaced under it"
            )
        return found

    async def _witness(self, name: str, version: int) -> None:
        """Before a version is told for the first time, make sure that it stays."""
        if version > self._seen.get(name, -1):
            await self._values.sync()
            self._seen[name] = max(version, self._seen.get(name, -1))

    async def _replace(self, name: str, cluster_key: bytes, version: int, payload: bytes) -> None:
        """Put a new value in place, durably. Only with the change lock held.

        The new value can be seen from the rename on, and syncing again after a failed sync proves nothing: so it is
        put in place anew before this is given up.
        """
        contents = seal(name, cluster_key, version, payload)
        for tries_left in reversed(range(_SYNC_TRIES)):
            await self._values.put(name, contents)
            try:
                await self._values.sync()
                break
            except DiskFailed:
                if not tries_left:
                    raise
        self._seen[name] = version

    # -------------------------------------------------------------- making a cluster

    async def _initialize(self, description: ClusterDescription, beginning: Beginning) -> None:
        """The description comes last: without it there is no cluster, and with it the cluster is whole."""
        try:
            await self._describe()
        except NotInitialized:
            pass
        else:
            raise AlreadyInitialized(f"{self._directory} holds a cluster: use it, or choose an empty directory")
        key = description.key
        await self._values.put(_INITIALIZING, seal(_INITIALIZING, key, 0, b"{}"))
        await self._values.sync()
        initial = PartitionValue.initial(description.storage)
        for partition in range(description.partitions):
            name = f"{_PARTITION}{partition}"
            value = beginning.partitions.get(partition, initial)
            await self._values.put(name, seal(name, key, 0, value.encode()))
        await self._values.put(_ASSIGNMENT, seal(_ASSIGNMENT, key, 0, beginning.assignment.encode()))
        await self._values.put(_UNIQUE_ID, seal(_UNIQUE_ID, key, beginning.unique_id, b"{}"))
        await self._values.sync()
        await self._replace(_DESCRIPTION, key, 0, description.encode())
        await self._values.disk.remove(self._values.path(_INITIALIZING))
        await self._values.sync()
        self._description = description

    # -------------------------------------------------------------- members

    async def _enter(self, cluster_key: bytes, registration: Registration) -> FileMembership:
        known = self._memberships.get(registration.server)
        if known is not None:
            return known
        name = f"{_MEMBERS}/{registration.server}"
        await self._values.disk.make_directory(self._values.path(_MEMBERS))
        try:
            lock = await self._values.disk.lock(self._values.path(name))
        except DirectoryInUse as error:
            raise DirectoryInUse(
                f"{self._values.path(name)}: another living process is server {registration.server}; "
                "take a new unique id"
            ) from error
        try:
            file = await self._values.disk.open(self._values.path(name), create=True)
            try:
                await file.truncate(0)
                fields = [registration.server, registration.address]
                await file.write(0, [seal(name, cluster_key, 0, json.dumps(fields).encode())])
            finally:
                await file.close()
        except PolonaiseError:
            lock.release()
            raise
        membership = FileMembership(self, registration.server, lock)
        self._memberships[registration.server] = membership
        return membership

    async def _living(self, cluster_key: bytes) -> list[Registration]:
        """Who holds its lock. Under the members lock: nobody else probes, so a held lock is a living member's."""
        try:
            names = await self._values.disk.list(self._values.path(_MEMBERS))
        except NotFound:
            return []
        living: list[Registration] = []
        for name in names:
            if not name.isdecimal():
                continue
            path = self._values.path(f"{_MEMBERS}/{name}")
            if int(name) not in self._memberships:
                try:
                    lock = await self._values.disk.lock(path)
                except DirectoryInUse:
                    pass
                else:
                    try:
                        await self._values.disk.remove(path)
                    finally:
                        lock.release()
                    continue
            living.append(await self._registration(name, cluster_key))
        return sorted(living, key=lambda member: member.server)

    async def _registration(self, server: str, cluster_key: bytes) -> Registration:
        name = f"{_MEMBERS}/{server}"
        path = self._values.path(name)
        what = f"the registration of a living server does not read: restart server {server}"
        try:
            found = unseal(name, await self._values.load(name) or b"", path)
            number, address = json.loads(found.payload)
        except (ValueError, TypeError, RecursionError, CoordinatorDamaged) as error:
            raise CoordinatorDamaged(f"{path}: {what}") from error
        if str(number) != server or not isinstance(address, str) or found.cluster_key != cluster_key:
            raise CoordinatorDamaged(f"{path}: {what}")
        return Registration(int(server), address)

    async def _leave(self, membership: FileMembership) -> None:
        async def bury() -> None:
            with contextlib.suppress(NotFound):
                await self._values.disk.remove(self._values.path(f"{_MEMBERS}/{membership.server}"))

        self._memberships.pop(membership.server, None)
        with _door(f"leaving {self._directory}"):
            try:
                await self._values.alone(MEMBERS_LOCK, bury)
            finally:
                membership.release()


def _is_value(name: str) -> bool:
    return name in (_ASSIGNMENT, _UNIQUE_ID) or (name.startswith(_PARTITION) and not name.endswith(UNFINISHED))
