"""A server that waits for storage nodes says so in its log, by name, soon and again."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "stories"))
from storyrig import Town

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
