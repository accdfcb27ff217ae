"""Each fault of a player, its targets or its log fires its alert; and each alert that there is has a test."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from polonaise.errors import fault
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.playerface import ObservedPlayer
from polonaise.node.monitoring.samples import Samples
from polonaise.player.logreading import _READ
from polonaise.terms import Transaction
from rigs.alerts import Prometheus, Told, fired_by, fires, rules, scraped, told
from rigs.playernodes import NodesOfAPlayer, RunningNode, nodes_of_a_player, route, wrong_setting
from rigs.waiting import wait_until

A_PLAYER = "polonaise-players/p"


def a_server() -> Told:
    """What a server in good order tells, as far as alerts about clusters without one go."""
    samples = Samples()
    samples.add(metrics.OWNED, 1, "c")
    samples.add(metrics.CLUSTER_PARTITIONS, 1, "c")
    return told(samples)


async def firing(node: RunningNode, host: Any = None) -> set[str]:
    seen: Any = host or node.host
    one = await scraped(ObservedPlayer(node.node, seen), seen.clock)
    return Prometheus().lasts({A_PLAYER: one, "polonaise-servers/s": a_server()})


async def fired(node: RunningNode, *alerts: str) -> None:
    """Wait until these alerts would fire, if it goes on like this; none at all, if none is named."""

    async def as_wished() -> bool:
        now = await firing(node)
        return set(alerts) <= now if alerts else not now

    await wait_until(as_wished, f"{alerts} fire", every_s=0.1)


async def active(nodes: NodesOfAPlayer, *targets: str, **code: Any) -> RunningNode:
    node = nodes.start(nodes.loaded(nodes.plan(*targets), **code))
    await node.until("active")
    return node


@pytest.mark.slow
@fires("PolonaiseTargetHindered", "PolonaiseTargetLags", "PolonaisePlayerSettingsRefused")
async def test_a_target_that_refuses_and_settings_that_are_wrong(tmp_path: Path) -> None:
    refuses = [True]

    def decode(payload: bytes) -> str:
        if refuses[0]:
            raise ValueError("not this one")
        return payload.decode()

    class TenMinutesLater:
        def __init__(self, host: Any) -> None:
            self.network, self.clock = host.network, self
            self.monotonic_s = host.clock.monotonic_s
            self.wall_us = lambda: host.clock.wall_us() + 600_000_000

    async with nodes_of_a_player(tmp_path) as nodes:
        node = await active(nodes, "a", a=decode)
        await fired(node)
        await nodes.append(b"a:1")
        await fired(node, "PolonaiseTargetHindered")
        assert "PolonaiseTargetLags" in await firing(node, TenMinutesLater(node.host))
        refuses[0] = False
        await fired(node)
        await node.node.reload(partial(wrong_setting, "a typo"))
        await fired(node, "PolonaisePlayerSettingsRefused")


@fires("PolonaiseTargetDown")
async def test_a_target_whose_place_is_taken(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        (tmp_path / "a.jsonl").mkdir()
        await fired(await active(nodes, "a"), "PolonaiseTargetDown")


@fires("PolonaisePlayerStopped")
async def test_a_transaction_that_can_not_be_routed(tmp_path: Path) -> None:
    def routing(tx: Transaction) -> Any:
        if tx.data == b"poison":
            raise ValueError("whose is it?")
        return route(tx)

    async with nodes_of_a_player(tmp_path) as nodes:
        node = nodes.start(nodes.loaded(nodes.plan("a"), routing))
        await node.until("active")
        await nodes.append(b"poison")
        await node.until("pausing")  # soon after: no other partition is left
        await fired(node, "PolonaisePlayerStopped")


@fires("PolonaisePlayerNotActive", "PolonaiseNodeNotReady")
async def test_a_player_that_does_not_reach_its_log(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        nodes.unreachable = fault("servers_unavailable", "nobody is there")
        node = nodes.start(nodes.loaded(nodes.plan("a")))
        await fired(node, "PolonaisePlayerNotActive", "PolonaiseNodeNotReady")


@pytest.mark.slow
@fires("PolonaiseTargetSlow", "PolonaiseTargetLagUnknown", "PolonaisePlayerLogTrouble")
async def test_a_slow_target_and_a_partition_that_does_not_answer(tmp_path: Path) -> None:
    """Set where the player keeps it: both take minutes (`test_slow_targets`), or a cluster of processes."""
    async with nodes_of_a_player(tmp_path) as nodes:
        node = await active(nodes, "a")
        await fired(node)
        player = node.node.player
        assert player is not None
        assert player._delivery is not None
        target = player._delivery.machine.targets["a"]

        def slow() -> None:
            target.patience.late = lambda now_s: {0: True}  # type: ignore[method-assign]
            target.slow = {0: True}

        slow()
        assert "PolonaiseTargetSlow" in await firing(node)
        player._delivery._reading._troubles[0, _READ] = "it does not answer"
        assert {"PolonaiseTargetLagUnknown", "PolonaisePlayerLogTrouble"} <= await firing(node)


def test_each_alert_is_fired_by_its_fault_in_a_test() -> None:
    importlib.import_module("monitoring.test_alerts_fire")
    alerts = {rule["alert"] for rule in rules()}
    assert alerts - set(fired_by) == set(), "these are fired by no test"
    assert set(fired_by) - alerts == set(), "these do not exist"
