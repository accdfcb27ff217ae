"""A server that stops cleanly leaves behind, on each replica, up to where it has seen the log committed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise.errors import PolonaiseError
from polonaise.server.servedpartition import ServedPartition
from polonaise.server.settings import ServerSettings
from polonaise.storage import files, offline
from polonaise.storage.node import StorageNode
from polonaise.storage.protocol.standing import Standing
from polonaise.wire.messages import Store
from rigs.waiting import wait_until


@pytest.mark.parametrize("storage", [1, 3])
async def test_each_replica_of_a_log_that_was_closed_knows_all_of_it_to_be_committed(
    storage: int, tmp_path: Path
) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}?storage={storage}&partitions=2") as log:
        for number in range(5):
            await log.append(b"%d" % number, partition=0)
    for number in range(storage):
        used, unused = files.find(str(tmp_path / f"storage-{number}"))
        bounds = offline.bounds_in(used)
        assert bounds.confirmed == 4
        assert {bounds.standing_of(id) for id in range(5)} == {Standing.COMMITTED}
        assert offline.bounds_in(unused).confirmed == -1


async def test_a_replica_that_hangs_holds_up_the_end_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(node: StorageNode, connection: Any, message: Any, request: int, partition: int) -> None:
        if type(message).__name__ != "Confirm":
            obeys(node, connection, message, request, partition)

    obeys = StorageNode._on_message
    confirm, waited = ServedPartition.confirm, []

    async def quick(served: ServedPartition) -> None:
        served._settings = ServerSettings(farewell_s_max=0.05)
        began_s = time.monotonic()
        await confirm(served)
        waited.append(time.monotonic() - began_s)

    monkeypatch.setattr(StorageNode, "_on_message", hangs)
    monkeypatch.setattr(ServedPartition, "confirm", quick)
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        await log.append(b"x")
    assert 0.04 < waited[0] < 5
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        assert [tx.data async for tx in log.read(0)] == [b"x"]


async def test_what_only_a_minority_holds_when_the_server_stops_is_not_said_to_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full: set[str] = set()

    def ignores(node: StorageNode, connection: Any, message: Any, request: int, partition: int) -> None:
        if not (isinstance(message, Store) and node._settings.directory in full):
            obeys(node, connection, message, request, partition)

    obeys = StorageNode._on_message
    monkeypatch.setattr(StorageNode, "_on_message", ignores)
    async with polonaise.connect(f"embedded:{tmp_path}?storage=3") as log:
        await log.append(b"committed")
        full.update(str(tmp_path / name) for name in ("storage-1", "storage-2"))
        undecided = asyncio.ensure_future(log.append(b"undecided"))
        [held] = files.find(str(tmp_path / "storage-0"))

        async def both_are_stored() -> bool:
            return [each.batch.last async for each in offline.dump(held)] == [0, 1]

        await wait_until(both_are_stored)
    with pytest.raises(PolonaiseError):
        await undecided
    bounds = offline.bounds_in(files.find(str(tmp_path / "storage-0"))[0])
    assert [bounds.standing_of(id) for id in (0, 1)] == [Standing.COMMITTED, Standing.UNPROVED]
