"""A process of a player tells over HTTP whether it delivers, who does otherwise, and how its targets are."""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial
from pathlib import Path

import pytest

from polonaise.errors import fault
from polonaise.node.monitoring.metriclist import METRICS
from polonaise.node.monitoring.playerface import ObservedPlayer
from polonaise.node.monitoring.running import serving_http
from rigs.httpget import http_get
from rigs.playernodes import NodesOfAPlayer, RunningNode, nodes_of_a_player, wrong_setting
from rigs.waiting import time_passes, wait_until


class Scraped:
    """What a process tells at an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def metric(self, series: str) -> float | None:
        """The value of a series, without `polonaise_`; None if it is not there."""
        text = (await http_get(self.address, "/metrics")).body.decode()
        found = re.search(rf"^polonaise_{re.escape(series)} (\S+)$", text, re.MULTILINE)
        return None if found is None else float(found[1])

    async def until(self, series: str, value: float | None) -> None:
        async def as_wished() -> bool:
            return await self.metric(series) == value

        await wait_until(as_wished, f"{series} is {value}", every_s=0.05)


async def active_and_standby(nodes: NodesOfAPlayer) -> tuple[RunningNode, RunningNode]:
    """Two processes of a player, the second of which knows the first."""
    first = nodes.start(nodes.loaded(nodes.plan("a")))
    await first.until("active")
    second = nodes.start(nodes.loaded(nodes.plan("a")))
    await second.until("standby")
    await wait_until(lambda: second.node.active)
    return first, second


async def test_the_active_one_and_the_standby_say_what_they_are(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        first, second = await active_and_standby(nodes)
        async with (
            serving_http(first.host, "127.0.0.1:0", ObservedPlayer(first.node, first.host)) as one,
            serving_http(second.host, "127.0.0.1:0", ObservedPlayer(second.node, second.host)) as two,
        ):
            active, standby = Scraped(one), Scraped(two)
            await active.until('player_target_up{target="a"}', 1)
            assert await active.metric('player_state{player="p",state="active"}') == 1
            assert await active.metric("player_epoch") == first.node.candidacy.epoch
            assert await active.metric("player_partitions") == 1
            assert await standby.metric('player_state{player="p",state="standby"}') == 1
            assert await standby.metric('player_state{player="p",state="active"}') == 0
            assert await standby.metric("player_epoch") is None
            assert await standby.metric('player_target_up{target="a"}') is None
            for address in (one, two):
                assert (await http_get(address, "/ready")).status == 200
            document = (await http_get(two, "/health")).document
            assert document["state"] == "standby"
            assert document["status"] == "ok"
            assert document["active"] == first.node.active != ""
            assert (await http_get(one, "/health")).document["targets"]["a"]["state"] == "up"


async def test_a_target_that_refuses_lags_and_says_so(tmp_path: Path) -> None:
    refuses = [True]

    def decode(payload: bytes) -> str:
        if refuses[0] and payload == b"2":
            raise ValueError("not this one")
        return payload.decode()

    async with nodes_of_a_player(tmp_path) as nodes:
        node = nodes.start(nodes.loaded(nodes.plan("a", "b"), a=decode))
        await node.until("active")
        async with serving_http(node.host, "127.0.0.1:0", ObservedPlayer(node.node, node.host)) as address:
            scraped = Scraped(address)
            await nodes.append(b"ab:1", b"ab:2", b"ab:3")
            await nodes.until_delivered("b", "1", "2", "3")
            await scraped.until('player_target_hindered_partitions{target="a"}', 1)
            await scraped.until('player_target_lag_transactions_max{target="a"}', 2)
            refusals = await scraped.metric('player_target_refusals_total{target="a"}')
            assert refusals is not None
            assert refusals >= 1
            seconds = await scraped.metric('player_target_lag_seconds_max{target="a"}')
            assert seconds is not None
            assert 0 < seconds < 120
            size = await scraped.metric('player_target_lag_bytes{target="a"}')
            assert size is not None
            assert size > 0
            first = await scraped.metric('player_applied_id{partition="0",target="a"}')
            last = await scraped.metric('player_applied_id{partition="0",target="b"}')
            assert first is not None
            assert last == first + 2
            assert await scraped.metric('player_target_lag_seconds_max{target="b"}') == 0
            document = (await http_get(address, "/health")).document
            assert document["status"] == "degraded"
            assert "not this one" in document["problems"]["target a"][0]
            assert "target b" not in document["problems"]
            text = (await http_get(address, "/metrics")).body.decode()
            told = [metric for metric in METRICS if metric.name.startswith("polonaise_player_")]
            assert [metric.name for metric in told if f"\n{metric.name}" not in text] == [], "every one has samples"
            refuses[0] = False
            await nodes.until_delivered("a", "1", "2", "3")
            await scraped.until('player_target_lag_seconds_max{target="a"}', 0)
            await scraped.until('player_target_lag_bytes{target="a"}', 0)
            assert (await http_get(address, "/health")).document["status"] == "ok"


@pytest.mark.slow
async def test_what_a_target_lacked_before_the_player_began_has_its_true_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polonaise.player.logreading._WATCH_S", 0.5)

    def decode(payload: bytes) -> str:
        if payload != b"0":
            raise ValueError("only the first")
        return payload.decode()

    async with nodes_of_a_player(tmp_path) as nodes:
        first = nodes.start(nodes.loaded(nodes.plan("a", "b"), a=decode))
        await first.until("active")
        # What a target lacks begins behind what it has applied, whosever that is: right before, therefore.
        await nodes.log.append(b"a:0", partition=0)
        await nodes.until_delivered("a", "0")
        lacked = await nodes.log.append(b"a:1", partition=0)
        for _ in range(6):
            await time_passes(0.1)
            await asyncio.gather(*(nodes.log.append(b"b:2", partition=0) for _ in range(200)))
        await wait_until(lambda: len(nodes.lines("b")) == 1_200)
        await first.stop()
        # The main stream of the next player begins near what `b` has, and never brings what `a` lacks.
        second = nodes.start(nodes.loaded(nodes.plan("a", "b"), a=decode))
        await second.until("active")
        (committed_us,) = [tx.commit_time_us async for tx in nodes.log.read(0) if tx.id == lacked.id]
        async with serving_http(second.host, "127.0.0.1:0", ObservedPlayer(second.node, second.host)) as address:
            scraped = Scraped(address)

            async def is_true() -> bool:
                least_s = time.time() - committed_us / 1e6
                told_s = await scraped.metric('player_target_lag_seconds_max{target="a"}')
                return told_s is not None and least_s <= told_s <= time.time() - committed_us / 1e6

            await wait_until(is_true, "the lag is the age of what is lacking", every_s=0.05)
            assert await scraped.metric('player_target_lag_bytes{target="a"}') is None


@pytest.mark.slow
async def test_a_standby_without_answers_of_the_log_is_not_ready_and_an_active_one_tells_none_of_it(
    tmp_path: Path,
) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        first, second = await active_and_standby(nodes)
        async with serving_http(second.host, "127.0.0.1:0", ObservedPlayer(second.node, second.host)) as address:
            scraped = Scraped(address)
            nodes.leases.silent = fault("servers_unavailable", "nobody answers")
            await scraped.until("node_ready", 0)
            assert await scraped.metric('node_degraded{reason="log_trouble"}') == 1
            ready = await http_get(address, "/ready")
            assert ready.status == 503
            assert ready.document["reason"] == "no answer about the lease: [servers_unavailable] nobody answers"
            assert (await http_get(address, "/health")).document["status"] == "not_ready"
            await first.stop()
            await second.until("active")
            # A verdict stands for a second.
            await scraped.until("node_ready", 1)
            assert await scraped.metric('node_degraded{reason="log_trouble"}') == 0
            document = (await http_get(address, "/health")).document
            assert (document["status"], document["active"]) == ("ok", second.node.active)
            nodes.leases.take_away("player/p")
            nodes.leases.silent = None
            await wait_until(lambda: second.node.candidacy.turns == 2)
            assert second.node.candidacy.log_trouble == ""


async def test_settings_that_were_refused_show_until_better_ones_come(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        node = nodes.start(nodes.loaded(nodes.plan("a")))
        await node.until("active")
        async with serving_http(node.host, "127.0.0.1:0", ObservedPlayer(node.node, node.host)) as address:
            scraped = Scraped(address)
            await node.node.reload(partial(wrong_setting, "a typo"))
            await scraped.until("player_settings_refused", 1)
            document = (await http_get(address, "/health")).document
            assert document["status"] == "degraded"
            assert "a typo" in document["problems"]["player"][0]
            await node.node.reload(lambda: nodes.loaded(nodes.plan("a")))
            await scraped.until("player_settings_refused", 0)
