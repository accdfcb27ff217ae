"""The player: it reads the log, carries out what `ActivePlayer` decides, and so delivers to targets."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from math import inf
from typing import Any, Final, NamedTuple, Self, TypeAlias, cast

from polonaise.client.log import Log
from polonaise.client.protocol.arguments import checked_id
from polonaise.client.waiting import cancelled_elsewhere, check_loop, forked, is_inherited
from polonaise.errors import (
    BadOption,
    Closed,
    DeliveryStopped,
    PolonaiseError,
    ProducerFenced,
)
from polonaise.host.unawaited import retrieve
from polonaise.log.producers import KEY_PREFIX
from polonaise.player.deliverytarget import DeliverySource, DeliveryTarget
from polonaise.player.directstream import DirectEndpoint
from polonaise.player.endpoint import DeliveryEndpoint, DeliveryStream
from polonaise.player.keptepochs import ASKED_TERM, check_kept_epochs
from polonaise.player.logreading import LogReading
from polonaise.player.protocol.activeplayer import ActivePlayer
from polonaise.player.protocol.deliveryhealth import targets_health
from polonaise.player.protocol.deliverylag import TargetLag
from polonaise.player.protocol.effects import (
    AskMark,
    CloseStream,
    FollowPartition,
    OpenStream,
    PlayerEffect,
    ReadForTarget,
    SendBatches,
    StandDown,
)
from polonaise.player.protocol.entries import Epoch, Fence, TargetName, Term, checked_name
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.protocol.targetstream import StreamState
from polonaise.player.routing import Route, Router
from polonaise.terms import PartitionId, TransactionId

_log = logging.getLogger("polonaise.player")

_WARN_S: Final = 60.0
"""Seconds until what is wrong with a target is logged again."""
_TICK_S: Final = 0.05
"""Seconds between two looks at deadlines."""
_STALL_S: Final = 1.0
"""Where a look comes later than this, in seconds, the process was kept from running, and deadlines wait for it."""
_FORKED: Final = "player was started"
"""What is told of this one in a forked child."""
_NOT_STARTED: Final = "player {!r} was not started: use `async with`, or `await player.start()`"
_Stops: TypeAlias = Callable[[ActivePlayer, PartitionId, int, str], Iterable[PlayerEffect]]
"""An event of the machine after which a partition brings nothing more, for a reason."""
_FENCED_BY: Final = "player "
"""The beginning of the name of the idempotent producer whose epoch is the player's."""


class Player:
    """Delivers the log's transactions to targets: each once and in order, whatever dies when. As a context manager::

        def route(tx):
            account, change = decode(tx.data)
            return {f"shard-{account % 4}": tx.data}

        async with polonaise.connect(address) as log:
            shards = {f"shard-{number}": Accounts(url) for number, url in enumerate(urls)}
            async with Player(log, "accounts", route, shards) as player:
                await player.ended()

    `route` says what each target gets of a transaction. Each target is served on its own: one that is slow, away, or
    refuses an entry keeps no other waiting, and is caught up from the log. A transaction that can't be routed stops its
    partition, and none is skipped.

    The player that was opened last under a name is the active one: it has the next epoch of the idempotent producer
    "player <name>" in the log's first partition, and targets take nothing more from those before. Such a one ends with
    `ProducerFenced` as soon as a target tells it.

    - `log`: a started client of the log; it stays the application's.
    - `targets`: by name, in this process, or elsewhere as `remote` returns them. Targets of this process stay the
      application's; the player closes none.
    - `partitions`: those to deliver; by default all that there are when the player starts.
    - `start_after`: by name of a target and partition, the id after which its entries begin, for a new target or one
      that was filled by other means: what lies between that and what it has applied is passed over.
    - `retired`: names that the route function may still return, as for older transactions, and that get nothing.

    `route` is called in the event loop, so it must be quick. Raises `BadOption` for what can't be meant.
    """

    def __init__(
        self,
        log: Log,
        name: str,
        route: Route,
        targets: Mapping[TargetName, DeliveryTarget | DeliveryEndpoint],
        *,
        partitions: Iterable[PartitionId] | None = None,
        settings: PlayerSettings | None = None,
        start_after: Mapping[TargetName, Mapping[PartitionId, TransactionId]] | None = None,
        retired: Collection[TargetName] = (),
    ) -> None:
        if not callable(route) or inspect.iscoroutinefunction(route):
            raise BadOption(f"route={route!r}: a plain function that takes a transaction")
        for each in (name, *targets):
            checked_name(each)
        self._log = log
        self.name = name
        self._endpoints = {each: _endpoint(each, target) for each, target in targets.items()}
        self._partitions = None if partitions is None else list(dict.fromkeys(partitions))
        if self._partitions == []:
            raise BadOption("partitions: name those to deliver, or leave it out for all")
        self._settings = settings or PlayerSettings()
        self._start_after = dict(start_after or {})
        if unknown := self._start_after.keys() - self._endpoints.keys():
            raise BadOption(f"start_after names {', '.join(sorted(unknown))}, which is no target of this player")
        if both := self._endpoints.keys() & set(retired):
            raise BadOption(f"{', '.join(sorted(both))} can't be a target and retired")
        self._retired = set(retired)
        self._router = Router(route, self._endpoints.keys(), self._retired)
        self._machine: ActivePlayer | None = None
        self._reading: LogReading | None = None
        self._streams: dict[TargetName, _RunningStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._main_streams: dict[PartitionId, asyncio.Task[None]] = {}
        self._ended: asyncio.Future[None] | None = None
        self._closed = False
        self._waiting: list[_Waiting] = []
        self._stopped_all_for = ""
        """Why the last partition has stopped, once all have; what they have brought may still be under way."""
        self._over: set[asyncio.Task[None]] = set()
        """Tasks that this player has cancelled."""
        self._at_rest: asyncio.Future[None] | None = None
        self._stalled_s = 0.0
        """The seconds in which this process was kept from running, and could hear no target."""
        self._warned: dict[str, float] = {}
        """What was logged of targets in the last minute, and when."""
        self.refusals: Counter[TargetName] = Counter()
        """By target, the entries that it has refused."""

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Become the active player of this name. Raises what `Log.producer` does, `ProducerFenced` if a target keeps a
        higher epoch than the log, and `Closed` the second time."""
        if self._ended is not None or self._closed:
            raise Closed(f"player {self.name!r} was started or closed before: make a new one")
        partitions = self._checked_partitions()
        key = KEY_PREFIX + (_FENCED_BY + self.name).encode()
        self._ended = asyncio.get_running_loop().create_future()
        try:
            await check_kept_epochs(self._log, self.name, key, self._endpoints, self._settings.start_patience_s)
            producer = await self._log.producer(_FENCED_BY + self.name, partition=0)
        except BaseException:
            self._end(Closed(f"player {self.name!r} could not be started"))
            self._ended = None
            raise
        if self._ended.done():  # closed meanwhile
            self._ended.result()
        self._machine = ActivePlayer(producer.epoch, partitions, self._settings, last_term=ASKED_TERM)
        self._reading = LogReading(self._log, self._machine, self._router, self._settings, _LogEvents(self))
        for name in self._endpoints:
            self._machine.add_target(name, self._start_after.get(name))
        self._spawn(self._tick(), "ticks")
        self._spawn(self._reading.watch(key), "look at the log")

    def _checked_partitions(self) -> list[PartitionId]:
        """Return the partitions to deliver. Raises `BadOption` for one that the log does not have."""
        there = range(self._log.partition_count)
        partitions = list(there) if self._partitions is None else self._partitions
        self._check_there(partitions)
        for target, after in self._start_after.items():
            self._check_start_after(target, after)
        return partitions

    def _check_there(self, partitions: Iterable[PartitionId]) -> None:
        there = range(self._log.partition_count)
        for partition in partitions:
            if partition not in there or isinstance(partition, bool):
                raise BadOption(f"partition {partition!r}: the log has partitions 0 to {there[-1]}")

    def _check_start_after(self, target: TargetName, after: Mapping[PartitionId, TransactionId]) -> None:
        self._check_there(after)
        for id in after.values():
            checked_id(f"start_after of {target}", id)

    # ------------------------------------------------------------------ targets come and go

    def add_target(
        self,
        name: TargetName,
        target: DeliveryTarget | DeliveryEndpoint,
        start_after: Mapping[PartitionId, TransactionId] | None = None,
    ) -> None:
        """Deliver to this target, too: everything that the route function names it for, or what follows `start_after`.

        Partitions that have stopped are tried again: what their transactions lacked may be this target. Raises
        `BadOption` for a name that is a target's already, and for what can't be meant; `Closed` if the player was not
        started, or has ended.
        """
        machine = self._running_machine()
        checked_name(name)
        if name in self._endpoints:
            raise BadOption(f"player {self.name!r} has a target {name!r} already: remove it first")
        self._check_start_after(name, start_after or {})
        self._endpoints[name] = _endpoint(name, target)
        self._retired.discard(name)
        machine.add_target(name, start_after)
        self._stopped_all_for = ""
        for partition in machine.partitions:
            self._carry_out(machine.go_on(partition))

    async def remove_target(self, name: TargetName) -> None:
        """Deliver nothing more to this target. The route function may name it still: its name counts as retired.

        What it applies just now may still be applied. Raises `BadOption` for a name that is no target's.
        """
        machine = self._running_machine()
        if name not in self._endpoints:
            names = ", ".join(sorted(self._endpoints)) or "none"
            raise BadOption(f"player {self.name!r} has no target {name!r}: there are {names}")
        endpoint = self._endpoints.pop(name)
        self._retired.add(name)
        self._happened(machine.remove_target, name)
        await endpoint.close()

    def _running_machine(self) -> ActivePlayer:
        machine, ended = self._started()
        if ended.done():
            raise Closed(f"player {self.name!r} has ended")
        return machine

    def _started(self) -> tuple[ActivePlayer, asyncio.Future[None]]:
        """Return the machine and what tells the end. Raises `Closed` if the player was not started, as `check_loop`."""
        machine, ended = self._machine, self._ended
        if machine is None or ended is None:
            raise Closed(_NOT_STARTED.format(self.name))
        check_loop(ended.get_loop(), _FORKED)
        return machine, ended

    async def ended(self) -> None:
        """Wait until the player delivers nothing more, and raise why: `ProducerFenced` if another one is active,
        `DeliveryStopped` if every partition has stopped, `Closed` after `close`, `Log.failure` if the log has failed,
        `Forked` in a forked child, or what is wrong with this one."""
        if self._ended is None:
            raise Closed(_NOT_STARTED.format(self.name))
        check_loop(self._ended.get_loop(), _FORKED)
        await asyncio.shield(self._ended)

    async def delivered(self, target: TargetName, partition: PartitionId, id: TransactionId) -> None:
        """Wait until the target has applied all that is its own of the partition's transactions up to `id`.

        Raises `DeliveryStopped` if the partition has stopped before that, and if the target is given up or removed; as
        `ended` does, if the player ends before; and `BadOption` for a target or partition that it does not deliver.
        """
        machine, ended = self._started()
        if target not in machine.targets or partition not in machine.partitions:
            names = ", ".join(sorted(machine.targets)) or "none"
            raise BadOption(
                f"player {self.name!r} does not deliver partition {partition} to target {target!r}: it has partitions "
                f"{', '.join(map(str, sorted(machine.partitions)))} and targets {names}"
            )
        waiting = _Waiting(target, partition, id, asyncio.get_running_loop().create_future())
        waiting.done.add_done_callback(retrieve)  # it may fail in the moment in which this is cancelled
        self._waiting.append(waiting)
        self._tell_waiting()
        try:
            await asyncio.wait((waiting.done, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.remove(waiting)
        if waiting.done.done():
            waiting.done.result()
        else:
            ended.result()

    async def finish(self, within_s: float) -> bool:
        """Send nothing more, and wait until targets have acknowledged what they were sent; return whether they have.

        Waits for `within_s` seconds at most. The player still has to be closed. So whoever takes over finds no target
        amid what this one has sent.
        """
        machine, ended = self._machine, self._ended
        if machine is None or ended is None or is_inherited(ended.get_loop()):
            return True
        machine.finish()
        if self._at_rest is None:
            self._at_rest = asyncio.get_running_loop().create_future()
        self._tell_rest()
        await asyncio.wait((self._at_rest, ended), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        return self._at_rest.done()

    def _tell_rest(self) -> None:
        """End the wait of `finish` if nothing is in flight any more."""
        assert self._machine is not None
        if self._at_rest is not None and not self._at_rest.done() and self._machine.at_rest:
            self._at_rest.set_result(None)

    async def close(self) -> None:
        """Deliver nothing more. What targets are applying just now may still be applied."""
        self._closed = True
        if self._ended is not None and is_inherited(self._ended.get_loop()):
            return  # in a forked child, which ends: streams and targets are its parent's
        self._end(Closed(f"player {self.name!r} was closed"))
        self._cancel_all()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        for endpoint in self._endpoints.values():
            await endpoint.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _end(self, error: BaseException) -> None:
        """Note why the player has ended, if that is not known yet."""
        ended = self._ended
        if ended is not None and not ended.done():
            ended.set_exception(error)
            ended.exception()  # whoever waits for it is told; nobody has to

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"player {self.name}: {what}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel a task of this player, unless it is the running one: that must not be cancelled amid what it tells."""
        if not task.done() and task is not asyncio.current_task():
            self._over.add(task)
            task.cancel()

    def _cancel_all(self) -> None:
        for target in list(self._streams):
            self._end_stream(target)
        for task in list(self._tasks):
            self._cancel(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        ours = task in self._over or self._ended is None or self._ended.done()
        self._over.discard(task)
        if task.cancelled():
            if not ours and not is_inherited(task.get_loop()):
                # Nobody would do its work any more. Tasks of the client's are cancelled in the same moment, before or
                # after this one: why nothing goes on is told alike of all.
                self._log.fail(why := cancelled_elsewhere(task))
                self._end(self._log.failure or why)
                self._cancel_all()
        elif (error := task.exception()) is not None:
            # Tasks handle the faults that they can meet: this is a mistake, and going on might deliver wrongly.
            _log.error("player %s has ended: %s", self.name, error, exc_info=error)
            self._end(error)
            self._carry_out([StandDown(f"{type(error).__name__}: {error}")])

    # ------------------------------------------------------------------ health

    def health(self) -> dict[str, Any]:
        """Return what holds up which target, as a dict for JSON; `well` says whether anything does.

        `ended` says why the player delivers nothing more, and is empty while it does. By name of a target: the `state`
        and `term` of its stream, the `reason` why there is none, the bytes `in_flight`, the number of entries
        `waiting`, and by partition the last id that it is known to have `applied`, the `lag`, in transactions of the
        log (None where the log does not tell how far it reaches), why the target is `hindered`, and what it is `slow`
        with. By partition: the id `current` up to which the log was read, why it has `stopped`, and what `trouble` the
        log has.
        """
        machine, reading, ended = self._machine, self._reading, self._ended
        if machine is None or reading is None or ended is None:
            return {"well": False, "ended": "", "targets": {}, "partitions": {}}
        targets = targets_health(machine, reading.silent)
        partitions = {
            str(partition): {
                "current": main.current,
                "stopped": main.stopped,
                "trouble": reading.trouble(partition),
            }
            for partition, main in machine.partitions.items()
        }
        error = ended.exception() if ended.done() else None
        if is_inherited(ended.get_loop()):
            error = forked(_FORKED)
        why = "" if error is None else str(error) if isinstance(error, PolonaiseError) else repr(error)
        if why:  # whatever the streams were when it ended: nothing goes to any target
            targets = {name: {**each, "state": StreamState.DOWN.value, "reason": why} for name, each in targets.items()}
        well = error is None and not any(each["stopped"] or each["trouble"] for each in partitions.values())
        held_up = (each["state"] != "up" or each["hindered"] or each["slow"] for each in targets.values())
        well = well and not any(held_up)
        return {"well": well, "ended": why, "epoch": machine.epoch, "targets": targets, "partitions": partitions}

    def lags(self, wall_us: int) -> dict[TargetName, TargetLag]:
        """Return by target how far it is behind, in seconds and bytes; `wall_us` is the time, in µs since 1970.

        By the clock of the log's server, as soon as that was measured: that of this machine may be hours off.
        """
        if self._reading is None:
            return {}
        ahead_us = int((self.clock_ahead_s or 0.0) * 1e6)
        return self._reading.lag.lags(wall_us - ahead_us, self._reading.silent)

    @property
    def clock_ahead_s(self) -> float | None:
        """How far the clock of this machine is ahead of that of the log's server, in seconds; None if not measured."""
        return self._log.clock_ahead_s

    # ------------------------------------------------------------------ events in, effects out

    def _happened(self, event: Callable[..., Iterable[PlayerEffect]], *about: Any) -> None:
        """Let an event happen, and carry out what comes of it, before anything else can happen."""
        self._carry_out(event(*about, self._now_s()))
        machine = self._machine
        assert machine is not None
        if self._waiting:
            self._tell_waiting()
        if self._at_rest is not None:
            self._tell_rest()
        if self._stopped_all_for and machine.has_finished:
            self._end(self._delivers_no_more("any partition", self._stopped_all_for))
            self._cancel_all()

    def _tell_waiting(self) -> None:
        """End the waits for what is delivered now, or never will be."""
        machine = self._machine
        assert machine is not None
        for waiting in self._waiting:
            target, partition, id, done = waiting
            if done.done():
                continue
            if target not in machine.targets:
                done.set_exception(self._delivers_no_more(f"partition {partition}", f"target {target} was removed"))
            elif machine.has_delivered(target, partition, id):
                done.set_result(None)
            elif reason := machine.why_never(target, partition, id):
                done.set_exception(self._delivers_no_more(f"partition {partition}", reason))

    def _delivers_no_more(self, what: str, reason: str) -> DeliveryStopped:
        return DeliveryStopped(f"player {self.name!r} delivers no more of {what}: {reason}")

    def _carry_out(self, effects: Iterable[PlayerEffect]) -> None:
        """Carry out the effects in their order. None of this waits, so no event comes in between."""
        machine = self._machine
        assert machine is not None
        take_more = self._carried_out(effects)
        while take_more:
            target, term = take_more.pop()
            take_more += self._carried_out(machine.written(target, term, self._now_s()))

    def _carried_out(self, effects: Iterable[PlayerEffect]) -> list[tuple[TargetName, Term]]:
        """Carry out the effects; return the streams that take more at once, with their terms."""
        reading = self._reading
        assert reading is not None
        take_more: list[tuple[TargetName, Term]] = []
        for effect in effects:
            match effect:
                case SendBatches(target, term, batches):
                    if self._streams[target].stream.send(batches):
                        take_more.append((target, term))
                case ReadForTarget():
                    self._spawn(reading.read(effect), f"read partition {effect.partition} for {effect.target}")
                case OpenStream(target, term):
                    self._open(target, term)
                case CloseStream(target, _, reason):
                    _log.warning("player %s: stream to %s is closed: %s", self.name, target, reason)
                    self._end_stream(target)
                case AskMark(partition, number):
                    self._spawn(reading.ask(partition, number), f"ask for the mark of partition {partition}")
                case FollowPartition(partition, number, first):
                    if (earlier := self._main_streams.pop(partition, None)) is not None:
                        self._cancel(earlier)
                    work = reading.follow(partition, number, first)
                    self._main_streams[partition] = self._spawn(work, f"follow partition {partition}")
                case StandDown(reason):
                    self._stand_down(reason)
        return take_more

    def _open(self, target: TargetName, term: Term) -> None:
        assert self._machine is not None
        self._end_stream(target)
        fence = Fence(self._machine.epoch, term)
        stream = self._endpoints[target].stream(fence, _Events(self, target, term))
        source = DeliverySource(self._log.log_key, self.name, target)
        work = stream.serve(source, self._machine.targets[target].open_s_max)
        self._streams[target] = _RunningStream(stream, self._spawn(work, f"stream {term} to {target}"))

    def _end_stream(self, target: TargetName) -> None:
        running = self._streams.pop(target, None)
        if running is not None:
            running.stream.close()
            self._cancel(running.task)

    def _stand_down(self, reason: str) -> None:
        _log.warning("player %s stands down: %s", self.name, reason)
        self._end(ProducerFenced(f"player {self.name!r} delivers nothing more: {reason}"))
        self._cancel_all()

    # ------------------------------------------------------------------ tasks

    async def _tick(self) -> None:
        assert self._machine is not None
        loop = asyncio.get_running_loop()
        while True:
            self._happened(self._machine.tick)
            due_s = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            if (late_s := loop.time() - due_s) > _STALL_S:
                self._stalled_s += late_s

    def _now_s(self) -> float:
        """Return the time of the loop, without that in which it did not run: no target was late then."""
        return asyncio.get_running_loop().time() - self._stalled_s

    def _stopped(self, event: _Stops, partition: PartitionId, number: int, reason: str) -> None:
        machine = self._machine
        assert machine is not None
        _log.error("player %s: partition %d is not delivered any further: %s", self.name, partition, reason)
        self._carry_out(event(machine, partition, number, reason))
        self._tell_waiting()
        if all(main.stopped for main in machine.partitions.values()):
            # What was brought is still delivered: `ended` is told when that is done.
            self._stopped_all_for = reason

    def _warn(self, what: str) -> None:
        """Log what is wrong with a target, and the same again once a minute."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._warned.get(what, -inf) >= _WARN_S:
            # Of what is not wrong any more, nothing is kept.
            self._warned = {each: at_s for each, at_s in self._warned.items() if now_s - at_s < _WARN_S}
            self._warned[what] = now_s
            _log.warning("player %s: %s", self.name, what)

    def _replaced(self, epoch: Epoch) -> None:
        assert self._machine is not None
        self._carry_out(self._machine.replaced(f"a player of this name has epoch {epoch}"))


class _Waiting(NamedTuple):
    """A wait until a target has all of a partition up to an id."""

    target: TargetName
    partition: PartitionId
    id: TransactionId
    done: asyncio.Future[None]


class _RunningStream(NamedTuple):
    """The stream to a target, and the task that serves it."""

    stream: DeliveryStream
    task: asyncio.Task[None]


class _LogEvents:
    """What the log tells, handed to the player."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self.name = player.name

    def happened(self, event: Callable[..., Iterable[PlayerEffect]], *about: Any) -> None:
        self._player._happened(event, *about)

    def stopped(self, partition: PartitionId, number: int, reason: str) -> None:
        self._player._stopped(ActivePlayer.stopped, partition, number, reason)

    def mark_failed(self, partition: PartitionId, number: int, reason: str) -> None:
        self._player._stopped(ActivePlayer.mark_failed, partition, number, reason)

    def replaced(self, epoch: Epoch) -> None:
        self._player._replaced(epoch)


class _Events:
    """What becomes of one stream, as events of the machine under the stream's term."""

    def __init__(self, player: Player, target: TargetName, term: Term) -> None:
        self._player = player
        self._about = target, term

    def connected(self, applied: dict[PartitionId, TransactionId]) -> None:
        self._happened(self._machine.connected, applied)

    def fenced(self, kept: Fence) -> None:
        self._happened(self._machine.fenced, kept)

    def written(self) -> None:
        self._happened(self._machine.written)

    def acknowledged(self, partition: PartitionId, through: TransactionId) -> None:
        self._happened(self._machine.acknowledged, partition, through)

    def refused(self, partition: PartitionId, last: TransactionId, reason: str) -> None:
        target = self._about[0]
        self._player.refusals[target] += 1
        self._player._warn(f"{target} refuses the entry after {last} of partition {partition}: {reason}")
        self._happened(self._machine.refused, partition, last, reason)

    def disconnected(self, reason: str) -> None:
        self._player._warn(f"no stream to {self._about[0]}: {reason}")
        self._happened(self._machine.disconnected, reason)

    @property
    def _machine(self) -> ActivePlayer:
        machine = self._player._machine
        assert machine is not None
        return machine

    def _happened(self, event: Callable[..., Iterable[PlayerEffect]], *about: Any) -> None:
        self._player._happened(event, *self._about, *about)


def _endpoint(name: TargetName, target: DeliveryTarget | DeliveryEndpoint) -> DeliveryEndpoint:
    if hasattr(target, "stream"):
        return cast(DeliveryEndpoint, target)
    if hasattr(target, "accept") and hasattr(target, "apply"):
        return DirectEndpoint(target)
    raise BadOption(f"target {name!r} is {type(target).__name__}: a DeliveryTarget, or what `remote` returns")
