"""The coordinator of one machine: a directory that several processes share, durable, without a service to run.

::

    <directory>/
      description · assignment · unique-id · partition-<p>    one value each, replaced whole
      <value>.new                                             a change that was not finished; swept
      initializing                                            the cluster is being made: no description yet
      change.lock · members.lock                              held while a value, or the membership, changes
      members/<server id>                                     locked for its process's life; holds its registration
      members/<server id>.beat                                a number that changes while the server works

A value's file is one line, which names the format, the cluster, the value, its version and a CRC-32 over all, and
then the value as JSON: an operator can look at it with `cat`, and a file of another cluster or another partition does
not pass for the one it lies in place of.

**Network file systems are not supported.** Locks and renames do not keep their promises there, and nothing in the
disk port can tell such a directory from a local one: keeping it on a local disk is up to whoever chooses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar, cast

from polonaise.coordination.directory import (
    CHANGE_LOCK,
    MEMBERS_LOCK,
    UNFINISHED,
    Sealed,
    ValueDirectory,
    damaged,
    door,
    seal,
    unseal,
)
from polonaise.coordination.members import FileMembers, FileMembership
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
    DiskFailed,
    NotADirectory,
    NotInitialized,
    PolonaiseError,
    UnknownPartition,
    WrongClusterKey,
)
from polonaise.host import Host
from polonaise.terms import PartitionId

UNIQUE_ID_MAX: Final = 2**31 - 1

DESCRIPTION: Final = "description"
_ASSIGNMENT: Final = "assignment"
_UNIQUE_ID: Final = "unique-id"
_PARTITION: Final = "partition-"
_INITIALIZING: Final = "initializing"
_SYNC_TRIES: Final = 3
_PUTS_MAX: Final = 32
"""Files of a new cluster that are written at the same time."""

T = TypeVar("T")
V = TypeVar("V", PartitionValue, Assignment)


class _Held(NamedTuple):
    """A value of which this process knows that it is whole and durable; `value` once it was decoded."""

    raw: bytes
    found: Sealed
    value: object = None


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
        self._held: dict[str, _Held] = {}
        """The values as they were read or written last."""
        self._members = FileMembers(self._values, host.clock)

    # -------------------------------------------------------------- the port

    async def initialize(self, description: ClusterDescription, beginning: Beginning | None = None) -> None:
        """Make the cluster. Cut short at any point, it leaves no cluster, and can be done again.

        With `beginning`, of a log that was restored from elsewhere.
        """
        self._check_open()
        with door(f"making {self._directory}", changes=False):
            await self._values.make()
        with door(f"making a cluster in {self._directory}"):
            await self._values.alone(CHANGE_LOCK, lambda: self._initialize(description, beginning or Beginning()))

    async def describe(self) -> ClusterDescription:
        self._check_open()
        with door(f"reading the cluster in {self._directory}", changes=False):
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
        version = await self._compare_and_set(name, value, expected_version, PartitionValue.decode)
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
        version = await self._compare_and_set(_ASSIGNMENT, value, expected_version, Assignment.decode)
        return None if version is None else Versioned(version, value)

    async def unique_id(self) -> int:
        """A number never given out before: durable before it is returned. One that no caller got is not used again."""
        self._check_open()
        with door(f"taking a unique id from {self._directory}"):
            await self._cluster()
            return await self._values.alone(CHANGE_LOCK, self._next_unique_id)

    async def register(self, registration: Registration) -> FileMembership:
        """Announce this process. Doing it again changes nothing, so that a lost result is no trouble.

        `DirectoryInUse` when another living process has registered under this server id.
        """
        self._check_open()
        with door(f"registering server {registration.server} in {self._directory}"):
            cluster = await self._cluster()
            return await self._values.alone(MEMBERS_LOCK, lambda: self._members.enter(cluster.key, registration))

    async def members(self) -> list[Registration]:
        self._check_open()
        with door(f"reading the members in {self._directory}", changes=False):
            cluster = await self._cluster()
            return await self._values.alone(MEMBERS_LOCK, lambda: self._members.living(cluster.key))

    async def close(self) -> None:
        """End this process's registrations and its use of the directory; changes under way are brought to their end.

        Later calls raise `Closed`. Waits at most as long as a change waits for its lock.
        """
        self._closed = True
        await self._members.leave_all()
        await self._values.settle()

    # -------------------------------------------------------------- values

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the coordinator in {self._directory} was closed by this process")

    async def _get(self, name: str, decode: Callable[[bytes], T]) -> Versioned[T]:
        self._check_open()
        with door(f"reading {self._values.path(name)}", changes=False):
            await self._cluster()
            await self._values.settle_abandoned()
            found = await self._read(name)
        return Versioned(found.version, self._decoded(name, found, decode))

    async def _compare_and_set(
        self, name: str, value: V, expected_version: int, decode: Callable[[bytes], V]
    ) -> int | None:
        """The new version, or None when the value has another version than the expected one."""

        async def change() -> int | None:
            found = await self._read(name)
            self._decoded(name, found, decode)
            if found.version != expected_version:
                return None
            await self._replace(name, found.cluster_key, expected_version + 1, value.encode())
            self._held[name] = self._held[name]._replace(value=value)
            return expected_version + 1

        self._check_open()
        with door(f"changing {self._values.path(name)}"):
            await self._cluster()
            return await self._values.alone(CHANGE_LOCK, change, changes=name)

    async def _next_unique_id(self) -> int:
        found = await self._read(_UNIQUE_ID)
        if found.version >= UNIQUE_ID_MAX:
            raise PolonaiseError(f"all {UNIQUE_ID_MAX} unique ids of {self._directory} have been given out")
        number = found.version + 1
        await self._replace(_UNIQUE_ID, found.cluster_key, number, b"{}")
        return number

    async def _partition_name(self, partition: PartitionId) -> str:
        self._check_open()
        with door(f"reading the cluster in {self._directory}", changes=False):
            cluster = await self._cluster()
        if not 0 <= partition < cluster.partitions:
            raise UnknownPartition(f"partition {partition} of a cluster with {cluster.partitions} partitions")
        return f"{_PARTITION}{partition}"

    async def _cluster(self) -> ClusterDescription:
        """The description, which never changes, from memory when it was read before."""
        return self._description or await self._describe()

    async def _describe(self) -> ClusterDescription:
        raw = await self._values.load(DESCRIPTION)
        if raw is None:
            await self._refuse_without_description()
            raw = await self._values.load(DESCRIPTION) or b""
        found = self._checked(DESCRIPTION, raw)
        description = self._decoded(DESCRIPTION, found, ClusterDescription.decode)
        if description.key != found.cluster_key:
            raise damaged(self._values.path(DESCRIPTION), "it names two cluster keys")
        await self._witness(DESCRIPTION, found.version)
        self._description = description
        return description

    async def _refuse_without_description(self) -> None:
        """Say why there is no description; returns when it has appeared meanwhile."""
        path = self._values.path(DESCRIPTION)
        if self._description is not None:
            raise damaged(path, "it is missing, and this process has read it before")
        names = await self._values.names()
        if _INITIALIZING not in names and any(_is_value(name) for name in names):
            if await self._values.disk.exists(path):
                return
            raise damaged(path, "it is missing, and other values of its cluster are there")
        if DESCRIPTION not in names:
            raise NotInitialized(
                f"no cluster in {self._directory}: correct the path, or wait until the first server has made it "
                "(polonaise server run --coordinator … --storage …)"
            )

    def _decoded(self, name: str, found: Sealed, decode: Callable[[bytes], T]) -> T:
        """The value; the same object while it stays the same, for it is looked at again and again, and may be large."""
        held = self._held.get(name)
        if held is not None and held.found is found and held.value is not None:
            return cast(T, held.value)
        try:
            value = decode(found.payload)
        except CoordinatorDamaged as error:
            raise damaged(self._values.path(name), error.text) from error
        if held is not None and held.found is found:
            self._held[name] = held._replace(value=value)
        return value

    async def _read(self, name: str) -> Sealed:
        """The value's file, checked and durable."""
        floor = self._seen.get(name, -1)
        raw = await self._values.load(name)
        if raw is None:
            raise damaged(self._values.path(name), "it is missing, in a cluster that has it")
        held = self._held.get(name)
        if held is not None and held.raw == raw and held.found.version >= floor:
            return held.found
        found = self._checked(name, raw)
        if found.version < floor:
            raise damaged(self._values.path(name), f"it went back from version {floor} to {found.version}")
        await self._witness(name, found.version)
        self._held[name] = _Held(raw, found)
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
        self._held[name] = _Held(contents, Sealed(cluster_key, version, payload))

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
        for first in range(0, description.partitions, _PUTS_MAX):
            values = {
                f"{_PARTITION}{partition}": beginning.partitions.get(partition, initial)
                for partition in range(first, min(first + _PUTS_MAX, description.partitions))
            }
            await self._values.put_all({name: seal(name, key, 0, value.encode()) for name, value in values.items()})
        await self._values.put(_ASSIGNMENT, seal(_ASSIGNMENT, key, 0, beginning.assignment.encode()))
        await self._values.put(_UNIQUE_ID, seal(_UNIQUE_ID, key, beginning.unique_id, b"{}"))
        await self._values.sync()
        await self._replace(DESCRIPTION, key, 0, description.encode())
        await self._values.disk.remove(self._values.path(_INITIALIZING))
        await self._values.sync()
        self._description = description


def _is_value(name: str) -> bool:
    return name in (_ASSIGNMENT, _UNIQUE_ID) or (name.startswith(_PARTITION) and not name.endswith(UNFINISHED))
