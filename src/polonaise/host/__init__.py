"""The host: all that a node may ask of its machine, as ports. Clock, disk, network, randomness, tasks.

- This file has the ports. Begin here; a promise in its docstrings holds for every implementation (`tests/conformance`).
- `real.py`: the machine, and `run`, which runs a node on it. The simulator has ports of its own.
- `files.py`: POSIX files, and the threads that wait for them; `replacing.py`: files that users have named.
- `sockets.py`, `address.py`, `names.py`: the network; `tlssockets.py`: the network with TLS; `tls.py`: a process's
  certificate and key, read again when they change, and in words what went wrong; `tcpcounts.py`: what was sent.
- `stopsignals.py`: how signals, or its parent's end, end a program; `forks.py`: what a forked child must not touch;
  `patching.py`: what gevent and eventlet change; `environment.py`; `unawaited.py`: failures that nobody waits for.

Node code is ordinary asyncio and reaches the machine only through these ports, so that the same code runs in the
simulator, where time is virtual, links fail, disks lose what was not synced and processes die at any await. Timers are
asyncio's own: the event loop belongs to the host too. A port raises `PolonaiseError`s; `OSError` does not pass it.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

ProtocolFactory: TypeAlias = Callable[[], asyncio.Protocol]

Identity: TypeAlias = tuple[int, int]
"""Two numbers that no other file or directory has while this one is open anywhere, whatever its name."""


class Clock(Protocol):
    def monotonic_s(self) -> float:
        """Return seconds since some start; never goes back."""

    def wall_us(self) -> int:
        """Return microseconds since 1970, UTC. May jump either way: nothing that must be true may rest on it."""

    def slept_s(self) -> float:
        """Return for how many seconds the machine has slept, while `monotonic_s` stood still; 0 if that is unknown."""


class File(Protocol):
    """An open file. Calls on one file may overlap; each is done when it returns. Nothing is durable before a `sync`, or
    a `write` with `sync`. A call that begins after `close` raises `Closed`."""

    async def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""

    async def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write the buffers one after the other from `offset`; with `sync` they are durable, for less than a `sync`.
        Raises `DiskFull` or `DiskFailed`; any part may then have been written. A failed sync means that whatever was
        not synced before may be gone, although it may still read back."""

    async def sync(self) -> None:
        """Make contents and length durable."""

    async def truncate(self, length: int) -> None:
        """Cut the file to `length` bytes, or extend it with zeros. Durable after `sync`."""

    async def size(self) -> int:
        """Return the length of the file in bytes."""

    async def close(self) -> None:
        """Close the file, after all calls under way. A second call does nothing."""


class DirectoryLock(Protocol):
    """A lock on a directory or something in one, held until `release` or this process's death."""

    def release(self) -> None:
        """Give the lock up. A second call does nothing."""


class DiskSpace(NamedTuple):
    """The room on a disk, in bytes."""

    free_bytes: int
    """What this process may still write."""
    total_bytes: int


class Disk(Protocol):
    """A file system. A created, renamed or removed name is durable only after its directory is synced."""

    @property
    def under_way_s(self) -> float:
        """For how many seconds the oldest call has not returned; 0 if none is under way. Nothing else shows that a disk
        hangs."""

    async def open(self, path: str, *, create: bool = False, append: bool = False) -> File:
        """Open the file for reading and writing; with `create`, make it if it is missing. With `append`, a write goes
        to where the file ends, in place of its offset, however many parts the system takes it in: if another program
        cuts the file, no hole comes into being. Raises `NotFound` for a missing file without `create`, and for a
        missing directory."""

    async def load(self, path: str) -> bytes:
        """Return all that a small file holds, in one hop to a thread. Raises `NotFound`."""

    async def exists(self, path: str) -> bool:
        """Tell whether a file or directory has this name."""

    async def identity(self, path: str) -> Identity | None:
        """Return the identity of what has this name now, if anything: it shows that a name was removed or replaced."""

    async def identities(self, paths: Sequence[str]) -> list[Identity | None]:
        """Likewise of several, in one hop to a thread."""

    async def space(self, path: str) -> DiskSpace:
        """Return the space of the file system that this file or directory is on. Raises `NotFound`."""

    async def list(self, directory: str) -> list[str]:
        """Return the names in the directory, sorted. Raises `NotFound` without the directory."""

    async def entries(self, directory: str) -> dict[str, int]:
        """Return the names in the directory, each with a number that changes when another file gets the name. Costs
        little for thousands of files. On some file systems the numbers change by themselves. Raises `NotFound`."""

    async def make_directory(self, path: str) -> None:
        """Make the directory and its parents; the parent must be synced for the name to last."""

    async def rename(self, source: str, target: str) -> None:
        """Rename the file atomically, replacing `target`. Raises `NotFound` without the file."""

    async def remove(self, path: str) -> None:
        """Remove the file's name. Raises `NotFound` without the file."""

    async def sync_directory(self, path: str) -> None:
        """Make the names in the directory durable as they are now."""

    async def lock(self, path: str) -> DirectoryLock:
        """Lock the file `path` (made if missing) for this process alone. Raises `DirectoryInUse` while it is locked, by
        another process or through another call of this one."""


class Listener(Protocol):
    @property
    def address(self) -> str:
        """With the port that the system chose."""

    async def close(self) -> None:
        """Stop accepting. Connections that have their protocols stay; TLS handshakes that are under way end."""


class Network(Protocol):
    """Byte streams between addresses: `host:port`, or `unix:/path`."""

    async def listen(self, address: str, factory: ProtocolFactory) -> Listener:
        """Accept connections, each with a protocol of its own; port 0 lets the system choose. A host with TLS refuses a
        peer that speaks none: it calls `bar` on that connection's protocol before the connection is made, so that the
        peer is told why, or closes the connection if the protocol has no `bar`. Raises `AddressInUse`, `BadOption` for
        an address that can't be used, or `TooManyOpenFiles`."""

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection. May take long: bring a deadline. Raises `ConnectionLost` when none can be had, `BadOption`
        for a text that is no address, and on a host with TLS `CertificateRefused` and `TlsNotSpoken`."""


def network_trouble(network: Network) -> str:
    """Return what is wrong with this side of a network, such as its certificate."""
    return str(getattr(network, "trouble", ""))


def unreachable(network: Network) -> str:
    """Return why nobody can connect to one of this side's listeners, such as a socket that was removed."""
    return str(getattr(network, "unreachable", ""))


def broken_off(error: TimeoutError) -> str:
    """Return what `asyncio.timeout` has broken off, as noted at the `CancelledError` there; empty if nothing is."""
    return "; ".join(getattr(error.__cause__, "__notes__", ()))


def certificate_expires_s(network: Network) -> float | None:
    """Return when this side's certificate expires, in seconds since 1970; None without TLS."""
    expires_s: float | None = getattr(network, "expires_s", None)
    return expires_s


def certificate_expired(network: Network, wall_us: int) -> str:
    """Return that this side's certificate has expired, if so: nobody connects to it any more."""
    expires_s = certificate_expires_s(network)
    if expires_s is None or expires_s > wall_us / 1e6:
        return ""
    return network_trouble(network) or "the certificate has expired"


def plain_network(network: Network) -> Network:
    """Return the network without TLS, for peers such as probes that have no certificate."""
    plain: Network = getattr(network, "plain", network)
    return plain


class Host(Protocol):
    """The machine, as what runs on this host may use it. One process may have several."""

    clock: Clock
    disk: Disk
    network: Network
    random: random.Random
    """For jitter and choices, never for secrets; seeded in the simulator."""

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a supervised task: one that dies of an exception other than cancellation stops the node by `fail`."""

    def fail(self, error: BaseException) -> None:
        """Stop this process now, loudly, without clean-up: what it might still do is worse than its absence. In an
        application's process only what runs on this host is stopped."""


@contextlib.asynccontextmanager
async def opened_file(disk: Disk, path: str, *, create: bool = False) -> AsyncIterator[File]:
    file = await disk.open(path, create=create)
    try:
        yield file
    finally:
        await file.close()


async def write_file(disk: Disk, path: str, buffers: Sequence[Buffer]) -> None:
    """Replace the contents of a file, durably but for a new name. A crash may leave a part."""
    async with opened_file(disk, path, create=True) as file:
        await file.truncate(0)
        await file.write(0, buffers, sync=True)


async def write_whole(disk: Disk, directory: str, name: str, buffers: Sequence[Buffer]) -> None:
    """Write a file durably under its name in the directory: a crash leaves it whole, or what was there before."""
    path = posixpath.join(directory, name)
    await write_file(disk, f"{path}.new", buffers)
    # Renamed when it is synced: the name never stands for a part. The directory is synced, or the name may be lost.
    await disk.rename(f"{path}.new", path)
    await disk.sync_directory(directory)
