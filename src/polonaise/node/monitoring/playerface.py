"""A process of a player as the paths of HTTP see it."""

from __future__ import annotations

from typing import Any

from polonaise.host import Host
from polonaise.node.condition import HealthStatus
from polonaise.node.monitoring.detail import Detail
from polonaise.node.monitoring.playermetrics import player_samples
from polonaise.node.monitoring.playertroubles import player_reasons
from polonaise.node.monitoring.samples import Samples
from polonaise.node.playernode import PlayerNode
from polonaise.node.reasons import lines_of


class ObservedPlayer:
    """A process of a player as an `ObservedNode`."""

    def __init__(self, node: PlayerNode, host: Host) -> None:
        self._node = node
        self._host = host

    def labels(self) -> tuple[str, str]:
        return "player", ""

    def not_ready(self) -> str:
        """Return why the process neither delivers nor could take over."""
        candidacy = self._node.candidacy
        if candidacy.ready:
            return ""
        if candidacy.log_trouble:
            return f"no answer about the lease: {candidacy.log_trouble}"
        return candidacy.reason or f"the process is {candidacy.state}"

    async def health(self) -> dict[str, Any]:
        node, candidacy, player = self._node, self._node.candidacy, self._node.player
        told = {"targets": {}, "partitions": {}} if player is None else player.health()
        found = player_reasons(node, told, self._host.network)
        problems = {whose: lines_of(each) for whose, each in found.items()}
        not_ready = self.not_ready()
        status = HealthStatus.NOT_READY if not_ready else HealthStatus.DEGRADED if problems else HealthStatus.OK
        return {
            "status": status.value,
            "ready": not not_ready,
            "reasons": sorted({reason for each in found.values() for reason, _ in each}),
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
        return player_samples(self._node, detail, self._host)
