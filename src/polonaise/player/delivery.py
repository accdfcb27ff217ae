"""A player that runs: it carries out what `ActivePlayer` decides, and tells it what becomes of that."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from math import inf
from typing import Any, Final, NamedTuple

from polonaise.client.log import Log
from polonaise.client.waiting import cancelled_elsewhere, forked, is_inherited
from polonaise.errors import BadOption, DeliveryStopped, PolonaiseError, ProducerFenced
from polonaise.host.unawaited import fail, retrieve
from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.endpoint import DeliveryEndpoint, DeliveryStream
from polonaise.player.logreading import LogReading, Stop
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
from polonaise.player.protocol.entries import Epoch, Fence, TargetName, Term
from polonaise.player.protocol.targetstream import StreamState
from polonaise.player.routing import Router
from polonaise.terms import PartitionId, TransactionId

_log = logging.getLogger("polonaise.player")

FORKED: Final = "player was started"
_WARN_S: Final = 60.0
"""Seconds until what is wrong with a target is logged again."""
_TICK_S: Final = 0.05
"""Seconds between two looks at deadlines."""
_STALL_S: Final = 1.0
"""Where a look comes later than this, in seconds, the process was kept from running, and deadlines wait for it."""


class Delivery:
    """What runs of a player, from its start to its end: streams to targets, reads of the log, and the tasks of both.
    Events come from the log, from streams and from the clock. Each goes to the machine, and what that returns is
    carried out without waiting: no event comes in between."""

    def __init__(
        self,
        log: Log,
        name: str,
        key: bytes,
        machine: ActivePlayer,
        router: Router,
        endpoints: Mapping[TargetName, DeliveryEndpoint],
        ended: asyncio.Future[None],
    ) -> None:
        """Begin. `key` is that of the register with the player's epoch; the player keeps `endpoints` those of the
        machine's targets; `ended` is told why nothing more is delivered."""
        self.name = name
        self.machine = machine
        self.ended = ended
        self.refusals: Counter[TargetName] = Counter()
        """By target, the entries that it has refused."""
        self._log = log
        self._endpoints = endpoints
        self._reading = LogReading(log, machine, router, self)
        self._streams: dict[TargetName, _RunningStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: set[asyncio.Task[None]] = set()
        """Tasks that were cancelled here."""
        self._main_streams: dict[PartitionId, asyncio.Task[None]] = {}
        self._waiting: list[_Waiting] = []
        self._at_rest: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once nothing more is sent, and nothing is in flight."""
        self._stopped_all_for = ""
        """Why the last partition has stopped, once all have; what they have brought may still be under way."""
        self._stalled_s = 0.0
        """The seconds in which this process was kept from running, and could hear no target."""
        self._warned: dict[str, float] = {}
        """What was logged of targets in the last minute, and when."""
        self._spawn(self._tick(), "ticks")
        self._spawn(self._reading.watch(key), "look at the log")

    # ------------------------------------------------------------------ what the player is asked for

    def add_target(self, name: TargetName, start_after: Mapping[PartitionId, TransactionId] | None) -> None:
        self.machine.add_target(name, start_after)
        self._stopped_all_for = ""
        for partition in self.machine.partitions:
            self._carry_out(self.machine.go_on(partition))

    def remove_target(self, name: TargetName) -> None:
        self.happened(self.machine.remove_target, name)

    async def delivered(self, target: TargetName, partition: PartitionId, id: TransactionId) -> None:
        machine = self.machine
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
            await asyncio.wait((waiting.done, self.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.remove(waiting)
        (waiting.done if waiting.done.done() else self.ended).result()

    async def finish(self, within_s: float) -> bool:
        self.machine.finish()
        self._tell_rest()
        await asyncio.wait((self._at_rest, self.ended), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        return self._at_rest.done()

    async def close(self) -> None:
        self._cancel_all()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def health(self) -> dict[str, Any]:
        machine, reading, ended = self.machine, self._reading, self.ended
        targets = targets_health(machine, reading.silent)
        partitions = {
            str(partition): {"current": main.current, "stopped": main.stopped, "trouble": reading.trouble(partition)}
            for partition, main in machine.partitions.items()
        }
        error = ended.exception() if ended.done() else None
        if is_inherited(ended.get_loop()):
            error = forked(FORKED)
        why = "" if error is None else str(error) if isinstance(error, PolonaiseError) else repr(error)
        if why:  # whatever the streams were when it ended: nothing goes to any target
            targets = {name: {**each, "state": StreamState.DOWN.value, "reason": why} for name, each in targets.items()}
        well = error is None and not any(each["stopped"] or each["trouble"] for each in partitions.values())
        held_up = (each["state"] != "up" or each["hindered"] or each["slow"] for each in targets.values())
        well = well and not any(held_up)
        return {"well": well, "ended": why, "epoch": machine.epoch, "targets": targets, "partitions": partitions}

    def lags(self, server_us: int) -> dict[TargetName, TargetLag]:
        """Return by target how far it is behind; `server_us` is the time by the log's server, in µs since 1970."""
        return self._reading.lag.lags(server_us, self._reading.silent)

    # ------------------------------------------------------------------ events in

    def happened(self, event: Callable[..., Iterable[PlayerEffect]], *about: Any) -> None:
        """Let an event of the machine happen, and carry out what comes of it, before anything else can happen."""
        self._carry_out(event(*about, self._now_s()))
        if self._waiting:
            self._tell_waiting()
        self._tell_rest()
        if self._stopped_all_for and self.machine.has_finished:
            fail(self.ended, self._delivers_no_more("any partition", self._stopped_all_for))
            self._cancel_all()

    def stopped(self, event: Stop, partition: PartitionId, number: int, reason: str) -> None:
        """Let an event of the machine happen, after which the partition brings nothing more."""
        _log.error("player %s: partition %d is not delivered any further: %s", self.name, partition, reason)
        self._carry_out(event(partition, number, reason))
        self._tell_waiting()
        if all(main.stopped for main in self.machine.partitions.values()):
            # What was brought is still delivered: `ended` is told when that is done.
            self._stopped_all_for = reason

    def replaced(self, epoch: Epoch) -> None:
        """Another player of this name has this epoch, a higher one."""
        self._carry_out(self.machine.replaced(f"a player of this name has epoch {epoch}"))

    def refused(self, target: TargetName, partition: PartitionId, last: TransactionId, reason: str) -> None:
        self.refusals[target] += 1
        self.warn(f"{target} refuses the entry after {last} of partition {partition}: {reason}")

    def warn(self, what: str) -> None:
        """Log what is wrong with a target, and the same again once a minute."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._warned.get(what, -inf) >= _WARN_S:
            # Of what is not wrong any more, nothing is kept.
            self._warned = {each: at_s for each, at_s in self._warned.items() if now_s - at_s < _WARN_S}
            self._warned[what] = now_s
            _log.warning("player %s: %s", self.name, what)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.happened(self.machine.tick)
            due_s = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            if (late_s := loop.time() - due_s) > _STALL_S:
                self._stalled_s += late_s

    def _now_s(self) -> float:
        """Return the time of the loop, without that in which it did not run: no target was late then."""
        return asyncio.get_running_loop().time() - self._stalled_s

    # ------------------------------------------------------------------ who waits is told

    def _tell_waiting(self) -> None:
        machine = self.machine
        for target, partition, id, done in self._waiting:
            if done.done():
                continue
            if target not in machine.targets:
                done.set_exception(self._delivers_no_more(f"partition {partition}", f"target {target} was removed"))
            elif machine.has_delivered(target, partition, id):
                done.set_result(None)
            elif reason := machine.why_never(target, partition, id):
                done.set_exception(self._delivers_no_more(f"partition {partition}", reason))

    def _tell_rest(self) -> None:
        if self.machine.finishing and self.machine.at_rest and not self._at_rest.done():
            self._at_rest.set_result(None)

    def _delivers_no_more(self, what: str, reason: str) -> DeliveryStopped:
        return DeliveryStopped(f"player {self.name!r} delivers no more of {what}: {reason}")

    # ------------------------------------------------------------------ effects out

    def _carry_out(self, effects: Iterable[PlayerEffect]) -> None:
        """Carry out the effects in their order. None of this waits, so no event comes in between."""
        take_more = self._carried_out(effects)
        while take_more:
            target, term = take_more.pop()
            take_more += self._carried_out(self.machine.written(target, term, self._now_s()))

    def _carried_out(self, effects: Iterable[PlayerEffect]) -> list[tuple[TargetName, Term]]:
        """Carry out the effects; return the streams that take more at once, with their terms."""
        reading = self._reading
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
                    _log.warning("player %s stands down: %s", self.name, reason)
                    fail(self.ended, ProducerFenced(f"player {self.name!r} delivers nothing more: {reason}"))
                    self._cancel_all()
        return take_more

    def _open(self, target: TargetName, term: Term) -> None:
        self._end_stream(target)
        fence = Fence(self.machine.epoch, term)
        stream = self._endpoints[target].stream(fence, _StreamEvents(self, target, term))
        source = DeliverySource(self._log.log_key, self.name, target)
        work = stream.serve(source, self.machine.targets[target].open_s_max)
        self._streams[target] = _RunningStream(stream, self._spawn(work, f"stream {term} to {target}"))

    def _end_stream(self, target: TargetName) -> None:
        running = self._streams.pop(target, None)
        if running is not None:
            running.stream.close()
            self._cancel(running.task)

    # ------------------------------------------------------------------ tasks

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"player {self.name}: {what}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel a task, unless it is the running one, which must not be cancelled amid what it tells."""
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
        ours = task in self._over or self.ended.done()
        self._over.discard(task)
        if task.cancelled():
            if not ours and not is_inherited(task.get_loop()):
                # Nobody would do its work any more. Tasks of the client's are cancelled in the same moment, before or
                # after this one: why nothing goes on is told alike of all.
                self._log.fail(why := cancelled_elsewhere(task))
                fail(self.ended, self._log.failure or why)
                self._cancel_all()
        elif (error := task.exception()) is not None:
            # Tasks handle the faults that they can meet: this is a mistake, and going on might deliver wrongly.
            _log.error("player %s has ended: %s", self.name, error, exc_info=error)
            fail(self.ended, error)
            self._carry_out([StandDown(f"{type(error).__name__}: {error}")])


class _Waiting(NamedTuple):
    """A wait until a target has all of a partition up to an id."""

    target: TargetName
    partition: PartitionId
    id: TransactionId
    done: asyncio.Future[None]


class _RunningStream(NamedTuple):
    stream: DeliveryStream
    task: asyncio.Task[None]


class _StreamEvents:
    """What becomes of one stream, as events of the machine under the stream's term."""

    def __init__(self, delivery: Delivery, target: TargetName, term: Term) -> None:
        self._delivery = delivery
        self._machine = delivery.machine
        self._target = target
        self._term = term

    def connected(self, applied: dict[PartitionId, TransactionId]) -> None:
        self._happened(self._machine.connected, applied)

    def fenced(self, kept: Fence) -> None:
        self._happened(self._machine.fenced, kept)

    def written(self) -> None:
        self._happened(self._machine.written)

    def acknowledged(self, partition: PartitionId, through: TransactionId) -> None:
        self._happened(self._machine.acknowledged, partition, through)

    def refused(self, partition: PartitionId, last: TransactionId, reason: str) -> None:
        self._delivery.refused(self._target, partition, last, reason)
        self._happened(self._machine.refused, partition, last, reason)

    def disconnected(self, reason: str) -> None:
        self._delivery.warn(f"no stream to {self._target}: {reason}")
        self._happened(self._machine.disconnected, reason)

    def _happened(self, event: Callable[..., Iterable[PlayerEffect]], *about: Any) -> None:
        self._delivery.happened(event, self._target, self._term, *about)
