"""A coordinator that has lost its data is told from a new one, and nobody makes a new cluster in its place."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise.admin import coordinatorbackup
from polonaise.admin.coordinatorbackup import RecoveredCluster, backup, read_backup, recover, write_backup
from polonaise.coordination.file import coordinator_in
from polonaise.coordination.rebuilding import NodeAnswer, Noted
from polonaise.coordination.values import ClusterDescription, Registration
from polonaise.errors import (
    AlreadyInitialized,
    CoordinatorDamaged,
    CoordinatorLost,
    NotInitialized,
    PolonaiseError,
    RecoveryUnsafe,
)
from polonaise.host import replacing
from polonaise.host.real import RealHost
from polonaise.node.addresses import coordinator_at
from polonaise.node.local import LocalCluster, StartFailed
from polonaise.node.processes import create_cluster, run_server
from polonaise.server.settings import ServerSettings
from polonaise.storage.clusternote import NOTE_FILE, decode_note
from rigs.httpget import http_get
from rigs.observed import ObservedCluster, observed_cluster, started, started_storage
from rigs.waiting import PATIENCE_S, wait_until


async def refusal(coordinator: str, nodes: dict[str, str]) -> PolonaiseError:
    """What a server is refused with that is started at this coordinator."""
    host = RealHost()
    try:
        with pytest.raises(PolonaiseError) as refused:
            async with asyncio.timeout(30):
                await run_server(host, coordinator, nodes, 1, ServerSettings(), lambda _: None)
    finally:
        host.close()
    return refused.value


async def made_at(coordinator: str, nodes: dict[str, str]) -> ClusterDescription:
    host = RealHost()
    opened = coordinator_at(host, coordinator)
    try:
        return await create_cluster(host, opened, nodes, 1)
    finally:
        await opened.close()
        host.close()


async def test_a_server_makes_no_cluster_unasked(tmp_path: Path) -> None:
    node = await started_storage(tmp_path / "storage")
    try:
        error = await refusal(f"file:{tmp_path / 'coordinator'}", {"a": node.address})
        assert isinstance(error, NotInitialized)
        assert "polonaise cluster create" in str(error)
        assert not (tmp_path / "coordinator").exists()
    finally:
        await node.stop()


async def test_a_lost_coordinator_is_named_and_no_new_cluster_takes_its_place(tmp_path: Path) -> None:
    async with observed_cluster(tmp_path) as cluster:
        async with polonaise.connect(cluster.coordinator) as log:
            await log.append(b"one payment", partition=0)
        await cluster.server.stop()
        (tmp_path / "coordinator").rename(tmp_path / "lost")
        nodes = {node.address: node.address for node in cluster.storage}
        for error in (await refusal(cluster.coordinator, nodes), await _refused(made_at(cluster.coordinator, nodes))):
            assert isinstance(error, CoordinatorLost)
            assert "the coordinator has lost its data" in str(error)
            assert "leave their directories as they are" in str(error)
            assert "polonaise cluster recover" in str(error)
            assert "erase" not in str(error)
        assert not (tmp_path / "coordinator" / "description").exists()
        one = await _refused(made_at(cluster.coordinator, {"x": cluster.storage[0].address}))
        own = cluster.storage[0].address
        assert f"storage node x (whose directory is that of {own}) belongs to one" in str(one)


async def _refused(making: asyncio.Future[object] | object) -> PolonaiseError:
    with pytest.raises(PolonaiseError) as refused:
        await making  # type: ignore[misc]
    return refused.value


@pytest.mark.slow
def test_a_local_cluster_whose_coordinator_is_gone_does_not_begin_as_a_new_one(tmp_path: Path) -> None:
    with LocalCluster(tmp_path):
        pass
    shutil.rmtree(tmp_path / "coordinator")
    with pytest.raises(StartFailed, match="has lost its data"), LocalCluster(tmp_path):
        pass


async def test_a_registered_server_of_an_earlier_cluster_hinders_nobody(tmp_path: Path) -> None:
    """It goes on with its registration after the cluster was made anew in the same place."""
    host = RealHost()
    try:
        earlier, later = (ClusterDescription.new(bytes([n] * 16), 1, {"a": "127.0.0.1:7100"}) for n in (1, 2))
        stray = coordinator_in(host, f"{tmp_path}/c")
        await stray.initialize(earlier)
        await stray.register(Registration(1, "127.0.0.1:7000"))
        for path in (tmp_path / "c").iterdir():
            if path.is_file():
                path.unlink()
        coordinator = coordinator_in(host, f"{tmp_path}/c")
        await coordinator.initialize(later)
        await coordinator.register(Registration(2, "127.0.0.1:7001"))
        assert [each.server for each in await coordinator.members()] == [2]
        await coordinator.close()
        await stray.close()
    finally:
        host.close()


async def recovered(
    cluster: ObservedCluster, known: Noted | None = None, nodes: dict[str, str] | None = None, confirmed: str = ""
) -> RecoveredCluster:
    """Make the coordinator's values again, from one storage node and those that it tells of, or from a backup."""
    host = RealHost()
    opened = coordinator_at(host, cluster.coordinator)
    try:
        first = {} if known else {"one": cluster.storage[0].address}
        return await recover(host, opened, known, nodes or first, 3.0, confirmed)
    finally:
        await opened.close()
        host.close()


async def test_the_first_notes_do_not_wait_for_the_usual_interval(tmp_path: Path) -> None:
    """An embedded log may be open for a moment only."""
    async with observed_cluster(tmp_path, notes_s=3600.0) as cluster:
        async with polonaise.connect(cluster.coordinator) as log:
            await log.append(b"one payment", partition=0)
        await until_noted(tmp_path)


@contextlib.asynccontextmanager
async def served_again(cluster: ObservedCluster) -> AsyncIterator[polonaise.Log]:
    """Run another server of the cluster, and a client beside it."""
    server = await started(
        lambda host, ready, http: run_server(host, cluster.coordinator, {}, 1, ServerSettings(), ready, http=http)
    )
    try:
        async with polonaise.connect(cluster.coordinator) as log, asyncio.timeout(PATIENCE_S):
            yield log
    finally:
        await server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("with_backup", [False, True])
async def test_a_lost_coordinators_values_are_made_again_and_the_log_goes_on(tmp_path: Path, with_backup: bool) -> None:
    async with observed_cluster(tmp_path, notes_s=0.05) as cluster:
        async with polonaise.connect(cluster.coordinator) as log:
            await log.append(b"one payment", partition=0)
            key = log.cluster_key
        known = await backed_up(cluster.coordinator, tmp_path / "backup") if with_backup else None
        await until_noted(tmp_path)
        await cluster.server.stop()
        (tmp_path / "coordinator").rename(tmp_path / "lost")
        made = await recovered(cluster, known)
        assert made.description.key == key
        assert not made.silent
        async with served_again(cluster) as log:
            assert (await log.append(b"another", partition=0)).id == 1
            assert [tx.data async for tx in log.read(0)] == [b"one payment", b"another"]
            assert isinstance(await _refused(recovered(cluster)), AlreadyInitialized)


@pytest.mark.slow
async def test_one_value_that_is_gone_is_made_again_with_the_others_once_what_is_left_is_moved_away(
    tmp_path: Path,
) -> None:
    async with observed_cluster(tmp_path, notes_s=0.05) as cluster:
        async with polonaise.connect(cluster.coordinator) as log:
            await log.append(b"one payment", partition=0)
        await until_noted(tmp_path)
        given = await ids_given(cluster)
        (tmp_path / "coordinator" / "unique-id").unlink()
        await until_told(cluster, "unique-id: it is missing")
        await cluster.server.stop()
        error = await _refused(recovered(cluster))
        assert isinstance(error, AlreadyInitialized)
        assert "one of its values is missing or damaged, move it away first" in str(error)
        (tmp_path / "coordinator").rename(tmp_path / "lost")
        await recovered(cluster)
        assert await ids_given(cluster) > given
        async with served_again(cluster) as log:
            assert (await log.append(b"another", partition=0)).id == 1


async def ids_given(cluster: ObservedCluster) -> int:
    host = RealHost()
    opened = coordinator_at(host, cluster.coordinator)
    try:
        return await opened.unique_ids_given()
    finally:
        await opened.close()
        host.close()


@pytest.mark.slow
async def test_a_file_of_the_coordinator_that_is_gone_is_named_by_the_server_that_runs(tmp_path: Path) -> None:
    async with observed_cluster(tmp_path, notes_s=0.05, name="first") as cluster:
        file = tmp_path / "coordinator" / "partition-0"
        async with polonaise.connect(cluster.coordinator) as log, asyncio.timeout(PATIENCE_S):
            await log.append(b"one payment", partition=0)
        # A list of servers that the server itself has not read yet is not missed.
        await wait_until(lambda: all(note.get("expected") for note in notes_in(tmp_path)) and noted_in(tmp_path))
        await until_told(cluster, "'problems': {}")
        file.rename(tmp_path / "taken")
        await until_told(cluster, f"{file}: it is missing")
        assert (await http_get(cluster.server.http, "/ready")).status == 200
        assert b"polonaise_server_coordinator_trouble 1" in (await http_get(cluster.server.http, "/metrics")).body
        (tmp_path / "taken").rename(file)
        await until_told(cluster, "'problems': {}")


async def until_told(cluster: ObservedCluster, text: str) -> None:
    async def is_told() -> bool:
        return text in str((await http_get(cluster.server.http, "/health")).document)

    await wait_until(is_told, every_s=0.1)


@pytest.mark.slow
async def test_the_backup_of_another_cluster_and_a_cluster_in_use_are_refused(tmp_path: Path) -> None:
    async with observed_cluster(tmp_path / "x") as x, observed_cluster(tmp_path / "y", notes_s=0.05) as y:
        of_x = await backed_up(x.coordinator, tmp_path / "backup")
        at = {node.address: node.address for node in y.storage}
        await until_noted(tmp_path / "y")
        elsewhere = y._replace(coordinator=f"file:{tmp_path / 'elsewhere'}")
        in_use = await _refused(recovered(elsewhere))
        assert in_use.code == "cluster_in_use"
        assert re.search(r"server 1( \(.+\))? from 127\.0\.0\.1:", str(in_use))
        await y.server.stop()
        (tmp_path / "y/coordinator").rename(tmp_path / "lost")
        error = await _refused(recovered(y, of_x, at))
        assert isinstance(error, RecoveryUnsafe)
        assert "the backup is of cluster" in str(error)
        assert not (tmp_path / "y/coordinator").exists()
        assert not (tmp_path / "elsewhere").exists()
        await recovered(y)


async def test_a_server_that_runs_and_is_cut_off_from_the_storage_nodes_is_found_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it is cut off is stood for by storage nodes that tell of no connection."""
    ask = coordinatorbackup.ask_noted

    async def cut_off(*about: Any) -> tuple[str | None, NodeAnswer]:
        name, answer = await ask(*about)
        return name, replace(answer, servers={})

    monkeypatch.setattr(coordinatorbackup, "ask_noted", cut_off)
    async with observed_cluster(tmp_path, notes_s=0.05, name="s1") as cluster:
        elsewhere = cluster._replace(coordinator=f"file:{tmp_path / 'elsewhere'}")
        await wait_until(lambda: all(note.get("expected") for note in notes_in(tmp_path)) and noted_in(tmp_path))
        in_use = await _refused(recovered(elsewhere))
        assert in_use.code == "cluster_in_use"
        assert f"server 1 (s1) at {cluster.server.address} (cut off from the storage nodes that answer)" in str(in_use)
        assert not (tmp_path / "elsewhere").exists()
        await cluster.server.stop()
        await recovered(elsewhere)


@pytest.mark.slow
async def test_a_server_that_ran_on_through_the_recovery_goes_on_with_the_new_values(tmp_path: Path) -> None:
    async with observed_cluster(tmp_path, notes_s=0.05) as cluster:
        async with polonaise.connect(cluster.coordinator) as log:
            await log.append(b"one payment", partition=0)
            key = log.cluster_key
        await until_noted(tmp_path)
        (tmp_path / "coordinator").rename(tmp_path / "lost")
        await recovered(cluster, confirmed=key.hex())
        async with polonaise.connect(cluster.coordinator) as log, asyncio.timeout(PATIENCE_S):
            await log.append(b"another", partition=0)
            assert [tx.data async for tx in log.read(0)] == [b"one payment", b"another"]


async def backed_up(address: str, path: Path) -> Noted:
    host = RealHost()
    opened = coordinator_at(host, address)
    try:
        write_backup(path, await backup(opened))
    finally:
        await opened.close()
        host.close()
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"description"', b'"descripti0n"'))
    with pytest.raises(CoordinatorDamaged, match="no backup"):
        read_backup(path)
    path.write_bytes(raw)
    return read_backup(path)


def test_a_backup_that_can_not_be_written_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "backup"
    first, second = (Noted(ClusterDescription.new(bytes([n] * 16), 1, {"a": "127.0.0.1:7100"})) for n in (1, 2))
    synced = list[Path]()
    monkeypatch.setattr(replacing, "sync_path", lambda path, flags=0: synced.append(path))
    write_backup(path, first)
    assert [each.suffix for each in synced] == [".new", ""], "the bytes, then the name"
    assert synced[0].parent == synced[1] == tmp_path

    def full(path: Path, flags: int = 0) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(replacing, "sync_path", full)
    with pytest.raises(PolonaiseError):
        write_backup(path, second)
    assert read_backup(path) == first
    assert [each.name for each in tmp_path.iterdir()] == ["backup"]


async def until_noted(directory: Path) -> None:
    await wait_until(lambda: noted_in(directory), "every storage node has noted the values")


def noted_in(directory: Path) -> bool:
    notes = notes_in(directory)
    return len(notes) == 3 and all(note["partitions"] and note["unique_id"] for note in notes)


def notes_in(directory: Path) -> list[Mapping[str, Any]]:
    return [decode_note(path.read_bytes()) for path in directory.glob(f"storage-*/{NOTE_FILE}")]
