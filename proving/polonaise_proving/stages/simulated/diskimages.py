"""The contents of a simulated disk: files and directories, as they read now and as a power loss would leave them.

A change is first made in the cache, where every process of the machine sees it, and is listed as unsynced. A sync moves
it into the durable image. A power loss decides for each unsynced change whether it is kept, lost or torn: file systems
and disks write in an order of their own, so nothing but a sync tells what is there afterwards.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple, TypeAlias

from polonaise_proving.record.faultcounts import FaultCounts

SECTOR_BYTES: Final = 512
"""The size of a sector, which a disk writes whole or not at all."""


class ImageWrite(NamedTuple):
    """A write of `data` at `offset`. `number` counts the changes of the file, from 1."""

    number: int
    offset: int
    data: bytes

    def apply(self, image: bytearray) -> None:
        # The gap before a write behind the end reads as zeros. So it does in the durable image if an earlier write,
        # which would have filled it, is lost.
        if self.offset > len(image):
            image.extend(bytes(self.offset - len(image)))
        image[self.offset : self.offset + len(self.data)] = self.data


class ImageTruncate(NamedTuple):
    """A cut of a file to `length` bytes, or its extension with zeros. `number` is as in `ImageWrite`."""

    number: int
    length: int

    def apply(self, image: bytearray) -> None:
        if self.length < len(image):
            del image[self.length :]
        else:
            image.extend(bytes(self.length - len(image)))


Change: TypeAlias = ImageWrite | ImageTruncate


class FileImage:
    """The contents of one file. They outlive its name: an open file that was removed can still be written."""

    def __init__(self, contents: bytes = b"") -> None:
        self.cache = bytearray(contents)
        """The file as processes read it."""
        self.durable = bytearray(contents)
        """The file as it is if every unsynced change is lost."""
        self.unsynced: list[Change] = []
        """The changes in the cache that no ended sync has covered, in order."""
        self.last = 0
        """The number of the last change: a sync that starts now has to cover the changes up to it."""

    def write(self, offset: int, data: bytes) -> None:
        self.last += 1
        self._change(ImageWrite(self.last, offset, data))

    def truncate(self, length: int) -> None:
        self.last += 1
        self._change(ImageTruncate(self.last, length))

    def _change(self, change: Change) -> None:
        change.apply(self.cache)
        self.unsynced.append(change)

    def end_sync(self, last: int, source: random.Random, *, done: bool) -> None:
        """End a sync of the changes up to the number `last`. If it succeeded (`done`), they are durable from now on.

        If it failed, some of them are, and the others never will be. The cache shows all of them, and takes them for
        written: no later sync makes up for it. So do file systems that mark pages as clean although writing failed.
        """
        # Later changes were made while the sync was under way, and are not covered by it. The changes that a failed
        # sync covers do not stay unsynced, written or not: the next sync succeeds, and proves nothing about them.
        changes, self.unsynced = self.unsynced, []
        for change in changes:
            if change.number > last:
                self.unsynced.append(change)
            elif done or source.random() < 0.5:
                change.apply(self.durable)

    def lose_power(self, source: random.Random, faults: FaultCounts) -> None:
        """Lose the cache, and decide what is left of the unsynced changes.

        Either the disk wrote in order up to some point, which may be within a write, or it wrote in any order.
        """
        changes, self.unsynced = self.unsynced, []
        if changes:
            # Half of the time in order: drawn one by one, long runs that end in a torn write, as a log meets them
            # most often, would hardly ever come.
            if source.random() < 0.5:
                cut = int(source.random() * (len(changes) + 1))
                fates = ["keep"] * cut + ["drop"] * (len(changes) - cut)
                if cut < len(changes) and source.random() < 0.7:
                    fates[cut] = "tear"
            else:
                fates = [("keep", "drop", "tear")[int(source.random() * 3)] for _ in changes]
            for change, fate in zip(changes, fates, strict=True):
                self._decide(change, fate, source, faults)
        self.cache = bytearray(self.durable)

    def _decide(self, change: Change, fate: str, source: random.Random, faults: FaultCounts) -> None:
        if fate == "keep":
            change.apply(self.durable)
            return
        before = bytes(self.durable)
        whole = bytearray(before)
        change.apply(whole)
        # A cut of a file is atomic. One that is to be torn is lost.
        if fate == "tear" and isinstance(change, ImageWrite):
            self._tear(change, source)
        # It counts only if the disk differs: a lost write of what was there already has shown nothing.
        if self.durable != whole:
            faults.count("lost_write" if self.durable == before else "torn_write")

    def _tear(self, change: ImageWrite, source: random.Random) -> None:
        """Write a part of a change: its first bytes, or any of its sectors. The rest may read as zeros."""
        end = change.offset + len(change.data)
        # A file system may record the new length before the data is there: then zeros lie where a batch should.
        if source.random() < 0.3:
            self._extend(end)
        # To the byte, for a file system may copy any part of a write before the power goes.
        if source.random() < 0.5:
            keep = int(source.random() * len(change.data))
            if keep:
                ImageWrite(0, change.offset, change.data[:keep]).apply(self.durable)
            return
        start = change.offset
        while start < end:
            stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if source.random() < 0.5:
                ImageWrite(0, start, change.data[start - change.offset : stop - change.offset]).apply(self.durable)
            start = stop

    def _extend(self, length: int) -> None:
        if length > len(self.durable):
            self.durable.extend(bytes(length - len(self.durable)))

    def copy(self) -> FileImage:
        """Return a copy of the file as it reads now, all of it durable."""
        return FileImage(bytes(self.cache))


class DirectoryImage:
    """The names in one directory."""

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        """The names as processes see them."""
        self.durable: dict[str, Node] = {}
        """The names as they are if every unsynced change of names is lost."""

    def lose_power(self, source: random.Random, faults: FaultCounts) -> None:
        """Go back to the durable names, and let everything below lose its power, too.

        Which unsynced names are kept is decided before, by the disk: one change may touch two directories.
        """
        self.names = dict(self.durable)
        for name in sorted(self.names):
            self.names[name].lose_power(source, faults)

    def copy(self) -> DirectoryImage:
        copy = DirectoryImage()
        copy.names = {name: node.copy() for name, node in self.names.items()}
        copy.durable = dict(copy.names)
        return copy

    def files(self, prefix: str = "") -> dict[str, FileImage]:
        """Return all files below, by path, sorted."""
        files: dict[str, FileImage] = {}
        for name in sorted(self.names):
            node = self.names[name]
            if isinstance(node, FileImage):
                files[prefix + name] = node
            else:
                files.update(node.files(f"{prefix}{name}/"))
        return files


Node: TypeAlias = FileImage | DirectoryImage


class NameChange:
    """Names set or removed (None) in one atomic step, in one directory or two: a rename is never seen half done."""

    def __init__(self, *steps: tuple[DirectoryImage, str, Node | None]) -> None:
        self._steps = steps
        for directory, name, node in steps:
            _set(directory.names, name, node)

    @property
    def makes_directory(self) -> bool:
        return any(isinstance(node, DirectoryImage) for _, _, node in self._steps)

    def touches(self, directory: DirectoryImage) -> bool:
        return any(step[0] is directory for step in self._steps)

    def settle(self) -> None:
        for directory, name, node in self._steps:
            _set(directory.durable, name, node)

    def lost(self) -> bool:
        """Whether the durable names differ from what this change made."""
        return any(directory.durable.get(name) is not node for directory, name, node in self._steps)


def _set(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
