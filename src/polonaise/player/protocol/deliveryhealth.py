"""What holds up which target, told from the active player's state as plain data."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from polonaise.player.protocol.activeplayer import ActivePlayer
from polonaise.player.protocol.targetstream import StreamState, TargetStream
from polonaise.terms import PartitionId


def targets_health(machine: ActivePlayer, silent: Container[PartitionId] = ()) -> dict[str, dict[str, Any]]:
    """Return by target what `Player.health` tells of it. Of `silent` partitions the log does not tell its end."""
    return {name: _target_health(machine, stream, silent) for name, stream in machine.targets.items()}


def _target_health(machine: ActivePlayer, stream: TargetStream, silent: Container[PartitionId]) -> dict[str, Any]:
    lags: dict[str, int | None] = {}
    hindered: dict[str, str] = {}
    slow: dict[str, str] = {}
    applied: dict[str, int] = {}
    for partition, pair in stream.pairs.items():
        key, main = str(partition), pair.main
        # Of a target that has told nothing yet nothing is known, and -1 would read as "has applied nothing".
        if pair.told:
            applied[key] = pair.acked
        if main.current is None or partition in silent or not pair.told or pair.given_up:
            lags[key] = None
        else:
            lags[key] = max(0, max(main.current, main.mark) - max(pair.delivered, pair.start_after))
        if pair.trouble_now:
            hindered[key] = pair.trouble_now
        elif (goes_on := stream.slow.get(partition)) is not None:
            (slow if goes_on else hindered)[key] = _late(machine, goes_on=goes_on)
        # That the stream is up again says little, until the target has applied something that it lacks.
        elif pair.trouble and lags[key] != 0:
            hindered[key] = pair.trouble
    return {
        "state": stream.state.value,
        "term": stream.term,
        "reason": stream.reason if stream.state is not StreamState.UP else "",
        "in_flight": stream.in_flight_bytes,
        "waiting": sum(pair.queue.waiting for pair in stream.pairs.values() if pair.queue is not None),
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
