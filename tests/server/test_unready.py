"""A server that waits for storage nodes says so in its log, by name, soon and again."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "stories"))
from storyrig import Town

from polonaise.client.log import Log
from polonaise.errors import AppendExpired
from polonaise.server.settings import ServerSettings


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "polonaise.server.unready"]


def test_missing_storage_nodes_are_named_soon_and_again_until_there_is_a_quorum(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    settings = ServerSettings()

    async def story(town: Town) -> None:
        away = town.cluster.storage[:2]
        await asyncio.sleep(0)  # the nodes are started
        for node in away:
            node.hold_down()
            assert node.process is not None
            node.process.crash()
        await asyncio.sleep(settings.warn_s + 10)
        (first,) = warnings(caplog)
        assert "partition 0" in first
        assert "1 of 3 storage nodes are connected" in first
        assert all(node.name in first for node in away)
        assert town.cluster.storage[2].name not in first.partition("start these")[2]
        await asyncio.sleep(2 * settings.warn_again_s)
        assert len(warnings(caplog)) == 3
        for node in away:
            node.let_up()
        await asyncio.sleep(10)
        caplog.clear()
        await asyncio.sleep(3 * settings.warn_again_s)
        assert warnings(caplog) == []

    Town(1).run(story)


def test_a_cluster_that_comes_up_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def story(town: Town) -> None:
        await asyncio.sleep(60)

    Town(1).run(story)
    assert warnings(caplog) == []


def test_a_node_that_stays_away_is_named_while_commits_go_on_and_its_return_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    settings = ServerSettings()

    async def story(town: Town) -> None:
        await asyncio.sleep(10)
        away = town.cluster.storage[1]
        away.hold_down()
        assert away.process is not None
        away.process.crash()
        await asyncio.sleep(settings.warn_s + 10)
        ended, late = warnings(caplog)
        assert "a session of partition 0 was ended by" in ended
        assert away.name in ended
        assert f"storage nodes take no part for {settings.warn_s:.0f} s: {away.name}" in late
        assert "nobody listens" in late
        caplog.clear()
        away.let_up()
        await asyncio.sleep(settings.warn_again_s)
        assert warnings(caplog) == ["all storage nodes take part again"]

    Town(1).run(story)


def test_full_disks_are_told_though_the_partition_is_ready_most_of_the_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)

    async def story(town: Town) -> None:
        async def main(log: Log) -> None:
            for node in town.cluster.storage:
                node.machine.disk.fill(10)
            with pytest.raises(AppendExpired):
                await log.run(lambda tx: tx.append(bytes(1_000)), partition=0, timeout=20)

        await town.application("writer", main)
        told = [text for text in warnings(caplog) if "no space left" in text]
        assert 1 <= len(told) <= 3, "said, and not all the time"

    Town(1).run(story)
