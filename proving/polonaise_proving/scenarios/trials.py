"""Trials: exact tests late in a schedule, when all is well again; each in a share of the seeds.

The nemesis has ended its faults by then, and only what the seed's network and disks do by chance goes on. So it can be
told exactly what has to follow from what a trial does to the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from polonaise.client.log import Log
from polonaise.client.protocol.outstanding import Unordered
from polonaise.coordination.lease import LEASE_S
from polonaise.coordination.values import ASSIGNMENT, Assignment
from polonaise.host import Host
from polonaise.log.control import CONTROL_FILE
from polonaise.terms import NO_TRANSACTION, FailureReason, TransactionId
from polonaise_proving.faults.nemesis import Nemesis
from polonaise_proving.judges.moments import (
    loss_is_counted_no_more,
    moved_once,
    owned_as_before,
    planned_fails_nothing,
    refused_is_left,
)
from polonaise_proving.record.failures import Violation, raise_first
from polonaise_proving.record.observations import History
from polonaise_proving.stages.simulated.cluster import Cluster, Node
from polonaise_proving.stages.simulated.observer import REPAIR_S, SCRUB_S, SETTLE_S, Observer
from polonaise_proving.work import workload
from polonaise_proving.work.application import Application

_ROT_SHARE: Final = 0.25
"""Among the seeds with three or more replicas, the share of those in which a bit of a sealed segment rots when all work
is done, so that mostly nothing reads it but a scrub."""
_IN_TURN_SHARE: Final = 0.07
"""Among the seeds with three replicas, the share of those in which one disk after the other goes bad."""
_TAKE_OVER_S: Final = 5.0
"""Virtual seconds within which a partition has its next owner once the lease of the last one has run out."""
_MENDED_LOOK_S: Final = 0.5
"""Virtual seconds between two looks at a disk: seldom, as each look reads everything on it."""
_MENDED_STEPS: Final = 400_000
"""Additional handles that the schedule may run for each strike: scrubs read everything again and again until it is
mended. Up to 235 000 were measured."""
_LOSS_TOLD_S: Final = 5.0
"""Virtual seconds within which the owner of a partition must have heard that a copy is lost of which its node knows."""
_LATER_S: Final = 0.5
"""Virtual seconds between the moments at which one paused server and the next resume."""

_NEEDED_S: Final = 8.0
"""Virtual seconds within which a session begins that needs a replica which lacks some kilobytes."""
_BROKEN_OFF: Final = 3
"""How many times as long it may take where connections break by chance: each break begins the session's start anew."""
_TOLD_S: Final = 15.0
"""Virtual seconds within which a waiting client must be told which nodes it waits for, health must say why a directory
is refused, and owners who answers with an empty directory, or is gone again."""
_LOST_S: Final = 40.0
"""Virtual seconds for which a majority of the storage nodes is away: several times as long as a server's grace."""
_TAKEN_BACK_GRACES: Final = 25
"""How many times its grace a server may give something up, after the few times that a schedule gives it reason to."""
_SLOW_SYNCS: Final = 500.0
_SLOW_APPENDS: Final = 5
"""So many transactions have to be committed within `_SLOW_SYNCS` times the time of a slow call to a disk."""
_SLOW_READS: Final = 4.0
"""So many times the time of a slow call more for each transaction of the log: a client that has lost its view appends
only once it has been fed all of them, from the disks, and may fetch each body by itself. Up to 1.6 were measured."""
_SLOW_STEPS: Final = 1_000
_REPLACED_TIMES: Final = 2
_REPLACED_STEPS: Final = 20
_PLANNED_STEPS: Final = 60
_ENDED: Final = tuple(f"({reason.name.lower()})" for reason in (FailureReason.SESSION_ENDED, Unordered.UNTOLD))
"""Stand in the texts of errors that say that an append went with the session that it was sent in."""
_PASSED_OVER: Final = f"({Unordered.PASSED_OVER.name.lower()})"
"""Stands in the text of an error that says no more than that an append is not in the log. The owner may have refused it
for what it demands, and its refusal went with the mount: then no stopped node is the reason."""

Strike = Callable[[Node], Awaitable[float]]
"""Harms a node's disk; returns the virtual seconds within which it must be whole again, or 0 if nothing was done."""
_OPEN_S: Final = 10.0
"""Virtual seconds within which every partition must be open once the right directories are back."""


class WaitingClient:
    """A client that appends to each partition once `go` is set. Its process has one life only."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._log: Log | None = None
        partitions = cluster.knobs.partitions
        self.application = Application(history, "waiting", partitions, 0, cluster.world.random("waiting"))
        self.go = asyncio.Event()
        self.mounted = False
        self.done = False

    @property
    def trouble(self) -> str:
        """The trouble of partition 0 as the client is told it now; empty if the partition has none."""
        return str((self._log.trouble(0) if self._log is not None else None) or "")

    async def run(self, node: Node, host: Host) -> None:
        """Mount all partitions, wait for `go`, then append to each and read it."""
        coordinator, ledger = self._cluster.coordinator(node, host), self.application.ledger
        async with Log(host, coordinator, view=ledger, settings=self._cluster.knobs.client) as log:
            self._log = log
            partitions = range(self._cluster.knobs.partitions)
            for partition in partitions:
                await log.ready(partition)
            self.mounted = True
            await self.go.wait()
            session = workload.ClientLife(host, self.application, log)
            for partition in partitions:
                await workload.last_step(session, partition)
            self.done = True
            await asyncio.get_running_loop().create_future()


class Trials:
    """The trials of one schedule."""

    def __init__(self, observer: Observer, nemesis: Nemesis) -> None:
        self._cluster = observer.cluster
        self._nemesis = nemesis
        self._observer = observer
        self._random: random.Random = self._cluster.world.random("trials")
        self._faults = self._cluster.world.faults

    async def run(self) -> None:
        """Run the trials that this seed has drawn. Raises `Violation`."""
        # Each trial ends only when the replicas, or the work that it began, are well again, so none needs another one
        # before it. The order stays as it is because a change of it would change what the seeds that tests keep mean.
        # Whether a trial is run is drawn from a generator of its own, so that a new trial changes no seed without it.
        # For the disks in turn that generator is `_random`, from which nothing was drawn before.
        if self._cluster.world.random("rot").random() < _ROT_SHARE:
            node = self._nemesis.spoilable()
            if node is not None:
                await self._mended(node, self._rot_at_rest)
        if self._random.random() < _IN_TURN_SHARE and len(self._cluster.storage) == 3:
            await self._every_disk_in_turn()
        if self._cluster.knobs.leases:
            await self._working_servers_keep_what_they_own()
            await self._stopped_servers_are_replaced()
        if self._cluster.knobs.throttled:
            await self._needed_copies_are_not_throttled()
        if self._cluster.knobs.session_s:
            await self._owners_that_are_cut_off_are_replaced()
        for share, trial in _TRIALS:
            if self._cluster.world.random(trial.__name__).random() < share:
                # A session may have ended by itself since: the next one is about to begin with what disks hold now.
                await self._observer.repaired()
                await trial(self)

    # ------------------------------------------------------------------ P1, P10: disks

    async def _every_disk_in_turn(self) -> None:
        """Harm one disk after the other, each as soon as all others are whole again: nothing must be lost by that.

        Disks that were spoilt before come first, and are wiped: they may have rot that nothing has read yet, so that
        two copies at once would be bad.
        """
        nodes = list(self._cluster.storage)
        self._random.shuffle(nodes)
        nodes.sort(key=lambda node: node.name not in self._nemesis.spoilt)
        for node in nodes:
            strikes = self._random.choice(([self._wipe], [self._rot_at_start], [self._rot_at_rest, self._rot_at_rest]))
            for strike in [self._wipe] if node.name in self._nemesis.spoilt else strikes:
                await self._mended(node, strike)
            self._nemesis.is_whole(node)
            self._faults.count("disk_in_turn")
        self._observer.begin_work_again(steps=2)
        await self._worked()

    async def _worked(self) -> None:
        await self._observer.until(SETTLE_S, self._observer.finished)
        await self._observer.level()

    async def _mended(self, node: Node, strike: Strike) -> None:
        """Strike a node's disk, and wait until it holds everything again. Raises `Violation` if that takes too long."""
        seconds = await strike(node)
        if seconds:
            self._cluster.world.loop.grant(_MENDED_STEPS)
        told_s = self._cluster.world.now
        until_s = told_s + seconds
        while seconds and self._observer.rotten(node):
            self._observer.stop_if_violated()
            if not node.running or not self._observer.counted_though_lost(node):
                told_s = self._cluster.world.now
            raise_first(loss_is_counted_no_more(node.name, self._cluster.world.now - told_s, _LOSS_TOLD_S))
            if self._cluster.world.now >= until_s:
                scrubbed = self._cluster.stores[node.name].scrubbed
                raise Violation("P10 corruption", f"{node.name} to be found bad and mended", f"{scrubbed}")
            await asyncio.sleep(_MENDED_LOOK_S)

    async def _rot_at_rest(self, node: Node) -> float:
        """Flip a bit where only a scrub reads: it must be found, and repaired from the other replicas."""
        if not node.running or not self._nemesis.rot_sealed(node):
            return 0.0
        self._faults.count("rot_at_rest")
        return SCRUB_S

    async def _rot_at_start(self, node: Node) -> float:
        await self._nemesis.replace_disk(node, lambda: self._nemesis.rot_header(node))
        return REPAIR_S

    async def _removed_at_rest(self, node: Node) -> float:
        """Remove files under a running node: it must miss them, and have them copied anew, though nobody appends."""
        if not node.running:
            return 0.0
        self._nemesis.remove_segment(node)
        self._faults.count("removed_at_rest")
        return REPAIR_S

    async def _wipe(self, node: Node) -> float:
        self._nemesis.spoil(node)
        await self._nemesis.replace_disk(node, node.machine.disk.wipe)
        return REPAIR_S

    async def _removed_files_are_missed(self) -> None:
        node = self._nemesis.spoilable()
        if node is not None:
            await self._mended(node, self._removed_at_rest)

    # ------------------------------------------------------------------ P6, P11: fates, and what is told meanwhile

    async def _owners_are_replaced(self) -> None:
        """Have owners with undecided appends replaced, mostly.

        The appends' fates may be told only once a new session is certain.
        """
        for _ in range(_REPLACED_TIMES):
            self._observer.begin_work_again(_REPLACED_STEPS)
            await self._nemesis.minority_write()
            await self._worked()
        self._faults.count("owner_replaced")

    async def _who_waits_is_told(self) -> None:
        """Take a majority of the storage nodes down: a client that appends is told which, until they are back."""
        async with self._waiting_client() as client:
            count = len(self._cluster.storage) // 2 + 1
            away = self._random.sample(self._cluster.storage, count)
            for node in away:
                node.put_down()
            client.go.set()
            names = [self._cluster.storage_id(node) for node in away]
            try:
                # A client whose mount has a short deadline gives up before it is answered: then it knows only that.
                await self._observer.until(
                    _TOLD_S,
                    lambda: all(name in client.trouble for name in names) or "answer a mount" in client.trouble,
                )
            finally:
                for node in away:
                    node.let_up()
            await self._observer.until(SETTLE_S, lambda: client.done and not client.trouble)
        await self._observer.repaired()
        self._faults.count("hindrance_told")

    async def _refused_directory_is_told(self) -> None:
        """Damage a control file: health must say why the directory can't be opened, and work must go on.

        Nothing in the refused directory may be changed.
        """
        node = self._nemesis.spoilable()
        if node is None:
            return
        self._cluster.refuses.add(node.name)
        disk, name = node.machine.disk, self._cluster.storage_id(node)
        async with self._waiting_client() as client:
            await self._nemesis.replace_disk(node, lambda: self._nemesis.spoil_control_file(node))
            refused = disk.files()
            client.go.set()
            await self._observer.until(SETTLE_S, lambda: client.done)
            await self._observer.until(
                _TOLD_S,
                lambda: all(
                    CONTROL_FILE in server.health()["storage"][name]["error"]
                    for server in self._cluster.running_servers
                ),
            )
        raise_first(refused_is_left(node.name, refused, disk.files()))
        self._cluster.refuses.discard(node.name)
        await self._nemesis.replace_disk(node, disk.wipe)
        await self._observer.repaired(node)
        self._faults.count("directory_refused")

    @contextlib.asynccontextmanager
    async def _waiting_client(self) -> AsyncIterator[WaitingClient]:
        """Run a client that has mounted all partitions and has not appended anything."""
        client = WaitingClient(self._cluster, self._observer.history)
        node = Node(self._cluster, client.application.who, client.run)
        node.start()
        try:
            await self._observer.until(SETTLE_S, lambda: client.mounted)
            yield client
        finally:
            node.crash()

    async def _planned_changes_fail_nothing(self) -> None:
        """Stop nodes cleanly, one after the other, while clients append: no append may fail because of that.

        Nothing is done where the network loses or disks are slow by chance, which are faults, nor without three copies.
        """
        disk = self._cluster.world.configuration.disk
        if self._network_breaks() or disk.spike_chance or len(self._cluster.storage) < 3:
            return
        tries = self._observer.history.tries
        first = len(tries)
        self._cluster.world.loop.grant(_MENDED_STEPS)
        self._observer.begin_work_again(_PLANNED_STEPS)
        nodes = [*self._cluster.storage, *self._cluster.servers] * 2
        self._random.shuffle(nodes)
        for node in nodes:
            await asyncio.sleep(0.1 * self._random.random())
            if node.process is None or not node.running or self._observer.finished():
                continue
            node.process.terminate()
            await node.process.ended()
            await self._observer.until(SETTLE_S, self._observer.all_engaged)
        await self._worked()
        raise_first(planned_fails_nothing(tries[first:], {True: _ENDED, False: (*_ENDED, _PASSED_OVER)}))
        self._faults.count("planned")

    # ------------------------------------------------------------------ P11: copies

    async def _needed_copies_are_not_throttled(self) -> None:
        """Have a session need a replica that lacks much: it must be copied to at once, however little is allowed.

        Nothing is done unless there are three replicas, or if two disks may be bad.
        """
        nodes = sorted(self._cluster.storage, key=lambda node: node.name in self._nemesis.spoilt)
        if len(nodes) != 3 or nodes[1].name in self._nemesis.spoilt:
            return
        _, late, gone = nodes
        if gone.name in self._nemesis.spoilt:
            # It may have rot that nothing has read yet, and a quorum needs it while the late one is away.
            await self._mended(gone, self._wipe)
            self._nemesis.is_whole(gone)
        late.put_down()
        try:
            self._observer.begin_work_again(_REPLACED_STEPS)
            await self._observer.until(SETTLE_S, self._observer.finished)
            gone.put_down()
            late.let_up()
            seconds = _NEEDED_S * (_BROKEN_OFF if self._network_breaks() else 1)
            await self._observer.until(seconds, lambda: self._observer.engaged(late))
        finally:
            late.let_up()
            gone.let_up()
        await self._observer.repaired()
        self._faults.count("needed_copy")

    # ------------------------------------------------------------------ P11: leases

    async def _working_servers_keep_what_they_own(self) -> None:
        """Pause all servers for longer than a lease, as when their machines are suspended; none may lose what it owns.

        The server that resumes first must not take the others for dead: while it was paused, it has not looked at them.
        """
        while True:
            await self._nothing_is_given_up()
            # Or a lease that ran out during the faults, or a server that settles only now, could still change owners.
            await asyncio.sleep(LEASE_S + max(LEASE_S, self._cluster.knobs.server.settle_s) + _TAKE_OVER_S)
            if not self._given_up():  # meanwhile, where the network breaks connections by chance
                break
        owned, held = self._owned(), self._held()
        # Owners go on last: those that could take over look at them first.
        servers = sorted(self._cluster.servers, key=lambda node: node.name in owned.values())
        processes = [node.process for node in servers if node.process is not None]
        for process in processes:
            process.pause()
        await asyncio.sleep(1.5 * LEASE_S)
        for process in processes:
            process.resume()
            await asyncio.sleep(_LATER_S)
        await asyncio.sleep(LEASE_S)
        # Where the network breaks connections by chance, enough of them make a server give up what it owns.
        if not (self._network_breaks() and self._given_up()):
            raise_first(owned_as_before(held, self._held()))
        # A session may just begin anew, such as with a replica that was not there and has caught up by now.
        await self._observer.until(REPAIR_S, lambda: self._owned() == owned)

    async def _stopped_servers_are_replaced(self) -> None:
        """Pause an owner for longer than its lease: the other servers must take over all that it owns.

        Nothing is done with a single server. The paused one is resumed once the others have taken over; then every
        replica must be engaged again.
        """
        owned = self._owned()
        owners = [node for node in self._cluster.servers if node.name in owned.values() and node.process is not None]
        if not owners or self._cluster.server_processes < 2:
            return
        self._faults.count("lease")
        process = owners[0].process
        assert process is not None
        process.pause()
        seconds = LEASE_S + _TAKE_OVER_S
        paused = owners[0].name
        try:
            await self._observer.until(seconds, lambda: paused not in self._owned().values())
        finally:
            process.resume()
        await self._observer.until(REPAIR_S, self._observer.all_engaged, copying=True)

    async def _owners_that_are_cut_off_are_replaced(self) -> None:
        """Cut an owner off from the coordinator for longer than its session: the other servers must take over.

        It must stop by itself before (`OwnershipCheck`), and be allowed to own again when it is back. Nothing is done
        with a single server.
        """
        owned = self._owned()
        owners = [node for node in self._cluster.servers if node.name in owned.values() and node.running]
        if not owners or self._cluster.server_processes < 2:
            return
        owner = owners[0]
        self._cluster.cut_off.add(owner.name)
        try:
            # Its session ends late, up to this many times its length.
            seconds = 1.6 * self._cluster.knobs.session_s + _TAKE_OVER_S
            await self._observer.until(seconds, lambda: owner.name not in self._owned().values())
            # Those that had no session at first may have one by now, too.
            await self._observer.until(seconds, lambda: self._owned().keys() >= owned.keys())
        finally:
            self._cluster.cut_off.discard(owner.name)
        server = self._cluster.owners[owner.name]
        await self._observer.until(
            REPAIR_S, lambda: self._observer.all_engaged() and not server.not_owning, copying=True
        )
        self._faults.count("owner_cut_off")

    async def _owners_without_storage_are_replaced(self) -> None:
        """Cut an owner off from all storage nodes alone, for good or again and again: others must take over.

        Nothing is done with a single server.
        """
        owners = [node for node in self._cluster.servers if self._cluster.owns(node) and node.running]
        if not owners or self._cluster.server_processes < 2:
            return
        self._cluster.world.loop.grant(_MENDED_STEPS)
        owner, network = owners[0].name, self._cluster.world.network
        storage = [node.name for node in (*self._cluster.storage, *self._cluster.spares)]
        owned, settings = self._owned().keys(), self._cluster.knobs.server

        def taken_over() -> bool:
            present = self._owned()
            return present.keys() >= owned and owner not in present.values()

        async def cut_again_and_again() -> None:
            while True:
                network.partition(owner, storage)
                await asyncio.sleep(self._cluster.knobs.link.silence_s_max + 0.5)
                network.heal(owner, storage)
                await asyncio.sleep(1.0)

        flapping = None
        if self._random.random() < 0.5:
            flapping = self._cluster.world.spawn(cut_again_and_again(), "flapping")
        else:
            network.partition(owner, storage)
        try:
            # A server that has just started takes over only once it has settled.
            await self._observer.until(5 * settings.give_up_s + settings.settle_s + _TOLD_S, taken_over)
        finally:
            if flapping is not None:
                flapping.cancel()
            network.heal(owner, storage)
        await self._observer.until(REPAIR_S, self._observer.all_engaged, copying=True)
        self._faults.count("cut_off_from_storage")

    async def _nobody_passes_on_what_nobody_can_serve(self) -> None:
        """Take a majority of the storage nodes down for long: partitions may change their owners once each, at most.

        Nothing is done with sessions, which end early by chance: what such a server owned moves, and later moves back.
        """
        if self._cluster.server_processes < 2 or self._cluster.knobs.session_s:
            return
        self._cluster.world.loop.grant(_MENDED_STEPS)
        await self._nothing_is_given_up()
        await asyncio.sleep(max(LEASE_S, self._cluster.knobs.server.settle_s) + _TAKE_OVER_S)
        before = self._generations()
        # The spares, too: with them most storage nodes could be there, so that a server has reason to try again.
        away = [*self._cluster.storage[: len(self._cluster.storage) // 2 + 1], *self._cluster.spares]
        for node in away:
            node.put_down()
        try:
            await asyncio.sleep(_LOST_S)
        finally:
            for node in away:
                node.let_up()
        raise_first(moved_once(sum(self._generations()) - sum(before), len(before)))
        await self._observer.repaired()
        self._faults.count("majority_lost")

    async def _mislaid_directories_are_taken(self) -> None:
        """Let most storage nodes come up with empty directories, as with a mount that is missing, then with theirs.

        Nothing is lost by that: all partitions open at once, and who looks meanwhile is told of what is there now.
        """
        storage, cluster = self._cluster.storage, self._cluster
        if len(storage) == 1:
            return
        # What rots on a spoilt disk without having been read is no loss only as long as the others have it.
        sound = [node for node in storage if node.name not in self._nemesis.spoilt]
        nodes = self._random.sample(sound, self._random.randint(len(storage) // 2 + 1, len(sound)))
        for node in nodes:
            node.hold_down()
            self._nemesis.crash_or_power_loss(node)
        await asyncio.sleep(0)  # until the processes are put away: a disk can't be replaced under a living one
        right = [node.machine.disk.snapshot() for node in nodes]
        for node in nodes:
            self._nemesis.spoil(node)  # so that nobody looks for the log there meanwhile
            node.machine.disk.wipe()
            node.let_up()
        await self._observer.until(_TOLD_S, lambda: self._all_listed_empty(nodes), "P13 fail-safe")
        for node in nodes:
            node.hold_down()
            node.crash()
        await self._observer.until(_TOLD_S, lambda: not self._listed(nodes), "P13 fail-safe")
        for node, image in zip(nodes, right, strict=True):
            node.machine.disk.restore(image)
            self._nemesis.is_whole(node)
            node.let_up()
        await self._observer.until(_OPEN_S, lambda: all(map(cluster.is_open, range(cluster.knobs.partitions))))
        cluster.world.faults.count("mislaid")
        await self._observer.repaired()

    def _all_listed_empty(self, nodes: list[Node]) -> bool:
        """Whether the owner of each partition lists all these nodes, as empty, for who would reset its head."""
        told = self._listed(nodes)
        return len(told) == len(nodes) * self._cluster.knobs.partitions and all(last == NO_TRANSACTION for last in told)

    def _listed(self, nodes: list[Node]) -> list[TransactionId]:
        """Return the last id that owners list for these nodes, once for each partition and node."""
        names = {self._cluster.storage_id(node) for node in nodes}
        return [
            held["last"]
            for server in self._cluster.running_servers
            for health in server.health()["partitions"].values()
            for name, held in health.get("held", {}).items()
            if name in names
        ]

    async def _slow_disks_are_waited_for(self) -> None:
        """Let every call to every disk take longer than an owner's patience: appends go on, slowly, all the same.

        Then all work is done, and every replica is engaged again, at the ordinary speed. Nothing is done where the
        network breaks connections by chance: where a session's start takes long, that ends each one.
        """
        if self._network_breaks():
            return
        self._cluster.world.loop.grant(_MENDED_STEPS)
        slow_s = 0.75 * self._cluster.knobs.server.acknowledge_s_max  # a call that syncs takes twice as much
        disks = [node.machine.disk for node in (*self._cluster.storage, *self._cluster.spares)]
        told = sum(self._observer.history.told)
        for disk in disks:
            disk.slow(slow_s)
        try:
            # Steps whose appends fail are done, too, and an application that has nothing left to do shows nothing.
            self._observer.begin_work_again(_SLOW_STEPS)
            calls = _SLOW_SYNCS + _SLOW_READS * told
            await self._observer.until(calls * slow_s, lambda: sum(self._observer.history.told) >= told + _SLOW_APPENDS)
        finally:
            for disk in disks:
                disk.slow(0.0)
        self._observer.begin_work_again(steps=2)
        await self._worked()
        await self._observer.repaired()
        self._faults.count("slow_disks")

    async def _nothing_is_given_up(self) -> None:
        """Wait until no server gives up anything: what it takes back moves to it for balance, which is no fault."""
        if self._given_up():
            self._cluster.world.loop.grant(_MENDED_STEPS)
            seconds = _TAKEN_BACK_GRACES * self._cluster.knobs.server.give_up_s
            await self._observer.until(seconds, lambda: not self._given_up())

    def _network_breaks(self) -> bool:
        """Whether the network breaks connections by chance."""
        network = self._cluster.world.configuration.network
        return bool(network.reset_chance or network.flip_chance)

    def _given_up(self) -> bool:
        """Whether any server gives up a partition that it can't serve."""
        return any(server.given_up for server in self._cluster.running_servers)

    def _generations(self) -> list[int]:
        owners = Assignment.decode(self._cluster.service.snapshot()[ASSIGNMENT].contents).owners
        return [owners[partition].generation for partition in sorted(owners)]

    def _owned(self) -> dict[int, str]:
        """Return, by partition, the name of the server that has a session in it; of two servers, the later owner's."""
        return {partition: name for partition, (_, name) in self._held(in_session=True).items()}

    def _held(self, *, in_session: bool = False) -> dict[int, tuple[int, str]]:
        """Return, by partition, generation and name of its latest owner; if told so, of those with a session."""
        latest: dict[int, tuple[int, str]] = {}
        for name, server in self._cluster.owners.items():
            for partition, served in server.partitions.items():
                if served.owner.session is not None or not in_session:
                    latest[partition] = max(latest.get(partition, (-1, "")), (served.generation, name))
        return dict(sorted(latest.items()))


_TRIALS: Final[tuple[tuple[float, Callable[[Trials], Awaitable[None]]], ...]] = (
    (0.1, Trials._owners_are_replaced),
    (0.1, Trials._who_waits_is_told),
    (0.1, Trials._refused_directory_is_told),
    (0.3, Trials._planned_changes_fail_nothing),
    (0.05, Trials._owners_without_storage_are_replaced),
    (0.03, Trials._nobody_passes_on_what_nobody_can_serve),
    (0.05, Trials._slow_disks_are_waited_for),
    (0.1, Trials._removed_files_are_missed),
    (0.1, Trials._mislaid_directories_are_taken),
)
"""Trials that are drawn whatever the cluster is like, each with the share of seeds that have it."""
