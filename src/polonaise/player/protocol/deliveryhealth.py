"""What holds up which target, told from the active player's state as plain data."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from polonaise.player.protocol.activeplayer import ActivePlayer
from polonaise.player.protocol.targetstream import StreamState, TargetStream
from polonaise.terms import PartitionId


def targets_health(machine: ActivePlayer, silent: Container[PartitionId] = ()) -> dict[str, dict[str, Any]]:
    """Return by name of a target what `Player.health` tells of it, for JSON.

    Of the partitions that are `silent`, the log does not tell how far it reaches.
    """
    return {name: _target_health(machine, stream, silent) for name, stream in machine.targets.items()}


def _target_health(machine: ActivePlayer, stream: TargetStream, silent: Container[PartitionId]) -> dict[str, Any]:
    lags: dict[str, int | None] = {}
    hindered: dict[str, str] = {}
    slow: dict[str, str] = {}
    applied: dict[str, int] = {}
    for partition, main in machine.partitions.items():
        queue = stream.queue(partition)
        # Of a target that has told nothing yet nothing is known, and -1 would read as "has applied nothing".
        if queue.told:
            applied[str(partition)] = queue.acked
        if main.current is None or partition in silent or not queue.told or partition in stream.given_up:
            lags[str(partition)] = None
        else:
            delivered = max(queue.delivered(main.current), queue.start_after)
            lags[str(partition)] = max(0, max(main.current, main.mark) - delivered)
        if partition in stream.unproved:
            hindered[str(partition)] = "the log has not told yet how far it reaches"
        elif partition in stream.halts:
            hindered[str(partition)] = stream.halts[partition].reason
        elif partition in stream.failed_reads:
            hindered[str(partition)] = stream.failed_reads[partition].reason
        elif (goes_on := stream.slow.get(partition)) is not None:
            (slow if goes_on else hindered)[str(partition)] = _late(machine, goes_on=goes_on)
        # That the stream is up again says little, until the target has applied something that it lacks.
        elif partition in stream.troubles and lags[str(partition)] != 0:
            hindered[str(partition)] = stream.troubles[partition]
    return {
        "state": stream.state.value,
        "term": stream.term,
        "reason": stream.reason if stream.state is not StreamState.UP else "",
        "in_flight": stream.in_flight_bytes,
        "waiting": sum(queue.waiting for queue in stream.queues.values()),
        "applied": applied,
        "lag": lags,
        "hindered": hindered,
        "slow": slow,
    }


def _late(machine: ActivePlayer, *, goes_on: bool) -> str:
    late = f"it has acknowledged nothing of it for more than {machine.settings.progress_s_max:g} s"
    if goes_on:
        return f"it is slow: {late}, and goes on with what it was sent before"
    return f"it may hang: {late}, nor of what it was sent before; its stream is closed if that goes on"
