"""The simulated disk of a machine: it outlives processes, and a power loss takes only what was not synced."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache

from polonaise.errors import DiskFailed, DiskFull, NotADirectory, NotFound
from polonaise_proving.record.trace import Event
from polonaise_proving.stages.simulated.diskimages import SECTOR_BYTES, DirectoryImage, FileImage, NameChange, Node
from polonaise_proving.stages.simulated.environment import Environment
from polonaise_proving.stages.simulated.process import Process


class SimulatedDisk:
    """A machine's files, and the faults and damage that scenarios inflict on them."""

    def __init__(self, environment: Environment, name: str, source: random.Random) -> None:
        self.configuration = environment.configuration.disk
        self.capacity_bytes: int | None = None
        """The bytes that all files together may have; None for no limit."""
        self.trace = environment.trace
        self._name = f"the disk of {name}"
        self.subject = environment.trace.subject(f"disk of {name}")
        self.random = source
        self.locks: dict[FileImage, Process] = {}
        self.users: set[Process] = set()
        """The living processes of the machine."""
        self.epoch = 0
        """The number of power losses so far: a sync that began before one does not end after it."""
        self._faults = environment.faults
        self._root = DirectoryImage()
        self._all_files: dict[str, FileImage] | None = None
        """All files by path, sorted; None after a change of names, until they are asked for: checks ask often."""
        self._unsynced_names: list[NameChange] = []
        # By kind of call: how many of the next ones fail; -1 for all until it is set to 0.
        self._failures = {"sync": 0, "append": 0, "read": 0, "write": 0}
        self._extra_s = 0.0
        environment.tellers.append(self._in_force)

    def _in_force(self) -> Iterator[str]:
        for kind, due in self._failures.items():
            if due:
                yield f"{self._name} is to fail the next {kind}" if due > 0 else f"{self._name} fails every {kind}"
        if self.capacity_bytes is not None:
            yield f"{self._name} has no room for more than {self.capacity_bytes} bytes"
        if self._extra_s:
            yield f"{self._name} takes {self._extra_s:g} s longer"

    # -------------------------------------------------------------- for scenarios: faults of the running disk

    def fail_syncs(self, count: int | None = 1) -> None:
        """Let the next `count` syncs fail (None: all, until this or `mend` is called); what they cover may be lost."""
        self._failures["sync"] = -1 if count is None else count

    def fail_appends(self, count: int | None = 1) -> None:
        """Let the next `count` writes with a sync into new or zeroed space fail at the sync: the disk has no blocks.

        None stands for all, until this or `mend` is called. Several machines can meet this at once, if they share a
        volume that promises more space than it has.
        """
        self._failures["append"] = -1 if count is None else count

    @property
    def appends_to_fail(self) -> int:
        """How many failures `fail_appends` has left; negative for all."""
        return self._failures["append"]

    def fail_reads(self, count: int | None = 1) -> None:
        self._failures["read"] = -1 if count is None else count

    def fail_writes(self, count: int | None = 1) -> None:
        self._failures["write"] = -1 if count is None else count

    def fill(self, spare_bytes: int = 0) -> None:
        """Let no more than `spare_bytes` more fit on the disk from now on."""
        self.capacity_bytes = self.used_bytes() + spare_bytes

    def free(self) -> None:
        """Lift the limit on the disk's room."""
        self.capacity_bytes = None

    def slow(self, seconds: float) -> None:
        """Let every call take `seconds` longer from now on, and one that syncs twice as much; 0 ends it."""
        self._extra_s = seconds

    def mend(self) -> None:
        """End all faults of the running disk; damage that is done stays."""
        self._failures = dict.fromkeys(self._failures, 0)
        self._extra_s = 0.0
        self.free()

    # -------------------------------------------------------------- for scenarios: damage at rest

    def paths(self) -> list[str]:
        """Return the paths of all files that a process would see now, sorted."""
        return list(self._files())

    def contents(self, path: str) -> bytes:
        return bytes(self.file(path).cache)

    def used_bytes(self) -> int:
        return sum(len(file.cache) for file in self._files().values())

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Flip one bit of a file, on the disk and in the cache."""
        self._damage(path, offset, bytes([self.contents(path)[offset] ^ (1 << bit)]), "bit_flip")

    def zero_sector(self, path: str, sector: int) -> None:
        """Fill a sector of a file with zeros."""
        start = sector * SECTOR_BYTES
        size = len(self.contents(path)[start : start + SECTOR_BYTES])
        self._damage(path, start, bytes(size), "corrupt_file")

    def overwrite(self, path: str, offset: int, data: bytes) -> None:
        """Put other bytes in place of the written ones, as a misdirected write or a stale block does."""
        self._damage(path, offset, data, "corrupt_file")

    def truncate(self, path: str, length: int) -> None:
        """Cut a file to `length` bytes; nothing happens to a shorter one."""
        file = self.file(path)
        if length < len(file.cache):
            self._faults.count("corrupt_file")
            self.trace.add(Event.DAMAGE, self.subject, length)
            del file.cache[length:]
            del file.durable[length:]

    def snapshot(self) -> DirectoryImage:
        """Return a copy of the disk as it reads now, for `restore`."""
        return self._root.copy()

    def restore(self, snapshot: DirectoryImage) -> None:
        """Put the older state `snapshot` back: all later writes are gone. No process may run on the machine."""
        before = self._replace(snapshot.copy())  # a copy, so that a snapshot can be restored again
        if before != self.files():
            self._faults.count("stale_disk")

    def wipe(self) -> None:
        """Put an empty disk in place of this one. No process may run on the machine."""
        if self._replace(DirectoryImage()):
            self._faults.count("wiped_disk")

    def _damage(self, path: str, offset: int, data: bytes, fault: str) -> None:
        file = self.file(path)
        stop = offset + len(data)
        if file.cache[offset:stop] == data and file.durable[offset:stop] == data:
            return
        self._faults.count(fault)
        self.trace.add(Event.DAMAGE, self.subject, offset, data)
        file.cache[offset:stop] = data
        if offset < len(file.durable):
            file.durable[offset:stop] = data[: len(file.durable) - offset]

    def _replace(self, root: DirectoryImage) -> dict[str, bytes]:
        if self.users:
            raise RuntimeError("a disk can be replaced only while no process runs on it")
        before = self.files()
        self.trace.add(Event.DAMAGE, self.subject, -1)
        self._root, self._all_files = root, None
        self._unsynced_names.clear()
        return before

    def files(self) -> dict[str, bytes]:
        """Return the contents of all files by path, as a process would read them now."""
        return {path: bytes(file.cache) for path, file in self._files().items()}

    def _files(self) -> dict[str, FileImage]:
        if self._all_files is None:
            self._all_files = self._root.files()
        return self._all_files

    # -------------------------------------------------------------- names

    def find(self, path: str) -> Node | None:
        node: Node = self._root
        for part in parts_of(path):
            if not isinstance(node, DirectoryImage) or part not in node.names:
                return None
            node = node.names[part]
        return node

    def file(self, path: str) -> FileImage:
        node = self.find(path)
        if node is None:
            raise NotFound(f"no file {path!r}")
        if not isinstance(node, FileImage):
            raise DiskFailed(f"{path!r} is a directory")
        return node

    def directory(self, path: str) -> DirectoryImage:
        node = self.find(path)
        if node is None:
            raise NotFound(f"no directory {path!r}")
        if not isinstance(node, DirectoryImage):
            raise NotADirectory(f"{path!r} is a file")
        return node

    def parent(self, path: str) -> tuple[DirectoryImage, str]:
        *parents, name = parts_of(path) or ("",)
        return self.directory("/".join(parents)), name

    def create(self, path: str) -> FileImage:
        """Return the file at `path`, which is made if missing.

        Raises `DiskFull` if there is no room for it, `NotFound` or `NotADirectory` if its parent is no directory, and
        `DiskFailed` if `path` is one.
        """
        if self.find(path) is not None:
            return self.file(path)
        directory, name = self.parent(path)
        if self.capacity_bytes is not None and self.used_bytes() >= self.capacity_bytes:
            self._faults.count("full_disk")
            raise DiskFull(f"no room for a new file {path!r}")
        file = FileImage()
        self.change_names((directory, name, file))
        return file

    def change_names(self, *steps: tuple[DirectoryImage, str, Node | None]) -> None:
        self._unsynced_names.append(NameChange(*steps))
        self._all_files = None
        for _, name, node in steps:
            self.trace.add(Event.NAME, self.subject, int(node is not None), name.encode())

    def unsynced_names(self, directory: DirectoryImage) -> list[NameChange]:
        return [change for change in self._unsynced_names if change.touches(directory)]

    def settle_names(self, changes: list[NameChange], *, done: bool) -> None:
        """End a sync of a directory: if it is `done`, these changes of names are durable from now on.

        A failed sync has made some of them durable; the others never will be. A directory that was made is not given up
        so: the next sync makes its name durable. Nobody could make it anew under what it holds by then, and a file
        system that fails to write a directory takes no more writes.
        """
        for change in changes:
            if change in self._unsynced_names:  # else another sync, or a power loss, has decided it meanwhile
                settled = done or self.random.random() < 0.5
                if settled:
                    change.settle()
                if settled or not change.makes_directory:
                    self._unsynced_names.remove(change)

    # -------------------------------------------------------------- for the ports

    def delay_s(self, *, sync: bool = False) -> float:
        """Draw the seconds that a call takes or, with `sync`, those that its sync takes beside them."""
        configuration, draw = self.configuration, self.random.random
        delay = configuration.sync_s * (1.0 + 2.0 * draw()) if sync else configuration.operation_s * (1.0 + draw())
        if self._extra_s:
            self._faults.count("delay")
            delay += self._extra_s
        if configuration.spike_chance and draw() < configuration.spike_chance:
            self._faults.count("delay")
            delay += configuration.spike_s * draw()
        return delay

    def fails(self, kind: str) -> bool:
        """Whether this call is to fail; `kind` is read, write, sync or append. Uses up and counts the failure."""
        due = self._failures[kind]
        if due > 0:
            self._failures[kind] = due - 1
        if due:
            self._faults.count(f"failed_{kind}")
        return due != 0

    def write(self, file: FileImage, offset: int, data: bytes) -> None:
        """Write into the cache. Raises `DiskFailed` or `DiskFull`, after writing none, some or all of the data."""
        if self.fails("write"):
            self.write_part(file, offset, data)
            raise DiskFailed("write failed")
        if self.capacity_bytes is not None:
            growth = offset + len(data) - len(file.cache)
            if growth > 0 and self.used_bytes() + growth > self.capacity_bytes:
                self._faults.count("full_disk")
                room = max(0, len(file.cache) + self.capacity_bytes - self.used_bytes() - offset)
                self.write_part(file, offset, data[:room])
                raise DiskFull("no space left on the disk")
        file.write(offset, data)
        self.trace.add(Event.WRITE, self.subject, offset, data)

    def write_part(self, file: FileImage, offset: int, data: bytes) -> None:
        """Write the first bytes of a write that is broken off: a random number of them."""
        part = data[: int(self.random.random() * (len(data) + 1))]
        if part:
            file.write(offset, part)
            self.trace.add(Event.WRITE, self.subject, offset, part)

    def free_locks(self, process: Process) -> None:
        """Free the locks of a process that has ended."""
        self.locks = {file: holder for file, holder in self.locks.items() if holder is not process}

    def lose_power(self) -> None:
        """Decide what is left of everything that was not synced, names and contents."""
        self.epoch += 1
        self.locks.clear()
        changes, self._unsynced_names = self._unsynced_names, []
        draw = self.random.random
        # Journals keep the order of changes up to some point; file systems without one keep none.
        in_order = draw() < 0.5
        cut = int(draw() * (len(changes) + 1))
        kept = [number < cut if in_order else draw() < 0.5 for number in range(len(changes))]
        for change, keep in zip(changes, kept, strict=True):
            if keep:
                change.settle()
        # Only now, for a later change that is kept may have made the same name again: then nothing is lost.
        for change, keep in zip(changes, kept, strict=True):
            if not keep and change.lost():
                self._faults.count("lost_directory_entry")
        self._root.lose_power(self.random, self._faults)
        self._all_files = None


@lru_cache(maxsize=1024)  # every call to a disk asks
def parts_of(path: str) -> tuple[str, ...]:
    """Return the names in a path. Every path starts at the root of the disk, with or without a slash."""
    return tuple(part for part in path.split("/") if part not in ("", "."))
