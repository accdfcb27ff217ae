"""Asks targets which epoch they keep, before a player takes its own: a log that is behind them was put back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from polonaise.client.log import Log
from polonaise.errors import ProducerFenced
from polonaise.log.producers import KEY_PREFIX, Produced
from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.endpoint import DeliveryEndpoint
from polonaise.player.protocol.entries import NO_FENCE, Epoch, Fence, TargetName, Term
from polonaise.terms import PartitionId, TransactionId

_OPEN_S_MAX: Final = 60.0
"""Longer than anybody waits for an answer."""

ASKED_TERM: Final[Term] = 1
"""The term with which a target over gRPC is asked, whose contract knows none that is lower. The player's own streams
have higher ones."""


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

    def written(self) -> None:
        """Nothing is sent, so nothing is written, acknowledged or refused."""

    def acknowledged(self, partition: PartitionId, through: TransactionId) -> None:
        """Nothing was sent."""

    def refused(self, partition: PartitionId, last: TransactionId, reason: str) -> None:
        """Nothing was sent."""

    def _tell(self, kept: Fence) -> None:
        if not self.told.done():
            self.told.set_result(kept)
