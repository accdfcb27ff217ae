"""The nemesis: injects a mix of faults, drawn per seed, now and then while clients work.

Its limits are the *fault atlas*. Before the trials, at most a minority of a seed's storage nodes has its disk damaged,
restored from an old state, wiped, or made to fail any syncs, reads and writes. Syncs of writes into new space may
fail on all nodes at once, because no node has acknowledged those writes. No damage is done that the design calls
undetectable: rot of bytes where nothing durable says that they were synced, and an old disk from the current session
itself. So every promise has to hold in spite of all these faults, and whatever breaks one is a bug.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from polonaise.errors import SegmentDamaged, UnsupportedFormat
from polonaise.log.control import CONTROL_FILE, SECTOR_BYTES, offset_of
from polonaise.log.segment import FRAME_BYTES, HEADER_BYTES, SegmentHeader, open_frame
from polonaise.terms import NO_SESSION, PartitionId, SessionId, TransactionId
from polonaise_proving.record.diskaudit import copies_of_promises
from polonaise_proving.stages.simulated.cluster import DIRECTORY, Cluster, Node
from polonaise_proving.stages.simulated.disk import SimulatedDisk
from polonaise_proving.stages.simulated.diskimages import DirectoryImage

if TYPE_CHECKING:
    from polonaise_proving.stages.simulated.object_store import SimulatedStore

_CONTROL: Final = f"{DIRECTORY}/{CONTROL_FILE}"
# For moments that are over within a few milliseconds: looked for this often, and for 1.5 s at most.
_LOOK_S: Final = 0.001
_LOOKS: Final = 1_500

Stop = Callable[[Node, float], Coroutine[Any, Any, None]]


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


class Nemesis(DiskFaults):
    """Inject faults into a cluster until `heal`."""

    def __init__(self, cluster: Cluster, *, later: int, only: str | None = None) -> None:
        """Draw the actions of a seed, of `LATER_ACTIONS` those up to the number `later`.

        `only` names one of `action_names` that it has instead of them.
        """
        super().__init__(cluster, cluster.world.random("nemesis"))
        self._world = cluster.world
        self._network = cluster.world.network
        self._store: SimulatedStore | None = None
        """The object store to which the log is archived; None in most seeds."""
        self._under_way: list[asyncio.Task[None]] = []
        self._uncornered = asyncio.Event()
        """Set while no `corner` action is under way."""
        self._uncornered.set()
        # A seed has only some of the actions, and much more of some than of others: what one fault brings to light,
        # another one may hide. No weight is 0, or an action that was drawn might never come.
        self._actions = [action for action, chance, _ in ACTIONS if self._random.random() < chance] or [Nemesis.crash]
        weights = {action: weight for action, _, weight in ACTIONS}
        self._weights = [weights[action] * (self._random.random() + 0.05) for action in self._actions]
        self._pause_s = self._random.choice((0.1, 0.3, 0.8))
        for number, action, chance, weight in LATER_ACTIONS:
            source = self._world.random(f"later {number}")
            if number <= later and source.random() < chance:
                self._actions.append(action)
                self._weights.append(weight * (source.random() + 0.05))
        self._only = only
        self.begun = 0
        """How many actions it has begun."""
        if only is not None:  # after the draws: the rest of the seed stays as it is
            self._actions = [action for action in _actions_everywhere() if action.__name__ == only]
            self._weights = [1.0 for _ in self._actions]

    def trouble_store(self, store: SimulatedStore) -> None:
        """Add the faults of this seed's object store to its actions."""
        self._store = store
        for action in STORE_ACTIONS:
            if self._only in (None, action.__name__):
                self._actions.append(action)
                self._weights.append(1.0)

    async def run(self, duration_s: float) -> None:
        """Start actions at random moments for `duration_s` virtual seconds. They may overlap.

        Returns once no `corner` is under way: one that is broken off half-way tests nothing.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + duration_s
        while True:
            await asyncio.sleep(self._random.expovariate(1.0 / self._pause_s))
            if loop.time() >= until_s:
                break
            if not self._actions:
                continue  # the only one that is asked for needs an object store, and this seed has none
            action = self._random.choices(self._actions, self._weights)[0]
            self.begun += 1
            self._world.trace.note(f"nemesis: {action.__name__}")
            self._under_way.append(self._world.spawn(action(self), f"nemesis: {action.__name__}"))
        await self._uncornered.wait()

    async def heal(self) -> None:
        """End the faults of the nemesis, and let every node run again. Damage of disks stays; the store's is mended.

        What the network and the disks do by chance (`Configuration`) goes on, and so do bit flips that are still due.
        """
        # First: faults that are under way would go on to cut links and stop processes.
        for task in self._under_way:
            task.cancel()
        cluster, network = self._cluster, self._network
        network.heal()
        names = [node.name for node in cluster.nodes]
        network.delay(names, names, 0.0)
        # The simulated coordinator is not reached over the network: it has its own cuts and troubles.
        cluster.cut_off.clear()
        cluster.service.configuration = cluster.knobs.coordinator
        if self._store is not None:
            self._store.away = self._store.unmounted = False
            self._store.restore()
        for node in cluster.nodes:
            node.machine.disk.mend()
            node.away_since = None
            if node.process is not None:
                node.process.crash_on_call = None
                node.process.resume()
            node.let_up()  # a node that was held down is not started before

    def has(self, name: str) -> bool:
        """Whether the action of that name is among those of its seed."""
        return any(action.__name__ == name for action in self._actions)

    # ------------------------------------------------------------------ for the actions

    def away(self, node: Node) -> None:
        """Note since when the coordinator does not hear from a node, unless it is away already."""
        if node.away_since is None:
            node.away_since = self._world.now

    # ------------------------------------------------------------------ processes and machines

    async def crash(self) -> None:
        """Kill a process."""
        self.some(self._cluster.nodes).crash()

    async def crash_at_call(self) -> None:
        """Kill a process just before one of its next calls to its machine, to hit every gap between two calls."""
        node = self.some(self._cluster.storage + self._cluster.servers)
        if node.running and node.process is not None:
            node.process.crash_on_call = node.process.calls + self._random.randrange(1, 60)

    async def power_loss(self) -> None:
        self.some(self._cluster.storage + self._cluster.servers).machine.power_loss()

    async def power_loss_of_all(self) -> None:
        self._world.power_loss_all()

    async def pause(self) -> None:
        """Stop a process for a while, as by SIGSTOP. A server may wake up when its successor has begun already."""
        node = self.some(self._cluster.nodes)
        if node.running:
            await self._stop_for(node, self.seconds(0.2, 1.0, 3.0))

    async def _stop_for(self, node: Node, seconds: float) -> None:
        process = node.process
        assert process is not None
        process.pause()
        self.away(node)
        await asyncio.sleep(seconds)
        process.resume()
        if node.process is process:  # else it died meanwhile, and its successor's absence is not ours to end
            node.away_since = None

    async def pause_owner(self) -> None:
        """Stop a server that owns a partition, and for longer than its lease, so that it wakes up replaced."""
        owners = [node for node in self._cluster.servers if self._cluster.owns(node) and node.running]
        if not owners:
            return
        self._cluster.rush(0.3)  # so that it has appends in hand when it stops, and writes when it wakes up
        await asyncio.sleep(self.seconds(0.02, 0.1))
        await self._stop_for(owners[0], self._cluster.knobs.lease_s + self.seconds(0.3, 1.0))

    async def clock_jump(self) -> None:
        machine = self.some(self._cluster.nodes).machine
        seconds, drift = self._random.choice((-3600.0, -1.0, 0.5, 7200.0)), self._random.uniform(-0.1, 0.1)
        if not self._cluster.knobs.clocks:  # else `ClockFaults` sets them wrong, and only a minority at once
            machine.jump_clock(seconds)
            machine.set_drift(drift)

    # ------------------------------------------------------------------ several at once

    async def corner(self) -> None:
        """Let a quorum come together that cannot know what was committed: it must wait, and decide nothing.

        Some replicas are late, others are spoilt, and the one that holds everything is away, all at the same moment.
        The partition may go on only when that one comes back as it was.
        """
        # One corner at a time: a second one would stop, and let up, the nodes of the first.
        if not self._spoilable or not self._uncornered.is_set():
            return
        self._uncornered.clear()
        spoilt = self._spoilable
        sound = [node for node in self._cluster.storage if node not in spoilt]
        self._random.shuffle(sound)
        # Late and spoilt ones together are a minority twice: one short of all nodes, and so a quorum.
        late, away = sound[: len(spoilt)], sound[len(spoilt) :]
        snapshots = [(node, node.machine.disk.snapshot()) for node in spoilt]
        try:
            # 1. The late ones miss what is committed now, on the others alone.
            for node in late:
                self._stop(node)
            self._cluster.rush(0.6)
            await asyncio.sleep(self.seconds(0.3, 0.8))
            # 2. The spoilt ones lose it. Most often by a bad header, for that leaves the most to repair.
            spoil = self._random.choice((self._put_back, self._wipe_now, *3 * (self.rot_header,)))
            for node, snapshot in snapshots:
                self._stop(node)
                spoil(node, snapshot)
            # 3. Most often, wait until their repair is broken off half-way: a copy that was repaired in part and has
            # not joined yet must not decide either. Else the late ones come back beside them at once.
            if self._random.random() < 0.7:
                for node in spoilt:
                    node.let_up()
                await self._repaired_in_part(spoilt)
            else:
                for node in late + spoilt:
                    node.let_up()
                await asyncio.sleep(self.seconds(0.0, 0.05, 0.1, 0.2, 0.3))
            # 4. The one that holds everything goes. What is left is a quorum, of the late and the spoilt.
            for node in away:
                self._stop(node)
            for node in late:
                node.let_up()
            await asyncio.sleep(self.seconds(0.5, 2.0, 3.0))
        finally:
            self._uncornered.set()
            for node in self._cluster.storage:
                node.let_up()

    async def _repaired_in_part(self, nodes: list[Node]) -> None:
        """Wait until the log on one of these disks has begun to grow again, for 1.5 s at most.

        At that moment its repair is mostly under way, so that the caller can break it off half-way.
        """
        disks = [node.machine.disk for node in nodes]
        used: list[int] = []
        lowest: list[TransactionId] = []
        for _ in range(_LOOKS):
            before, used = used, [disk.used_bytes() for disk in disks]
            if used != before:  # reading the logs costs far more than counting bytes
                # Grown is measured from the lowest end that was seen: the node first cuts what it can't read, and
                # only then copies.
                lasts = [
                    node.durable_last(partition)
                    for node in nodes
                    for partition in range(self._cluster.knobs.partitions)
                ]
                lowest_before = lowest or lasts  # the first look has nothing to compare with
                if any(now > least for now, least in zip(lasts, lowest_before, strict=True)):
                    return
                lowest = [min(now, least) for now, least in zip(lasts, lowest_before, strict=True)]
            await asyncio.sleep(_LOOK_S)

    async def minority_write(self) -> None:
        """Let an owner reach one replica only, for a while; then only the others; and then mostly let it be replaced.

        What that one replica holds was not committed; a successor that reaches it finds it, and keeps it. The owner
        ends its session and starts another one meanwhile. It may be anywhere in that start when it is cut off from the
        coordinator, or stopped, for longer than its lease.
        """
        owners = [node for node in self._cluster.servers if self._cluster.owns(node) and node.running]
        if not owners or len(self._cluster.storage) < 2:
            return
        owner = owners[0]
        alone, *others = [node.name for node in self._random.sample(self._cluster.storage, len(self._cluster.storage))]
        self._cluster.rush(1.0)
        await asyncio.sleep(self.seconds(0.05, 0.2))
        self._network.partition(owner.name, others)
        await asyncio.sleep(self.seconds(0.05, 0.2))
        # First the new cut, then the healing: an owner that reached both at once could commit what the one holds.
        self._network.partition(owner.name, alone)
        self._network.heal(owner.name, others)
        claimed = self._cluster.partition_value(0).session  # before the owner can claim its next one
        # Else the bytes that were held back for the others would reach them after all, and be committed.
        self._network.reset(owner.name, others)
        # Most often the owner is cut off from the coordinator between claim and engagement, a moment so short that
        # chance hardly ever finds it: a fate that the owner told there would not be certain yet.
        if self._random.random() < 0.75:
            await self._claimed_after(claimed)
            await asyncio.sleep(self.seconds(0.01, 0.03))  # the owner has to hear that its claim was made
            stop: Stop | None = self._cut_off_for
        else:
            await asyncio.sleep(self.seconds(0.02, 0.1, 0.3))
            stop = self._random.choice((None, self._stop_for, self._cut_off_for))
        if stop is not None:
            await stop(owner, self._cluster.knobs.lease_s + self.seconds(0.05, 0.3, 1.0))
        self._network.heal(owner.name, alone)

    async def _claimed_after(self, session: SessionId) -> None:
        """Wait until a session after `session` is claimed for the first partition, for 1.5 s at most.

        Its engagement comes later, so the caller finds the owner in between.
        """
        for _ in range(_LOOKS):
            if self._cluster.partition_value(0).session > session:
                return
            await asyncio.sleep(_LOOK_S)

    def _stop(self, node: Node) -> None:
        """Stop a node by a crash or a loss of power; it does not start again before `Node.let_up`."""
        node.hold_down()
        self.crash_or_power_loss(node)

    # ------------------------------------------------------------------ the network

    async def partition(self) -> None:
        """Cut some machines off from the others, or one from another; in one direction or both."""
        nodes = list(self._cluster.nodes)
        self._random.shuffle(nodes)
        cut = self._random.randrange(1, len(nodes))
        these, those = nodes[:cut], nodes[cut:]
        if self._random.random() < 0.5:
            these, those = these[:1], those[:1]
        both = self._random.random() < 0.6
        names = [node.name for node in these], [node.name for node in those]
        self._network.partition(*names, both=both)
        await asyncio.sleep(self.seconds(0.2, 1.0, 2.5))
        self._network.heal(*names)

    async def cut_off_coordinator(self) -> None:
        """Cut a server off from the coordinator alone.

        After `lease_s` seconds others may own its partitions, unless the cut ends before. In seeds without real leases
        (`Knobs.leases`, `session_s`) the server does not notice that, and works on beside the new owners until it is
        fenced. Some clients are cut off from the coordinator too, and stay with the old owner.
        """
        node = self.some(self._cluster.servers)
        if node.name in self._cluster.cut_off:
            return
        clients = {client.name for client in self._cluster.clients if self._random.random() < 0.4}
        self._cluster.cut_off |= clients
        loop = asyncio.get_running_loop()
        # Many appends at both moments: when the old owner is cut off, and when the new one begins beside it.
        for after_s in (0.0, self._cluster.knobs.lease_s):
            loop.call_later(after_s, self._cluster.rush, 0.5)
        await self._cut_off_for(node, self.seconds(0.2, 1.5, 3.0))
        self._cluster.cut_off -= clients

    async def _cut_off_for(self, node: Node, seconds: float) -> None:
        self._cluster.cut_off.add(node.name)
        self.away(node)
        await asyncio.sleep(seconds)
        self._cluster.cut_off.discard(node.name)
        node.away_since = None

    async def depose(self) -> None:
        """Let the coordinator take an owner for dead at once, while the owner hears nothing of it and can still write.

        With a true lease the owner would have stopped by itself before; here the fence alone has to be enough. Some
        clients stay with it. Often there is a replica that it does not reach, and another that its successor does not
        reach.
        """
        owners = [node for node in self._cluster.servers if self._cluster.owns(node) and node.running]
        if not owners or self._cluster.rushing.is_set() or owners[0].name in self._cluster.cut_off:
            return
        owner = owners[0]
        staying = {client.name for client in self._cluster.clients if self._random.random() < 0.5}
        away = {owner.name} | staying - self._cluster.cut_off
        self._cluster.rush(1.5)
        await asyncio.sleep(self.seconds(0.05, 0.2))
        self._cluster.cut_off |= away
        owner.away_since = self._world.now - self._cluster.knobs.lease_s  # as if its lease had run out just now
        others = [node.name for node in self._cluster.servers if node is not owner]
        apart: list[tuple[str | list[str], str]] = []
        # Each server then has a replica that the other one can't fence, or can't write to.
        if len(self._cluster.storage) > 1 and self._random.random() < 0.7:
            one, another = self._random.sample(self._cluster.storage, 2)
            apart = [(owner.name, one.name), (others, another.name)]
        for servers, replica in apart:
            self._network.partition(servers, replica)
        await asyncio.sleep(self.seconds(0.5, 1.0))
        for servers, replica in apart:
            self._network.heal(servers, replica)
        self._cluster.cut_off -= away
        owner.away_since = None

    async def trouble_coordinator(self) -> None:
        """Let requests to the coordinator be refused, and results lost, for a while."""
        service = self._cluster.service
        calm = self._cluster.knobs.coordinator
        service.configuration = replace(calm, unavailable_chance=0.2, lost_result_chance=0.2)
        await asyncio.sleep(self.seconds(0.5, 2.0))
        service.configuration = calm

    async def delay(self) -> None:
        """Slow down everything between two machines for a while."""
        these, those = self.some(self._cluster.nodes).name, self.some(self._cluster.nodes).name
        self._network.delay(these, those, self.seconds(0.02, 0.2, 0.6))
        await asyncio.sleep(self.seconds(0.5, 2.0))
        self._network.delay(these, those, 0.0)

    async def reset(self) -> None:
        self._network.reset(self.some(self._cluster.nodes).name, self.some(self._cluster.nodes).name)

    async def swallow_large(self) -> None:
        """Let nothing large pass to or from a server for a while, nor what is behind it; small things do.

        So connections are made, and who only greets or asks there is answered.
        """
        cluster = self._cluster
        server, other = self.some(cluster.servers).name, self.some(cluster.storage + cluster.clients).name
        source, target = self._random.choice(((server, other), (other, server)))
        hole = self._network.black_hole(source, target, self._random.choice((100, 300, 1_400)))
        await asyncio.sleep(self.seconds(0.5, 2.0, 5.0))
        self._network.fill(hole)

    async def flip_byte(self) -> None:
        self._network.flip_byte(self.some(self._cluster.nodes).name, self.some(self._cluster.nodes).name)

    # ------------------------------------------------------------------ the object store

    async def store_away(self) -> None:
        """Let the store answer nobody for a while."""
        store = self._store
        assert store is not None
        store.away = True
        await asyncio.sleep(self.seconds(0.2, 1.0, 2.5))
        store.away = False

    async def unmount_store(self) -> None:
        """Put an empty directory in the store's place for a while."""
        store = self._store
        assert store is not None
        store.unmounted = True
        await asyncio.sleep(self.seconds(0.2, 1.0, 2.5))
        store.unmounted = False

    async def damage_object(self) -> None:
        """Flip a bit of an object in the store; after a while an operator puts the copy back."""
        store = self._store
        assert store is not None
        store.damage()
        await asyncio.sleep(self.seconds(0.5, 2.0))
        store.restore()


Action = Callable[[Nemesis], Coroutine[Any, Any, None]]

ACTIONS: Final[tuple[tuple[Action, float, float], ...]] = (
    (Nemesis.crash, 0.35, 1.0),
    (Nemesis.crash_at_call, 0.35, 1.0),
    (Nemesis.power_loss, 0.35, 1.0),
    (Nemesis.power_loss_of_all, 0.35, 1.0),
    (Nemesis.pause, 0.35, 1.0),
    (Nemesis.pause_owner, 0.35, 1.0),
    (Nemesis.corner, 0.5, 3.0),
    (Nemesis.minority_write, 0.5, 4.0),
    (Nemesis.clock_jump, 0.35, 1.0),
    (Nemesis.partition, 0.35, 1.0),
    (Nemesis.cut_off_coordinator, 0.35, 1.0),
    (Nemesis.depose, 0.5, 3.0),
    (Nemesis.trouble_coordinator, 0.35, 1.0),
    (Nemesis.delay, 0.35, 1.0),
    (Nemesis.reset, 0.35, 1.0),
    (Nemesis.flip_byte, 0.35, 1.0),
    (Nemesis.full_disk, 0.35, 1.0),
    (Nemesis.fail_calls, 0.35, 1.0),
    (Nemesis.fail_appends, 0.35, 1.0),
    (Nemesis.rot, 0.35, 1.0),
    (Nemesis.rot_promises, 0.35, 1.0),
    (Nemesis.wipe, 0.35, 1.0),
    (Nemesis.restore, 0.35, 1.0),
)
"""Each action with the chance that a seed has it, and its weight among the actions of such a seed.

Nothing is added here: one more draw would give every seed another course, and the seeds that are kept for what they
once found would find it no more. New actions are `LATER_ACTIONS`.

Actions that need several coincidences (`corner`, `minority_write`, `depose`) have a higher chance and weight. Without
that, only one seed in hundreds would reach the bugs that those actions alone can find.
"""


class LaterAction(NamedTuple):
    """An action that was added when there were kept seeds."""

    number: int
    """The one that it has among all later features (`scenarios.schedule.LATER_FEATURES`)."""
    action: Action
    chance: float
    weight: float


LATER_ACTIONS: Final[tuple[LaterAction, ...]] = (LaterAction(1, Nemesis.swallow_large, 0.25, 2.0),)
"""New actions, at the end, each with the next number: `scenarios.schedule.LATER_FEATURES`, which is raised with it.

Chance and weight are those of `ACTIONS`.
"""

STORE_ACTIONS: Final[tuple[Action, ...]] = (Nemesis.store_away, Nemesis.unmount_store, Nemesis.damage_object)
"""What all seeds with an object store have besides."""


def _actions_everywhere() -> list[Action]:
    """Return the actions that need no object store."""
    return [*(action for action, _, _ in ACTIONS), *(each.action for each in LATER_ACTIONS)]


def action_names() -> list[str]:
    """Return the names of all actions."""
    return [action.__name__ for action in (*_actions_everywhere(), *STORE_ACTIONS)]
