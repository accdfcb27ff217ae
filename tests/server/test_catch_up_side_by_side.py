"""Late replicas are brought up to date beside each other: one that never gets there keeps no other from coming back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.coordination.values import PartitionValue
from polonaise.host import Host
from polonaise.server.catchup import CatchUp
from polonaise.server.protocol.readiness import Readiness
from polonaise.server.settings import ServerSettings
from polonaise.simulator.world import World
from polonaise.terms import StorageId


def test_a_copy_that_is_added_comes_in_beside_a_member_that_falls_behind_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(1)
    value = PartitionValue(3, 7, ("a", "b", "c"), next=("a", "b", "c", "d"))
    session: Any = SimpleNamespace(id=7, value=value, engaged={"a", "b"})
    owner = SimpleNamespace(session=session, partition=0, generation=3, committed=9, readiness=Readiness(0))
    readmitted: list[StorageId] = []

    async def copy_to(_: CatchUp, name: StorageId) -> None:
        if name == "c":
            await asyncio.get_running_loop().create_future()

    def readmit(name: StorageId) -> None:
        readmitted.append(name)
        owner.session = None

    monkeypatch.setattr(CatchUp, "_copy_to", copy_to)

    async def main(host: Host) -> None:
        connected = SimpleNamespace(session=1, bulk=1)
        reader: Any = SimpleNamespace(owner=owner, ask=None)
        links = {"c": connected, "d": connected}
        shared: Any = SimpleNamespace(host=host, settings=ServerSettings(), links=links, copies=None)
        await CatchUp(shared, reader, session, readmit, 0.0).run()

    async def scenario() -> None:
        process = world.machine("m").start(main)
        await asyncio.sleep(5)
        process.crash()

    world.run(scenario())
    assert readmitted == ["d"]
