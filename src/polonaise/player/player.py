"""The player: it reads the log, carries out what `ActivePlayer` decides, and so delivers to targets."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from polonaise.client.log import Log
from polonaise.client.protocol.arguments import checked_id
from polonaise.client.protocol.backoff import Backoff
from polonaise.errors import (
    BadOption,
    BeyondLog,
    Closed,
    DeliveryStopped,
    HistoryTrimmed,
    PolonaiseError,
    ProducerFenced,
    Retry,
)
from polonaise.player.deliverytarget import DeliverySource, DeliveryTarget
from polonaise.player.directstream import DirectEndpoint
from polonaise.player.endpoint import DeliveryStream
from polonaise.player.protocol.activeplayer import ActivePlayer
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
from polonaise.player.protocol.entries import Fence, RoutedEntry, TargetName, Term
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.protocol.targetstream import TargetStream
from polonaise.player.routing import Route, Router, Unroutable
from polonaise.terms import PartitionId, TransactionId

_log = logging.getLogger("polonaise.player")

_READ: Final = "transactions"
_MARK: Final = "the committed high-water mark"
_NAME_CHARACTERS_MAX: Final = 200
"""The longest name of a player or target, which targets keep."""
_WATCH_S: Final = 5.0
"""Seconds between two looks at the log, and the longest wait for an answer."""
_TICK_S: Final = 0.05
"""Seconds between two looks at deadlines."""
_NOT_STARTED: Final = "player {!r} was not started: use `async with`, or `await player.start()`"
_SKIPPED_SHARE: Final = 16
"""By this the bytes are divided that one read for a target passes over, to count for the bound of the read, too."""
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
    - `targets`: by name. They stay the application's; the player closes none.
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
        targets: Mapping[TargetName, DeliveryTarget],
        *,
        partitions: Iterable[PartitionId] | None = None,
        settings: PlayerSettings | None = None,
        start_after: Mapping[TargetName, Mapping[PartitionId, TransactionId]] | None = None,
        retired: Collection[TargetName] = (),
    ) -> None:
        if not callable(route) or inspect.iscoroutinefunction(route):
            raise BadOption(f"route={route!r}: a plain function that takes a transaction")
        for each in (name, *targets):
            if not isinstance(each, str) or not 0 < len(each) <= _NAME_CHARACTERS_MAX:
                raise BadOption(f"the name {each!r}: a text of 1 to {_NAME_CHARACTERS_MAX} characters")
        self._log = log
        self.name = name
        self._targets = dict(targets)
        self._partitions = None if partitions is None else list(dict.fromkeys(partitions))
        self._settings = settings or PlayerSettings()
        self._start_after = dict(start_after or {})
        if unknown := self._start_after.keys() - self._targets.keys():
            raise BadOption(f"start_after names {', '.join(sorted(unknown))}, which is no target of this player")
        if both := self._targets.keys() & set(retired):
            raise BadOption(f"{', '.join(sorted(both))} can't be a target and retired")
        self._router = Router(route, self._targets.keys(), frozenset(retired))
        self._machine: ActivePlayer | None = None
        self._streams: dict[TargetName, _RunningStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._main_streams: dict[PartitionId, asyncio.Task[None]] = {}
        self._ended: asyncio.Future[None] | None = None
        self._closed = False
        self._waiting: list[_Waiting] = []
        self._trouble: dict[tuple[PartitionId, str], str] = {}
        """By partition, and what the log was asked for (`_READ`, `_MARK`): why it did not answer the last time."""
        self._over: set[asyncio.Task[None]] = set()
        """Tasks that this player has cancelled."""

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Become the active player of this name. Raises what `Log.producer` does, and `Closed` the second time."""
        if self._ended is not None or self._closed:
            raise Closed(f"player {self.name!r} was started or closed before: make a new one")
        partitions = self._checked_partitions()
        self._ended = asyncio.get_running_loop().create_future()
        try:
            producer = await self._log.producer(_FENCED_BY + self.name, partition=0)
        except BaseException:
            self._end(Closed(f"player {self.name!r} could not be started"))
            self._ended = None
            raise
        if self._ended.done():  # closed meanwhile
            self._ended.result()
        self._machine = ActivePlayer(producer.epoch, partitions, self._settings)
        for name in self._targets:
            self._machine.add_target(name, self._start_after.get(name))
        self._spawn(self._tick(), "ticks")
        self._spawn(self._watch(), "look at the log")

    def _checked_partitions(self) -> list[PartitionId]:
        """Return the partitions to deliver. Raises `BadOption` for one that the log does not have."""
        there = range(self._log.partition_count)
        partitions = list(there) if self._partitions is None else self._partitions
        for named in (partitions, *self._start_after.values()):
            for partition in named:
                if partition not in there or isinstance(partition, bool):
                    raise BadOption(f"partition {partition!r}: the log has partitions 0 to {there[-1]}")
        for target, after in self._start_after.items():
            for id in after.values():
                checked_id(f"start_after of {target}", id)
        return partitions

    async def ended(self) -> None:
        """Wait until the player delivers nothing more, and raise why: `ProducerFenced` if another one is active,
        `DeliveryStopped` if every partition has stopped, `Closed` after `close`, or what is wrong with this one."""
        if self._ended is None:
            raise Closed(_NOT_STARTED.format(self.name))
        await asyncio.shield(self._ended)

    async def delivered(self, target: TargetName, partition: PartitionId, id: TransactionId) -> None:
        """Wait until the target has applied all that is its own of the partition's transactions up to `id`.

        Raises `DeliveryStopped` if the partition has stopped before that; as `ended` does, if the player ends before;
        and `BadOption` for a target or partition that it does not deliver to, or deliver.
        """
        machine, ended = self._machine, self._ended
        if machine is None or ended is None:
            raise Closed(_NOT_STARTED.format(self.name))
        if target not in machine.targets or partition not in machine.partitions:
            raise BadOption(f"player {self.name!r} does not deliver partition {partition} to target {target!r}")
        if self._has_delivered(target, partition, id):
            return
        if (error := self._stopped_before(partition, id)) is not None:
            raise error
        waiting = _Waiting(target, partition, id, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            await asyncio.wait((waiting.done, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.remove(waiting)
        if waiting.done.done():
            waiting.done.result()
        else:
            ended.result()

    def _stopped_before(self, partition: PartitionId, id: TransactionId) -> DeliveryStopped | None:
        """Return the error of a wait for this id if the main stream has stopped before it."""
        assert self._machine is not None
        main = self._machine.partitions[partition]
        if not main.stopped or (main.current is not None and main.current >= id):
            return None
        return DeliveryStopped(f"player {self.name!r} delivers no more of partition {partition}: {main.stopped}")

    def _has_delivered(self, target: TargetName, partition: PartitionId, id: TransactionId) -> bool:
        assert self._machine is not None
        current = self._machine.partitions[partition].current
        queue = self._machine.targets[target].queue(partition)
        return current is not None and queue.delivered(current) >= id

    async def close(self) -> None:
        """Deliver nothing more. What targets are applying just now may still be applied."""
        self._closed = True
        self._end(Closed(f"player {self.name!r} was closed"))
        self._cancel_all()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

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
            # By ourselves, or something that it called was, and nobody would do its work any more.
            error: BaseException | None = None if ours else RuntimeError(f"{task.get_name()} was cancelled")
        else:
            error = task.exception()
        if error is not None:
            # Tasks handle the faults that they can meet: this is a mistake, and going on might deliver wrongly.
            _log.error("player %s has ended: %s", self.name, error, exc_info=error)
            self._end(error)
            self._carry_out([StandDown(f"{type(error).__name__}: {error}")])

    # ------------------------------------------------------------------ health

    def health(self) -> dict[str, Any]:
        """Return what holds up which target, as a dict for JSON; `well` says whether anything does.

        `ended` says why the player delivers nothing more, and is empty while it does. By name of a target: the `state`
        and `term` of its stream, the `reason` why there is none, the bytes `in_flight`, the number of entries
        `waiting`, and by partition the `lag`, in transactions of the log, and why the target is `hindered`. By
        partition: the id `current` up to which the log was read, why it has `stopped`, and what `trouble` the log has.
        """
        machine, ended = self._machine, self._ended
        if machine is None or ended is None:
            return {"well": False, "ended": "", "targets": {}, "partitions": {}}
        ends = {
            partition: (main.current, max(main.current, main.mark))
            for partition, main in machine.partitions.items()
            if main.current is not None
        }
        targets = {name: _target_health(stream, ends) for name, stream in machine.targets.items()}
        partitions = {
            str(partition): {
                "current": main.current,
                "stopped": main.stopped,
                "trouble": self._trouble.get((partition, _READ)) or self._trouble.get((partition, _MARK), ""),
            }
            for partition, main in machine.partitions.items()
        }
        error = ended.exception() if ended.done() else None
        why = "" if error is None else str(error) if isinstance(error, PolonaiseError) else repr(error)
        well = error is None and not any(each["stopped"] or each["trouble"] for each in partitions.values())
        well = well and all(each["state"] == "up" and not each["hindered"] for each in targets.values())
        return {"well": well, "ended": why, "epoch": machine.epoch, "targets": targets, "partitions": partitions}

    # ------------------------------------------------------------------ events in, effects out

    def _happened(self, event: Callable[..., Sequence[PlayerEffect]], *about: Any) -> None:
        """Let an event happen, and carry out what comes of it, before anything else can happen."""
        self._carry_out(event(*about, asyncio.get_running_loop().time()))
        for waiting in self._waiting:
            if not waiting.done.done() and self._has_delivered(*waiting[:3]):
                waiting.done.set_result(None)

    def _carry_out(self, effects: Iterable[PlayerEffect]) -> None:
        """Carry out the effects in their order. None of this waits, so no event comes in between."""
        for effect in effects:
            match effect:
                case SendBatches(target, _, batches):
                    self._streams[target].stream.send(batches)
                case ReadForTarget():
                    self._spawn(self._read(effect), f"read partition {effect.partition} for {effect.target}")
                case OpenStream(target, term):
                    self._open(target, term)
                case CloseStream(target, _, reason):
                    _log.warning("player %s: stream to %s is closed: %s", self.name, target, reason)
                    self._end_stream(target)
                case AskMark(partition, number):
                    self._spawn(self._ask(partition, number), f"ask for the mark of partition {partition}")
                case FollowPartition(partition, number, first):
                    if (earlier := self._main_streams.pop(partition, None)) is not None:
                        self._cancel(earlier)
                    work = self._follow(partition, number, first)
                    self._main_streams[partition] = self._spawn(work, f"follow partition {partition}")
                case StandDown(reason):
                    self._stand_down(reason)

    def _open(self, target: TargetName, term: Term) -> None:
        assert self._machine is not None
        self._end_stream(target)
        fence = Fence(self._machine.epoch, term)
        stream = DirectEndpoint(self._targets[target]).stream(fence, _Events(self, target, term))
        source = DeliverySource(self._log.log_key, self.name, target)
        work = stream.serve(source, self._settings.open_s_max)
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
        while True:
            self._happened(self._machine.tick)
            await asyncio.sleep(_TICK_S)

    async def _ask(self, partition: PartitionId, number: int) -> None:
        """Ask for the mark until it is told."""
        assert self._machine is not None
        pauses = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        while True:
            try:
                mark = await self._log.high_water_mark(partition)
            except PolonaiseError as error:
                self._troubled(partition, _MARK, error)
                await asyncio.sleep(pauses.pause_s(1.0))
            else:
                self._trouble.pop((partition, _MARK), None)
                self._happened(self._machine.mark_told, partition, number, mark)
                return

    async def _follow(self, partition: PartitionId, number: int, first: TransactionId) -> None:
        """Be the main stream of a partition: read it from `first` on, for ever."""
        machine = self._machine
        assert machine is not None
        pauses = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        while True:
            reader = self._log.read_batches(partition, after=first - 1, follow=True)
            try:
                async for batch in reader:
                    pauses.reset()
                    self._trouble.pop((partition, _READ), None)
                    routed, unroutable = self._router.routed(batch, first - 1, batch.last)
                    through = batch.last if unroutable is None else unroutable.id - 1
                    if through >= first:
                        self._happened(machine.fetched, partition, number, first, through, routed)
                        first = through + 1
                    if unroutable is not None:
                        self._stopped(partition, number, str(unroutable))
                        return
            except HistoryTrimmed as error:
                if error.first > first:
                    self._happened(machine.trimmed, partition, number, error.first)
                    return
                self._troubled(partition, _READ, error)  # who said so does not know how far; somebody may
                await asyncio.sleep(pauses.pause_s(1.0))
            except PolonaiseError as error:
                if error.retry is Retry.NEVER:
                    self._stopped(partition, number, str(error))
                    return
                self._troubled(partition, _READ, error)
                await asyncio.sleep(pauses.pause_s(1.0))
            finally:
                await reader.aclose()

    def _troubled(self, partition: PartitionId, what: str, error: PolonaiseError) -> None:
        """Note that the log does not answer what it is asked for; logged when that begins."""
        if (partition, what) not in self._trouble:
            _log.warning("player %s: partition %d does not tell %s: %s", self.name, partition, what, error)
        self._trouble[partition, what] = str(error)

    async def _watch(self) -> None:
        """Ask each partition for its mark now and then: for the lag of targets, and whether the log answers."""
        machine = self._machine
        assert machine is not None
        while True:
            # All at once: of many that do not answer, none is to hide the others.
            await asyncio.gather(*(self._look_at(partition) for partition in machine.partitions))
            await asyncio.sleep(_WATCH_S)

    async def _look_at(self, partition: PartitionId) -> None:
        machine = self._machine
        assert machine is not None
        try:
            mark = await self._log.high_water_mark(partition, timeout=_WATCH_S)
        except PolonaiseError as error:
            self._troubled(partition, _MARK, error)
            return
        machine.mark_seen(partition, mark)
        self._trouble.pop((partition, _MARK), None)
        current = machine.partitions[partition].current
        if current is not None and current >= mark:
            # There is nothing to be read, so reading can't prove that it is possible again.
            self._trouble.pop((partition, _READ), None)

    def _stopped(self, partition: PartitionId, number: int, reason: str) -> None:
        assert self._machine is not None
        _log.error("player %s: partition %d is not delivered any further: %s", self.name, partition, reason)
        self._carry_out(self._machine.stopped(partition, number, reason))
        for waiting in self._waiting:
            if waiting.partition == partition and not waiting.done.done():
                error = self._stopped_before(partition, waiting.id)
                if error is not None:
                    waiting.done.set_exception(error)
        if all(main.stopped for main in self._machine.partitions.values()):
            self._end(DeliveryStopped(f"player {self.name!r} delivers no more of any partition: {reason}"))

    async def _read(self, effect: ReadForTarget) -> None:
        """Read the beginning of a stretch of the log for one target."""
        machine, (target, partition, read) = self._machine, effect
        assert machine is not None
        entries: list[RoutedEntry] = []
        through, size = read.first - 1, 0
        reader = self._log.read_batches(partition, after=read.first - 1, until=read.last)
        try:
            async for batch in reader:
                last = min(batch.last, read.last)
                routed, unroutable = self._router.routed(batch, through, last)
                if unroutable is not None:
                    last = unroutable.id - 1
                found = routed.get(target, [])
                entries += found
                size += sum(entry.size for entry in found) + batch.length // _SKIPPED_SHARE
                through = max(through, last)
                if unroutable is not None and through < read.first:
                    raise unroutable
                if unroutable is not None or size >= self._settings.recovery_bytes_max:
                    break
            if through < read.first:
                raise BeyondLog(f"the log has nothing of ids {read.first} to {read.last}")
        except (PolonaiseError, Unroutable) as error:
            self._happened(machine.recovery_failed, target, partition, read.number, str(error))
        else:
            self._happened(machine.recovered, target, partition, read.number, entries, through)
        finally:
            await reader.aclose()


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
        self._happened(self._machine.refused, partition, last, reason)

    def disconnected(self, reason: str) -> None:
        _log.warning("player %s: no stream to %s: %s", self._player.name, self._about[0], reason)
        self._happened(self._machine.disconnected, reason)

    @property
    def _machine(self) -> ActivePlayer:
        machine = self._player._machine
        assert machine is not None
        return machine

    def _happened(self, event: Callable[..., Sequence[PlayerEffect]], *about: Any) -> None:
        self._player._happened(event, *self._about, *about)


def _target_health(
    stream: TargetStream, ends: Mapping[PartitionId, tuple[TransactionId, TransactionId]]
) -> dict[str, Any]:
    """`ends` has the main stream's place and the log's end by partition, where the main stream has begun."""
    lag = {
        str(partition): max(0, end - stream.queue(partition).delivered(current))
        for partition, (current, end) in ends.items()
    }
    hindered = {str(partition): "the log has not told yet how far it reaches" for partition in stream.unproved}
    hindered |= {str(partition): failed.reason for partition, failed in stream.failed_reads.items()}
    # What a target was hindered by last counts until it has applied something after that, or lacks nothing.
    hindered |= {
        str(partition): reason
        for partition, reason in stream.refusals.items()
        if partition in stream.halts or lag.get(str(partition), 1)
    }
    # A stream that is up again says little, until the target has applied something that it lacks.
    if stream.failure and any(lag.values()):
        hindered |= {str(partition): stream.failure for partition in ends if lag[str(partition)]}
    return {
        "state": stream.state.value,
        "term": stream.term,
        "reason": stream.reason,
        "in_flight": stream.in_flight_bytes,
        "waiting": sum(queue.waiting for queue in stream.queues.values()),
        "lag": lag,
        "hindered": hindered,
    }
