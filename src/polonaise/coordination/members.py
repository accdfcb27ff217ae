"""The servers registered in a coordinator's directory: each has a locked file, and beside it a beat while it lives."""

from __future__ import annotations

import contextlib
import json
from typing import Final

from polonaise.coordination.directory import MEMBERS_LOCK, ValueDirectory, door, seal, unseal
from polonaise.coordination.lease import Leases
from polonaise.coordination.values import Registration
from polonaise.errors import (
    CoordinatorDamaged,
    CoordinatorUnavailable,
    DirectoryInUse,
    NotFound,
    PolonaiseError,
)
from polonaise.host import Clock, DirectoryLock
from polonaise.terms import ServerId

_MEMBERS: Final = "members"
_BEAT: Final = ".beat"


class FileMembership:
    """A registration: a locked file, which the kernel unlocks at the process's death, however it dies; and beside it a
    number that changes while the process works, for one that hangs or is stopped keeps its locks."""

    def __init__(self, members: FileMembers, server: ServerId, lock: DirectoryLock) -> None:
        self._members = members
        self._lock: DirectoryLock | None = lock
        self.server = server
        self._beats = 0

    async def renew(self) -> None:
        """Renew the lease. Nothing is synced: only who lives has to see it."""
        if self._lock is not None:
            self._beats += 1
            await self._members.beat(self.server, self._beats)

    async def leave(self) -> None:
        """End the registration. Doing it twice is no error."""
        if self._lock is not None:
            await self._members.leave(self)

    def release(self) -> None:
        """Unlock the file: from now on this is a dead member's."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


class FileMembers:
    """The members: those of this process, and how those of others are judged.

    `enter` and `living` are called under the members lock: nobody else probes, so a held lock is a living member's.
    """

    def __init__(self, values: ValueDirectory, clock: Clock) -> None:
        self._values = values
        self._clock = clock
        self._memberships: dict[ServerId, FileMembership] = {}
        self._leases = Leases()

    async def enter(self, cluster_key: bytes, registration: Registration) -> FileMembership:
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

    async def living(self, cluster_key: bytes) -> list[Registration]:
        """The registrations of the servers that hold their locks and renew their leases."""
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
                        await self._forget(int(name))
                    finally:
                        lock.release()
                    continue
                beat = await self._values.load(f"{_MEMBERS}/{name}{_BEAT}") or b""
                if self._leases.has_run_out(int(name), beat, self._clock.monotonic_s()):
                    continue  # it hangs, or is stopped: should it go on, it is a member again
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

    async def beat(self, server: ServerId, beats: int) -> None:
        with door(f"renewing the lease of server {server} in {self._values}", changes=False):
            file = await self._values.disk.open(self._values.path(f"{_MEMBERS}/{server}{_BEAT}"), create=True)
            try:
                await file.write(0, [beats.to_bytes(8, "little")])
            finally:
                await file.close()

    async def _forget(self, server: ServerId) -> None:
        self._leases.forget(server)
        with contextlib.suppress(NotFound):
            await self._values.disk.remove(self._values.path(f"{_MEMBERS}/{server}{_BEAT}"))

    async def leave(self, membership: FileMembership) -> None:
        async def bury() -> None:
            with contextlib.suppress(NotFound):
                await self._values.disk.remove(self._values.path(f"{_MEMBERS}/{membership.server}"))
            await self._forget(membership.server)

        self._memberships.pop(membership.server, None)
        with door(f"leaving {self._values}"):
            try:
                await self._values.alone(MEMBERS_LOCK, bury)
            finally:
                membership.release()

    async def leave_all(self) -> None:
        """End the registrations of this process."""
        for server in sorted(self._memberships):
            with contextlib.suppress(CoordinatorUnavailable, CoordinatorDamaged):
                await self._memberships[server].leave()
