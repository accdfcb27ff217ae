"""What `cluster start` and `cluster status` are given by mistake: nothing is started, and nothing is changed.

And what a server is told of a cluster that is there.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from polonaise.admin import zookeeper
from polonaise.admin.localplan import PLAN, LocalPlan, Wanted, plan_in, write_plan
from polonaise.errors import AddressInUse, BadOption, JavaMissing
from polonaise.host.address import HostPort, parse_address
from polonaise.host.files import try_lock
from polonaise.node.local import ChildNode, LocalCluster, StartFailed
from rigs.shell import Shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
FILE = "--file-coordinator"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "d"


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def planned(directory: Path, **wanted: object) -> LocalPlan:
    """Make the directory of a cluster that was started once."""
    directory.mkdir()
    plan = LocalPlan.new(Wanted(**{"coordinator": "file", "storage": 3, "partitions": 4, **wanted}))  # type: ignore[arg-type]
    write_plan(directory, plan)
    return plan


# ---------------------------------------------------------------------- cluster start


def test_no_directory(shell: Shell) -> None:
    shell.refuses("cluster", "start", FILE, code="bad_option", naming="--directory is not given")
    shell.refuses("cluster", "start", FILE, "--directory", "", code="bad_option", naming="--directory is empty")


@pytest.mark.parametrize(
    ("name", "naming"),
    [
        ("polonaise-embedded", "is an embedded log (embedded:"),
        ("polonaise-storage.ctl", "is the directory of a storage node"),
        ("photos.zip", "it holds photos.zip"),
    ],
)
def test_a_directory_of_another_kind(shell: Shell, directory: Path, name: str, naming: str) -> None:
    directory.mkdir()
    (directory / name).write_bytes(b"precious")
    shell.refuses("cluster", "start", FILE, "--directory", directory, code="bad_option", naming=naming)
    assert contents(directory) == {str(directory / name): b"precious"}


def test_a_directory_that_is_a_file(shell: Shell, directory: Path) -> None:
    directory.write_text("")
    shell.refuses("cluster", "start", FILE, "--directory", directory, code="not_a_directory")
    shell.refuses("cluster", "start", FILE, "--directory", directory / "below", code="not_a_directory")


def test_a_port_that_another_process_has(shell: Shell, directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        shell.refuses(
            "cluster", "start", FILE, "--directory", directory, "--port", port, code="address_in_use", naming=str(port)
        )
    assert not directory.exists()


def test_an_address_that_cannot_be_listened_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadOption, match=r"can't listen at 192\.0\.2\.1:7000: .*: name an address of this machine"):
        zookeeper.check_free(HostPort("192.0.2.1", 7000))

    class Refusing(socket.socket):
        def bind(self, address: object) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(BadOption, match=r"can't listen at 127\.0\.0\.1:80: Permission denied: choose a port from 1024"):
        zookeeper.check_free(HostPort("127.0.0.1", 80))


def test_a_port_of_the_cluster_that_another_process_has_by_now(shell: Shell, directory: Path) -> None:
    plan = planned(directory)
    address = list(plan.every_address())[-1]  # a server
    before = contents(directory)
    with socket.create_server((address.host, address.port)):
        shell.refuses("cluster", "start", "--directory", directory, code="address_in_use", naming=str(address))
        with pytest.raises(AddressInUse, match="move the servers and the coordinator with --port"):
            plan.check_free()
        moved = plan.started_again(Wanted(port=plan_port()))
        moved.check_free()
        assert moved.addresses.storage == plan.addresses.storage
        assert str(address) not in moved.addresses.servers
        assert len(moved.addresses.servers) == len(plan.addresses.servers)
    assert before.items() <= contents(directory).items()


def plan_port() -> int:
    """Return the first of some ports in a row that are free."""
    first = parse_address(LocalPlan.new(Wanted("file")).addresses.servers[0])
    assert isinstance(first, HostPort)
    return first.port


def test_a_port_of_a_storage_node_that_another_process_has_by_now(directory: Path) -> None:
    plan = planned(directory)
    address = next(plan.every_address())
    with socket.create_server((address.host, address.port)), pytest.raises(AddressInUse, match="storage nodes keep"):
        plan.check_free()
    with pytest.raises(BadOption, match="own storage node has"):
        plan.started_again(Wanted(port=address.port))


def test_a_zookeeper_moves_with_its_servers() -> None:
    plan = LocalPlan.new(Wanted("zookeeper"))
    moved = plan.started_again(Wanted(port=plan_port(), servers=1))
    first = parse_address(moved.addresses.servers[0])
    assert isinstance(first, HostPort)
    assert moved.addresses.zookeeper == str(HostPort(first.host, first.port + 1))


def test_a_first_start_that_fails_leaves_no_cluster(
    shell: Shell, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLONAISE_TLS_CA", str(directory.parent / "missing.pem"))
    monkeypatch.setenv("POLONAISE_TLS_CERTIFICATE", str(directory.parent / "missing.pem"))
    monkeypatch.setenv("POLONAISE_TLS_KEY", str(directory.parent / "missing.pem"))
    said = shell.run("cluster", "start", FILE, "--directory", directory, "--storage", "1", "--servers", "1")
    assert said.status == 1
    assert not (directory / PLAN).exists()
    assert plan_in(directory) is None, "another start may want something else"


def test_ports_beyond_the_last_one(shell: Shell, directory: Path) -> None:
    assert shell.run("cluster", "start", FILE, "--directory", directory, "--port", 65_535).status == 2
    with pytest.raises(BadOption, match="there are none above 65535"):
        LocalPlan.new(Wanted("file", 600, 100, 1, 65_000))
    assert not directory.exists()


def test_a_second_cluster_in_one_directory(shell: Shell, directory: Path) -> None:
    planned(directory)
    lock = try_lock(str(directory / "lock"))
    try:
        shell.refuses("cluster", "start", "--directory", directory, code="directory_in_use", naming="lock")
    finally:
        lock.release()


@pytest.mark.parametrize(
    ("options", "naming"),
    [
        (["--storage", "4"], "storage nodes can't be changed to 4: it was made with 3"),
        (["--partitions", "8"], "partitions can't be changed to 8: it was made with 4"),
        (["--zookeeper"], "coordinator can't be changed to zookeeper: it was made with file"),
    ],
)
def test_what_a_cluster_can_not_become(shell: Shell, directory: Path, options: list[str], naming: str) -> None:
    planned(directory)
    before = contents(directory)
    shell.refuses("cluster", "start", "--directory", directory, *options, code="bad_option", naming=naming)
    assert contents(directory) == before


def test_no_zookeeper_here(shell: Shell, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise JavaMissing("there is no Java")

    monkeypatch.setattr(zookeeper, "check_installed", missing)
    shell.refuses("cluster", "start", "--directory", directory, code="java_missing", naming="--file-coordinator")
    assert not directory.exists()


def test_zookeeper_without_its_library(shell: Shell, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "check_installed", lambda: None)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    monkeypatch.delitem(sys.modules, "polonaise.coordination.zookeeper", raising=False)
    shell.refuses("cluster", "start", "--directory", directory, code="extra_missing", naming="polonaise[zookeeper]")
    assert not directory.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"junk",
        b"[]",
        b"{}",
        b'{"format": 1}',
        b'{"format": "x"}',
        b'{"format": 1, "partitions": 4, "addresses": {"storage": [], "servers": [], "zookeeper": null}}',
        b'{"format": 1, "partitions": 4, "addresses": {"storage": ["a"], "servers": ["b"], "zookeeper": null}}',
        b'{"format": 1, "partitions": 4, "addresses": {"storage": "a:1", "servers": ["b:1"], "zookeeper": null}}',
        b'{"format": 1, "partitions": 4, "addresses": {"storage": ["unix:/a"], "servers": ["b:1"], "zookeeper": null}}',
    ],
)
def test_a_damaged_file_of_the_cluster(shell: Shell, directory: Path, raw: bytes) -> None:
    directory.mkdir()
    (directory / PLAN).write_bytes(raw)
    shell.refuses("cluster", "start", "--directory", directory, code="cluster_file_damaged", naming=PLAN)
    assert contents(directory) == {str(directory / PLAN): raw}


def test_a_file_of_a_newer_version(shell: Shell, directory: Path) -> None:
    directory.mkdir()
    (directory / PLAN).write_text(json.dumps({"format": 2}))
    shell.refuses("cluster", "start", "--directory", directory, code="unsupported_format", naming="newer")


def test_a_node_that_is_killed_before_it_listens_is_said_to_be(tmp_path: Path) -> None:
    for printed, end in (("", "$"), ("echo words >&2; ", r"\. The end of its log: words$")):
        killed = ChildNode("storage 0", [], tmp_path / "log", prefix=["sh", "-c", f"{printed}kill -9 $$"])
        with pytest.raises(StartFailed, match=f"storage 0 did not start: it was killed by SIGKILL{end}"):
            killed.start()


def test_a_node_that_does_not_start_ends_the_command_and_is_quoted(shell: Shell, directory: Path) -> None:
    planned(directory, storage=1, servers=1)
    (directory / "storage-0").write_text("no directory")
    said = shell.run("cluster", "start", "--directory", directory)
    assert said.status == 1
    assert "[start_failed] storage 0 did not start" in said.errors
    assert "not_a_directory" in said.errors
    assert said.output.endswith("stopping\n")


@pytest.mark.parametrize("kind", ["etcd", "File"])
def test_a_coordinator_of_no_kind_in_the_environment(
    shell: Shell, directory: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLONAISE_CLUSTER_COORDINATOR", kind)
    shell.refuses("cluster", "start", "--directory", directory, code="bad_option", naming="zookeeper or file")


# ---------------------------------------------------------------------- cluster status, and lists

LOOKS = [("cluster", "status"), ("server", "list"), ("storage", "list"), ("partition", "list")]


@pytest.mark.parametrize(
    "command",
    [
        *LOOKS,
        ("cluster", "require", "--copies", 2),
        ("storage", "zone", "a", "north"),
        ("partition", "reset-head", 0),
    ],
    ids=lambda command: " ".join(map(str, command[:2])),
)
def test_no_cluster_is_named(shell: Shell, command: tuple[object, ...]) -> None:
    shell.refuses(*command, code="bad_option", naming="no cluster is named: give --coordinator")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize(
    ("address", "naming"),
    [("etcd://a:1/b", "unknown kind"), ("zookeeper://a:1", "root of its own"), ("nonsense", "zookeeper://HOST:PORT")],
)
def test_an_address_that_is_none(shell: Shell, look: tuple[str, str], address: str, naming: str) -> None:
    shell.refuses(*look, "--coordinator", address, code="bad_option", naming=naming)


@pytest.mark.parametrize("look", LOOKS)
def test_a_coordinator_without_a_cluster(shell: Shell, look: tuple[str, str], tmp_path: Path) -> None:
    shell.refuses(*look, "--coordinator", f"file:{tmp_path / 'nothing'}", code="not_initialized", naming="no cluster")
    assert os.listdir(tmp_path) == []


def test_no_zookeeper_at_the_address(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"zookeeper://127.0.0.1:{taken.getsockname()[1]}/bank"
    said = shell.run("cluster", "status", "--coordinator", nobody, "--timeout", "1")
    assert said.status == 1
    assert "FAILED" in said.output
    assert "coordinator_unavailable" in said.output
    assert "Traceback" not in said.errors
    shell.refuses("server", "list", "--coordinator", nobody, "--timeout", "1", code="coordinator_unavailable")


def test_a_wrong_root(shell: Shell) -> None:
    from rigs.zookeeper import ensemble

    address = f"zookeeper://{ensemble().hosts}/no-cluster-here"
    shell.refuses("cluster", "status", "--coordinator", address, code="not_initialized", naming="no-cluster-here")


# ---------------------------------------------------------------------- server run beside a cluster


def test_another_number_of_partitions_than_the_cluster_has_is_refused(shell: Shell, tmp_path: Path) -> None:
    with LocalCluster(tmp_path, partitions=2) as cluster:
        command = ("server", "run", "--coordinator", cluster.coordinator, "--partitions", 4)
        shell.refuses(*command, code="bad_option", naming="2 partitions")
