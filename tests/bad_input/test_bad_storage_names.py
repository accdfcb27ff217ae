"""What is said wrongly of storage nodes, databases, HTTP addresses and ends: each mistake has its own error."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection

from polonaise.admin.opening import opened_coordinator
from polonaise.admin.storagenodes import move_storage
from polonaise.cli.inputs import ids_of
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription, Versioned
from polonaise.errors import BadOption, PolonaiseError, UnknownStorageNode, ViewUnavailable, WrongClusterKey, WrongRole
from polonaise.host import Host
from polonaise.node.addresses import storage_nodes_of
from polonaise.node.processes import check_storage_nodes
from polonaise.storage.node import StorageNode
from polonaise.storage.settings import StorageSettings
from polonaise.terms import Transaction
from polonaise.views.sql import SqlView
from rigs.faults import raises_code
from rigs.programs import run_polonaise
from rigs.shell import Shell
from rigs.town import Town, in_a_town

NODES = {"a": "h.invalid:1", "b": "h.invalid:2", "h.invalid:3": "h.invalid:3"}
DESCRIPTION = ClusterDescription.new(bytes(16), 1, NODES)


# ---------------------------------------------------------------------- --storage


def test_names_and_addresses_as_they_are_written() -> None:
    assert storage_nodes_of(["a=h.invalid:1", "b=h.invalid:2", "h.invalid:3"], "--storage") == NODES
    assert storage_nodes_of(["unix:/run/a=b"], "--storage") == {"unix:/run/a=b": "unix:/run/a=b"}
    assert storage_nodes_of(["x.Y_z-1=unix:/run/a=b"], "--storage") == {"x.Y_z-1": "unix:/run/a=b"}


@pytest.mark.parametrize(
    ("given", "naming"),
    [
        (["a=h.invalid:1", "a=h.invalid:2"], "has a twice"),
        (["h.invalid:1", "h.invalid:1"], "has h.invalid:1 twice"),
        (["a=h.invalid:1", "b=h.invalid:1"], "has the address h.invalid:1 twice"),
        (["a=h.invalid:2", "h.invalid:2"], "has the address h.invalid:2 twice"),
        (["h.invalid:2", "a=h.invalid:1", "b=h.invalid:2"], "has the address h.invalid:2 twice"),
        (["a=h.invalid:0"], "port 0"),
        (["a=h"], "not an address"),
        (["a="], "not an address"),
        (["a"], "not an address"),
        (["=h.invalid:1"], "invalid name of a storage node ''"),
        (["a b=h.invalid:1"], "invalid name of a storage node 'a b'"),
        (["ä=h.invalid:1"], "invalid name of a storage node"),
        (["a/b=h.invalid:1"], "invalid name of a storage node"),
        (["a" * 64 + "=h.invalid:1"], "1 to 63 letters"),
    ],
)
def test_a_list_of_storage_nodes_that_is_none(given: list[str], naming: str) -> None:
    with pytest.raises(BadOption, match=naming):
        storage_nodes_of(given, "--storage")


@pytest.mark.parametrize(
    "given",
    [
        NODES,
        {"h.invalid:1": "h.invalid:1", "h.invalid:2": "h.invalid:2", "h.invalid:3": "h.invalid:3"},
        {"c": "h.invalid:3", "b": "h.invalid:2", "a": "h.invalid:1"},
        {"a": "elsewhere.invalid:1", "b": "h.invalid:2", "h.invalid:3": "h.invalid:3"},
    ],
    ids=["the same", "by address", "an unnamed node with a name", "moved since"],
)
def test_storage_nodes_that_the_cluster_has(given: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    check_storage_nodes(DESCRIPTION, given)
    assert ("polonaise storage move" in caplog.text) == ("elsewhere.invalid:1" in given.values())


@pytest.mark.parametrize(
    "given",
    [
        {"a": "h.invalid:1", "b": "h.invalid:2"},
        {**NODES, "d": "h.invalid:4"},
        {"a": "h.invalid:1", "b": "h.invalid:2", "c": "h.invalid:4"},
        {"a": "h.invalid:1", "b": "h.invalid:2", "c": "h.invalid:2"},
        {"h.invalid:1": "h.invalid:1", "a": "h.invalid:5", "b": "h.invalid:2"},
        {**NODES, "h.invalid:1": "h.invalid:1"},
    ],
    ids=["one missing", "one more", "another one", "one twice", "one by name and by address", "all, and one twice"],
)
def test_storage_nodes_that_the_cluster_does_not_have(given: dict[str, str]) -> None:
    with pytest.raises(
        BadOption, match=r"a=h.invalid:1, b=h.invalid:2, h.invalid:3, but --storage has .*polonaise storage move"
    ):
        check_storage_nodes(DESCRIPTION, given)


def test_a_node_that_is_elsewhere_by_the_option_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    check_storage_nodes(DESCRIPTION, NODES)
    assert caplog.text == ""
    check_storage_nodes(DESCRIPTION, {**NODES, "a": "h.invalid:9"})
    assert "polonaise storage move a h.invalid:9" in caplog.text


# ---------------------------------------------------------------------- storage move


async def _move(town: Town, name: str, address: str) -> None:
    await town.operator(lambda host, coordinator: move_storage(host, coordinator, name, address, 2.0))


@in_a_town
async def test_a_move_that_can_not_be(town: Town) -> None:
    before = town.cluster.service.snapshot()["description"]
    mistakes: list[tuple[str, str, type[PolonaiseError], str]] = [
        ("storage-9", "storage-1:9001", UnknownStorageNode, "storage-0:9000, storage-1:9000, storage-2:9000"),
        ("storage-1:9000", "storage-2:9000", BadOption, "is the address of storage node storage-2:9000"),
        ("storage-1:9000", "storage-2", BadOption, "not an address"),
        ("storage-1:9000", "storage-2:0", BadOption, "port 0"),
    ]
    for name, address, kind, naming in mistakes:
        with pytest.raises(kind, match=naming):
            await _move(town, name, address)
    assert town.cluster.service.snapshot()["description"] == before


@in_a_town
async def test_a_move_to_where_another_node_answers(town: Town) -> None:
    await town.application("writer", lambda log: log.append(b"1", 0))
    town.cluster.places["storage-2"] = "storage-2:9001"
    town.cluster.storage[2].crash()
    await asyncio.sleep(5)
    before = town.cluster.service.snapshot()["description"]
    with raises_code(
        "wrong_storage_node", match=r"storage node storage-2:9000 answers at storage-2:9001.*swapped: swap"
    ):
        await _move(town, "storage-1:9000", "storage-2:9001")
    with pytest.raises(WrongRole, match=r"no storage node answers at server-0:7000, but a node of another kind"):
        await _move(town, "storage-1:9000", "server-0:7000")
    assert town.cluster.service.snapshot()["description"] == before


@in_a_town
async def test_a_description_that_two_operators_edit_at_once_has_both_changes(town: Town) -> None:
    await asyncio.gather(
        _move(town, "storage-1:9000", "storage-1:9001"), _move(town, "storage-2:9000", "storage-2:9002")
    )
    described = await town.operator(lambda _, coordinator: coordinator.description())
    assert described == Versioned(
        2, town.cluster.description.moved("storage-1:9000", "storage-1:9001").moved("storage-2:9000", "storage-2:9002")
    )


@asynccontextmanager
async def _node_beside_a_cluster(
    directory: Path, settings: StorageSettings
) -> AsyncIterator[tuple[Host, Coordinator, StorageNode]]:
    """Run a storage node, and open the coordinator of a cluster of which no node runs."""
    async with opened_coordinator(f"file:{directory / 'coordinator'}") as (host, coordinator):
        await coordinator.initialize(DESCRIPTION)
        node = StorageNode(host, settings)
        await node.start()
        try:
            yield host, coordinator, node
        finally:
            await node.close()


async def test_a_move_to_a_node_with_another_clusters_disk(tmp_path: Path) -> None:
    settings = StorageSettings(str(tmp_path / "disk"), cluster_key=b"o" * 16)
    async with _node_beside_a_cluster(tmp_path, settings) as (host, coordinator, node):
        with pytest.raises(WrongClusterKey):
            await move_storage(host, coordinator, "a", node.address, 5.0)
        assert await coordinator.description() == Versioned(0, DESCRIPTION)


@pytest.mark.slow
async def test_a_move_to_an_empty_disk_is_warned_of_while_the_cluster_has_copies_on_the_node(tmp_path: Path) -> None:
    settings = StorageSettings(str(tmp_path / "disk"), name="a")
    async with _node_beside_a_cluster(tmp_path, settings) as (host, coordinator, node):
        move = ("storage", "move", "a", node.address, "--coordinator", f"file:{tmp_path / 'coordinator'}")
        said = await asyncio.to_thread(run_polonaise, *move)
        assert said.returncode == 0, said.stderr
        assert "WARNING: it answers there with an empty disk" in said.stdout
        assert "the cluster has copies of 1 partition on it" in said.stdout
        assert (await move_storage(host, coordinator, "a", node.address, 5.0)).copies_missing == 1
        held = await coordinator.partition(0)
        assert await coordinator.set_partition(0, replace(held.value, members=("b", "h.invalid:3")), held.version)
        assert (await move_storage(host, coordinator, "a", node.address, 5.0)).copies_missing == 0


def test_a_move_in_no_cluster_and_by_no_coordinator(shell: Shell, tmp_path: Path) -> None:
    shell.refuses(
        "storage", "move", "a", "h.invalid:1", code="bad_option", naming="no cluster is named: give --coordinator"
    )
    where = ("--coordinator", f"file:{tmp_path / 'none'}")
    shell.refuses("storage", "move", "a", "h.invalid:1", *where, code="not_initialized", naming="no cluster")


def test_a_storage_node_with_a_name_that_is_none(shell: Shell, tmp_path: Path) -> None:
    run = ("storage", "run", "--directory", tmp_path / "disk", "--name", "no name")
    shell.refuses(*run, code="bad_option", naming="invalid name of a storage node 'no name'")
    assert not (tmp_path / "disk").exists()


def run_of(node: str, made: Path) -> tuple[object, ...]:
    """The command that runs a node, which would make this directory."""
    if node == "storage":
        return "storage", "run", "--directory", made
    return "server", "run", "--coordinator", f"file:{made}", "--storage", "127.0.0.1:7100"


def of_monitoring() -> set[str]:
    return {name for name in sys.modules if name.startswith("polonaise.node.monitoring")}


@pytest.mark.parametrize("library", ["aiohttp", "prometheus_client"])
@pytest.mark.parametrize("node", ["storage", "server"])
def test_http_without_its_library(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str, node: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    before = of_monitoring()
    for module in before:
        monkeypatch.delitem(sys.modules, module)
    made = tmp_path / "made"
    run = run_of(node, made)
    shell.refuses(*run, "--http", "9101", code="extra_missing", naming="pip install 'polonaise[metrics]'")
    assert not made.exists()
    for module in of_monitoring() - before:  # else some modules would have another list of metrics than others
        del sys.modules[module]


@pytest.mark.parametrize("node", ["storage", "server"])
def test_an_http_port_in_use(shell: Shell, tmp_path: Path, node: str) -> None:
    made = tmp_path / "made"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        shell.refuses(*run_of(node, made), "--http", port, code="address_in_use", naming=f"127.0.0.1:{port}")
    assert not made.exists()


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:99999", "999999", ""])
def test_an_invalid_http_address(shell: Shell, tmp_path: Path, address: str) -> None:
    made = tmp_path / "made"
    shell.refuses("storage", "run", "--directory", made, "--http", address, code="bad_option", naming="host:port")
    assert not made.exists()


def test_an_unknown_log_format(shell: Shell, tmp_path: Path) -> None:
    said = shell.run("storage", "run", "--directory", tmp_path / "made", "--log-format", "xml")
    assert said.status == 2
    assert "--log-format" in said.errors
    assert not (tmp_path / "made").exists()


class Accounts(SqlView):
    def apply(self, tx: Transaction, db: Connection) -> None: ...


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("charset=nope", "unknown charset 'nope' in .*: write charset=utf8mb4"),
        ("conv=nope", "can't connect to .* correct the options of the URL"),
        ("ssl=nope", "can't connect to .* correct the options of the URL"),
        ("nope=1", "can't connect to .* correct the options of the URL"),
        ("read_timeout=nope", "invalid literal for int.*'nope'; correct the URL"),
    ],
)
async def test_an_option_that_a_driver_fails_on_is_told_by_the_url(query: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        Accounts(f"mariadb+pymysql://bank:p@127.0.0.1:1/db?{query}").prepare()


async def test_a_charset_that_the_driver_knows_is_taken() -> None:
    made = Accounts("mariadb+pymysql://bank:p@127.0.0.1:1/db?charset=latin1")
    with pytest.raises(ViewUnavailable, match=r"charset=latin1.*refused"):
        made.prepare()


@pytest.mark.parametrize(
    ("texts", "ids"),
    [
        (["0=100"], {0: 100}),
        (["0=100,1=57"], {0: 100, 1: 57}),
        (["0=100", "1=57, 2=-1"], {0: 100, 1: 57, 2: -1}),
        ([f"0={2**63 - 1}"], {0: 2**63 - 1}),
    ],
)
def test_ids_by_partition(texts: list[str], ids: dict[int, int]) -> None:
    assert ids_of(texts) == ids


@pytest.mark.parametrize(
    "text",
    ["", "100", "0=", "=5", "0=100,", "0:100", "a=1", "0=-2", "-1=0", "0=1.5", f"0={2**63}", f"{2**31}=0", "0=٣"],
)
def test_what_is_no_id_of_a_partition(text: str) -> None:
    with pytest.raises(BadOption, match="write 0=100"):
        ids_of([text])


def test_a_partition_that_is_named_twice() -> None:
    with pytest.raises(BadOption, match="partition 0 is given twice"):
        ids_of(["0=1", "0=1"])
