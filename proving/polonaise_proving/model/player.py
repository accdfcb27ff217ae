"""Exactly-once delivery, explored exhaustively: the production's active player, and targets that keep what they apply.

`PlayerWorld` is one state: the log, players of one name under different epochs, the streams with all that is under way
on them, and what each target keeps durably. `PlayerExploration` walks every order of events within `Bounds`:
transactions are committed, fed and read; messages arrive or are lost with their stream, those of a stream that the
player has given up as well; targets die between an entry and its acknowledgement, refuse an entry, or are moved to an
empty place; a player is replaced while it lives, and goes on until a target tells it. In every state each target has
applied a prefix of what the route function gives it; and from every state, once faults stop, the latest player brings
every target to the end.

Not in the model: time (every pause is over at once), bounds of bytes, entries that can't be routed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from types import ModuleType
from typing import Any, NamedTuple

from polonaise.player.protocol import activeplayer, patience, reception, targetpartition, targetqueue, targetstream
from polonaise.player.protocol.entries import NO_FENCE, DeliveryBatch, Fence, RoutedEntry
from polonaise.player.protocol.reception import Reception
from polonaise.player.protocol.settings import PlayerSettings
from polonaise_proving.model.decisions import changed_module, compiled
from polonaise_proving.model.walk import Broken, ModelWalk
from polonaise_proving.mutations.mutation import Mutation

Route = Sequence[str]
"""By id of a transaction: the names of its targets."""


_NOW_S = 100.0
_NO_PAUSE_S = 1e-30
"""So short that adding it to the time changes nothing."""


_SETTLED_EVERY = 20


@dataclass(frozen=True, eq=False)
class Machines:
    """The player's and the target's side."""

    player: Any
    reception: Any


PRODUCTION = Machines(activeplayer.ActivePlayer, reception.Reception)


def mutated(mutation: Mutation) -> Machines:
    """Production with the mutation."""
    changed = changed_module(mutation)
    if mutation.module == reception.__name__:
        return Machines(activeplayer.ActivePlayer, vars(changed)["Reception"])
    # What imports it is made again, too, and given what it defines in place of production's.
    made = {mutation.module: changed}
    for importing in (patience, targetqueue, targetpartition, targetstream, activeplayer):
        if importing.__name__ == mutation.module or not _imports(importing, made):
            continue
        again = compiled(importing, inspect.getsource(importing))
        for each in made.values():
            vars(again).update(
                {name: value for name, value in vars(each).items() if name in vars(again) and _own(value, each)}
            )
        made[importing.__name__] = again
    return Machines(vars(made[activeplayer.__name__])["ActivePlayer"], reception.Reception)


def _imports(module: ModuleType, made: dict[str, ModuleType]) -> bool:
    return any(name in inspect.getsource(module) for name in made)


def _own(value: object, module: ModuleType) -> bool:
    return getattr(value, "__module__", "") == module.__name__


@dataclass(frozen=True)
class PlayerBounds:
    """How far to go: the transactions, and how often each fault may happen."""

    name: str
    routes: tuple[Route, ...] = (("ab", "ab", "a"),)
    """By partition: by id of a transaction the letters of its targets."""
    breaks: int = 0
    """Streams that break; what was sent before may still arrive."""
    target_crashes: int = 0
    """Targets that die, with all that is under way to them."""
    players: int = 1
    """Players that are elected, one after the other. The earlier ones live on."""
    refusals: int = 0
    """Entries that a target can't apply when they come first."""
    moves: int = 0
    """Times that a target is given to an empty place: each player removes it, and adds it again under its name."""
    patience_s: float = inf
    """0 for players that begin without the targets that have not told yet what they have applied."""
    queue_entries: int = 99
    join: int = 99
    """As `PlayerSettings.join_transactions`, as are the next two."""
    batch_entries: int = 2
    dummies: int = 99

    def settings(self) -> PlayerSettings:
        return PlayerSettings(
            batch_entries_max=self.batch_entries, queue_entries_max=self.queue_entries, join_transactions=self.join,
            dummy_transactions=self.dummies, start_patience_s=self.patience_s, progress_s_max=inf,
            retry_s_min=_NO_PAUSE_S, retry_s_max=_NO_PAUSE_S,
        )  # fmt: skip

    @property
    def targets(self) -> list[str]:
        return sorted({letter for route in self.routes for letters in route for letter in letters})

    def routed(self, partition: int, target: str, first: int, last: int) -> list[RoutedEntry]:
        """What the route function gives a target of these transactions: payloads name their transaction."""
        route = self.routes[partition]
        return [RoutedEntry(i, b"%d" % i) for i in range(first, last + 1) if target in route[i]]


class ModelHello(NamedTuple):
    """A player's first message on a stream."""

    fence: Fence


@dataclass
class ModelStream:
    """One stream, with what is under way in both directions."""

    player: int
    target: str
    fence: Fence
    given_up: bool = False
    """Whether the player has closed it, or has heard that it broke: nothing more comes back. What was sent may arrive,
    and what had come back may still be told to the player's machine."""
    to_target: list[Any] = field(default_factory=list)
    to_player: list[tuple[Any, ...]] = field(default_factory=list)
    reception: Reception | None = None
    """The target's side, if it has accepted the stream."""
    batches: int = 0
    """Batches of the present message that are still to be taken: the stream is full until then."""


@dataclass
class ModelTarget:
    """What a target keeps durably."""

    kept: Fence = NO_FENCE
    accepted: Fence = NO_FENCE
    """The highest fence that it ever accepted: what the target itself does not look at."""
    applied: dict[int, list[int]] = field(default_factory=dict)
    """By partition, the ids that it has applied, without dummies."""
    last: dict[int, int] = field(default_factory=dict)


@dataclass
class ModelPlayer:
    """One player, and what it waits for from the log."""

    machine: Any
    feeds: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition, the number of the main stream and the id that it brings next."""
    reads: list[tuple[str, int, Any]] = field(default_factory=list)
    marks: list[tuple[int, int, int]] = field(default_factory=list)
    """Questions under way: partition, number, and the mark when it was asked."""
    tick_due: bool = True
    down: bool = False


class PlayerWorld:
    """Everything that there is. `events` names the steps that are possible, and `step` takes one."""

    def __init__(self, machines: Machines, bounds: PlayerBounds) -> None:
        self.machines = machines
        self.bounds = bounds
        self.settings = bounds.settings()
        self.committed = [0] * len(bounds.routes)
        """By partition, how many transactions are committed."""
        self.targets = {name: ModelTarget() for name in bounds.targets}
        self.streams: list[ModelStream] = []
        self.players: list[ModelPlayer] = []
        self.breaks = self.crashes = self.refusals = self.moves = 0
        self._elect()

    # ------------------------------------------------------------------ steps

    def events(self) -> Iterator[tuple[Any, ...]]:
        """The steps that are possible now: first those that must come some time, then faults."""
        bounds = self.bounds
        yield from self.due()
        for partition, route in enumerate(bounds.routes):
            if self.committed[partition] < len(route):
                yield "commit", partition
        if len(self.players) < bounds.players:
            yield ("elect",)
        for number, stream in enumerate(self.streams):
            if stream.given_up and stream.to_player:
                yield "answer", number
            if self.breaks < bounds.breaks and not stream.given_up:
                yield "break", number
            if self.refusals < bounds.refusals and self._may_be_refused(stream):
                yield "refuse", number
        if self.moves < bounds.moves:
            for name in self.targets:
                yield "move", name
        if self.crashes < bounds.target_crashes:
            for name in self.targets:
                if any(stream.target == name for stream in self.streams):
                    yield "crash", name

    def due(self) -> Iterator[tuple[Any, ...]]:
        """The steps that are possible now, and are no faults."""
        for number, player in enumerate(self.players):
            if player.down:
                continue
            if player.tick_due:
                yield "tick", number
            for partition, (_, following) in player.feeds.items():
                if following < self.committed[partition]:
                    yield "feed", number, partition
            for place, _ in enumerate(player.reads):
                yield "read", number, place
            if player.marks:
                yield "mark", number
        for number, stream in enumerate(self.streams):
            if stream.to_target:
                yield "arrive", number
            if stream.to_player and not stream.given_up:
                yield "answer", number

    def complete(self) -> None:
        """Raise `Violation` if nothing is to be done, the whole log is committed, and a target lacks something."""
        if self.committed == [len(route) for route in self.bounds.routes] and not any(True for _ in self.due()):
            self._check_targets()

    def step(self, event: tuple[Any, ...]) -> None:
        """Take one step, and do what comes of it."""
        match event:
            case "commit", partition:
                self.committed[partition] += 1
            case ("elect",):
                self._elect()
            case "tick", number:
                self.players[number].tick_due = False
                self._do(number, self.players[number].machine.tick(_NOW_S))
            case "feed", number, partition:
                self._feed(number, partition)
            case "read", number, place:
                self._read(number, place)
            case "mark", number:
                partition, request, mark = self.players[number].marks.pop(0)
                machine = self.players[number].machine
                self._do(number, machine.mark_told(partition, request, mark, _NOW_S))
                pairs = (pair for target in machine.targets.values() for pair in target.pairs.values())
                if any("another log" in pair.trouble_now for pair in pairs):
                    raise Broken("a target is said to have served another log")
                if any(main.lost for main in machine.partitions.values()):
                    raise Broken("the log is said to have been put back")
            case "arrive", number:
                self._arrive(self.streams[number], refuses=False)
            case "refuse", number:
                self.refusals += 1
                self._arrive(self.streams[number], refuses=True)
            case "answer", number:
                self._answer(self.streams[number])
            case "break", number:
                self.breaks += 1
                self._broken(self.streams[number])
            case "move", name:
                self.moves += 1
                self._move(name)
            case "crash", name:
                self.crashes += 1
                for stream in [stream for stream in self.streams if stream.target == name]:
                    stream.to_target.clear()
                    self._broken(stream)
        self.streams = [each for each in self.streams if each.to_target or each.to_player or not each.given_up]

    def _elect(self) -> None:
        machine = self.machines.player(len(self.players) + 1, range(len(self.committed)), self.settings)
        for name in self.targets:
            machine.add_target(name)
        self.players.append(ModelPlayer(machine))

    def _move(self, name: str) -> None:
        """Give a target to an empty place. What is under way to the old one is of no concern any more; what is under
        way from it, and from the log, still arrives."""
        self.targets[name] = ModelTarget()
        for stream in self.streams:
            if stream.target == name:
                stream.to_target.clear()
                stream.given_up = True
        for number, player in enumerate(self.players):
            if not player.down:
                self._do(number, player.machine.remove_target(name, _NOW_S))
                player.machine.add_target(name)
                player.tick_due = True

    def _feed(self, number: int, partition: int) -> None:
        """Bring the next transaction, alone: that several come at once is the same as that nothing happens between."""
        player = self.players[number]
        follow, following = player.feeds[partition]
        player.feeds[partition] = follow, following + 1
        routed = {name: self.bounds.routed(partition, name, following, following) for name in self.targets}
        self._do(number, player.machine.fetched(partition, follow, following, following, routed, _NOW_S))

    def _read(self, number: int, place: int) -> None:
        """Answer a read with its first transaction only, to have it go on in more steps."""
        player = self.players[number]
        target, partition, read = player.reads.pop(place)
        if read.last >= self.committed[partition]:
            raise Broken(f"a read of partition {partition} goes to {read.last}, which is not committed")
        entries = self.bounds.routed(partition, target, read.first, read.first)
        self._do(number, player.machine.recovered(target, partition, read.number, entries, read.first, _NOW_S))

    # ------------------------------------------------------------------ a target

    def _may_be_refused(self, stream: ModelStream) -> bool:
        return bool(stream.to_target) and isinstance(stream.to_target[0], DeliveryBatch)

    def _arrive(self, stream: ModelStream, *, refuses: bool) -> None:
        answers = self._take(stream, refuses=refuses)
        if not stream.given_up:
            stream.to_player += answers

    def _take(self, stream: ModelStream, *, refuses: bool) -> list[tuple[Any, ...]]:
        """Have the target take the next message; return what it answers."""
        target, message = self.targets[stream.target], stream.to_target.pop(0)
        if isinstance(message, ModelHello):
            if not self.machines.reception.accepts(target.kept, message.fence):
                return [("fenced", target.kept)]
            target.kept = message.fence
            target.accepted = max(target.accepted, message.fence)
            stream.reception = self.machines.reception(message.fence)
            return [("connected", dict(target.last))]
        stream.batches -= 1
        answers: list[tuple[Any, ...]] = [] if stream.batches else [("written",)]
        if stream.reception is None:
            return answers  # it was not accepted: what was sent after that goes nowhere
        partition = message.partition
        match stream.reception.judge(target.kept, target.last.get(partition, -1), message).name:
            case "APPLY" if refuses:
                # All but the last entry is applied, and that one can't be.
                self._apply(stream, partition, message.entries[:-1])
                stream.reception.refuse(partition)
                answers.append(("refused", partition, target.last.get(partition, -1)))
            case "APPLY":
                self._apply(stream, partition, message.entries)
                answers.append(("acknowledged", partition, message.last))
            case "FENCED":
                answers.append(("fenced", target.kept))
            case "OUT_OF_PLACE":
                # The target's last defence: against what the model does not have, such as a disk that was put back.
                raise Broken(f"target {stream.target} is sent {message}, and has applied {target.last}")
        return answers

    def _apply(self, stream: ModelStream, partition: int, entries: Sequence[RoutedEntry]) -> None:
        name, target = stream.target, self.targets[stream.target]
        if stream.fence < target.accepted:
            raise Broken(f"target {name} has accepted {target.accepted}, and applies what comes under {stream.fence}")
        for entry in entries:
            target.last[partition] = entry.id
            if entry.payload is None:
                continue
            applied = target.applied.setdefault(partition, [])
            applied.append(entry.id)
            # In order and once: it is the next of what the route function gives this target.
            expected = [each.id for each in self.bounds.routed(partition, name, 0, self.committed[partition] - 1)]
            if applied != expected[: len(applied)]:
                raise Broken(f"target {name} applies {applied} of partition {partition}: the log has {expected}")

    # ------------------------------------------------------------------ a player

    def _answer(self, stream: ModelStream) -> None:
        machine = self.players[stream.player].machine
        kind, *told = stream.to_player.pop(0)
        about = stream.target, stream.fence.term
        match kind:
            case "connected":
                effects = machine.connected(*about, told[0], _NOW_S)
            case "fenced":
                effects = machine.fenced(*about, told[0], _NOW_S)
                self.players[stream.player].tick_due = True
            case "written":
                effects = machine.written(*about, _NOW_S)
            case "acknowledged":
                effects = machine.acknowledged(*about, *told, _NOW_S)
            case _:
                effects = machine.refused(*about, *told, "cannot be applied", _NOW_S)
                self.players[stream.player].tick_due = True
        self._do(stream.player, effects)

    def _broken(self, stream: ModelStream) -> None:
        """The player hears that a stream has ended. What it has sent before may still arrive."""
        if stream.given_up:
            return
        stream.given_up = True
        player = self.players[stream.player]
        player.tick_due = True
        self._do(stream.player, player.machine.disconnected(stream.target, stream.fence.term, "broken", _NOW_S))

    def _do(self, number: int, effects: Sequence[Any]) -> None:
        player = self.players[number]
        for effect in effects:
            match type(effect).__name__:
                case "OpenStream":
                    stream = ModelStream(number, effect.target, Fence(player.machine.epoch, effect.term))
                    stream.to_target.append(ModelHello(stream.fence))
                    self.streams.append(stream)
                case "SendBatches":
                    found = self._stream(number, effect.target, effect.term)
                    if found is None:
                        raise Broken(f"something is sent on a stream that does not exist: {effect}")
                    found.batches = len(effect.batches)
                    found.to_target.extend(effect.batches)
                case "CloseStream":
                    closed = self._stream(number, effect.target, effect.term)
                    if closed is not None:
                        closed.given_up = True
                    player.tick_due = True
                case "AskMark":
                    player.marks.append((effect.partition, effect.number, self.committed[effect.partition] - 1))
                case "FollowPartition":
                    player.feeds[effect.partition] = effect.number, effect.first
                case "ReadForTarget":
                    player.reads.append((effect.target, effect.partition, effect.read))
                case "StandDown":
                    player.down = True
                    for stream in self.streams:
                        if stream.player == number:
                            stream.given_up = True

    def _stream(self, player: int, target: str, term: int) -> ModelStream | None:
        for stream in self.streams:
            if (stream.player, stream.target, stream.fence.term) == (player, target, term) and not stream.given_up:
                return stream
        return None

    # ------------------------------------------------------------------ the end

    def settle(self, steps_max: int = 2_000) -> None:
        """Take all steps that are due, with the whole log committed, in turn: then every target has everything.

        Raises `Violation` if it has not, or if the steps do not come to an end.
        """
        self.committed = [len(route) for route in self.bounds.routes]
        steps = 0
        while due := list(self.due()):
            self.step(due[steps % len(due)])
            steps += 1
            if steps > steps_max:
                raise Broken(f"no end after {steps_max} steps without faults; the last was {due}")
        self._check_targets()

    def _check_targets(self) -> None:
        for name, target in self.targets.items():
            for partition, route in enumerate(self.bounds.routes):
                expected = [each.id for each in self.bounds.routed(partition, name, 0, len(route) - 1)]
                if target.applied.get(partition, []) != expected:
                    raise Broken(
                        f"without faults target {name} comes to {target.applied.get(partition, [])} of partition "
                        f"{partition}, not to {expected}"
                    )


QUICK = (
    PlayerBounds("player: two streams break", routes=(("a", "a"),), breaks=2),
    PlayerBounds("player: two targets", routes=(("ab", "a"),), breaks=1),
)
"""What `make check` explores."""
SHORT = (
    PlayerBounds("player: a target is moved", routes=(("a", "a"),), breaks=1, moves=1),
    PlayerBounds("player: target dies twice", routes=(("a", "a", "a"),), target_crashes=2, batch_entries=1),
    PlayerBounds("player: two players", routes=(("ab",),), players=2),
    PlayerBounds("player: catching up", routes=(("a", "a", "a", "a"),), breaks=1, join=1, queue_entries=1),
    PlayerBounds("player: a target refuses", routes=(("a", "a"), ("a",)), refusals=2),
    PlayerBounds("player: dummies", routes=(("b", "b", "ab"),), breaks=1, dummies=2, batch_entries=1),
)
"""And `make test`."""
BOUNDS = (
    PlayerBounds("player: two targets, two breaks", routes=(("ab", "a"),), breaks=2),
    PlayerBounds("player: three players", routes=(("a", "a"),), players=3),
    PlayerBounds("player: two players, two targets", routes=(("ab", "b"),), players=2),
    PlayerBounds("player: no patience", routes=(("ab", "b"),), breaks=1, patience_s=0.0, join=0),
    PlayerBounds("player: everything", routes=(("a",),), players=2, breaks=1, refusals=1),
)
"""What `make model` explores."""


class PlayerExploration(ModelWalk[PlayerWorld]):
    """One walk through the states that the machines can come to within these bounds."""

    def __init__(self, machines: Machines, bounds: PlayerBounds) -> None:
        first = PlayerWorld(machines, bounds)
        super().__init__(bounds.name, first, [bounds, machines, first.settings])

    def events(self, world: PlayerWorld) -> Iterable[tuple[Any, ...]]:
        return world.events()

    def step(self, world: PlayerWorld, event: tuple[Any, ...]) -> None:
        world.step(event)

    def check(self, state: bytes, number: int) -> None:
        """Check that nothing is lacking where nothing is to be done, and now and then that it comes to that.

        Every state on the way to the end is one of those walked through, so this would do for all if some steps could
        not go on for ever, without faults: that is what settling finds.
        """
        self.world(state).complete()
        if number % _SETTLED_EVERY == 1:
            self.world(state).settle()
