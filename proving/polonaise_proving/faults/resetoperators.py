"""The operators of a reset of the head: look at what replicas hold, and decide, well or badly, alone or at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from polonaise.admin.headresets import HeadState, ask_reset, await_reset, decision, head_state
from polonaise.coordination import Coordinator
from polonaise.coordination.values import PartitionValue
from polonaise.errors import DeadlineExceeded, PolonaiseError
from polonaise.host import Host
from polonaise.terms import NO_SESSION, NO_TRANSACTION, PartitionId, StorageId, TransactionId
from polonaise_proving.judges.headresetcheck import Decision, HeadResetCheck
from polonaise_proving.stages.simulated.cluster import Cluster, Node

if TYPE_CHECKING:
    from polonaise_proving.work.archiving import Archiving

_LOOK_S: Final = 1.0
"""Virtual seconds within which an operator wants to be shown what replicas hold."""


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
