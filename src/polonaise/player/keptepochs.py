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
from polonaise.player.protocol.entries import NO_FENCE, Epoch, Fence, TargetName
from polonaise.terms import PartitionId, TransactionId

_OPEN_S_MAX: Final = 60.0
"""Longer than anybody waits for an answer."""


async def check_kept_epochs(
    log: Log, player: str, key: bytes, endpoints: Mapping[TargetName, DeliveryEndpoint], within_s: float
) -> None:
    """Raise `ProducerFenced` if a target keeps a higher epoch than the log has in the register `key`.

    Nothing is raised by that, so it stays as long as its cause. A target that does not answer within `within_s` seconds
    is passed over, as one over gRPC, whose contract has no such question: it refuses the player's streams later.
    """
    asked = {name: endpoint for name, endpoint in endpoints.items() if getattr(endpoint, "tells_kept", False)}
    kept_by = [_kept_by(endpoint, DeliverySource(log.log_key, player, name)) for name, endpoint in asked.items()]
    answers = [asyncio.ensure_future(each) for each in kept_by]
    if not answers:
        return
    try:
        await asyncio.wait(answers, timeout=within_s)
        kept = {
            name: answer.result().epoch
            for name, answer in zip(asked, answers, strict=True)
            if answer.done() and answer.exception() is None
        }
    finally:
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
    if not any(kept.values()):
        return
    # Asked for after the targets: a player that was elected meanwhile has raised it before it opened a stream.
    register = await log.register(key, 0)
    epoch: Epoch = 0 if register is None else Produced.parse(register).epoch
    for name, higher in kept.items():
        if higher > epoch:
            raise ProducerFenced(
                f"player {player!r} can't begin: target {name} keeps epoch {higher}, and the log's for this name is "
                f"behind it ({epoch or 'none'}): the log was put back to an older state, or the register was deleted. "
                "Put the targets back as well, or make them anew; if the log has lost nothing, and no other player of "
                f"this name runs, open the idempotent producer {key.removeprefix(KEY_PREFIX).decode()!r} of partition "
                f"0 {higher - epoch} times (Log.producer)"
            )


async def _kept_by(endpoint: DeliveryEndpoint, source: DeliverySource) -> Fence:
    """Return the fence that a target keeps; `NO_FENCE` if it does not tell."""
    answer = _Answer()
    # No target accepts this fence: it is not above what any keeps, so it changes nothing and shuts nobody out.
    stream = endpoint.stream(NO_FENCE, answer)
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
        """Keep what it keeps."""
        self._tell(kept)

    def connected(self, applied: dict[PartitionId, TransactionId]) -> None:
        """Nothing is known of a target that accepts this."""
        self._tell(NO_FENCE)

    def disconnected(self, reason: str) -> None:
        """Nothing is known; the player's own stream will tell why."""
        self._tell(NO_FENCE)

    def written(self) -> None:
        """Nothing is written."""

    def acknowledged(self, partition: PartitionId, through: TransactionId) -> None:
        """Nothing was sent."""

    def refused(self, partition: PartitionId, last: TransactionId, reason: str) -> None:
        """Nothing was sent."""

    def _tell(self, kept: Fence) -> None:
        if not self.told.done():
            self.told.set_result(kept)
