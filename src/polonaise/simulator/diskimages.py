"""What lies on a simulated disk: files and directories, each as it reads now and as it would be after a power loss.

A change is first made in the cache, where every process of the machine sees it, and listed as unsynced. A sync moves it
into the durable image. A power loss decides over each unsynced change anew.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple, TypeAlias

from polonaise.simulator.faultcounts import FaultCounts

SECTOR_BYTES: Final = 512


class ImageWrite(NamedTuple):
    number: int
    offset: int
    data: bytes

    def apply(self, image: bytearray) -> None:
        if self.offset > len(image):
            image.extend(bytes(self.offset - len(image)))
        image[self.offset : self.offset + len(self.data)] = self.data


class ImageTruncate(NamedTuple):
    number: int
    length: int

    def apply(self, image: bytearray) -> None:
        if self.length < len(image):
            del image[self.length :]
        else:
            image.extend(bytes(self.length - len(image)))


Change: TypeAlias = ImageWrite | ImageTruncate


class FileImage:
    """One file's contents. It outlives its name: an open file that was removed can still be written."""

    def __init__(self, contents: bytes = b"") -> None:
        self.cache = bytearray(contents)
        self.durable = bytearray(contents)
        self.unsynced: list[Change] = []
        self.last = 0
        """The number of the last change: what a sync that starts now has to cover."""

    def write(self, offset: int, data: bytes) -> None:
        self.last += 1
        self._change(ImageWrite(self.last, offset, data))

    def truncate(self, length: int) -> None:
        self.last += 1
        self._change(ImageTruncate(self.last, length))

    def _change(self, change: Change) -> None:
        change.apply(self.cache)
        self.unsynced.append(change)

    def settle(self, last: int) -> None:
        """A sync that covers the changes up to number `last` is done."""
        kept = []
        for change in self.unsynced:
            if change.number <= last:
                change.apply(self.durable)
            else:
                kept.append(change)
        self.unsynced = kept

    def fail_sync(self, last: int, source: random.Random) -> None:
        """A sync failed: some changes reached the disk, the others never will, though the cache shows all of them.

        No later sync makes up for it: the cache takes them for written.
        """
        kept = []
        for change in self.unsynced:
            if change.number > last:
                kept.append(change)
            elif source.random() < 0.5:
                change.apply(self.durable)
        self.unsynced = kept

    def lose_power(self, source: random.Random, faults: FaultCounts) -> None:
        """Decide what is left of the unsynced changes; the cache is gone.

        Either the disk went on in order up to some point, within a write even, or it wrote in any order it liked.
        """
        changes, self.unsynced = self.unsynced, []
        if changes:
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
        if fate == "tear" and isinstance(change, ImageWrite):
            self._tear(change, source)
        if self.durable != whole:
            faults.count("lost_write" if self.durable == before else "torn_write")

    def _tear(self, change: ImageWrite, source: random.Random) -> None:
        """Write a part: a first part to the byte, or any of the sectors; the rest may read as zeros."""
        end = change.offset + len(change.data)
        if source.random() < 0.3:
            self._extend(end)
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
        """As it reads now, all of it durable."""
        return FileImage(bytes(self.cache))


class DirectoryImage:
    """One directory's names."""

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}

    def lose_power(self, source: random.Random, faults: FaultCounts) -> None:
        """Everything below is as its durable names have it; the unsynced names were decided before."""
        self.names = dict(self.durable)
        for name in sorted(self.names):
            self.names[name].lose_power(source, faults)

    def copy(self) -> DirectoryImage:
        copy = DirectoryImage()
        copy.names = {name: node.copy() for name, node in self.names.items()}
        copy.durable = dict(copy.names)
        return copy

    def files(self, prefix: str = "") -> dict[str, FileImage]:
        """All files below, by path, sorted."""
        found: dict[str, FileImage] = {}
        for name in sorted(self.names):
            node = self.names[name]
            if isinstance(node, FileImage):
                found[prefix + name] = node
            else:
                found.update(node.files(f"{prefix}{name}/"))
        return found


Node: TypeAlias = FileImage | DirectoryImage


class NameChange:
    """Names set or removed (None) in one atomic step, in one directory or two."""

    def __init__(self, *steps: tuple[DirectoryImage, str, Node | None]) -> None:
        self._steps = steps
        for directory, name, node in steps:
            _set(directory.names, name, node)

    def touches(self, directory: DirectoryImage) -> bool:
        return any(step[0] is directory for step in self._steps)

    def settle(self) -> None:
        for directory, name, node in self._steps:
            _set(directory.durable, name, node)

    def lost(self) -> bool:
        """Whether the durable names differ from what it made."""
        return any(directory.durable.get(name) is not node for directory, name, node in self._steps)


def _set(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
