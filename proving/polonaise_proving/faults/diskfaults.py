"""The nemesis's faults of disks: makes them full, failing, rotten or empty, or puts an old state back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from polonaise.errors import SegmentDamaged, UnsupportedFormat
from polonaise.log.control import CONTROL_FILE, SECTOR_BYTES, offset_of
from polonaise.log.segment import FRAME_BYTES, HEADER_BYTES, SegmentHeader, open_frame
from polonaise.terms import NO_SESSION, PartitionId, SessionId
from polonaise_proving.record.diskaudit import copies_of_promises
from polonaise_proving.stages.simulated.cluster import DIRECTORY, Cluster, Node
from polonaise_proving.stages.simulated.disk import SimulatedDisk
from polonaise_proving.stages.simulated.diskimages import DirectoryImage

_CONTROL: Final = f"{DIRECTORY}/{CONTROL_FILE}"


class DiskFaults:
    """Faults of a cluster's disks, within the fault atlas (`nemesis`): they spoil at most a minority of the disks."""

    def __init__(self, cluster: Cluster, randomness: random.Random) -> None:
        self._cluster = cluster
        self._random = randomness
        # Fixed for the whole schedule: one disk after the other may not be spoilt either, as nothing tells when the
        # one before is whole again. The trials, which wait for that, may (`is_whole`).
        count = (len(cluster.storage) - 1) // 2
        self._spoilable = self._random.sample(cluster.storage, count)
        self.spoilt: set[str] = set()
        """Names of the storage nodes whose disks were damaged, set back, wiped or made to fail by `fail_calls`; not
        those of which `is_whole` was told since."""

    # ------------------------------------------------------------------ for the actions

    def some(self, nodes: list[Node]) -> Node:
        return self._random.choice(nodes)

    def seconds(self, *scale: float) -> float:
        return self._random.choice(scale) * (0.5 + self._random.random())

    def spoilable(self) -> Node | None:
        """Choose a node whose disk the fault atlas allows to be spoilt; None in a cluster with no replica to spare."""
        if not self._spoilable:
            return None
        return self.some(self._spoilable)

    def spoil(self, node: Node) -> None:
        self.spoilt.add(node.name)

    def is_whole(self, node: Node) -> None:
        """Count a node as never spoilt, because its disk was seen to hold the whole log again, readable."""
        self.spoilt.discard(node.name)

    def crash_or_power_loss(self, node: Node) -> None:
        """Kill the node's process, or take the power from its machine."""
        if self._random.random() < 0.5:
            node.machine.power_loss()
        else:
            node.crash()

    @property
    def left_whole(self) -> list[Node]:
        """The nodes whose disks are never spoilt while the applications work; a trial may spoil them afterwards."""
        return [node for node in self._cluster.storage if node not in self._spoilable]

    # ------------------------------------------------------------------ disks that run

    async def full_disk(self) -> None:
        """Leave one disk little or no room for a while."""
        disk = self.some(self._cluster.storage).machine.disk
        disk.fill(self._random.choice((0, 100, 1_000)))
        await asyncio.sleep(self.seconds(0.5, 2.0))
        disk.free()

    async def fail_calls(self) -> None:
        """Let syncs, reads or writes of one disk fail, once or for a while."""
        node = self.spoilable()
        if node is None:
            return
        self.spoil(node)
        disk = node.machine.disk
        fail = self._random.choice((disk.fail_syncs, disk.fail_syncs, disk.fail_reads, disk.fail_writes))
        if self._random.random() < 0.6:
            fail(1)
            return
        fail(None)
        await asyncio.sleep(self.seconds(0.2, 1.0))
        fail(0)

    async def fail_appends(self) -> None:
        """Let syncs of writes into new space fail on a majority of nodes at once; perhaps those nodes die, too."""
        storage = self._cluster.storage
        nodes = self._random.sample(storage, self._random.randrange(len(storage) // 2 + 1, len(storage) + 1))
        disks = [node.machine.disk for node in nodes]
        count = self._random.choice((1, 1, 2, 5))
        self._cluster.rush(0.5)
        for disk in disks:
            disk.fail_appends(count)
        await asyncio.sleep(self.seconds(0.02, 0.1, 0.4))
        if all(disk.appends_to_fail < count for disk in disks):
            self._cluster.world.faults.count("majority_failed_append")
        for disk in disks:
            disk.fail_appends(0)
        strike = self._random.choice((None, None, Node.crash, Node.lose_power))
        if strike is not None:
            for node in nodes:
                strike(node)

    # ------------------------------------------------------------------ disks at rest

    async def rot(self) -> None:
        """Damage some bytes of a disk, where the damage can be told from a torn tail (`_witnessed`)."""
        node = self.spoilable()
        if node is not None:
            self._rot_at(node, _witnessed(node.machine.disk))

    def rot_header(self, node: Node, snapshot: DirectoryImage | None = None) -> None:
        """Damage the header of a segment.

        The node finds the damage at its next start, and much of the log from that segment on has to be repaired.
        """
        ranges = [each for each in _witnessed(node.machine.disk) if each[0].endswith(".seq")]
        self._rot_at(node, [(path, 0, min(stop, HEADER_BYTES)) for path, _, stop in ranges])

    def rot_sealed(self, node: Node) -> str:
        """Flip a bit in a sealed segment, which may never be read again. Return its path; "" if there is none."""
        ranges = [each for each in _witnessed(node.machine.disk) if each[0].endswith(".seq")]
        last = {path.rpartition("/")[0]: path for path, *_ in sorted(ranges)}
        sealed = [each for each in sorted(ranges) if each[0] not in last.values()]
        if not sealed:
            return ""
        path, start, stop = self._random.choice(sealed)
        self.spoil(node)
        node.machine.disk.flip_bit(path, self._random.randrange(start, stop), self._random.randrange(8))
        return path

    def remove_segment(self, node: Node) -> None:
        """Remove the file of a segment, or all of a partition's directory, durably, under the node that runs."""
        disk = node.machine.disk
        path = self._random.choice([path for path in disk.paths() if path.endswith(".seq")])
        self.spoil(node)
        directory, name = disk.parent(path if self._random.random() < 0.7 else path.rpartition("/")[0])
        disk.change_names((directory, name, None))

    def _rot_at(self, node: Node, ranges: list[tuple[str, int, int]]) -> None:
        if not ranges:
            return
        disk = node.machine.disk
        path, start, stop = self._random.choice(ranges)
        self.spoil(node)
        offset = self._random.randrange(start, stop)
        if self._random.random() < 0.6:
            disk.flip_bit(path, offset, self._random.randrange(8))
        else:
            length = min(stop - offset, self._random.choice((1, 8, 64, 512)))
            disk.overwrite(path, offset, self._random.choice((bytes(length), self._random.randbytes(length))))

    async def rot_promises(self) -> None:
        """Damage one of the two copies of a node's promises for partition 0, unless they differ at this moment.

        While they differ, only the later one has the latest promises: without it, the node would go back to the older
        ones and nobody could tell.
        """
        node = self.spoilable()
        if node is None:
            return
        disk = node.machine.disk
        if _CONTROL not in disk.paths():
            return
        first, second = copies_of_promises(bytes(disk.file(_CONTROL).durable), 0)
        if first is None or first != second:
            return
        self.spoil(node)
        offset = offset_of(0) + SECTOR_BYTES * self._random.randrange(2) + self._random.randrange(SECTOR_BYTES)
        disk.flip_bit(_CONTROL, offset, self._random.randrange(8))

    def spoil_control_file(self, node: Node) -> None:
        """Overwrite the beginning of a node's control file, so that the node can't start any more."""
        self.spoil(node)
        node.machine.disk.overwrite(_CONTROL, 0, self._random.randbytes(SECTOR_BYTES))

    async def wipe(self) -> None:
        """Kill a node, put an empty disk in place of its own, and let it start again."""
        node = self.spoilable()
        if node is None or node.held_down:
            return
        await self.replace_disk(node, lambda: self._wipe_now(node))

    def _wipe_now(self, node: Node, snapshot: DirectoryImage | None = None) -> None:
        self.spoil(node)
        node.machine.disk.wipe()

    async def restore(self) -> None:
        """Kill a node, and put back the state that its disk had a while ago, if `_put_back` allows it."""
        node = self.spoilable()
        if node is None or node.held_down:
            return
        snapshot = node.machine.disk.snapshot()
        await asyncio.sleep(self.seconds(0.5, 2.0))
        if not node.held_down:
            await self.replace_disk(node, lambda: self._put_back(node, snapshot))

    def _put_back(self, node: Node, snapshot: DirectoryImage) -> None:
        """Restore the snapshot, if in every partition it is from before the last session that the node was engaged in.

        A snapshot from that very session can't be told from the present disk: a fault that replication can't bear.
        """
        name = self._cluster.storage_id(node)
        engaged = [value.engagements.get(name) for value in self._cluster.partition_values()]
        if all(e is not None and _joined(snapshot, partition) < e.session for partition, e in enumerate(engaged)):
            self.spoil(node)
            node.machine.disk.restore(snapshot)

    async def replace_disk(self, node: Node, replace: Callable[[], None]) -> None:
        """Kill a node, call `replace` to change its disk, and let it start again."""
        node.hold_down()
        try:
            self.crash_or_power_loss(node)
            await asyncio.sleep(0)  # until the process is put away: a disk can't be replaced under a living one
            replace()
            await asyncio.sleep(self.seconds(0.05, 0.5))
        finally:
            node.let_up()


def _witnessed(disk: SimulatedDisk) -> list[tuple[str, int, int]]:
    """Return ranges of files, (path, start, stop), in which damage can always be told from a torn tail.

    These are the ranges below what a durable frame, or the header of the next segment, says was synced; and all of an
    index, which proves nothing and is made again from its segment.
    """
    ranges: list[tuple[str, int, int]] = []
    sealed_to: dict[str, int] = {}
    for path in reversed(disk.paths()):
        raw = bytes(disk.file(path).durable)
        if path.endswith(".idx"):
            ranges.append((path, 0, len(raw)))
        if not path.endswith(".seq"):
            continue
        try:
            header = SegmentHeader.decode(raw)
        except (SegmentDamaged, UnsupportedFormat):
            continue
        directory = path.rpartition("/")[0]
        stop = max(_claimed(raw, header.seed), sealed_to.get(directory, 0))
        sealed_to[directory] = header.previous_end
        ranges.append((path, 0, min(stop, len(raw))))
    return [each for each in ranges if each[2] > each[1]]


def _claimed(raw: bytes, seed: int) -> int:
    """Return the highest offset that any frame says was synced when the frame was written."""
    claimed, at = 0, raw.find(b"PLNF")
    while at >= 0:
        frame = open_frame(raw, at, offset=at, seed=seed)
        if frame is not None and at + FRAME_BYTES + frame.length <= len(raw):
            claimed = max(claimed, frame.synced)
        at = raw.find(b"PLNF", at + 1)
    return claimed


def _joined(snapshot: DirectoryImage, partition: PartitionId) -> SessionId:
    """Return the joined session in a snapshot's promises for a partition."""
    file = snapshot.files().get(_CONTROL)
    copies = copies_of_promises(bytes(file.cache), partition) if file is not None else []
    return max((copy.promises.joined for copy in copies if copy is not None), default=NO_SESSION)
