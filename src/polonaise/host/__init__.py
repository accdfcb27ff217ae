"""All that a node may ask of its machine: clock, disk, network, randomness, tasks.

Node code is ordinary asyncio and reaches the machine only through these ports, so that the same code runs on a real
machine (`host.real`) and in the simulator, where time is virtual, links fail, disks lose what was not synced and
processes die at any await. Timers are asyncio's own (`asyncio.sleep`, `asyncio.timeout`, `loop.call_later`): the
event loop belongs to the host too.

What a port raises is a `PolonaiseError`; `OSError` does not pass it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

ProtocolFactory: TypeAlias = Callable[[], asyncio.Protocol]

Identity: TypeAlias = tuple[int, int]
"""A number pair that no other file or directory has while somebody has this one open, whatever its name."""


class Clock(Protocol):
    def monotonic_s(self) -> float:
        """Seconds since some start; never goes back. For durations and deadlines."""

    def wall_us(self) -> int:
        """Microseconds UTC. May jump either way: nothing that must be true may rest on it."""


class File(Protocol):
    """An open file. Calls on one file may overlap; each is done when it returns. Nothing is durable before `sync`."""

    async def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""

    async def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write the buffers one after the other from `offset`; with `sync`, durable on return (one thread hop).

        Raises `DiskFull` or `DiskFailed`; any part may then have been written. A failed sync means that whatever was
        not synced before may be gone, although it may still read back.
        """

    async def sync(self) -> None:
        """Contents and length are durable on return."""

    async def truncate(self, length: int) -> None:
        """Cut or extend with zeros. Durable after `sync`."""

    async def size(self) -> int: ...

    async def close(self) -> None: ...


class DirectoryLock(Protocol):
    """Held by this process until released or dead."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A file system. A created, renamed or removed name is durable only after its directory is synced."""

    async def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. `NotFound` unless it exists or `create`."""

    async def load(self, path: str) -> bytes:
        """All that a file holds, in one hop: for small ones that are replaced whole. `NotFound`."""

    async def exists(self, path: str) -> bool: ...

    async def identity(self, path: str) -> Identity | None:
        """What is under this name now; None when nothing is. An open file outlives its name, which may go unnoticed."""

    async def list(self, directory: str) -> list[str]:
        """Names in the directory, sorted. `NotFound` without it."""

    async def make_directory(self, path: str) -> None:
        """With its parents; no error when there. The parent must be synced for it to last."""

    async def rename(self, source: str, target: str) -> None:
        """Atomically, replacing `target`."""

    async def remove(self, path: str) -> None: ...

    async def sync_directory(self, path: str) -> None: ...

    async def lock(self, path: str) -> DirectoryLock:
        """Lock the file `path` (made if missing) for this process alone. `DirectoryInUse` when another holds it."""


class Listener(Protocol):
    @property
    def address(self) -> str:
        """Where it listens, with the port that the system chose."""

    async def close(self) -> None:
        """Stop accepting. Connections that were accepted stay."""


class Network(Protocol):
    """Byte streams between addresses: `host:port`, or `unix:/path`."""

    async def listen(self, address: str, factory: ProtocolFactory) -> Listener:
        """Accept connections; port 0 lets the system choose. `AddressInUse`, `BadOption`."""

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """`ConnectionLost` when nobody answers there. May take long: callers bring a deadline."""


class Host(Protocol):
    """One process's machine."""

    clock: Clock
    disk: Disk
    network: Network
    random: random.Random
    """For jitter and choices, never for secrets; seeded in the simulator."""

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run as a supervised task, kept alive until it ends.

        A task that dies of an exception other than cancellation stops the whole node through `fail`.
        """

    def fail(self, error: BaseException) -> None:
        """Stop this process now, loudly, without clean-up: what it might still do is worse than its absence."""
