"""The backend of one machine: a directory that several processes share, durable, without a service to run.

::

    <directory>/
      description · assignment · unique-id · partition-<p>    one value each, replaced whole
      <value>.new                                             a change that was not finished; swept
      initializing                                            the cluster is being made, or deleted; swept
      change.lock · members.lock                              held while a value changes; while members do, or are read
      members/<server id>                                     locked for its process's life; holds its registration
      members/<server id>.beat                                a number that changes while the server works

A value's file is one line, which names the format, the cluster, the value, its version and a CRC-32 over all, and then
the value as JSON: an operator can look at it with `cat`, and no other file is taken for it.

**Network file systems are not supported.** Locks and renames do not keep their promises there, and nothing in the disk
port can tell such a directory from a local one: choose a local disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from polonaise.coordination.backend import Entry, damaged, missing
from polonaise.coordination.coordinator import Coordinator
from polonaise.coordination.directory import (
    CHANGE_LOCK,
    INITIALIZING,
    MEMBERS_LOCK,
    ValueDirectory,
    seal,
    translated_errors,
    unseal,
)
from polonaise.coordination.lease import LEASE_S
from polonaise.coordination.values import DESCRIPTION, is_key
from polonaise.errors import (
    BadOption,
    CoordinatorDamaged,
    CoordinatorUnavailable,
    DirectoryInUse,
    DiskFailed,
    NotADirectory,
    NotFound,
    PolonaiseError,
)
from polonaise.host import DirectoryLock, Host, opened_file
from polonaise.redaction import redacted_address

_SYNC_TRIES: Final = 3
"""How often a value is put in place until a sync of the directory succeeds."""
REPLACED_S: Final = 4.0
"""For so long nobody is taken for dead after the directory was replaced: in a copy no lock is held, so that all others
look dead. By the end each process has registered there, and has looked whether values are older than it has seen."""
_TOLD: Final = ".told"
"""Ends the name of the file with the contents that a name was given later."""
_BEAT: Final = ".beat"
_POLL_S_MIN: Final = 0.05
"""Between two reads that tell whether an entry has changed, shortly after it has."""
_POLL_S_MAX: Final = 0.25
"""The same for one that stays as it is: each read wakes two threads of a process at rest."""
_POLL_GROWTH: Final = 1.25
"""From the shortest to the longest pause it takes a second: changes come in groups."""


def coordinator_in(host: Host, directory: str, *, lock_wait_s: float = 10.0, alone: bool = False) -> Coordinator:
    """Return the coordinator in a directory on a local disk. Any number of processes may have it open. A process that
    is *stopped* (not dead) within a change holds the lock: the others wait `lock_wait_s` seconds, then raise
    `CoordinatorUnavailable`. With `alone`, no other process can take over from this one while it lives."""
    return Coordinator(FileBackend(host, directory, lock_wait_s, alone=alone), host.clock)


class _DurableEntry(NamedTuple):
    raw: bytes
    entry: Entry


class _Poll(NamedTuple):
    version: int
    pause_s: float = _POLL_S_MIN


@dataclass(slots=True)
class _Name:
    lock: DirectoryLock
    entry: Entry
    beats: int = 0


class FileBackend:
    """The backend in a directory on a local disk.

    A change holds an OS lock while it reads, compares and replaces, so no update is lost; it is durable before anybody
    is told of it, and a crash at any point leaves the old value or the new one. Readers take no lock, and sync the
    directory at the first sight of a version: a power loss could take back a session that the reader has acted upon.

    A name is a locked file, which the kernel unlocks when its process dies; and beside it a number that changes while
    the process works, because a process that hangs or is stopped keeps its locks.
    """

    def __init__(self, host: Host, directory: str, lock_wait_s: float = 10.0, *, alone: bool = False) -> None:
        self.holds_s = inf if alone else LEASE_S
        self.trouble = ""
        self._values = ValueDirectory(host, directory, lock_wait_s)
        self._disk = host.disk
        self._clock = host.clock
        self._directory = directory
        self._durable: dict[str, _DurableEntry] = {}
        self._own: dict[str, _Name] = {}
        self._replaced_s = -inf
        """When another directory was last found in the place of the one that it had registered in."""
        self._polls: dict[str, _Poll] = {}

    def __str__(self) -> str:
        # An address of another kind, given with file: by mistake, may have a password.
        return redacted_address(self._directory)

    def place(self, key: str) -> str:
        return self._values.path(key)

    has_servers = False
    found_again_s = 0.0
    renewed_us: int | None = None

    async def servers(self, timeout_s: float) -> Mapping[str, str]:
        return {}

    # -------------------------------------------------------------- values

    async def create(self, entries: Mapping[str, Entry]) -> bool:
        with translated_errors(f"making {self}", changes=False):
            await self._values.make()
        with translated_errors(f"making a cluster in {self}"):
            return await self._values.alone(CHANGE_LOCK, lambda: self._create(entries))

    async def _create(self, entries: Mapping[str, Entry]) -> bool:
        """Write all entries, the description last: with it the cluster is whole."""
        if await self._read(DESCRIPTION) is not None:
            return False
        description = entries[DESCRIPTION]
        # Durable before the first value: values without this file and without a description are a cluster that has lost
        # its description, and are refused.
        await self._values.put(INITIALIZING, seal(INITIALIZING, description.cluster_key, 0, b"{}"))
        await self._values.sync()
        await self._remove_values()
        others = ((key, seal(key, *entry)) for key, entry in entries.items() if key != DESCRIPTION)
        await self._values.put_all(others)
        await self._values.sync()
        await self._replace(DESCRIPTION, description)
        await self._disk.remove(self._values.path(INITIALIZING))
        await self._values.sync()
        return True

    async def delete(self, description: Entry) -> bool:

        async def remove() -> bool:
            if await self._read(DESCRIPTION) != description:
                return False
            # Before the description goes: other values without both are a cluster that has lost its description.
            await self._values.put(INITIALIZING, seal(INITIALIZING, description.cluster_key, 0, b"{}"))
            await self._values.sync()
            await self._disk.remove(self._values.path(DESCRIPTION))
            await self._values.sync()
            await self._remove_values()
            await self._values.sync()
            await self._disk.remove(self._values.path(INITIALIZING))
            await self._values.sync()
            self._durable.clear()
            return True

        with translated_errors(f"deleting the cluster in {self}"):
            return await self._values.alone(CHANGE_LOCK, remove)

    async def _remove_values(self) -> None:
        for name in filter(is_key, await self._values.names()):
            await self._disk.remove(self._values.path(name))

    async def add(self, entries: Mapping[str, Entry]) -> None:

        async def put_missing() -> None:
            there = {*await self._values.names()}
            new = ((key, seal(key, *entry)) for key, entry in entries.items() if key not in there)
            await self._values.put_all(new)
            await self._values.sync()

        with translated_errors(f"adding to {self}"):
            await self._values.alone(CHANGE_LOCK, put_missing)

    async def read(self, key: str) -> Entry | None:
        with translated_errors(f"reading {self.place(key)}", changes=False):
            # A change whose caller was cancelled may still be under way. This read has to see it, or nobody ever may.
            await self._values.settle_abandoned()
            try:
                return await self._read(key)
            except NotADirectory as error:
                if self._durable:  # it was a directory before: not a wrong option, but a fault that may pass
                    raise
                raise BadOption(
                    f"{self} is not a directory: file:PATH names the directory that holds a cluster's description, or "
                    "that is made for a new cluster"
                ) from error

    async def compare_and_set(self, key: str, contents: bytes, present: Entry | None, least: int = -1) -> Entry | None:

        async def change() -> Entry | None:
            current = await self._read(key)
            if current is None:
                raise missing(self.place(key))
            if current.version < least or (present is not None and current != present):
                return None
            entry = Entry(current.cluster_key, current.version + 1, contents)
            await self._replace(key, entry)
            return entry

        with translated_errors(f"changing {self.place(key)}"):
            return await self._values.alone(CHANGE_LOCK, change, changes=key)

    async def changed(self, key: str, version: int) -> None:
        """Wait for a moment, longer each time, and leave it to the caller to read."""
        poll = self._polls.get(key)
        if poll is None or poll.version != version:
            poll = _Poll(version)
        self._polls[key] = _Poll(version, min(_POLL_GROWTH * poll.pause_s, _POLL_S_MAX))
        await asyncio.sleep(poll.pause_s)

    async def _read(self, key: str) -> Entry | None:
        raw = await self._values.load(key)
        if raw is None and key == DESCRIPTION:
            raw = await self._late_description()
        if raw is None:
            return None
        durable = self._durable.get(key)
        # The same bytes as before are durable already: most reads take no sync.
        if durable is not None and durable.raw == raw:
            return durable.entry
        entry = unseal(key, raw, self.place(key))
        await self._values.sync()
        self._durable[key] = _DurableEntry(raw, entry)
        return entry

    async def _late_description(self) -> bytes | None:
        """Return the description if it has appeared meanwhile; None without a cluster, or while one is made or deleted.
        Raises `CoordinatorDamaged` when other values exist without it: then it was lost."""
        # Names first: another process may finish making the cluster between the two.
        names = await self._values.names()
        raw = await self._values.load(DESCRIPTION)
        if raw is None and INITIALIZING not in names and any(map(is_key, names)):
            raise damaged(self.place(DESCRIPTION), "it is missing, and other values of its cluster are there")
        return raw

    async def _replace(self, key: str, entry: Entry) -> None:
        """Put a new value in place, durably, with the change lock held. Readers can see it from the rename on, and
        syncing again after a failed sync proves nothing. So it is then put in place anew, a few times."""
        contents = seal(key, *entry)
        for tries_left in reversed(range(_SYNC_TRIES)):
            await self._values.put(key, contents)
            try:
                await self._values.sync()
                break
            except DiskFailed:
                if not tries_left:
                    raise
        self._durable[key] = _DurableEntry(contents, entry)

    # -------------------------------------------------------------- names
    #
    # A name's lock is probed only with the members lock held. So a lock that is found held is that of a living process,
    # and never that of another probe.

    async def register(self, name: str, entry: Entry) -> bool:
        with translated_errors(f"registering {self.place(name)}"):
            return await self._values.alone(MEMBERS_LOCK, lambda: self._register(name, entry))

    async def _register(self, name: str, entry: Entry) -> bool:
        if name in self._own:
            return True
        path = self.place(name)
        await self._disk.make_directory(posixpath.dirname(path))
        try:
            lock = await self._disk.lock(path)
        except DirectoryInUse:
            return False
        self._own[name] = await self._written(name, lock, entry)
        return True

    async def _written(self, name: str, lock: DirectoryLock, entry: Entry) -> _Name:
        try:
            async with opened_file(self._disk, self.place(name), create=True) as file:
                await file.truncate(0)
                await file.write(0, [seal(name, *entry)])
        except PolonaiseError:
            lock.release()
            raise
        return _Name(lock, entry)

    async def renew(self, name: str) -> bool:
        """Write the next beat, not synced. Returns False if the name's file is gone or another one: nobody has seen it
        there."""
        own = self._own.get(name)
        if own is None:
            return False
        own.beats += 1
        with translated_errors(f"renewing {self.place(name)}", changes=False):
            if not await self._disk.exists(self.place(name)):
                if self._own.pop(name, None) is not None:
                    own.lock.release()
                    self._replaced_s = self._clock.monotonic_s()
                return False
            # Here, because a process that does not believe the values of a copy looks nowhere else: all have to be
            # there before one that believes them takes them for dead. Without the members lock, which a process that
            # is stopped may hold: no renewal waits for that.
            if await self._is_replaced(posixpath.dirname(name)):
                return False
            async with opened_file(self._disk, self.place(name + _BEAT), create=True) as file:
                await file.write(0, [own.beats.to_bytes(8, "little")])
        return True

    async def tell(self, name: str, contents: bytes) -> None:
        """Put the new contents into a file beside that of the name, whose lock stands for the life of this process."""
        own = self._own.get(name)
        if own is None:
            return
        own.entry = own.entry._replace(contents=contents)
        with translated_errors(f"changing {self.place(name)}"):
            await self._values.put(name + _TOLD, seal(name, *own.entry))

    async def leave(self, name: str) -> None:
        own = self._own.pop(name, None)
        if own is None:
            return
        with translated_errors(f"leaving {self.place(name)}"):
            # The lock last: whoever takes the name after that must not have its new files removed.
            try:
                await self._values.alone(MEMBERS_LOCK, lambda: self._remove(name))
            finally:
                own.lock.release()

    async def _remove(self, name: str) -> None:
        for file in (name, name + _BEAT, name + _TOLD):
            with contextlib.suppress(NotFound):
                await self._disk.remove(self.place(file))

    async def registered(self, folder: str) -> dict[str, Entry]:
        """Return the names in this folder whose processes live, with their entries. Raises `CoordinatorUnavailable` for
        `REPLACED_S` seconds after another directory was put in place of this one."""
        with translated_errors(f"reading {self.place(folder)}", changes=False):
            try:
                files = await self._disk.list(self.place(folder))
            except NotFound:
                return {}
            if not any(map(str.isdecimal, files)):
                return {}  # without a lock, which would be made in what may be no coordinator's directory
            return await self._values.alone(MEMBERS_LOCK, lambda: self._registered(folder))

    async def _registered(self, folder: str) -> dict[str, Entry]:
        """Return the names whose processes live, and remove the files of the others."""
        await self._is_replaced(folder)
        left_s = self._replaced_s + REPLACED_S - self._clock.monotonic_s()
        if left_s > 0:
            raise CoordinatorUnavailable(
                f"{self}: another directory was put in place of this one while this process ran. Who lives shows once "
                f"all have registered there, in {left_s:.1f} s"
            )
        try:
            files = await self._disk.list(self.place(folder))
        except NotFound:
            return {}
        living: dict[str, Entry] = {}
        for file in filter(str.isdecimal, files):
            name = f"{folder}/{file}"
            if name in self._own or not await self._is_dead(name):
                living[file] = await self._name(name)
        return living

    async def _is_replaced(self, folder: str) -> bool:
        """Whether the files of this process's names are not those that it locked; if so, register there."""
        replaced = False
        for name, own in [each for each in self._own.items() if each[0].startswith(f"{folder}/")]:
            try:
                lock = await self._disk.lock(self.place(name))
            except (DirectoryInUse, NotFound):
                continue  # locked by this process; or by another one that takes it for dead, and removes it
            own.lock.release()
            self._own[name], replaced = await self._written(name, lock, own.entry), True
            with contextlib.suppress(NotFound):  # of an earlier time, and preferred to the registration
                await self._disk.remove(self.place(name + _TOLD))
        if replaced:
            self._replaced_s = self._clock.monotonic_s()
        return replaced

    async def _is_dead(self, name: str) -> bool:
        """Whether no living process has this name; remove its files then."""
        try:
            lock = await self._disk.lock(self.place(name))
        except DirectoryInUse:
            return False
        try:
            await self._remove(name)
        finally:
            lock.release()
        return True

    async def _name(self, name: str) -> Entry:
        own = self._own.get(name)
        beats = own.beats if own else int.from_bytes(await self._values.load(name + _BEAT) or b"", "little")
        try:
            raw = await self._values.load(name + _TOLD) or await self._values.load(name) or b""
            return unseal(name, raw, self.place(name))._replace(version=beats)
        except CoordinatorDamaged:
            return Entry(b"", beats, b"")

    async def close(self) -> None:
        for name in sorted(self._own):
            with contextlib.suppress(CoordinatorUnavailable, CoordinatorDamaged):  # its lock is released in any case
                await self.leave(name)
        await self._values.settle()
