"""Judge what is wrong with a process of a player, by what its player tells of targets and partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polonaise.host import Network, network_trouble
from polonaise.node.condition import client_clock_trouble
from polonaise.node.playernode import PlayerNode
from polonaise.node.reasons import Reason, Trouble
from polonaise.terms import partition_words


def player_reasons(node: PlayerNode, told: Mapping[str, Any], network: Network) -> dict[str, list[Trouble]]:
    """Return what is wrong by target, by partition, and of the process; `told` is the health of its player."""
    found = {f"target {name}": _of_target(target) for name, target in told["targets"].items()}
    for partition, main in told["partitions"].items():
        found[f"partition {partition}"] = [
            (reason, line)
            for reason, line in (
                (Reason.PARTITION_STOPPED, main["stopped"] and f"stopped: {main['stopped']}"),
                (Reason.LOG_TROUBLE, main["trouble"]),
            )
            if line
        ]
    silent = node.candidacy.log_trouble
    unanswered = f"no answer about the lease: {silent}" if silent else ""
    refused = f"the settings were {node.last_reload}" if node.reload_refused else ""
    own = (
        (Reason.TURN_FAILED, node.candidacy.reason),
        (Reason.LOG_TROUBLE, unanswered),
        (Reason.SETTINGS_REFUSED, refused),
        (Reason.TLS, network_trouble(network)),
        (Reason.CLOCK, "" if node.player is None else client_clock_trouble(node.player.clock_ahead_s)),
    )
    found["player"] = [(reason, line) for reason, line in own if line]
    return {whose: each for whose, each in found.items() if each}


def _of_target(target: Mapping[str, Any]) -> list[Trouble]:
    """Return what is wrong with a target. Many partitions may have one cause, which is told once."""
    found = [(Reason.TARGET_DOWN, f"no stream: {target['reason']}")] if target["reason"] else []
    for reason, partitions in (
        (Reason.TARGET_HINDERED, target["hindered"]),
        (Reason.TARGET_SLOW, target["slow"]),
    ):
        by_why: dict[str, list[str]] = {}
        for partition, why in partitions.items():
            by_why.setdefault(why, []).append(partition)
        found += [(reason, f"{partition_words(numbers)}: {why}") for why, numbers in by_why.items()]
    return found
