"""One schedule: a cluster drawn from a seed, clients at work amid faults, healing, and a check of every promise.

`run` is the way in; `Schedule.play` has the whole course. A share (`_..._SHARE`) is the fraction of all seeds that
have a feature, unless its text says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from polonaise.client.log import Log, partitions_of
from polonaise.fragments.protocol.names import FragmentName
from polonaise.host import Host
from polonaise.terms import BodyForm, PartitionId, TransactionId
from polonaise_proving.faults.clockfaults import ClockFaults
from polonaise_proving.faults.disaster import Disaster
from polonaise_proving.faults.doubleowner import DoubleOwner
from polonaise_proving.faults.headresetting import HeadResets
from polonaise_proving.faults.nemesis import Nemesis, action_names
from polonaise_proving.faults.operators import MemberChanges, RequirementChanges, StorageMoves
from polonaise_proving.judges.checkers import CommitTimes, check, check_replicas
from polonaise_proving.judges.clients import AssignmentCheck, ClientsJudge
from polonaise_proving.judges.moments import OwnershipCheck, all_closed, copies_hold, fates_told, quorum_holds
from polonaise_proving.record.diskaudit import FinalLog
from polonaise_proving.record.failures import ScheduleFailed, Violation
from polonaise_proving.scenarios.delivering import Delivering
from polonaise_proving.scenarios.trials import Trials
from polonaise_proving.stages.simulated.cluster import Cluster, Knobs, Node
from polonaise_proving.stages.simulated.environment import Configuration, DiskConfiguration, NetworkConfiguration
from polonaise_proving.stages.simulated.loop import START_S, Killed
from polonaise_proving.stages.simulated.observer import LAG_S, LOOK_S, REPAIR_S, SETTLE_S, Observer
from polonaise_proving.stages.simulated.world import World
from polonaise_proving.work import workload
from polonaise_proving.work.application import HEADER_FILTER, UNWANTED_HEADER, Application
from polonaise_proving.work.leaseholding import HOLDERS, LeaseHolders
from polonaise_proving.work.workload import LATER_STEPS, RARE_STEPS, STEPS, ClientLife, Step

if TYPE_CHECKING:
    from polonaise_proving.judges.archivecheck import ArchiveCheck
    from polonaise_proving.work.archiving import Archiving

_WATCH_S: Final = 0.15
_STEPS_MAX: Final = 600_000
_ARCHIVE_SHARE: Final = 0.15
"""The share of seeds with an archive: few, because writing Parquet takes long."""
_OVERTAKEN_SHARE: Final = 0.3
"""Among the seeds with an archive, the share of those that end with fragments ahead of the replicas."""
_STOP_SHARE: Final = 0.6
"""The chance, drawn before each, that another clean stop of a storage node follows."""
_SERVER_STOP_SHARE: Final = 0.3
"""The chance, drawn before each, that another clean stop of a server follows."""
_RARE_SHARE: Final = 0.25
"""The chance that a rare step is among a seed's work, drawn for each such step."""
_DOUBLE_OWNER_SHARE: Final = 0.12
_MOVES_SHARE: Final = 0.12
"""The share of seeds in which storage nodes come back at other addresses."""
_REQUIREMENT_SHARE: Final = 0.12
"""Among the seeds with three or more replicas, the share of those in which commits need more than a quorum at times."""
_DELIVERY_SHARE: Final = 0.1
"""The share of seeds with players and targets."""
_DELIVERY_DRAW: Final = "delivery 146"
"""The name under which these are drawn. With this number, none of the seeds that the tests kept before is one."""
_LEASES_SHARE: Final = 0.08
"""The share of seeds in which clients hold leases; drawn under a name by which no seed that the tests keep has it."""
_RESETS_SHARE: Final = 0.15
"""Among the seeds with three or more replicas and no archive that end with neither a disaster nor replicas set back,
the share of those that end with disks lost for good and operators who reset the heads of logs."""
_ARCHIVED_RESETS_SHARE: Final = 0.3
"""The share of these among the seeds with an archive."""
_ARCHIVED_RESETS_DRAW: Final = "head resets beside an archive 2420"
"""The name under which these are drawn. With this number, none of the seeds that the tests kept before is one."""
_DISASTER_SHARE: Final = 0.08
"""The share of seeds that end with a disaster, besides all those that end with fragments ahead of the replicas."""
_GONE_BACK_SHARE: Final = 0.06
"""Among the seeds without a disaster, the share of those that end with all replicas set back while an owner lives."""
_OWNERS_LOOK_S: Final = 0.02

LATER_FEATURES: Final = 1
"""How many features were added when there were kept seeds: those of `LATER_STEPS` and `LATER_ACTIONS`, and operators.

They are numbered from 1, in the order in which they were added, and each is drawn by a generator of its own. A seed is
kept with the number of those that there were (`run`), and has no later one: its course stays what it was.
"""


class _Operator(Protocol):
    """Somebody who works in processes of their own, with the cluster or on it, until it has healed and beyond."""

    resting: bool
    """Whether the faults are over."""

    async def run(self, node: Node, host: Host) -> None:
        """Live one life of such a process."""
        ...


@dataclass(slots=True)
class Result:
    """The outcome of a schedule: its failure, if any, its fingerprint and its counts."""

    seed: int
    failure: str = ""
    """The promise that was broken, or what else ended the schedule; empty if every promise held."""
    fingerprint: str = ""
    """16 hexadecimal digits, equal for equal courses of events."""
    faults: dict[str, int] = field(default_factory=dict)
    """By class of fault: how often it took effect."""
    appends: int = 0
    """Tries of appends."""
    committed: int = 0
    """Transactions known to be committed, over all partitions."""
    virtual_s: float = 0.0
    begun: int = 0
    """The actions that the nemesis has begun."""
    trace: list[str] = field(default_factory=list)
    """What happened, one line per event; empty unless recorded."""


def run(seed: int, *, record: bool = False, only: str | None = None, later: int = LATER_FEATURES) -> Result:
    """Run the schedule of one seed, and return its result, which has a trace if `record` is true.

    With `only`, the nemesis has no other action than the one of that name (`nemesis.action_names`). Of the features of
    `LATER_FEATURES` it has none above `later`.

    What fails the schedule (`ScheduleFailed`) is in the result. Any other exception that `Schedule.play` raises is a
    mistake of the simulator, and is raised.
    """
    schedule = Schedule(seed, record=record, only=only, later=later)
    result = Result(seed)
    with _death_unheard():
        try:
            schedule.world.run(schedule.play())
        except ScheduleFailed as error:
            result.failure = str(error) or type(error).__name__
        except Exception as error:
            error.add_note(f"in the schedule of seed {seed}")
            raise
        # A dead world is one large cycle, and every one that is left makes the next ones slower. It is collected in
        # here, where what its coroutines say as they are freed is kept quiet.
        gc.collect()
    world = schedule.world
    result.fingerprint = world.trace.fingerprint
    result.faults = dict(world.faults)
    result.appends = len(schedule.history.tries)
    result.committed = sum(1 + mark for mark in schedule.history.told)
    result.virtual_s = world.loop.now - START_S
    result.begun = schedule.nemesis.begun
    result.trace = world.trace.lines or []
    return result


def named() -> list[str]:
    """Return the names of all steps and actions that a seed may have."""
    steps = [step for step, _ in (*STEPS, *RARE_STEPS)] + [each.step for each in LATER_STEPS]
    return [*(step.__name__ for step in steps), *action_names()]


def has(seed: int, name: str, later: int = LATER_FEATURES) -> bool:
    """Whether a seed has the step or action of that name (`named`)."""
    schedule = Schedule(seed, later=later)
    steps = zip(schedule.steps, schedule.weights, strict=True)
    return schedule.nemesis.has(name) or any(step.__name__ == name and weight for step, weight in steps)


@contextlib.contextmanager
def _death_unheard() -> Iterator[None]:
    """Silence Python's messages about coroutines whose process was killed before they ran or in a `finally` block."""
    before = sys.unraisablehook

    def hear(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, Killed):
            before(unraisable)

    sys.unraisablehook = hear
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            yield
    finally:
        sys.unraisablehook = before


def _drawn(seed: int, *, record: bool) -> Configuration:
    """Draw how unreliable the network and the disks are."""
    source = random.Random(f"world/{seed}")
    uniform, choice = source.uniform, source.choice
    # Most seeds have none of most kinds of trouble: what a fault brings to light, another one may hide.
    network = NetworkConfiguration(
        delay_chance=choice((0.0, 0.0, 0.01)),
        split_chance=choice((0.0, 0.1)),
        window_bytes=choice((4_096, 262_144)),
        reset_chance=choice((0.0, 0.0, 0.0, 0.001)),
        flip_chance=choice((0.0, 0.0, 0.0, 0.0005)),
        connect_tries=3,
    )
    disk = DiskConfiguration(
        sync_s=choice((0.0005, 0.003)), spike_chance=choice((0.0, 0.0, 0.003)), spike_s=uniform(0.05, 0.4)
    )
    return Configuration(network=network, disk=disk, steps_max=_STEPS_MAX, record=record)


class Schedule:
    """The cluster, work, faults and checks of one seed, and the course that they take.

    Each rare feature but the disaster is drawn from a random generator of its own. So adding one leaves the course of
    every seed without it as it was; `LATER_FEATURES` says what keeps it from the seeds that tests keep.
    """

    def __init__(
        self, seed: int, *, record: bool = False, only: str | None = None, later: int = LATER_FEATURES
    ) -> None:
        self._later = later
        self.world = World(seed, _drawn(seed, record=record))
        self.knobs = Knobs.draw(self.world.random("knobs")).widened(self.world)
        self.history = ClientsJudge(self.knobs.partitions)
        self.history.tell = self.world.trace.tell if record else None
        self.history.window_is_kept = self.knobs.windows
        self.history.listing_count_max = self.knobs.server.listing_count_max
        self.cluster = Cluster(self.world, self.knobs, self._client)
        self.cluster.ended = self._ended
        self._ownership = OwnershipCheck(self.history, self.knobs.partitions)
        self.cluster.service.on_written.append(self._ownership.written)
        self.cluster.partition_checks.append(self._ownership.claimed)
        self.nemesis = Nemesis(self.cluster, later=later, only=only)
        self._random = self.world.random("schedule")
        self._duration_s = self._random.choice((1.5, 4.0, 8.0))
        steps = self._random.choice((6, 15, 30))
        self.applications = {
            node.name: Application(
                self.history, node.name, self.knobs.partitions, steps, self.world.random(f"application/{node.name}")
            )
            for node in self.cluster.clients
        }
        self.steps, self.weights = self._drawn_steps()
        self._workers = self._random.choice((1, 2, 4))
        self._healed = asyncio.Event()
        self._archiving: Archiving | None = None
        self._archive_check: ArchiveCheck | None = None
        source = self.world.random("archive")
        if source.random() < _ARCHIVE_SHARE:
            # Both load pyarrow: most seeds do without.
            from polonaise_proving.judges.archivecheck import ArchiveCheck
            from polonaise_proving.work.archiving import Archiving

            self._archiving = Archiving(self.cluster, self.history)
            fragments = self._archiving.store.fragments
            self._archive_check = ArchiveCheck(fragments, self.cluster.storage, self.knobs.partitions)
            self.nemesis.trouble_store(self._archiving.store)
        self._overtaken = source.random() < _OVERTAKEN_SHARE
        self._observer = Observer(self.cluster, self.history, self.applications)
        self._operators: list[_Operator] = []
        if self.world.random("second connection").random() < _DOUBLE_OWNER_SHARE:
            self._add("double-owner", DoubleOwner(self.cluster, self.nemesis.left_whole, self.history))
        if self.world.random("storage moves").random() < _MOVES_SHARE:
            self._add("operator", StorageMoves(self.cluster))
        if self.knobs.spares:
            self._add("another-operator", MemberChanges(self.cluster, self.history))
        self.history.copies_checks.append(self._proved)
        self._requirement: RequirementChanges | None = None
        if self.knobs.storage >= 3 and self.world.random("requirement drawn").random() < _REQUIREMENT_SHARE:
            requirement = self._requirement = RequirementChanges(self.cluster, self.history)
            self.history.told_checks.append(lambda partition: requirement.check(partition, self.nemesis.spoilt))
            self._add("requiring-operator", requirement)
        drawn = self.world.random(_DELIVERY_DRAW).random() < _DELIVERY_SHARE
        self._delivering = Delivering(self.cluster, self.history) if drawn else None
        self._clocks = ClockFaults(self.cluster) if self.knobs.clocks else None
        self._commit_times: CommitTimes | None = None
        if self.knobs.clocks:
            self.history.true_us = lambda: self.world.true_us
            self._commit_times = CommitTimes(self.history, self.knobs.partitions, self.knobs.server.clock_off_s_max)
        self._leases: LeaseHolders | None = None
        if self.world.random("names of leases").random() < _LEASES_SHARE:
            self._leases = LeaseHolders(self.cluster, self.history)
            self._add("lease-holder", self._leases, HOLDERS)

    def _drawn_steps(self) -> tuple[list[Step], list[int]]:
        """Draw how much of each kind of work there is. Return the kinds, and their weights.

        Most seeds leave some kinds out and have much of others: one may hide what another brings to light.
        """
        weights = [weight * self._random.choice((0, 1, 1, 4)) for _, weight in STEPS]
        if not any(weights):
            weights = [weight for _, weight in STEPS]
        rare = self.world.random("rare work")
        weights += [weight if rare.random() < _RARE_SHARE else 0 for _, weight in RARE_STEPS]
        steps = [step for step, _ in (*STEPS, *RARE_STEPS)]
        for number, step, share, weight in LATER_STEPS:
            if self._has_later(number, share):
                steps.append(step)
                weights.append(weight)
        return steps, weights

    def _has_later(self, number: int, share: float) -> bool:
        """Draw whether this seed has the later feature of that number, which `share` of all seeds have."""
        return number <= self._later and self.world.random(f"later {number}").random() < share

    def _add(self, name: str, operator: _Operator, count: int = 1) -> None:
        self._operators.append(operator)
        names = [name] if count == 1 else [f"{name}-{number}" for number in range(count)]
        self.cluster.others += [Node(self.cluster, each, operator.run) for each in names]

    # ------------------------------------------------------------------ the course of it

    async def play(self) -> None:
        """Run the schedule: work amid faults, healing, trials, checks. Raises `ScheduleFailed` for a broken promise."""
        await self.cluster.start()
        spawn = self.world.spawn
        watches = [spawn(self._watch(), "watch")]
        if self.knobs.session_s:
            watches.append(spawn(watch_owners(self.cluster, self._ownership), "watch of owners"))
        stops = [
            spawn(self._stop_now_and_then(nodes, what, share), f"{what}s")
            for nodes, what, share in (
                (self.cluster.storage, "stop", _STOP_SHARE),
                (self.cluster.servers, "server_stop", _SERVER_STOP_SHARE),
            )
        ]
        if self._delivering is not None:
            self._delivering.start()
        if self._clocks is not None:
            stops.append(spawn(self._clocks.run(), "wrong clocks"))
        await self.nemesis.run(self._duration_s)
        for task in stops:
            task.cancel()
        if self._clocks is not None:
            self._clocks.heal()
        self._observer.stop_if_violated()
        # From here on only what this seed's network and disks do by chance goes wrong, which the time limits allow for:
        # what does not come within its time never comes.
        await self.nemesis.heal()
        self._observer.all_healed()
        for operator in self._operators:
            operator.resting = True
        if self._delivering is not None:
            self._delivering.rest()
        requirement = self._requirement
        if requirement is not None:
            await self._observer.until(SETTLE_S, lambda: requirement.taken_back)
        leases = self._leases
        if leases is not None:
            await self._observer.until(SETTLE_S, lambda: leases.well, "leases")
        self._healed.set()
        self.world.trace.note("healed")
        await self._observer.until(SETTLE_S, self._observer.finished)
        if self._delivering is not None:
            await self._delivering.finish()
        # Trials need whole replicas: each tells exactly what has to follow from what it does.
        await self._repaired()
        await Trials(self._observer, self.nemesis).run()
        if self._archiving is not None:
            # Before the trim: a fragment is mended from the log, as long as the replicas still have it.
            if self._archiving.store.damage(FragmentName.parse):
                await self._observer.until(self._archiving.scrub_s, self._archiving.rot_is_found, "P10 corruption")
                self._archiving.store.restore()
            await self._trimmed_as_far_as_can_be(self._archiving)
        # The verdict demands all of the log of every sound replica. The last trial may have ended while one was still
        # being caught up with, which takes its time where copies are throttled.
        await self._observer.repaired()
        for watch in watches:
            watch.cancel()
        logs = self._check()
        # After the check, because this stops the storage nodes. What follows breaks what the checkers rely on: a
        # disaster loses committed transactions, and must be told to clients instead.
        await self._nothing_forgotten()
        overtake = None
        if self._archiving is not None and self._overtaken:
            self.world.faults.count("overtaken")
            overtake = partial(self._archiving.overtake, logs)
        if self._random.random() < _DISASTER_SHARE or overtake is not None:
            self.world.faults.count("disaster")
            await Disaster(self._observer, self.applications).strike(overtake)
        elif self.world.random("gone back").random() < _GONE_BACK_SHARE:
            await Disaster(self._observer, self.applications).go_back()
        elif self.resets_drawn:
            scene = HeadResets(self._observer, self.applications, self.nemesis, self._client, self._archiving)
            await scene.run()

    @property
    def resets_drawn(self) -> bool:
        """Whether this seed ends with resets of the head, unless it ends with a disaster or with replicas set back."""
        if self._archiving is None:
            drawn = self.world.random("head resets drawn").random() < _RESETS_SHARE
        else:
            drawn = self.world.random(_ARCHIVED_RESETS_DRAW).random() < _ARCHIVED_RESETS_SHARE
        return drawn and self.knobs.storage >= 3

    async def _trimmed_as_far_as_can_be(self, archiving: Archiving) -> None:
        """Check that everything can be read after the replicas dropped all they may and one got an empty disk.

        None gets one in a cluster with no replica to spare. Raises `Violation`.
        """
        archivist = archiving.archivist
        archivist.begin_to_trim()
        await self._observer.until(SETTLE_S, lambda: archivist.done)
        node = self.nemesis.spoilable()
        if node is not None:
            self.nemesis.spoil(node)
            await self.nemesis.replace_disk(node, node.machine.disk.wipe)
            await self._observer.until(
                REPAIR_S, lambda: self._observer.all_engaged() and self._observer.filled(node), copying=True
            )
        archivist.begin_to_read()
        await self._observer.until(SETTLE_S, lambda: archivist.done)
        self.world.faults.count("trim", archivist.trims)

    async def _stop_now_and_then(self, nodes: Sequence[Node], what: str, share: float) -> None:
        """Ask nodes to stop cleanly at random moments, as an operator does; `share` is the chance of each next stop."""
        source = self.world.random(f"{what}s")
        pause_s = source.choice((0.1, 0.5, 2.0))
        while source.random() < share:
            await asyncio.sleep(pause_s * (0.5 + source.random()))
            node = source.choice(nodes)
            if node.process is not None and node.process.alive:
                self.world.faults.count(what)
                node.process.terminate()

    async def _nothing_forgotten(self) -> None:
        """Check that nodes have only files open that they use, and that storage nodes close all when they are stopped.

        P11: a node that keeps unused files open will have too many one day. Raises `Violation`.
        """
        until_s = self.world.now + LAG_S
        while forgotten := self.cluster.forgotten():
            if self.world.now >= until_s:
                raise Violation("P11 availability", "only files that are used to be open", forgotten)
            await asyncio.sleep(LOOK_S)
        for node in self.cluster.storage:
            if node.process is not None:
                node.process.terminate()
                await node.process.ended()
        self._observer.stop_if_violated()

    async def _watch(self) -> None:
        """Check P1 again and again: a quorum of the members holds durably what is known to be committed.

        Also that replicas have trimmed nothing that they must keep, and note only marks at which they can be cut.

        What an application was told or saw, and what a disk has noted as confirmed, is known to be committed.
        """
        while True:
            await asyncio.sleep(_WATCH_S)
            if self._archive_check is not None:
                self.history.violations.extend(self._archive_check.check_trims())
                self.history.violations.extend(self._archive_check.check_marks())
            for partition, told in enumerate(self.history.told):
                members = self.cluster.members_of(partition)
                sound = [node for node in members if node.name not in self.nemesis.spoilt]
                needed = len(members) // 2 + 1 - (len(members) - len(sound))
                lasts = {node.name: node.durable_last(partition) for node in sound}
                known = {"somebody": told}
                for node in sound:
                    copy = node.promised(partition)
                    if copy is not None:
                        known[node.name] = copy.promises.confirmed
                if found := list(quorum_holds(known, lasts, needed)):
                    self.history.violations.extend(found)
                    return  # one is enough, and every look after it would find the same

    async def _repaired(self) -> None:
        """Wait until every replica is engaged and level; give a new disk to those that can't come back by themselves.

        Raises `Violation`. A node whose promises are damaged does not come back: an operator has to replace its disk.
        """
        for _ in range(int(REPAIR_S / 2 / LOOK_S)):
            if self._observer.all_engaged():
                break
            await asyncio.sleep(LOOK_S)
        for node in self.cluster.storage:
            if node.name in self.nemesis.spoilt and not self._observer.engaged(node):
                await self.nemesis.replace_disk(node, node.machine.disk.wipe)
        await self._observer.repaired()

    # ------------------------------------------------------------------ the verdict

    def _check(self) -> list[FinalLog]:
        """Run all checkers and return the log of each partition. Raises the first `Violation`."""
        logs: list[FinalLog] = []
        violations: list[Violation] = list(self._archive_check.check_trims()) if self._archive_check else []
        for partition in range(self.knobs.partitions):
            replicas = self._observer.replicas(partition)
            # The longest of the copies whose disks are not spoilt is what the log is in the end.
            sound = [replica for replica in replicas if replica.name not in self.nemesis.spoilt]
            true = max(sound, key=lambda replica: replica.last)
            trimmed = self._archiving.batches_below(partition, true.first) if self._archiving and true.first else []
            log = FinalLog(partition, trimmed + true.batches)
            logs.append(log)
            violations.extend(check_replicas(log, replicas, self.nemesis.spoilt))
            if self._archive_check is not None:
                violations.extend(self._archive_check.check(log))
            if self._delivering is not None:
                violations.extend(self._delivering.check(log))
            if self._commit_times is not None:
                violations.extend(self._commit_times.check(log))
        violations.extend(check(logs, self.history))
        if violations:
            first, count_more = violations[0], len(violations) - 1
            more = f" ({count_more} more)" if count_more else ""
            raise Violation(first.promise, first.expected, first.seen + more)
        return logs

    # ------------------------------------------------------------------ what a client process runs

    def _proved(self, partition: PartitionId, last: TransactionId, copies: int) -> None:
        holding = self._observer.holding(self.nemesis.spoilt, partition, last)
        self.history.violations.extend(copies_hold(partition, last, copies, holding))

    def _ended(self, node: Node) -> None:
        if node.process is not None:
            self.history.violations.extend(all_closed(node.name, node.process.left_open))
        application = self.applications.get(node.name)
        if application is not None and not application.finished:
            application.died()

    async def _client(self, node: Node, host: Host) -> None:
        application = self.applications[node.name]
        source = application.random
        while not application.finished:
            form, wants, header_filter = BodyForm.INLINE, None, None
            if source.random() < 0.3:
                form, wants = BodyForm.LAZY, _wants
                if source.random() < 0.5:
                    form, header_filter = BodyForm.FILTERED, HEADER_FILTER
            ledger = application.ledger
            ledger.leaves_bodies = wants is not None
            ledger.slow_s = source.choice((0.0, 0.0, 0.05))
            ledger.trouble_chance = source.choice((0.0, 0.0, 0.02))
            discovery = self.cluster.discovery(node, host)
            log = Log(
                host, discovery, view=ledger, settings=self.knobs.client,
                bodies=form, wants=wants, header_filter=header_filter,
            )  # fmt: skip
            application.open(log)
            try:
                async with log:
                    if log.client_id:
                        self.history.connected(node.name, log.client_id)
                    else:
                        host.spawn(self._note_later_id(node, log), "note the client's id")
                    partitions_of(log).parts.routes.listeners[AssignmentCheck(self.history, node.name)] = (
                        None  # applications have none
                    )
                    await self._work(ClientLife(host, application, log))
            finally:
                await discovery.close()
        await asyncio.get_running_loop().create_future()  # ends with the schedule: who returns is started again

    async def _note_later_id(self, node: Node, log: Log) -> None:
        """Note the id that a client is given; none is given out while the coordinator can't be written."""
        while not log.client_id:  # noqa: ASYNC110 (the client has no event for it)
            await asyncio.sleep(LOOK_S)
        self.history.connected(node.name, log.client_id)

    async def _work(self, session: ClientLife) -> None:
        """Work with one log object until all steps are done, or until it is to be opened anew.

        After the last step, wait for healing, and make the last appends and readings: what is pending must be decided
        then.
        """
        application = session.application
        # Most work with one log object until all is done; the others open a new one after a few steps.
        steps_max = 10**6 if application.random.random() < 0.7 else application.random.randrange(1, 8)
        numbers = count()
        tasks = [
            session.host.spawn(self._worker(session, worker, numbers, steps_max), f"worker {worker}")
            for worker in range(self._workers)
        ]
        for task in tasks:
            await asyncio.wait([task])
        if application.steps_left > 0:
            return
        application.doing[0] = "waits for healing"
        await self._healed.wait()
        application.doing[0] = "last steps"
        for partition in range(self.knobs.partitions):
            await workload.last_step(session, partition)
        while application.following:
            application.doing[0] = f"waits for {application.following} receipts"
            await asyncio.sleep(0.1)
        application.doing.clear()
        self.history.violations.extend(fates_told(application.who, self.history.tries))
        application.finished = True

    async def _worker(self, session: ClientLife, worker: int, numbers: count[int], steps_max: int) -> None:
        application = session.application
        think_s = self._duration_s * self._workers / (application.steps_left + 1)
        while application.steps_left > 0 and next(numbers) < steps_max:
            rushing = self.cluster.rushing.is_set() and application.rush_steps_left > 0
            if rushing:
                application.rush_steps_left -= 1
            else:
                application.steps_left -= 1
            step = application.random.choices(self.steps, self.weights)[0]
            partition = application.random.randrange(self.knobs.partitions)
            application.doing[worker] = step.__name__
            await workload.take_step(session, step, partition)
            application.doing[worker] = "thinks"
            if rushing:
                await asyncio.sleep(0.01 * application.random.random())
            elif not self._healed.is_set():
                await self._think(think_s * 1.5 * application.random.random())
        application.doing.pop(worker, None)

    async def _think(self, seconds: float) -> None:
        """Pause for `seconds`, or until a rush begins: then the nemesis wants appends to be on their way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.cluster.rushing.wait()


def _wants(header: int) -> bool:
    return header != UNWANTED_HEADER


async def watch_owners(cluster: Cluster, check: OwnershipCheck) -> None:
    """Look for servers that run on although their sessions can have ended, until one owns something then.

    Only for seeds with sessions.
    """
    session_s = cluster.knobs.session_s
    was_paused: set[str] = set()
    while True:
        await asyncio.sleep(_OWNERS_LOOK_S)
        for node in cluster.servers:
            server, contact = cluster.owners.get(node.name), cluster.contacts.get(node.name)
            if server is None or contact is None or node.process is None or not node.running:
                continue
            # One that has just been resumed has had no chance yet to look at its clock.
            paused_before = node.name in was_paused
            was_paused.discard(node.name)
            if node.process.paused:
                was_paused.add(node.name)
            if node.process.paused or paused_before:
                continue
            over_s = cluster.world.now - (contact.contact_s + session_s)
            if over_s <= 0.0:
                continue
            cluster.world.faults.count("session_run_out")
            if owned := [number for number, served in server.partitions.items() if served.owner.session]:
                check.outlives(node.name, owned, over_s)
                return
