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
from polonaise.terms import StorageId
from polonaise_proving.stages.simulated.world import World


def test_a_copy_that_is_added_comes_in_beside_a_member_that_falls_behind_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(1)
    value = PartitionValue(3, 7, ("a", "b", "c"), next=("a", "b", "c", "d"))
    session: Any = SimpleNamespace(id=7, value=value, engaged={"a", "b"}, rests_until_s=0.0)
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


def test_a_session_whose_start_took_long_is_not_ended_at_once_to_let_a_replica_back_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where disks are slow, sessions would else do little but start."""
    world = World(1)
    value = PartitionValue(3, 7, ("a", "b", "c"))
    readmitted: list[float] = []

    async def copy_to(*_: Any) -> None:
        pass

    monkeypatch.setattr(CatchUp, "_copy_to", copy_to)

    async def main(host: Host) -> None:
        began_s = host.clock.monotonic_s()
        session: Any = SimpleNamespace(id=7, value=value, engaged={"a", "b"}, rests_until_s=began_s + 30.0)
        owner = SimpleNamespace(session=session, partition=0, generation=3, committed=9, readiness=Readiness(0))

        def readmit(_: StorageId) -> None:
            readmitted.append(host.clock.monotonic_s() - began_s)
            owner.session = None

        reader: Any = SimpleNamespace(owner=owner, ask=None)
        links = {"c": SimpleNamespace(session=1, bulk=1)}
        shared: Any = SimpleNamespace(host=host, settings=ServerSettings(), links=links, copies=None)
        await CatchUp(shared, reader, session, readmit, 0.0).run()

    async def scenario() -> None:
        process = world.machine("m").start(main)
        await asyncio.sleep(60)
        process.crash()

    world.run(scenario())
    assert [round(seconds) for seconds in readmitted] == [30]
