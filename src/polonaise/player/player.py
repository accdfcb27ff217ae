"""The player as applications have it: what is to be delivered where, and the delivery of it, once it is started."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Self, cast

from polonaise.client.log import Log
from polonaise.client.protocol.arguments import checked_id
from polonaise.client.waiting import check_loop, is_inherited
from polonaise.errors import BadOption, Closed, ProducerFenced
from polonaise.host.unawaited import fail
from polonaise.log.producers import KEY_PREFIX, Produced
from polonaise.player.delivery import FORKED, Delivery
from polonaise.player.deliverytarget import DeliverySource, DeliveryTarget
from polonaise.player.directstream import DirectEndpoint
from polonaise.player.endpoint import DeliveryEndpoint
from polonaise.player.protocol.activeplayer import ActivePlayer
from polonaise.player.protocol.deliverylag import TargetLag
from polonaise.player.protocol.entries import NO_FENCE, Epoch, Fence, TargetName, Term, checked_name
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.routing import Route, Router
from polonaise.terms import PartitionId, TransactionId

_NOT_STARTED: Final = "player {!r} was not started: use `async with`, or `await player.start()`"
_FENCED_BY: Final = "player "
"""The beginning of the name of the idempotent producer whose epoch is the player's."""
_OPEN_S_MAX: Final = 60.0
"""Longer than anybody waits for an answer."""

ASKED_TERM: Final[Term] = 1
"""The term with which a target over gRPC is asked, whose contract knows none that is lower. The player's own streams
have higher ones."""


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
    "player <name>" in the log's first partition. Targets take nothing more from earlier ones, which end with
    `ProducerFenced` as soon as a target tells them.

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
        self._ended: asyncio.Future[None] | None = None
        """What tells the end, of the start as well; None before, and after a start that has failed."""
        self._delivery: Delivery | None = None
        """What `start` has begun. It reads the endpoints that are kept here."""
        self._closed = False

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Become the active player of this name. Raises what `Log.producer` does, `ProducerFenced` if a target keeps a
        higher epoch than the log, and `Closed` the second time."""
        if self._ended is not None or self._closed:
            raise Closed(f"player {self.name!r} was started or closed before: make a new one")
        partitions = self._checked_partitions()
        key = KEY_PREFIX + (_FENCED_BY + self.name).encode()
        ended = self._ended = asyncio.get_running_loop().create_future()
        try:
            await check_kept_epochs(self._log, self.name, key, self._endpoints, self._settings.start_patience_s)
            producer = await self._log.producer(_FENCED_BY + self.name, partition=0)
        except BaseException:
            fail(ended, Closed(f"player {self.name!r} could not be started"))
            self._ended = None
            raise
        if ended.done():  # closed meanwhile
            ended.result()
        machine = ActivePlayer(producer.epoch, partitions, self._settings, last_term=ASKED_TERM)
        for name in self._endpoints:
            machine.add_target(name, self._start_after.get(name))
        self._delivery = Delivery(self._log, self.name, key, machine, self._router, self._endpoints, ended)

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
        Partitions that have stopped are tried again. Raises `BadOption` for a name that is a target's already, and for
        what can't be meant; `Closed` if the player was not started, or has ended."""
        delivery = self._delivering()
        checked_name(name)
        if name in self._endpoints:
            raise BadOption(f"player {self.name!r} has a target {name!r} already: remove it first")
        self._check_start_after(name, start_after or {})
        self._endpoints[name] = _endpoint(name, target)
        self._retired.discard(name)
        delivery.add_target(name, start_after)

    async def remove_target(self, name: TargetName) -> None:
        """Deliver nothing more to this target; its name counts as retired. What it applies just now may still be
        applied. Raises `BadOption` for a name that is no target's."""
        delivery = self._delivering()
        if name not in self._endpoints:
            names = ", ".join(sorted(self._endpoints)) or "none"
            raise BadOption(f"player {self.name!r} has no target {name!r}: there are {names}")
        endpoint = self._endpoints.pop(name)
        self._retired.add(name)
        delivery.remove_target(name)
        await endpoint.close()

    def _delivering(self) -> Delivery:
        """Return what runs. Raises `Closed` if the player was not started, or has ended, and as `check_loop`."""
        delivery = self._started()
        if delivery.ended.done():
            raise Closed(f"player {self.name!r} has ended")
        return delivery

    def _started(self) -> Delivery:
        """Return what was started. Raises `Closed` if the player was not, and as `check_loop`."""
        if self._delivery is None:
            raise Closed(_NOT_STARTED.format(self.name))
        check_loop(self._delivery.ended.get_loop(), FORKED)
        return self._delivery

    async def ended(self) -> None:
        """Wait until the player delivers nothing more, and raise why. `ProducerFenced` if another one is active,
        `DeliveryStopped` if every partition has stopped, `Closed` after `close`, `Log.failure` if the log has failed,
        `Forked` in a forked child, or what is wrong with this one."""
        if self._ended is None:
            raise Closed(_NOT_STARTED.format(self.name))
        check_loop(self._ended.get_loop(), FORKED)
        await asyncio.shield(self._ended)

    async def delivered(self, target: TargetName, partition: PartitionId, id: TransactionId) -> None:
        """Wait until the target has applied all that is its own of the partition's transactions up to `id`. Raises
        `DeliveryStopped` if the partition has stopped before that, and if the target is given up or removed; as
        `ended`, if the player ends before; and `BadOption` for a target or partition that it does not deliver."""
        await self._started().delivered(target, partition, id)

    async def finish(self, within_s: float) -> bool:
        """Send nothing more, and wait until targets have acknowledged what they were sent; return whether they have.
        Waits for `within_s` seconds at most, so that whoever takes over finds no target amid what this one has sent.
        The player still has to be closed."""
        delivery = self._delivery
        return delivery is None or is_inherited(delivery.ended.get_loop()) or await delivery.finish(within_s)

    async def close(self) -> None:
        """Deliver nothing more. What targets are applying just now may still be applied."""
        self._closed = True
        if self._ended is not None:
            if is_inherited(self._ended.get_loop()):
                return  # in a forked child, which ends: streams and targets are its parent's
            fail(self._ended, Closed(f"player {self.name!r} was closed"))
        if self._delivery is not None:
            await self._delivery.close()
        for endpoint in self._endpoints.values():
            await endpoint.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ------------------------------------------------------------------ health

    def health(self) -> dict[str, Any]:
        """Return what holds up which target, as a dict for JSON; `well` says whether anything does.

        `ended` says why the player delivers nothing more. By name of a target: the `state` and `term` of its stream,
        the `reason` why there is none, the bytes `in_flight`, the number of entries `waiting`, and by partition the
        last id that it is known to have `applied`, the `lag`, in transactions of the log (None where the log does not
        tell how far it reaches), why the target is `hindered`, and what it is `slow` with. By partition: the id
        `current` up to which the log was read, why it has `stopped`, and what `trouble` the log has.
        """
        if self._delivery is None:
            return {"well": False, "ended": "", "targets": {}, "partitions": {}}
        return self._delivery.health()

    def lags(self, wall_us: int) -> dict[TargetName, TargetLag]:
        """Return by target how far it is behind, in seconds and bytes; `wall_us` is the time, in µs since 1970. Goes by
        the clock of the log's server, once that was measured."""
        if self._delivery is None:
            return {}
        ahead_us = int((self.clock_ahead_s or 0.0) * 1e6)
        return self._delivery.lags(wall_us - ahead_us)

    @property
    def clock_ahead_s(self) -> float | None:
        """How far the clock of this machine is ahead of that of the log's server, in seconds; None if not measured."""
        return self._log.clock_ahead_s

    @property
    def refusals(self) -> Counter[TargetName]:
        """By target, the entries that it has refused."""
        return Counter() if self._delivery is None else self._delivery.refusals


def _endpoint(name: TargetName, target: DeliveryTarget | DeliveryEndpoint) -> DeliveryEndpoint:
    if hasattr(target, "stream"):
        return cast(DeliveryEndpoint, target)
    if hasattr(target, "accept") and hasattr(target, "apply"):
        return DirectEndpoint(target)
    raise BadOption(f"target {name!r} is {type(target).__name__}: a DeliveryTarget, or what `remote` returns")


async def check_kept_epochs(
    log: Log, player: str, key: bytes, endpoints: Mapping[TargetName, DeliveryEndpoint], within_s: float
) -> None:
    """Raise `ProducerFenced` if a target keeps a higher epoch than the log has in the register `key`. A target that
    does not answer within `within_s` seconds is passed over: it refuses the player's streams later."""
    if not endpoints:
        return
    lowest = NO_FENCE
    if not all(map(_tells_kept, endpoints.values())):
        # Of the epoch that the log has: whoever is active has it, too, and its streams have this term or a higher one.
        # So no target that it uses accepts this, and one that does is shut to players only that were replaced.
        lowest = Fence(max(1, await _epoch(log, key)), ASKED_TERM)
    kept_by = [
        _kept_by(endpoint, NO_FENCE if _tells_kept(endpoint) else lowest, DeliverySource(log.log_key, player, name))
        for name, endpoint in endpoints.items()
    ]
    answers = [asyncio.ensure_future(each) for each in kept_by]
    try:
        await asyncio.wait(answers, timeout=within_s)
        kept = {
            name: answer.result().epoch
            for name, answer in zip(endpoints, answers, strict=True)
            if answer.done() and answer.exception() is None
        }
    finally:
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
    if not any(kept.values()):
        return
    # Asked for after the targets: a player that was elected meanwhile has raised it before it opened a stream.
    epoch = await _epoch(log, key)
    ahead = {name: higher for name, higher in kept.items() if higher > epoch}
    if ahead:
        which = ", ".join(f"target {name} keeps epoch {higher}" for name, higher in ahead.items())
        producer, times = key.removeprefix(KEY_PREFIX).decode(), max(ahead.values()) - epoch
        raise ProducerFenced(
            f"player {player!r} can't begin: {which}, and the log's for this name is behind ({epoch or 'none'}): "
            "the log was put back to an older state, or the register was deleted. Put the targets back as well, "
            "or make them anew; if the log has lost nothing, and no other player of this name runs, open the "
            "idempotent producer "
            f"{producer!r} of partition 0 {times} times (Log.producer)"
        )


def _tells_kept(endpoint: DeliveryEndpoint) -> bool:
    return getattr(endpoint, "tells_kept", False)


async def _epoch(log: Log, key: bytes) -> Epoch:
    register = await log.register(key, 0)
    return 0 if register is None else Produced.parse(register).epoch


async def _kept_by(endpoint: DeliveryEndpoint, offered: Fence, source: DeliverySource) -> Fence:
    """Return the fence that a target keeps, which refuses the one that is offered; `NO_FENCE` if it does not tell. No
    target accepts `NO_FENCE`, which is not above what any keeps."""
    answer = _Answer()
    stream = endpoint.stream(offered, answer)
    serving = asyncio.ensure_future(stream.serve(source, _OPEN_S_MAX))
    try:
        await asyncio.wait((serving, answer.told), return_when=asyncio.FIRST_COMPLETED)
        return answer.told.result() if answer.told.done() else NO_FENCE
    finally:
        stream.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


class _Answer:
    """What a target answers to a stream that is to be refused."""

    def __init__(self) -> None:
        self.told: asyncio.Future[Fence] = asyncio.get_running_loop().create_future()

    def fenced(self, kept: Fence) -> None:
        self._tell(kept)

    def connected(self, applied: dict[PartitionId, TransactionId]) -> None:
        """What it keeps was lower: that is no reason to wait for more."""
        self._tell(NO_FENCE)

    def disconnected(self, reason: str) -> None:
        """Nothing is known; the player's own stream will tell why."""
        self._tell(NO_FENCE)

    def _ignored(self, *_: Any, **__: Any) -> None:
        """Nothing is sent, so nothing is written, acknowledged or refused."""

    written = acknowledged = refused = _ignored

    def _tell(self, kept: Fence) -> None:
        if not self.told.done():
            self.told.set_result(kept)
