"""Players and targets in a schedule: two players of one name, two or three targets, and what goes wrong with them.

Each is a process on a machine of its own, and so also meets what the nemesis does to all nodes. One target may be
served by two processes, as one database may be; the second player speaks to the second one. Targets come and go, at the
place that they had or at an empty one, and their disks are put back. Delivery ends before the trials: these try other
promises.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, cast

from polonaise.client.log import Log
from polonaise.errors import Closed, PolonaiseError, ProducerFenced
from polonaise.host import Host
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, DeliveryTarget, Judge
from polonaise.player.endpoint import DeliveryEndpoint
from polonaise.player.linkendpoint import LinkEndpoint
from polonaise.player.linkserver import LinkServer
from polonaise.player.player import Player
from polonaise.player.protocol.entries import NO_FENCE, DeliveryBatch, Fence, TargetName
from polonaise.player.protocol.reception import Reception, Verdict
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.targetsession import ServedTargets
from polonaise.terms import TransactionId
from polonaise_proving.judges.deliverycheck import PROMISE, DeliveryCheck, PlayerLife
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.observations import History
from polonaise_proving.record.targetmemory import MEMORY_FILE, FenceTaken, decode
from polonaise_proving.stages.simulated.cluster import Cluster, Node, until_stopped
from polonaise_proving.stages.simulated.disk import SimulatedDisk
from polonaise_proving.stages.simulated.loop import LIFE, VirtualTask
from polonaise_proving.stages.simulated.process import Process
from polonaise_proving.stages.simulated.world import World
from polonaise_proving.work.simulatedtarget import SimulatedTarget, TargetTrouble

_COMINGS_SHARE: Final = 0.3
"""The share of schedules with players in which targets come and go."""
_MOVES_SHARE: Final = 0.5
"""The share of these times at which the target comes back empty."""
_PLAYER: Final = "deliverer"
_PORT: Final = 6000
_LOOK_S: Final = 0.2
_TRIES: Final = 50
_ARRIVED_S: Final = 40.0
"""Virtual seconds within which everything has to arrive once nothing goes wrong any more."""
_CLOSED_S: Final = 15.0
"""Virtual seconds within which a process has to end that is asked to."""
_ALLOWED_S: Final = 14.0
"""Virtual seconds, beside the player's own deadlines, that health may take to say what hinders a target: two looks at
the log, and as long for its client to notice that nobody answers."""
_SECOND_PROCESS_SHARE: Final = 0.4
"""The share of schedules in which two processes serve the first target."""
_HOLD_SHARE: Final = 0.3
"""The share of schedules in which a target is kept from applying for longer than health may be silent about it."""


def put_back(check: DeliveryCheck, name: TargetName, disk: SimulatedDisk, source: random.Random) -> bool:
    """Take some of what a target has applied on its present stream off its disk, as if that was put back.

    Returns whether that was possible now: nobody may be writing, and the stream must have brought something.
    """
    raw = check.look(name).raw
    if not _is_settled(raw, disk):
        return False
    ends = [0]
    for step, end in decode(raw):
        ends = [end] if isinstance(step, FenceTaken) else [*ends, end]
    if len(ends) < 2 or ends[-1] != len(disk.file(MEMORY_FILE).cache):
        return False
    disk.truncate(MEMORY_FILE, source.choice(ends[-6:-1]))
    check.put_back(name)
    return True


def empty(check: DeliveryCheck, name: TargetName, disk: SimulatedDisk) -> bool:
    """Take all that a target keeps off its disk, its fence too, as if its name was given to an empty place.

    Returns whether that was possible now: nobody may be writing.
    """
    if not _is_settled(check.look(name).raw, disk):
        return False
    disk.truncate(MEMORY_FILE, 0)
    check.put_back(name)
    return True


def _is_settled(raw: bytes, disk: SimulatedDisk) -> bool:
    return bool(raw) and not disk.locks and not disk.file(MEMORY_FILE).unsynced


class TargetMoves:
    """Takes targets away from players, and gives them back."""

    def __init__(
        self,
        world: World,
        check: DeliveryCheck,
        disks: Mapping[TargetName, SimulatedDisk],
        troubles: Mapping[TargetName, TargetTrouble],
    ) -> None:
        self._world = world
        self._disks = disks
        self._check = check
        self._troubles = troubles
        self._names = list(troubles)
        self._source = world.random("targets come and go")
        self._drawn = self._source.random() < _COMINGS_SHARE
        self.resting = False
        """Whether targets stay from now on."""

    async def run(self, player: Player, endpoint: Callable[[TargetName], DeliveryEndpoint]) -> None:
        """Take targets away from a player, and give them back under their names, until it ends or `resting` is set."""
        source = self._source
        while self._drawn and not self.resting:
            await asyncio.sleep(source.uniform(0.1, 2.0))
            name = source.choice(self._names)
            moves = source.random() < _MOVES_SHARE
            with contextlib.suppress(Closed):  # the player has ended meanwhile
                if moves:
                    await self._read_begun(player, name)
                await player.remove_target(name)
                await asyncio.sleep(source.choice((0.0, 0.1, 0.7)))
                if moves:
                    await self._empty(name)
                player.add_target(name, endpoint(name))

    async def _read_begun(self, player: Player, name: TargetName) -> None:
        """Wait for a moment, or until a read for a target is under way: its answer comes when the target is gone."""
        assert player._delivery is not None
        stream = player._delivery.machine.targets[name]
        for _ in range(_TRIES):
            if any(pair.queue is not None and pair.queue.reads for pair in stream.pairs.values()):
                return
            await asyncio.sleep(0.01)

    async def _empty(self, name: TargetName) -> None:
        """Have a target keep nothing any more, as soon as nobody writes there."""
        for _ in range(_TRIES):
            if empty(self._check, name, self._disks[name]):
                self._troubles[name].put_back += 1
                self._world.faults.count("target_moved")
                return
            await asyncio.sleep(0.01)


class WatchedTarget:
    """A target whose answers are compared with its disk at the moment when they are given."""

    def __init__(self, inner: DeliveryTarget, check: DeliveryCheck, name: TargetName) -> None:
        self._inner = inner
        self._check = check
        self._name = name

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        """Pass the stream on; an accepted fence has to be durable, and so what was told as applied."""
        put_back = self._check.targets[self._name].put_back
        acceptance = await self._inner.accept(offered, source)
        if put_back == self._check.targets[self._name].put_back:
            self._check.answered(self._name, acceptance.applied, offered if acceptance.accepted else NO_FENCE)
        return acceptance

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        """Pass the batch on; it may be applied under the fence that is kept only, and has to be durable then."""

        def judging(kept: Fence, applied: TransactionId, given: DeliveryBatch) -> Verdict:
            verdict = judge(kept, applied, given)
            if verdict is Verdict.APPLY:
                fence = cast(Reception, judge.__self__).fence  # type: ignore[attr-defined]
                self._check.applies(self._name, fence)
            return verdict

        put_back = self._check.targets[self._name].put_back
        applied = await self._inner.apply(batch, judging)
        if applied.verdict is Verdict.APPLY and put_back == self._check.targets[self._name].put_back:
            self._check.answered(self._name, {batch.partition: applied.last})
        return applied

    async def close(self) -> None:
        await self._inner.close()


def _settings(source: random.Random) -> PlayerSettings:
    """Draw settings of the player, so small that windows close and queues overflow within a few dozen entries."""
    choice, uniform = source.choice, source.uniform
    return PlayerSettings(
        batch_entries_max=choice((1, 3, 64)),
        batch_bytes_max=choice((60, 300, 10_000)),
        window_bytes=choice((100, 500, 100_000)),
        partition_window_bytes=choice((100, 500, 100_000)),
        queue_entries_max=choice((1, 4, 20, 1_000)),
        queue_bytes_max=choice((100, 1_000, 100_000)),
        recovery_bytes_max=choice((60, 300, 10_000)),
        join_transactions=choice((0, 2, 10, 100)),
        dummy_transactions=choice((2, 10, 1_000)),
        dummy_s=choice((0.3, 2.0, 60.0)),
        start_patience_s=choice((0.0, 0.3, 1.0)),
        open_s_max=uniform(0.5, 1.5),
        progress_s_max=uniform(1.0, 3.0),
        patience_s_max=10.0,
        retry_s_min=0.02,
        retry_s_max=uniform(0.2, 1.0),
        steady_s=uniform(3.0, 10.0),
    )


class Delivering:
    """The players and targets of one schedule."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._history = history
        self._random = random_ = cluster.world.random("delivery")
        self._settings = _settings(random_)
        self._allowed_s = _ALLOWED_S + self._settings.progress_s_max + 2 * self._settings.open_s_max
        count = random_.choice((2, 2, 3))
        self._names = [f"target-{number}" for number in range(count)]
        self._troubles = {name: TargetTrouble(self._world.random(f"trouble of {name}")) for name in self._names}
        for trouble in self._troubles.values():
            trouble.always = random_.choice((0.0, 0.05, 0.2)), random_.choice((0.0, 0.0, 0.02))
            trouble.ease()
        self._targets = [Node(cluster, name, functools.partial(self._serve, name, _PORT)) for name in self._names]
        self._addresses = {name: f"{name}:{_PORT}" for name in self._names}
        """By name of a target: where the second player reaches it."""
        if random_.random() < _SECOND_PROCESS_SHARE:
            name = self._names[0]
            second = Node(cluster, "other-target-0", functools.partial(self._serve, name, _PORT + 1))
            second.machine = self._targets[0].machine
            self._targets.append(second)
            self._addresses[name] = f"{name}:{_PORT + 1}"
        self._players = [Node(cluster, f"player-{number}", self._play) for number in range(2)]
        self._rests = random_.choice((0.3, 1.0, 3.0, 10.0))
        """About how many virtual seconds a player that was replaced rests before it takes over again."""
        self._pause_s = random_.choice((0.2, 0.5, 1.5))
        self._disks = {node.name: node.machine.disk for node in self._targets if node.name in self._names}
        self._check = DeliveryCheck(history, cluster.knobs.partitions, self._disks)
        self.check = self._check.check
        self._moves = TargetMoves(self._world, self._check, self._disks, self._troubles)
        self._take_over = asyncio.Event()
        """Set to have a player that rests take over now."""
        self._resting = False
        self._held: Callable[[], None] | None = None
        """Ends what keeps a target from applying."""
        self._tasks: list[asyncio.Task[None]] = []
        self._deeds: list[asyncio.Task[None]] = []
        cluster.others += [*self._targets, *self._players]

    # ------------------------------------------------------------------ the course of it

    def start(self) -> None:
        """Begin to look, and to have things go wrong."""
        self._tasks = [
            self._world.spawn(self._watch(), "watch of players"),
            self._world.spawn(self._go_wrong(), "trouble of players"),
        ]

    def rest(self) -> None:
        """Have nothing go wrong any more, but for a target that may be held from here on until `finish`.

        What is wrong with the machines has ended before.
        """
        self._resting = self._moves.resting = True
        for deed in self._deeds:
            deed.cancel()
        for name, trouble in self._troubles.items():
            trouble.end()
            if trouble.put_back:
                self._break(name)  # it may have no entry to come
        if self._random.random() < _HOLD_SHARE:
            self._hold()

    async def finish(self) -> None:
        """Check that everything arrives and is said to be well, and that players and targets leave nothing behind.

        Raises `Violation`.
        """
        if self._held is not None:
            await asyncio.sleep(self._allowed_s + 1.0)
            self._held()
        if not await self._until(_ARRIVED_S, self._check.arrived):
            raise Violation(PROMISE, f"everything to arrive within {_ARRIVED_S:g} s", self._check.described())
        for task in self._tasks:
            task.cancel()
        for node in (*self._players, *self._targets):
            node.hold_down()
            await self._ended(node)
            self._cluster.others.remove(node)
        self._stop_if_violated()
        self._world.faults.count("held_target_told", self._check.told)

    async def _until(self, seconds: float, reached: Callable[[], bool]) -> bool:
        until_s = self._world.now + seconds
        while not reached():
            self._stop_if_violated()
            if self._world.now >= until_s:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    async def _ended(self, node: Node) -> None:
        if node.process is None or node.process.dead:
            return
        node.process.terminate()
        try:
            async with asyncio.timeout(_CLOSED_S):
                await node.process.ended()
        except TimeoutError:
            raise Violation(PROMISE, f"{node.name} to close within {_CLOSED_S:g} s", "it goes on") from None

    def _stop_if_violated(self) -> None:
        if self._history.violations:
            raise self._history.violations[0]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._check.look_at_health(self._world.now, self._allowed_s)

    # ------------------------------------------------------------------ what the processes run

    async def _serve(self, name: str, port: int, node: Node, host: Host) -> None:
        serving = _Serving(host, self._check, name, self._troubles[name], self._cluster)
        await serving.server.start(f"{name}:{port}")
        await until_stopped(host, serving)

    async def _play(self, node: Node, host: Host) -> None:
        """Be the active player, again and again; one that was replaced rests for a while, or for ever in the end."""
        if node is not self._players[0]:
            await asyncio.sleep(self._rests * self._random.random())
        while True:
            asks = self._random.random() < 0.2
            discovery = self._cluster.servers_for(host) if asks else self._cluster.coordinator(node, host)
            try:
                async with Log(host, discovery, settings=self._cluster.knobs.client) as log:
                    await self._deliver(node, host, log)
            finally:
                await discovery.close()
            self._world.faults.count("player_replaced")
            if self._resting:
                await asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rests * (0.2 + self._random.random())):
                    await self._take_over.wait()
            self._take_over.clear()

    async def _deliver(self, node: Node, host: Host, log: Log) -> None:
        """Deliver until another player has replaced this one. Raises what keeps a player from starting."""
        addresses = self._addresses if node is self._players[1] else {name: f"{name}:{_PORT}" for name in self._names}
        endpoints: dict[str, DeliveryEndpoint] = {
            name: LinkEndpoint(host, address, self._cluster.knobs.link) for name, address in addresses.items()
        }
        route = functools.partial(self._check.routed, node.name)
        player = Player(log, _PLAYER, route, endpoints, settings=self._settings)
        process = cast(Process, LIFE.get())
        try:
            await player.start()
        except ProducerFenced:
            return
        self._check.lives[node.name] = PlayerLife(player, process, self._world.now)
        work = self._moves.run(player, lambda name: LinkEndpoint(host, addresses[name], self._cluster.knobs.link))
        coming = host.spawn(work, "targets come and go")
        try:
            await player.ended()
        except ProducerFenced:
            pass
        except PolonaiseError as error:
            self._check.violated(f"{node.name} to deliver until it is replaced", repr(error))
        finally:
            if not process.dead:
                coming.cancel()
                await player.close()
                self._check.lives.pop(node.name, None)
                self._check_left(node, process)

    def _check_left(self, node: Node, process: Process) -> None:
        """Check that a closed player has left no task and no connection to a target."""
        tasks = [
            task.get_name()
            for task in asyncio.all_tasks()
            if cast(VirtualTask, task).life is process and task.get_name().startswith(f"player {_PLAYER}:")
        ]
        transports = self._world.network.connections.transports
        peers = [
            transport.get_extra_info("peername")
            for transport in transports
            if transport.process is process and transport.established and not transport.is_closing()
        ]
        left = sorted(tasks) + [f"a connection to {peer}" for peer in peers if peer[0] in self._names]
        if left:
            self._check.violated(f"{node.name} to leave nothing when its player closes", ", ".join(left))

    # ------------------------------------------------------------------ what goes wrong

    async def _go_wrong(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1.0 / self._pause_s))
            if self._resting:
                return
            deed = self._random.choice(_DEEDS)
            self._world.trace.note(f"delivery: {deed.__name__}")
            self._deeds.append(self._world.spawn(deed(self), f"delivery: {deed.__name__}"))

    def _seconds(self, *scale: float) -> float:
        return self._random.choice(scale) * (0.5 + self._random.random())

    def _some(self) -> Node:
        return self._random.choice([*self._players, *self._players, *self._targets])

    async def _crash(self) -> None:
        self._some().crash()

    async def _crash_at_call(self) -> None:
        node = self._some()
        self._cluster.rush(0.2)
        if node.running and node.process is not None:
            node.process.crash_on_call = node.process.calls + self._random.randrange(1, 60)

    async def _power_loss(self) -> None:
        self._some().lose_power()

    async def _stop(self) -> None:
        """Ask a process to end in good order."""
        node = self._some()
        if node.running and node.process is not None:
            node.process.terminate()

    async def _pause(self) -> None:
        """Stop a process as by SIGSTOP, perhaps for longer than others wait for it."""
        node = self._some()
        self._cluster.rush(0.3)
        await asyncio.sleep(self._seconds(0.02, 0.1))
        process = node.process
        if process is not None and node.running:
            process.pause()
            await asyncio.sleep(self._seconds(0.3, 1.0, 4.0))
            process.resume()

    async def _replace_unheard(self) -> None:
        """Have a player replaced while it lives and hears nothing of that, and let it go on then."""
        lives = [node for node in self._players if node.running and node.name in self._check.lives]
        if not lives:
            return
        node = self._random.choice(lives)
        self._cluster.rush(0.3)
        await asyncio.sleep(self._seconds(0.02, 0.1))
        process = node.process
        if process is not None and self._random.random() < 0.5:
            process.pause()
        else:
            self._world.network.partition(node.name, self._names)
        # For less or more time than its peers wait for it.
        await asyncio.sleep(self._seconds(0.1, 1.0) * self._cluster.knobs.link.silence_s_max)
        self._take_over.set()
        self._cluster.rush(0.5)
        await asyncio.sleep(self._seconds(0.1, 0.5, 2.0))
        self._world.network.heal(node.name, self._names)
        if process is not None:
            process.resume()

    async def _slow_disk(self) -> None:
        """Slow a target's disk down, so that batches wait for their turn."""
        disk = self._random.choice(self._targets).machine.disk
        self._cluster.rush(0.5)
        disk.slow(self._random.choice((0.02, 0.1)))
        await asyncio.sleep(self._seconds(0.5, 2.0))
        disk.slow(0.0)

    async def _cut(self) -> None:
        """Cut a player off from a target or from the servers, in one direction or in both."""
        player = self._random.choice(self._players).name
        servers = [node.name for node in self._cluster.servers]
        others = self._random.choice(([self._random.choice(self._names)], self._names, servers))
        pair = (player, others) if self._random.random() < 0.5 else (others, player)
        self._world.network.partition(*pair, both=self._random.random() < 0.5)
        self._cluster.rush(0.2)
        await asyncio.sleep(self._seconds(0.1, 0.5, 3.0))
        self._world.network.heal(player, others)

    async def _reset(self) -> None:
        """Break connections between a player and a target, amid what they say: an answer may be lost."""
        self._cluster.rush(0.2)
        await asyncio.sleep(self._seconds(0.01, 0.05))
        self._world.network.reset(self._random.choice(self._players).name, self._random.choice(self._names))

    async def _flip(self) -> None:
        """Let a bit be wrong of what a player and a target say next."""
        self._world.network.flip_byte(self._random.choice(self._players).name, self._random.choice(self._names))

    async def _fail_disk(self) -> None:
        """Let syncs or writes of a target's disk fail, or fill it, for a moment."""
        disk = self._random.choice(self._targets).machine.disk
        kind = self._random.randrange(3)
        if kind == 0:
            disk.fail_syncs(self._random.choice((1, 1, 3)))
        elif kind == 1:
            disk.fail_writes(self._random.choice((1, 1, 3)))
        else:
            disk.fill(self._random.choice((0, 40, 100)))
            await asyncio.sleep(self._seconds(0.1, 0.5))
            disk.free()

    async def _put_back(self) -> None:
        """Put a target's disk back to an earlier moment of its present stream, as one does with a database.

        With the next entry, or the next stream, it gets again what it lacks now.
        """
        name = self._random.choice(self._names)
        for _ in range(_TRIES):
            if put_back(self._check, name, self._disks[name], self._random):
                self._troubles[name].put_back += 1
                self._cluster.rush(0.3)
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(self._seconds(0.5, 1.0))
        self._break(name)

    def _break(self, name: str) -> None:
        for player in self._players:
            self._world.network.reset(player.name, name)

    async def _trouble(self) -> None:
        """Have a target refuse, fail or hang now and then, for a while."""
        target = self._random.choice(self._targets[: len(self._names)])
        trouble, disk = self._troubles[target.name], target.machine.disk
        self._make_trouble(trouble, self._random.choice((0.1, 0.5, 1.0)))
        # Slow, so that more is on its way behind what is refused.
        disk.slow(self._random.choice((0.0, 0.03)))
        self._cluster.rush(1.0)
        await asyncio.sleep(self._seconds(0.2, 1.0, 3.0))
        disk.slow(0.0)
        trouble.ease()

    def _make_trouble(self, trouble: TargetTrouble, chance: float) -> None:
        kind = self._random.randrange(3)
        trouble.refuse_chance = chance if kind == 0 else 0.0
        trouble.fail_chance = chance if kind == 1 else 0.0
        trouble.hang_chance = chance if kind == 2 else 0.0
        trouble.hang_s = self._random.choice((0.2, 1.0, 6.0))
        trouble.stubborn = self._random.random() < 0.3

    def _hold(self) -> None:
        """Keep a target from applying until `_held` is called: it is down, cut off, hangs, fails or refuses."""
        name = self._random.choice(self._names)
        self._world.trace.note(f"delivery: {name} is held")
        if self._random.random() < 0.25:
            nodes = [node for node in self._targets if node.machine.name == name]
            for node in nodes:
                node.put_down()
            self._held = lambda: _let_up(nodes)
        elif self._random.random() < 0.25:
            players = [node.name for node in self._players]
            self._world.network.partition(players, name)
            self._held = lambda: self._world.network.heal(players, name)
        else:
            trouble = self._troubles[name]
            self._make_trouble(trouble, 1.0)
            if self._random.random() < 0.5:
                trouble.refuse_chance, trouble.fail_chance, trouble.hang_chance = 0.0, 0.0, 1.0
            trouble.hang_s = 1_000.0
            self._held = trouble.end


def _let_up(nodes: list[Node]) -> None:
    for node in nodes:
        node.let_up()


class _Serving:
    """The server of a target, and the target below it, in one process."""

    def __init__(self, host: Host, check: DeliveryCheck, name: str, trouble: TargetTrouble, cluster: Cluster) -> None:
        self._target = SimulatedTarget(host, trouble)
        watched = WatchedTarget(self._target, check, name)
        self.server = LinkServer(host, ServedTargets({name: watched}), cluster.knobs.link)

    async def close(self) -> None:
        with contextlib.suppress(PolonaiseError):
            await self.server.close(1.0)
        await self._target.close()


_DEEDS: Final[tuple[Callable[[Delivering], Coroutine[Any, Any, None]], ...]] = (
    Delivering._crash,
    Delivering._crash_at_call,
    Delivering._crash_at_call,
    Delivering._power_loss,
    Delivering._stop,
    Delivering._pause,
    Delivering._pause,
    Delivering._cut,
    Delivering._cut,
    Delivering._reset,
    Delivering._reset,
    Delivering._replace_unheard,
    Delivering._replace_unheard,
    Delivering._slow_disk,
    Delivering._slow_disk,
    Delivering._flip,
    Delivering._fail_disk,
    Delivering._put_back,
    Delivering._put_back,
    Delivering._trouble,
    Delivering._trouble,
)
