"""`polonaise cluster backup`: where it writes, and what it does not replace."""

from __future__ import annotations

import asyncio
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from polonaise.admin.coordinatorbackup import read_backup
from polonaise.admin.opening import opened_coordinator
from polonaise.coordination.values import ClusterDescription, PartitionValue
from polonaise.errors import CertificateRefused, PolonaiseError
from rigs.cluster import unserved
from rigs.shell import Shell

KEY = bytes(range(16))
NODES = {"a": "127.0.0.1:1", "b": "127.0.0.1:2", "c": "127.0.0.1:3"}


@pytest.fixture
def at(tmp_path: Path) -> tuple[str, str]:
    """The option for a coordinator of a cluster of which no node runs."""
    return "--coordinator", unserved(tmp_path / "coordinator", ClusterDescription.new(KEY, 2, NODES))


def change(coordinator: str, **fields: int) -> None:
    """Change the value of partition 1."""

    async def write() -> None:
        async with opened_coordinator(coordinator) as (_, opened):
            current = await opened.partition(1)
            assert await opened.set_partition(1, replace(current.value, **fields), current.version)  # type: ignore[arg-type]

    asyncio.run(write())


def test_a_backup_is_written_through_a_link_and_into_a_pipe(shell: Shell, at: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"what was there")
    (tmp_path / "link").symlink_to("real")
    assert shell.run("cluster", "backup", str(tmp_path / "link"), *at).status == 0
    assert (tmp_path / "link").is_symlink()
    noted = read_backup(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    shell.refuses("cluster", "backup", str(tmp_path / "pipe"), *at, code="bad_option", naming="nobody reads")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert shell.run("cluster", "backup", str(tmp_path / "pipe"), *at).status == 0
        (tmp_path / "copy").write_bytes(os.read(reader, 1 << 16))
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert read_backup(tmp_path / "copy") == noted
    shell.refuses("cluster", "backup", str(tmp_path), *at, code="bad_option", naming="is a directory")


def test_a_backup_to_standard_output_is_all_that_is_there(shell: Shell, at: tuple[str, str], tmp_path: Path) -> None:
    said = shell.run("cluster", "backup", "-", *at)
    assert said.status == 0
    (tmp_path / "copy").write_text(said.output)
    assert read_backup(tmp_path / "copy").description is not None
    assert said.errors == f"cluster {KEY.hex()}: the values of 2 partitions are in -\n"


@pytest.mark.parametrize("later", ["session", "generation"])
def test_a_later_backup_is_replaced_only_with_consent(
    shell: Shell, at: tuple[str, str], tmp_path: Path, later: str
) -> None:
    file = tmp_path / "backup"
    command = ("cluster", "backup", str(file), *at)
    change(at[1], **{later: 8})
    assert shell.run(*command).status == 0
    assert shell.run(*command).status == 0, "the same values are no earlier ones"
    kept = file.read_bytes()
    change(at[1], **{later: 7})  # as of a coordinator that was put back
    naming = (
        "later backup of this cluster: it has later values than the coordinator, of partitions 1. So the coordinator"
    )
    shell.refuses(*command, code="coordinator_outdated", naming=naming)
    assert file.read_bytes() == kept
    assert shell.run(*command, "--force").status == 0
    assert getattr(read_backup(file).partitions[1], later) == 7


def test_the_values_of_an_outdated_coordinator_are_written_only_with_consent(
    shell: Shell, at: tuple[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    assert shell.run("cluster", "backup", str(file), *at).status == 0
    change(at[1], session=1_000, outdated=7)  # its number was raised by each try of a server since
    shell.refuses("cluster", "backup", str(file), *at, code="coordinator_outdated", naming="later backup")
    other = ("cluster", "backup", str(tmp_path / "other"), *at)
    shell.refuses(*other, code="coordinator_outdated", naming="of partitions 1: put the latest state back")
    assert not (tmp_path / "other").exists()
    said = shell.run(*other, "--force", "--json")
    assert (said.status, said.objects[0]["outdated"]) == (0, [1])
    assert said.errors.startswith("WARNING: ")
    assert "was put back to an older state" in said.errors
    assert isinstance(read_backup(tmp_path / "other").partitions[1], PartitionValue)


def test_values_that_servers_do_not_believe_are_written_only_with_consent(
    shell: Shell, at: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("cluster", "backup", str(tmp_path / "backup"), *at)
    monkeypatch.setattr("polonaise.admin.cluster.disbelief", lambda *_: "it is not believed by server 3")
    shell.refuses(*command, code="coordinator_outdated", naming="it is not believed by server 3. Nothing was written")
    assert not (tmp_path / "backup").exists()
    said = shell.run(*command, "--force")
    assert (said.status, (tmp_path / "backup").exists()) == (0, True)
    assert "it is not believed by server 3" in said.errors


def test_a_backup_of_another_cluster_is_not_replaced_and_what_is_none_is(
    shell: Shell, at: tuple[str, str], tmp_path: Path
) -> None:
    file, other = tmp_path / "backup", unserved(tmp_path / "other", ClusterDescription.new(bytes(16), 1, NODES))
    file.write_text("no backup")
    assert shell.run("cluster", "backup", str(file), "--coordinator", other).status == 0
    shell.refuses("cluster", "backup", str(file), *at, code="bad_option", naming="a backup of another cluster")


def test_values_of_which_nobody_could_be_asked_are_written_only_with_consent(
    shell: Shell, at: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> PolonaiseError:
        return CertificateRefused("it is of another CA")

    monkeypatch.setattr("polonaise.admin.cluster.ask_health", refuse)
    command = ("cluster", "backup", str(tmp_path / "backup"), *at)
    shell.refuses(*command, code="certificate_refused", naming="storage node a: it is of another CA. Nothing was wr")
    assert not (tmp_path / "backup").exists()
    assert shell.run(*command, "--force").status == 0
    assert (tmp_path / "backup").exists()
