"""A process of a player as the paths of HTTP see it."""

from __future__ import annotations

from typing import Any

from polonaise.host import Host, network_trouble
from polonaise.node.condition import HealthStatus, client_clock_trouble
from polonaise.node.monitoring.detail import Detail
from polonaise.node.monitoring.playermetrics import player_samples
from polonaise.node.monitoring.samples import Samples
from polonaise.node.playernode import PlayerNode


class ObservedPlayer:
    """A process of a player as an `ObservedNode`."""

    def __init__(self, node: PlayerNode, host: Host) -> None:
        self._node = node
        self._host = host

    def labels(self) -> tuple[str, str]:
        return "player", ""

    def not_ready(self) -> str:
        """Return why the process neither delivers nor could take over; empty if it does or could."""
        candidacy = self._node.candidacy
        if candidacy.ready:
            return ""
        return candidacy.reason or f"the process is {candidacy.state}"

    async def health(self) -> dict[str, Any]:
        node, candidacy, player = self._node, self._node.candidacy, self._node.player
        told = {"targets": {}, "partitions": {}} if player is None else player.health()
        problems = _problems(told)
        own = [
            candidacy.reason,
            f"no answer about the lease: {node.log_trouble}" if node.log_trouble else "",
            f"the settings were {node.last_reload}" if node.reload_refused else "",
            network_trouble(self._host.network),
            "" if player is None else client_clock_trouble(player.clock_ahead_s),
        ]
        if any(own):
            problems["player"] = [each for each in own if each]
        not_ready = self.not_ready()
        status = HealthStatus.NOT_READY if not_ready else HealthStatus.DEGRADED if problems else HealthStatus.OK
        return {
            "status": status.value,
            "ready": not not_ready,
            "problems": problems,
            "player": node.loaded.plan.name,
            "state": candidacy.state.value,
            "active": node.active,
            "epoch": candidacy.epoch,
            "turns": candidacy.turns,
            "settings": node.last_reload,
            "clock_ahead_s": None if player is None else player.clock_ahead_s,
            "targets": told["targets"],
            "partitions": told["partitions"],
        }

    async def samples(self, detail: Detail) -> Samples:
        return player_samples(self._node, detail, self._host.clock.wall_us())


def _problems(told: dict[str, Any]) -> dict[str, list[str]]:
    """Return what is wrong by target, and by partition, from the health of a player."""
    problems: dict[str, list[str]] = {}
    for name, target in told["targets"].items():
        lines = [f"no stream: {target['reason']}"] if target["reason"] else []
        # Many partitions may have one cause.
        by_reason: dict[str, list[str]] = {}
        for partition, reason in [*target["hindered"].items(), *target["slow"].items()]:
            by_reason.setdefault(reason, []).append(partition)
        lines += [f"partition {', '.join(numbers)}: {reason}" for reason, numbers in by_reason.items()]
        if lines:
            problems[f"target {name}"] = lines
    for partition, main in told["partitions"].items():
        lines = [each for each in (main["stopped"] and f"stopped: {main['stopped']}", main["trouble"]) if each]
        if lines:
            problems[f"partition {partition}"] = lines
    return problems
