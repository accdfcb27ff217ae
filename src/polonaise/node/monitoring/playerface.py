"""A process of a player as the paths of HTTP see it."""

from __future__ import annotations

from typing import Any

from polonaise.host import Host, Network, network_trouble
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.face import verdict
from polonaise.node.monitoring.samples import Detail, Samples
from polonaise.node.playernode import PlayerNode
from polonaise.node.reasons import OF_PLAYERS, PlayerTold, lines_of, player_reasons
from polonaise.player.protocol.candidacy import CandidateState
from polonaise.player.protocol.deliverylag import TargetLag


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
        found = player_reasons(player_told(node, self._host.network), told)
        problems = {whose: lines_of(each) for whose, each in found.items()}
        return {
            **verdict(self.not_ready(), found.values(), problems),
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


def player_samples(node: PlayerNode, detail: Detail, host: Host) -> Samples:
    """Read the metrics of the process, and while it is active those of its player and of the targets."""
    samples, candidacy = Samples(), node.candidacy
    add = samples.add
    name = node.loaded.plan.name
    for state in CandidateState:
        add(metrics.PLAYER_STATE, int(state is candidacy.state), name, state.name.lower())
    if candidacy.epoch is not None:
        add(metrics.PLAYER_EPOCH, candidacy.epoch)
    add(metrics.PLAYER_TURNS, candidacy.turns)
    add(metrics.PLAYER_SETTINGS_REFUSED, int(node.reload_refused))
    player = node.player
    health = {"targets": {}, "partitions": {}} if player is None else player.health()
    found = player_reasons(player_told(node, host.network), health)
    samples.add_reasons({reason for each in found.values() for reason, _ in each}, OF_PLAYERS)
    if player is None and candidacy.state is CandidateState.PAUSING:
        # A turn in which all partitions stop is over in a moment, and would be seen by hardly anybody who asks.
        add(metrics.PLAYER_STOPPED, node.stopped_partitions)
    if player is None or not health["targets"]:
        return samples
    if player.clock_ahead_s is not None:
        add(metrics.PLAYER_CLOCK_OFFSET, -player.clock_ahead_s)
    partitions = health["partitions"]
    add(metrics.PLAYER_PARTITIONS, len(partitions))
    add(metrics.PLAYER_STOPPED, sum(bool(each["stopped"]) for each in partitions.values()))
    add(metrics.PLAYER_LOG_TROUBLE, sum(bool(each["trouble"]) for each in partitions.values()))
    lags = player.lags(host.clock.wall_us())
    listed = detail.partitions.lists(len(partitions) * len(lags))
    for target, told in health["targets"].items():
        _add_target(samples, target, told, lags[target])
        add(metrics.TARGET_REFUSALS, player.refusals[target], target)
        if listed:
            for partition, id in told["applied"].items():
                add(metrics.DELIVERY_APPLIED, id, target, partition)
            for partition, lag in told["lag"].items():
                if lag is not None:
                    add(metrics.DELIVERY_LAG, lag, target, partition)
    return samples


def _add_target(samples: Samples, target: str, told: dict[str, Any], lag: TargetLag) -> None:
    add = samples.add
    add(metrics.TARGET_UP, int(told["state"] == "up"), target)
    add(metrics.TARGET_TERM, told["term"], target)
    add(metrics.TARGET_WAITING, told["waiting"], target)
    add(metrics.TARGET_IN_FLIGHT, told["in_flight"], target)
    add(metrics.TARGET_HINDERED, len(told["hindered"]), target)
    add(metrics.TARGET_SLOW, len(told["slow"]), target)
    known = [each for each in told["lag"].values() if each is not None]
    unknown, most = len(told["lag"]) - len(known), max(known, default=0)
    add(metrics.TARGET_LAG_UNKNOWN, unknown, target)
    if most or not unknown:
        add(metrics.TARGET_LAG, most, target)
    if lag.seconds is not None:
        add(metrics.TARGET_LAG_SECONDS, lag.seconds, target)
    if lag.bytes is not None:
        add(metrics.TARGET_LAG_BYTES, lag.bytes, target)


def player_told(node: PlayerNode, network: Network) -> PlayerTold:
    """Return what the process of a player tells of itself at present."""
    return PlayerTold(
        turn_failed=node.candidacy.reason,
        lease_trouble=node.candidacy.log_trouble,
        settings_refused=node.last_reload if node.reload_refused else "",
        tls=network_trouble(network),
        clock_ahead_s=None if node.player is None else node.player.clock_ahead_s,
    )
