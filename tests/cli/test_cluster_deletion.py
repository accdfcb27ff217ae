"""`polonaise cluster delete`: what it shows, deletes and refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from polonaise.admin.opening import opened_coordinator
from polonaise.coordination.values import ClusterDescription, Registration
from rigs.cluster import unserved
from rigs.shell import Shell

KEY = bytes(range(16))
NODES = {"a": "127.0.0.1:1", "b": "127.0.0.1:2", "c": "127.0.0.1:3"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A coordinator of a cluster of which no node runs."""
    unserved(tmp_path / "coordinator", ClusterDescription.new(KEY, 2, NODES))
    return tmp_path / "coordinator"


def test_a_cluster_is_shown_and_deleted_once_its_key_is_given(shell: Shell, directory: Path) -> None:
    where = ("--coordinator", f"file:{directory}")
    said = shell.run("cluster", "delete", "--confirm", KEY.hex(), *where)
    assert (said.status, said.output) == (
        0,
        f"cluster {KEY.hex()}: 2 partitions, on storage nodes a, b, c\n"
        "the cluster was deleted. The directories of its storage nodes hold the log, perhaps its only copy; a new "
        "cluster of these nodes needs new directories\n",
    )
    shell.refuses("cluster", "delete", "--confirm", KEY.hex(), *where, code="not_initialized", naming="no cluster in")


def test_as_json(shell: Shell, directory: Path) -> None:
    said = shell.run("cluster", "delete", "--confirm", KEY.hex(), "--json", "--coordinator", f"file:{directory}")
    assert (said.status, said.objects) == (0, [{"cluster": KEY.hex(), "deleted": True}])


def test_another_key_deletes_nothing(shell: Shell, directory: Path) -> None:
    where = ("--coordinator", f"file:{directory}")
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    for wrong in ("", KEY.hex()[:8], (b"k" * 16).hex()):
        shell.refuses(
            "cluster", "delete", "--confirm", wrong, *where, code="wrong_cluster_key", naming="nothing was deleted"
        )
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()} == before


def test_while_a_server_is_registered_nothing_is_deleted(shell: Shell, directory: Path) -> None:
    async def scenario() -> None:
        async with opened_coordinator(f"file:{directory}") as (_, server):
            await server.register(Registration(3, "127.0.0.1:9"))
            await asyncio.to_thread(
                shell.refuses,
                *("cluster", "delete", "--confirm", KEY.hex(), "--coordinator", f"file:{directory}"),
                code="cluster_in_use",
                naming="registered: 3. Stop them first",
            )
            assert (await server.describe()).key == KEY

    asyncio.run(scenario())


def test_without_a_cluster_there_is_nothing_to_delete(shell: Shell, tmp_path: Path) -> None:
    where = f"file:{tmp_path / 'nothing'}"
    shell.refuses("cluster", "delete", "--coordinator", where, code="not_initialized", naming="no cluster in")
