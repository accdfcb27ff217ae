"""A server that is gone for good is removed from those that the cluster is to have, or the error says what was done."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from polonaise.admin.opening import opened_coordinator
from polonaise.admin.serverremoval import remove_server
from polonaise.coordination.values import ClusterDescription, ExpectedServer, Registration
from polonaise.errors import CoordinatorOutdated, CoordinatorUnavailable
from rigs.cluster import unserved


@pytest.mark.parametrize(("what", "told"), [
    ("expected_servers", "Nothing was changed"), ("members", "Nothing was changed"),
    ("forget_server", "may have made the change: look again"),
])  # fmt: skip
def test_a_coordinator_that_falls_silent_is_told_with_whether_a_removal_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, told: str
) -> None:
    async def scenario() -> None:
        async def silent(*_: object) -> None:
            await asyncio.Event().wait()

        async with opened_coordinator(place) as (_, coordinator):
            await coordinator.expect_server("there", ExpectedServer(1, "127.0.0.1:8"))
            monkeypatch.setattr(coordinator, what, silent)
            with pytest.raises(CoordinatorUnavailable, match=told):
                await remove_server(coordinator, "there", 3.0 if what == "forget_server" else 0.1)

    place = unserved(tmp_path / "coordinator", ClusterDescription.new(bytes(16), 1, {"a": "127.0.0.1:1"}))
    asyncio.run(scenario())


def test_in_an_older_coordinator_nobody_is_told_to_stop_a_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened_coordinator(place) as (_, coordinator):
            await coordinator.expect_server("there", ExpectedServer(1, "127.0.0.1:8"))
            await coordinator.register(Registration(1, "127.0.0.1:8"))

            async def outdated() -> None:
                raise CoordinatorOutdated("it was put back to an older state")

            coordinator.ask_before_changes(outdated)
            with pytest.raises(CoordinatorOutdated):
                await remove_server(coordinator, "there", 3.0)

    place = unserved(tmp_path / "coordinator", ClusterDescription.new(bytes(16), 1, {"a": "127.0.0.1:1"}))
    asyncio.run(scenario())
