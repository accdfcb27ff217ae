"""Resets of the head: a majority of disks is lost for good, and operators decide where the logs of partitions go on.

The scene comes last in its schedule, when all is well and all checks have been made, and in rounds: work, the loss, the
decision amid faults, work again, and lost disks that are found again.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from polonaise.admin.headresets import HeadState, ask_reset, await_reset, decision, head_state
from polonaise.client.log import partitions_of
from polonaise.coordination import Coordinator
from polonaise.coordination.values import HeadReset, PartitionValue
from polonaise.errors import DeadlineExceeded, PolonaiseError
from polonaise.host import Host
from polonaise.terms import NO_SESSION, NO_TRANSACTION, PartitionId, SessionId, StorageId, TransactionId
from polonaise_proving.faults.nemesis import Nemesis
from polonaise_proving.judges.checkers import check, check_replicas
from polonaise_proving.judges.headresetcheck import Decision, HeadResetCheck
from polonaise_proving.judges.moments import ahead_appends_nothing, nothing_accepted
from polonaise_proving.record.diskaudit import DiskReplica, FinalLog
from polonaise_proving.record.failures import Violation, raise_first
from polonaise_proving.stages.simulated.cluster import Cluster, Node, NodeMain
from polonaise_proving.stages.simulated.diskimages import DirectoryImage
from polonaise_proving.stages.simulated.observer import REPAIR_S, SETTLE_S, Observer
from polonaise_proving.work.application import Application

if TYPE_CHECKING:
    from polonaise_proving.work.archiving import Archiving

_LOOK_S: Final = 1.0
"""Virtual seconds within which an operator wants to be shown what replicas hold."""
_PROMISE: Final = "P13 fail-safe"
_STEPS: Final = 400_000
"""Additional handles that the schedule may run for each round."""
_NAMED_S: Final = 20.0
"""Virtual seconds within which health must name what is lost."""
_TOLD_S: Final = 30.0
"""Virtual seconds within which a client that is ahead must be told so."""


class ResetOperators:
    """One or two operators who reset the heads of some partitions, and the faults that may befall them."""

    def __init__(
        self,
        cluster: Cluster,
        check: HeadResetCheck,
        partitions: Sequence[PartitionId],
        source: random.Random,
        archiving: Archiving | None,
    ) -> None:
        self._cluster = cluster
        self._check = check
        self._partitions = partitions
        self._random = source
        self._archiving = archiving
        self._calm = cluster.knobs.coordinator
        self._strike: Callable[[], None] | None = None
        """Called at or soon after the next write that asks for a reset, or that carries one out (see `_at_engagement`);
        None if nothing is to happen then."""
        self._at_engagement = False
        """Whether `_strike` is called at a write that carries a reset out, and not at one that asks for a reset."""
        self._struck = asyncio.Event()
        self.asked = asyncio.Event()
        """Set once a decision on any of the partitions was written."""
        self._ended = False
        self.settled: set[PartitionId] = set()
        """The partitions of which an operator learnt what came of a decision, or that were open when a try failed."""
        cluster.partition_checks.append(self._written)

    @property
    def done(self) -> bool:
        """Whether each partition is settled."""
        return self.settled == {*self._partitions}

    def start(self) -> list[Node]:
        """Start the operators, each as a process on a machine of its own; return them."""
        count = self._random.choice((1, 1, 2))
        nodes = [Node(self._cluster, f"resetting-{number}", self._operate) for number in range(count)]
        for node in nodes:
            node.start()
        return nodes

    # ------------------------------------------------------------------ what each does

    async def _operate(self, node: Node, host: Host) -> None:
        coordinator = self._cluster.coordinator(node, host)
        while True:
            for partition in self._partitions:
                await asyncio.sleep(self._random.choice((0.0, 0.1, 0.5)))
                try:
                    await self._reset(host, coordinator, partition)
                except PolonaiseError:
                    if self._cluster.is_open(partition):
                        self.settled.add(partition)

    async def _reset(self, host: Host, coordinator: Coordinator, partition: PartitionId) -> None:
        state = await head_state(host, coordinator, partition, _LOOK_S)
        done = len([each for each in state.value.resets if not each.is_pending])
        to, source = self._possible(state, *self._choose(state))
        reset = decision(state, to, source, host.clock.wall_us())
        (copy,) = [copy for copy in state.copies if copy.name == reset.source]
        self._check.decisions[partition].append(Decision(reset, copy.proved >= reset.to))
        if self._random.random() < 0.3:
            await asyncio.sleep(self._random.uniform(0.0, 1.0))  # shows it to a colleague first
        await ask_reset(coordinator, state, reset, _WRITE_S)
        try:
            outcome = await await_reset(host, coordinator, state, reset, self._random.choice((1.0, 5.0, 20.0)))
        except DeadlineExceeded as error:
            if self._archiving is not None and "fragments_ahead" in error.text:
                await self._archiving.cut(partition, to)
            raise
        self._check.told(partition, reset, done, outcome.carried_out)
        self.settled.add(partition)

    def _possible(
        self, state: HeadState, to: TransactionId, source: StorageId | None
    ) -> tuple[TransactionId, StorageId | None]:
        """Return this choice, or another one if replicas have trimmed the transaction there."""
        if self._archiving is None or self._archiving.may_end_at(state.partition, to):
            return to, source
        longest = max(state.copies, key=lambda copy: copy.last)
        kept = self._archiving.may_end_at(state.partition, longest.last)
        return longest.last if kept else NO_TRANSACTION, longest.name

    def _choose(self, state: HeadState) -> tuple[TransactionId, StorageId | None]:
        """Choose where the log is to end: as far as it can be proved, earlier, or by a copy in doubt.

        Returns the id, and the node whose copy counts; None for the copy that is least in doubt.
        """
        best = max(state.copies, key=lambda copy: copy.proved)
        done = [each.to for each in state.value.resets if not each.is_pending]
        if done and self._random.random() < 0.5:
            # Below an earlier reset, whose record is given up by that.
            ends = [end for end in self._batch_ends(best.name, state.partition) if end <= min(done[-1], best.proved)]
            return [NO_TRANSACTION, *ends][-1], best.name
        kind = self._random.random()
        # Copies that were cut already, for a decision that was not carried out, prove nothing above their confirmed
        # marks: one has to be named.
        begun = any(each.begun != NO_SESSION for each in state.value.resets)
        if kind < 0.15 or (begun and kind < 0.8):
            doubtful = max(state.copies, key=lambda copy: copy.last)
            return doubtful.last, doubtful.name
        if kind < 0.5:
            ends = [end for end in self._batch_ends(best.name, state.partition) if end <= best.proved]
            return self._random.choice([NO_TRANSACTION, *ends[-6:]]), self._random.choice((None, best.name))
        if kind < 0.55:
            return max(NO_TRANSACTION, best.proved - 1), best.name  # which may lie within a batch, and is refused then
        return best.proved, None

    def _batch_ends(self, name: StorageId, partition: PartitionId) -> list[TransactionId]:
        (node,) = [node for node in self._cluster.storage if self._cluster.storage_id(node) == name]
        return [batch.last for batch in node.replica(partition).batches]

    # ------------------------------------------------------------------ faults meanwhile

    async def fault(self) -> None:
        """Let one thing go wrong while the operators decide."""
        await self._random.choice(_FAULTS)(self)

    def end_faults(self) -> None:
        """End what `fault` has begun."""
        self._ended, self._strike = True, None
        self._cluster.service.configuration = self._calm
        for node in (*self._cluster.servers, *self._cluster.storage):
            self._cluster.cut_off.discard(node.name)
            node.away_since = None
        for node in self._cluster.servers:
            node.let_up()
            if node.process is not None:
                node.process.crash_on_call = None

    def _written(self, partition: PartitionId, old: PartitionValue, new: PartitionValue) -> None:
        if partition not in self._partitions or old.resets == new.resets or not new.resets:
            return
        if new.resets[-1].is_pending:
            self.asked.set()
        if self._strike is not None and new.resets[-1].is_pending is not self._at_engagement:
            strike, self._strike = self._strike, None
            # Not now: this is called amid the write.
            self._cluster.world.loop.call_later(self._random.choice((0.0, 0.0, 0.003, 0.02)), strike)
            self._struck.set()

    async def _at_write(self, strike: Callable[[], None]) -> None:
        """Have `strike` called right after a write that asks for a reset or carries one out; wait for that write."""
        self._at_engagement = self._random.random() < 0.6
        self._strike = strike
        await self._struck.wait()

    def _owners(self) -> list[Node]:
        owners, first = self._cluster.owners, self._partitions[0]
        running = [node for node in self._cluster.servers if node.running and node.name in owners]
        return [node for node in running if first in owners[node.name].partitions]

    async def _owner_crashes(self) -> None:
        def strike() -> None:
            for node in self._owners():
                node.crash()

        await self._at_write(strike)

    async def _owner_crashes_at_a_call(self) -> None:
        """Kill the owner before one of its next calls to its machine, somewhere in the session's start."""
        calls = self._random.randrange(1, 60)

        def strike() -> None:
            for node in self._owners():
                if node.process is not None:
                    node.process.crash_on_call = node.process.calls + calls

        self._at_engagement, self._strike = False, strike
        await self._struck.wait()

    async def _owner_changes(self) -> None:
        """Kill the owner and keep its node down, so long that another server takes over if there is one."""
        held: list[Node] = []

        def strike() -> None:
            held.extend(self._owners()[:1])
            for node in held:
                node.put_down()

        await self._at_write(strike)
        await asyncio.sleep(self._cluster.knobs.lease_s + self._random.uniform(0.3, 2.0))
        for node in held:
            node.let_up()

    async def _storage_crashes(self) -> None:
        nodes = [node for node in self._cluster.storage if node.running]
        node = self._random.choice(nodes)
        await self._at_write(node.lose_power if self._random.random() < 0.5 else node.crash)

    async def _coordinator_is_troubled(self) -> None:
        service = self._cluster.service
        service.configuration = replace(self._calm, unavailable_chance=0.3, lost_result_chance=0.3)
        await asyncio.sleep(self._random.uniform(1.0, 4.0))
        if not self._ended:
            service.configuration = self._calm

    async def _owner_loses_the_coordinator(self) -> None:
        """Cut the owner off from the coordinator, for less or more than its lease."""
        names: list[str] = []

        def strike() -> None:
            names.extend(node.name for node in self._owners())
            self._cluster.cut_off.update(names)
            for node in self._owners():
                node.away_since = self._cluster.world.now

        await self._at_write(strike)
        await asyncio.sleep(self._random.choice((0.2, 1.0, self._cluster.knobs.lease_s + 1.0)))
        for node in self._cluster.servers:
            if node.name in names:
                self._cluster.cut_off.discard(node.name)
                node.away_since = None


_FAULTS: Final[tuple[Callable[[ResetOperators], Awaitable[None]], ...]] = (
    ResetOperators._owner_crashes,
    ResetOperators._owner_crashes,
    ResetOperators._owner_crashes_at_a_call,
    ResetOperators._owner_changes,
    ResetOperators._storage_crashes,
    ResetOperators._coordinator_is_troubled,
    ResetOperators._owner_loses_the_coordinator,
)
_WRITE_S: Final = 20.0
"""Virtual seconds for which an operator waits until the coordinator has taken a decision."""


class HeadResets:
    """The scene of one schedule."""

    def __init__(
        self,
        observer: Observer,
        applications: dict[str, Application],
        nemesis: Nemesis,
        client: NodeMain,
        archiving: Archiving | None = None,
    ) -> None:
        """`applications` are those of the observer; `client` is what a client's process runs, with one of them."""
        self._archiving = archiving
        self._observer = observer
        self._cluster = observer.cluster
        self._history = observer.history
        self._nemesis = nemesis
        self._applications = applications
        self._client = client
        self._random = self._cluster.world.random("head resets")
        self._faults = self._cluster.world.faults
        storage = {self._cluster.storage_id(node): node for node in self._cluster.storage}
        self._check = HeadResetCheck(self._history, self._cluster.knobs.partitions, storage, self._faults)
        self._cluster.partition_checks.append(self._check.written)
        self._check.on_reset = self._reset
        self._names = len(self._applications)
        self._survivors: list[Node] = []
        self._lost: list[Node] = []
        self._images: dict[str, DirectoryImage] = {}
        """By name of a lost node whose disk was not spoilt: the disk as it was when it was lost, to be found again."""
        self._engaged: list[SessionId] = []
        """By partition: the last session that was engaged when disks were lost, or that has engaged lost ones since."""
        self._live: Node | None = None
        """The client that lives through the loss and the reset, if one does."""
        self._ahead: dict[PartitionId, TransactionId] = {}
        """By partition: the id of the reset, where that client's log object, or its view, is ahead of the log."""

    async def run(self) -> None:
        """Play the rounds. Raises `Violation`."""
        rounds = self._random.choice((1, 1, 2))
        for _ in range(rounds):
            self._cluster.world.loop.grant(_STEPS)
            late = await self._work()
            struck = await self._lose(late)
            gone = self._gone(struck)
            closed = await self._nothing_is_accepted(struck)
            if closed:
                await self._decide(closed, gone)
            await self._go_on(gone)
            await self._find_again()
            await self._verdict()

    # ------------------------------------------------------------------ work, and the loss

    async def _work(self) -> Node | None:
        """Let clients work; return a replica that misses the end of that, if one does. It is still down."""
        sound = [node for node in self._cluster.storage if node.name not in self._nemesis.spoilt]
        late = self._random.choice(sound) if self._random.random() < 0.3 else None
        steps = self._random.choice((3, 8, 15))
        self._observer.begin_work_again(steps)
        # In the midst of it, or after it.
        if late is not None:
            await asyncio.sleep(self._random.uniform(0.0, 0.5))
            late.put_down()
        if self._random.random() < 0.5:
            await self._observer.until(SETTLE_S, self._observer.finished)
        else:
            await asyncio.sleep(self._random.uniform(0.1, 1.5))
        if self._archiving is not None:
            archivist = self._archiving.archivist
            archivist.begin_to_archive()
            await self._observer.until(SETTLE_S, lambda: archivist.done)
        return late

    async def _lose(self, late: Node | None) -> list[PartitionId]:
        """Kill a majority of nodes, whose disks are lost; return the partitions whose logs may lose something by that.

        The disks still have all: `_gone` wipes them. Raises `Violation` for what was wrong before the loss.
        """
        storage, random = self._cluster.storage, self._random
        nodes = random.sample(storage, len(storage))
        # First those that may have rot which nobody has met: what is left has to be whole. A late one is left.
        nodes.sort(key=lambda node: (node is late, node.name not in self._nemesis.spoilt))
        count = random.randrange(len(storage) // 2 + 1, len(storage))
        self._lost, self._survivors = nodes[:count], nodes[count:]
        # Not one that has finished: it has closed its log.
        working = [node for node in self._cluster.clients if not self._applications[node.name].finished]
        self._lives(random.choice(working) if working and random.random() < 0.8 else None)
        self._down([node for node in self._cluster.clients if node is not self._live])
        if self._archiving is not None:
            self._down([self._archiving.node])
        for node in self._lost:
            node.hold_down()
            self._nemesis_strikes(node)
        await asyncio.sleep(0)  # until the processes are put away: a disk can't be replaced under a living one
        self._observer.stop_if_violated()
        self._check.disks_are_lost([self._held_by_most(each) for each in range(self._cluster.knobs.partitions)])
        # What was told, seen and answered until now is judged by this log, as strictly as without a loss.
        self._judge(self._check.before)
        self._engaged = self._last_engaged()
        whole = [node for node in self._lost if node.name not in self._nemesis.spoilt]
        self._images = {node.name: node.machine.disk.snapshot() for node in whole}
        return [partition for partition in range(len(self._engaged)) if self._is_struck(partition, self._lost)]

    def _is_struck(self, partition: PartitionId, lost: list[Node]) -> bool:
        """Whether as many engaged replicas as make a quorum are among the lost ones."""
        names = {self._cluster.storage_id(node) for node in lost}
        engagements = self._cluster.partition_value(partition).engagements
        count = sum(name in names and each.unresolved for name, each in engagements.items())
        return count >= len(self._cluster.storage) // 2 + 1

    def _nemesis_strikes(self, node: Node) -> None:
        if self._random.random() < 0.5:
            node.lose_power()
        node.crash()

    def _gone(self, struck: list[PartitionId]) -> list[Node]:
        """Wipe lost disks; return the lost nodes that stay away with what they hold, and may come back."""
        quorum = len(self._cluster.storage) // 2 + 1
        spare = len(self._cluster.storage) - quorum if struck else 0
        may_come_back = [node for node in self._lost if node.name in self._images]
        gone = self._random.sample(may_come_back, min(len(may_come_back), self._random.randint(0, spare)))
        for node in self._lost:
            if node not in gone:
                node.machine.disk.wipe()
                # Whoever is told just now that an append is on so many copies is told of this one, too, and rightly.
                self._nemesis.spoil(node)
                node.let_up()
        for node in self._survivors:
            node.let_up()
        return gone

    def _held_by_most(self, partition: PartitionId) -> FinalLog:
        """Return the log as far as most replicas hold it, where a spoilt disk counts as holding it."""
        sound = [node for node in self._cluster.storage if node.name not in self._nemesis.spoilt]
        needed = len(self._cluster.storage) // 2 + 1 - (len(self._cluster.storage) - len(sound))
        lasts = sorted((node.durable_last(partition) for node in sound), reverse=True)
        last = lasts[needed - 1]
        replicas = [each for each in self._observer.replicas(partition) if each.name not in self._nemesis.spoilt]
        longest = next(each for each in replicas if each.last >= last)
        return FinalLog(partition, [batch for batch in self._whole(partition, longest).batches if batch.last <= last])

    def _whole(self, partition: PartitionId, replica: DiskReplica) -> FinalLog:
        """Return the log as this replica holds it, or as far as it was trimmed, as fragments do."""
        if self._archiving is None:
            return FinalLog(partition, replica.batches)
        return self._archiving.whole(partition, replica)

    # ------------------------------------------------------------------ closed, until operators have decided

    async def _nothing_is_accepted(self, struck: list[PartitionId]) -> list[PartitionId]:
        """Check that the partitions are closed, and that their owners say why; return those. Raises `Violation`.

        One may be open: its owner was about to start a session, and had heard by then what the lost disks held.
        """
        await asyncio.sleep(self._random.uniform(1.0, 2.0))
        self._engaged_since(struck)
        told = list(self._history.told)
        lost = {self._cluster.storage_id(node) for node in self._lost}

        def still() -> list[PartitionId]:
            # One whose owner has not noticed the loss yet has a session, too; but no later one.
            later = [now > then for now, then in zip(self._last_engaged(), self._engaged, strict=True)]
            return [partition for partition in struck if not (later[partition] and self._cluster.is_open(partition))]

        def named() -> bool:
            return all(any(name in self._waits_for(partition) for name in lost) for partition in still())

        await self._observer.until(_NAMED_S, named, _PROMISE)
        for partition in still():
            raise_first(nothing_accepted((), self._history.told[partition:][:1], told[partition:][:1]))
        return still()

    def _engaged_since(self, struck: list[PartitionId]) -> None:
        """Add the partitions to `struck` that a session start in progress has struck since the disks were lost.

        It had heard what those held, and engaged them although they were lost by then. A lost replica that holds again
        what it held is no such case: it was given the log anew before it was engaged.
        """
        for partition, before in enumerate(self._check.before):
            last = before.batches[-1].last if before.batches else NO_TRANSACTION
            without = [node for node in self._lost if node.held_down or node.durable_last(partition) < last]
            if partition not in struck and self._is_struck(partition, without):
                struck.append(partition)
                self._engaged[partition] = self._last_engaged()[partition]

    def _last_engaged(self) -> list[SessionId]:
        """Return, by partition, the last session that was engaged."""
        values = self._cluster.partition_values()
        return [max((each.session for each in value.engagements.values()), default=NO_SESSION) for value in values]

    def _waits_for(self, partition: PartitionId) -> str:
        """Return why the partition is closed, as the server says that owns it; empty if it is open or nobody says."""
        told = [server.health()["partitions"].get(str(partition)) for server in self._cluster.running_servers]
        return next((each["waits_for"] for each in told if each is not None), "")

    async def _decide(self, struck: list[PartitionId], gone: list[Node]) -> None:
        """Have operators reset the heads, perhaps amid a fault, until these partitions are open. Raises `Violation`."""
        operators = ResetOperators(self._cluster, self._check, struck, self._random, self._archiving)
        race = self._cluster.world.spawn(self._race(operators, gone), "race with the reset")
        nodes = operators.start()
        self._history.reset_may_wait = self._archiving is not None
        try:
            await self._observer.until(3 * SETTLE_S, lambda: operators.done and all(map(self._cluster.is_open, struck)))
            if self._live is not None:
                await self._live_is_told(self._live)
        finally:
            race.cancel()
            operators.end_faults()
            self._down(nodes)
        if self._live is not None:
            self._down([self._live])
            await asyncio.sleep(0)
            self._live = None
        self._history.lingering.clear()
        self._history.reset_may_wait = False

    async def _race(self, operators: ResetOperators, gone: list[Node]) -> None:
        """Do what this round has drawn to happen while the operators decide."""
        if gone and self._random.random() < 0.5:
            # Believed lost, and back in time: what it proves counts, or the operator is shown more.
            if self._random.random() < 0.7:
                await operators.asked.wait()
            await asyncio.sleep(self._random.choice((0.0, 0.3, 1.0)) * self._random.random())
            for node in gone:
                self._comes_back(node)
        if self._random.random() < 0.6:
            self._faults.count("reset_raced")
            await operators.fault()

    def _comes_back(self, node: Node) -> None:
        if node.held_down:
            self._check.notes_what_came_back(self._cluster.storage_id(node))
            self._faults.count("reset_returned")
            node.let_up()

    # ------------------------------------------------------------------ the client that lives through it

    def _lives(self, node: Node | None) -> None:
        """Have this client, or none, live through the loss and the reset."""
        self._live = node
        self._ahead.clear()
        if node is not None:
            self._applications[node.name].on_open = self._opens_anew

    def _reset(self, partition: PartitionId, reset: HeadReset) -> None:
        """Note that a reset was carried out just now: what the living client may still be sent, and must be told."""
        if self._live is None:
            return
        self._history.lingering.add(partition)
        received = self._received(partition)
        if received == reset.to + 1:
            self._live_is_made_anew()
        elif received > reset.to + 1 and not self._applications[self._live.name].finished:
            self._ahead[partition] = reset.to

    def _live_is_made_anew(self) -> None:
        """Take the living client down: its mark is the id of the reset's record, and of what was given up there.

        The log does not end below that mark, so nobody can tell: such a client has to be made again
        (docs/operations.md).
        """
        live, self._live = self._live, None
        assert live is not None
        self._down([live])  # last: it does not return if the client's own process has asked for this

    def _opens_anew(self) -> None:
        """Note that the living client makes another log object, which begins where its view is.

        What the one before was fed counts no more: it may have been fed what its view was never given. The new one gets
        that part of the log as it is after the reset, and appends rightly.
        """
        if self._live is None:
            return
        ledger = self._applications[self._live.name].ledger
        for partition, to in list(self._ahead.items()):
            applied = ledger.high_water_mark(partition)
            if applied <= to:
                self._appended_nothing(self._live, partition)
                del self._ahead[partition]
            elif applied == to + 1:
                self._live_is_made_anew()

    def _received(self, partition: PartitionId) -> TransactionId:
        """Return the last id that the living client was fed or has applied."""
        assert self._live is not None
        application = self._applications[self._live.name]
        applied = application.ledger.high_water_mark(partition)
        log = application.log
        used = partitions_of(log).used.get(partition) if log is not None and log.partition_count else None
        return applied if used is None else max(applied, used.mounting.received)

    async def _live_is_told(self, node: Node) -> None:
        """Wait until the client that lived through the reset has finished, or was told that it is ahead of the log.

        It may be ahead and finish: then it was about to, and had nothing more to ask for. But it must append nothing.
        Raises `Violation`.
        """
        application, history = self._applications[node.name], self._history

        def over() -> bool:
            return history.ahead_told > 0 or application.finished or self._live is None

        if self._ahead:
            await self._observer.until(_TOLD_S, lambda: over() or not self._ahead, "P6 fate")
        await self._observer.until(SETTLE_S, over, "P6 fate")
        if history.ahead_told:
            self._faults.count("client_ahead")
        history.ahead_told = 0
        for partition in self._ahead:
            self._appended_nothing(node, partition)
        self._observer.stop_if_violated()

    def _appended_nothing(self, node: Node, partition: PartitionId) -> None:
        found = ahead_appends_nothing(self._history.tries, node.name, partition, self._ahead[partition])
        self._history.violations.extend(found)

    # ------------------------------------------------------------------ afterwards

    async def _go_on(self, gone: list[Node]) -> None:
        """Let new clients work; nodes that were believed lost come back before that or after it."""
        later = gone if self._random.random() < 0.5 else []
        for node in gone:
            if node not in later:
                self._comes_back(node)
        if not any(node.held_down for node in gone):
            await self._observer.until(REPAIR_S, self._observer.all_engaged, copying=True)
        await self._new_clients()
        if self._archiving is not None:
            self._archiving.archivist.begin_to_archive()
            self._archiving.node.let_up()
        await self._observer.until(SETTLE_S, self._observer.finished)
        for node in later:
            self._comes_back(node)
        await self._observer.repaired()
        for node in self._cluster.storage:
            self._nemesis.is_whole(node)

    async def _new_clients(self) -> None:
        """Take all clients down, and put new ones in their place: what the old ones have applied may be gone."""
        before = list(self._cluster.clients)
        self._down(before)
        await asyncio.sleep(0)
        for node in before:
            del self._applications[node.name]
        self._cluster.clients.clear()
        for _ in range(self._random.choice((1, 2))):
            name, self._names = f"client-{self._names}", self._names + 1
            steps = self._random.choice((2, 6, 12))
            source = self._cluster.world.random(f"application/{name}")
            node = Node(self._cluster, name, self._client)
            self._applications[name] = Application(self._history, name, self._cluster.knobs.partitions, steps, source)
            self._cluster.clients.append(node)
            self._cluster.world.spawn(node.keep_running(), f"keeper of {name}")

    async def _find_again(self) -> None:
        """Put lost disks back as they were, and have the log read from them: what was given up must not be told."""
        names = [name for name in self._images if self._random.random() < 0.5]
        for node in [node for node in self._cluster.storage if node.name in names]:
            node.hold_down()
            self._nemesis_strikes(node)
            await asyncio.sleep(0)
            sessions = [value.session for value in self._cluster.partition_values()]
            node.machine.disk.restore(self._images[node.name])
            if self._random.random() < 0.5:
                self._crash_owner()  # so that the next session meets it, and not only the catch-up
            self._comes_back(node)
            # At first the coordinator still counts its old copy as engaged, and that copy may even hold all that is
            # known to be committed: only a later session has made it clean, and another replica may go only then.
            await self._observer.until(REPAIR_S, functools.partial(self._engaged_after, node, sessions), copying=True)
            await self._observer.repaired(node)
            other = self._random.choice([each for each in self._cluster.storage if each is not node])
            other.put_down()
            self._observer.begin_work_again(2)
            await self._observer.until(SETTLE_S, self._observer.finished)
            other.let_up()
            await self._observer.repaired()

    def _engaged_after(self, node: Node, sessions: list[SessionId]) -> bool:
        """Whether the node is engaged in a later session than these, one for each partition."""
        name = self._cluster.storage_id(node)
        values = self._cluster.partition_values()
        return all(
            name in value.engagements and value.engagements[name].session > session
            for value, session in zip(values, sessions, strict=True)
        )

    def _crash_owner(self) -> None:
        for server in self._cluster.servers:
            if self._cluster.owns(server):
                server.crash()

    def _down(self, nodes: list[Node]) -> None:
        for node in nodes:
            node.put_down()

    # ------------------------------------------------------------------ verdicts

    async def _verdict(self) -> None:
        """Compare the logs in the end of a round with all that clients know. Raises `Violation`."""
        await self._observer.until(SETTLE_S, self._observer.finished)
        await self._observer.repaired()
        logs = []
        for partition in range(self._cluster.knobs.partitions):
            replicas = self._observer.replicas(partition)
            sound = [each for each in replicas if each.name not in self._nemesis.spoilt]
            logs.append(self._whole(partition, max(sound, key=lambda each: each.last)))
            raise_first(check_replicas(logs[-1], replicas, self._nemesis.spoilt))
        self._judge(logs)

    def _judge(self, logs: list[FinalLog]) -> None:
        """Run all checkers on these logs. Raises the first `Violation`."""
        archived: list[Violation] = []
        if self._archiving is not None:
            from polonaise_proving.judges.archivecheck import check_fragments  # loads pyarrow

            fragments = self._archiving.store.fragments()
            archived = [each for log in logs for each in check_fragments(log, fragments)]
        raise_first([*archived, *check(logs, self._history), *self._check.check(logs)])
