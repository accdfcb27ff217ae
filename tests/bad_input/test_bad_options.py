"""What the command line is given by mistake: one line with a code and advice, exit status not 0, and nothing changed.

Run in this process, through the command's own entry: none of these gets as far as serving.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from zlib import crc32

import pytest
import typer.main

from polonaise.cli.exitstatus import ExitStatus
from polonaise.coordination.file import coordinator_in
from polonaise.coordination.values import ClusterDescription
from polonaise.host.real import RealHost
from polonaise.log.control import encode_header
from rigs.observed import observed_storage
from rigs.programs import run_polonaise, start_polonaise
from rigs.shell import Shell

CONTROL = "polonaise-storage.ctl"


# A command that serves after all is a failure, not a test that hangs.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(20)]


STORAGE = "127.0.0.1:7100,127.0.0.1:7101,127.0.0.1:7102"


def started(kind: str, directory: Path) -> list[str]:
    if kind == "server":
        return ["server", "run", "--coordinator", f"file:{directory}/c", "--storage", STORAGE]
    return [kind, "run", "--directory", str(directory / "s")]


# ---------------------------------------------------------------------- server run


@pytest.mark.parametrize(
    ("address", "naming"),
    [
        ("etcd://127.0.0.1:2379/bank", "file:PATH"),
        ("/a/path", "file:PATH"),
        ("file:", "file:PATH"),
        ("", "--coordinator is empty"),
        ("zookeeper:127.0.0.1:2181/bank", "zookeeper://HOST:PORT"),
        ("zookeeper://127.0.0.1:2181", "root of its own"),
        ("zookeeper://127.0.0.1:2181/", "root of its own"),
        ("zookeeper://127.0.0.1:2181//bank", "root of its own"),
        ("zookeeper://127.0.0.1:2181/../bank", "root of its own"),
        ("zookeeper:///bank", "zookeeper://HOST:PORT"),
        ("zookeeper://127.0.0.1/bank", "write host:port"),
        ("zookeeper://127.0.0.1:0/bank", "port above 0"),
        ("zookeeper://127.0.0.1:2181,/bank", "write host:port"),
        ("zookeeper://user:pass@127.0.0.1:x/bank", "names no HOST:PORT"),
    ],
)
def test_an_invalid_address_of_a_coordinator(shell: Shell, address: str, naming: str) -> None:
    shell.refuses("server", "run", "--coordinator", address, "--storage", STORAGE, code="bad_option", naming=naming)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 101, "ü"])
def test_a_group_that_can_t_be_is_neither_reset_nor_described(shell: Shell, name: str) -> None:
    shell.cluster()
    naming = "a group's name has 1 to 100 letters"
    shell.refuses("group", "reset", name, "memory:log", "--to", "end", "--new", code="bad_option", naming=naming)
    shell.refuses("group", "describe", name, "memory:log", code="bad_option", naming=naming)
    assert shell.run("log", "registers", "memory:log").rows == []


@pytest.mark.parametrize("listen", ["0.0.0.0:7000", "[::]:7000", "0:0", "[0:0:0:0:0:0:0:0]:0", "[::ffff:0.0.0.0]:7000"])
def test_a_server_at_an_address_that_nobody_can_connect_to(shell: Shell, tmp_path: Path, listen: str) -> None:
    naming = "Give the address under which they reach it"
    shell.refuses(*started("server", tmp_path), "--listen", listen, code="bad_option", naming=naming)
    assert not (tmp_path / "c").exists()


def test_zookeeper_without_its_library(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    monkeypatch.delitem(sys.modules, "polonaise.coordination.zookeeper", raising=False)
    shell.refuses(
        "server", "run", "--coordinator", "zookeeper://127.0.0.1:2181/bank", "--storage", STORAGE,
        code="extra_missing", naming="pip install 'polonaise[zookeeper]'",
    )  # fmt: skip


# ---------------------------------------------------------------------- zookeeper run


@pytest.mark.parametrize("servers", [2, 4])
def test_an_even_number_of_zookeeper_servers(shell: Shell, tmp_path: Path, servers: int) -> None:
    directory = tmp_path / "zookeeper"
    shell.refuses(
        "zookeeper", "run", "--directory", directory, "--ensemble", servers, code="bad_option", naming="odd number"
    )
    assert not directory.exists()


@pytest.mark.parametrize(
    ("address", "naming"),
    [
        ("nonsense", "nonsense"),
        ("127.0.0.1:99999", "127.0.0.1:99999"),
        ("unix:/tmp/zookeeper", "unix:/tmp/zookeeper"),
        ("8.8.8.8:2181", "can't listen at 8.8.8.8: Cannot assign requested address: name an address of this machine"),
    ],
)
def test_an_invalid_address_of_a_zookeeper_server(shell: Shell, tmp_path: Path, address: str, naming: str) -> None:
    shell.refuses(*started("zookeeper", tmp_path), "--listen", address, code="bad_option", naming=naming)


def test_a_zookeeper_server_in_a_directory_that_cannot_be_made(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shell.refuses(
        "zookeeper", "run", "--directory", tmp_path / "file", "--listen", "127.0.0.1:0",
        code="not_a_directory", naming=str(tmp_path / "file"),
    )  # fmt: skip


def test_a_storage_node_that_is_listed_twice(shell: Shell, tmp_path: Path) -> None:
    twice = "127.0.0.1:7100,127.0.0.1:7101, 127.0.0.1:7100"
    shell.refuses(
        "server", "run", "--coordinator", f"file:{tmp_path}/c", "--storage", twice, code="bad_option", naming="twice"
    )
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "address", ["nonsense", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:0", "::1:7100", "a..b:7100", "unix:"]
)
def test_an_invalid_storage_address_makes_no_cluster(shell: Shell, tmp_path: Path, address: str) -> None:
    """A description is written once: a cluster that names a node which can't exist is one that never works."""
    shell.refuses(
        "server", "run", "--coordinator", f"file:{tmp_path}/c", "--storage", f"127.0.0.1:7100,{address}",
        code="bad_option", naming=address,
    )  # fmt: skip
    assert not (tmp_path / "c").exists()


def made_in(directory: Path) -> None:
    """Make a cluster of storage nodes that do not run."""
    host = RealHost()

    async def make() -> None:
        coordinator = coordinator_in(host, f"{directory}/c")
        await coordinator.initialize(ClusterDescription(bytes(range(16)), 1, tuple(STORAGE.split(","))))
        await coordinator.close()

    asyncio.run(make())
    host.close()


def test_a_server_without_a_cluster_makes_none(shell: Shell, tmp_path: Path) -> None:
    for storage in ((), ("--storage", "127.0.0.1:1")):
        command = ("server", "run", "--coordinator", f"file:{tmp_path}/c", *storage)
        shell.refuses(*command, code="not_initialized", naming="polonaise cluster create")
    assert not (tmp_path / "c").exists()


def test_a_cluster_without_storage_nodes(shell: Shell, tmp_path: Path) -> None:
    shell.refuses("cluster", "create", "--coordinator", f"file:{tmp_path}/c", code="bad_option", naming="--storage")
    assert not (tmp_path / "c").exists()


def test_a_cluster_of_storage_nodes_that_do_not_answer(shell: Shell, tmp_path: Path) -> None:
    command = ("cluster", "create", "--coordinator", f"file:{tmp_path}/c", "--storage", "a=127.0.0.1:1")
    shell.refuses(*command, code="connection_lost", naming="no cluster was made")
    assert not (tmp_path / "c").exists()


def test_a_cluster_where_there_is_one(shell: Shell, tmp_path: Path) -> None:
    made_in(tmp_path)
    command = ("cluster", "create", "--coordinator", f"file:{tmp_path}/c", "--storage", STORAGE)
    shell.refuses(*command, code="already_initialized", naming="holds a cluster")


def test_storage_nodes_that_are_not_the_clusters(shell: Shell, tmp_path: Path) -> None:
    arguments = ["server", "run", "--coordinator", f"file:{tmp_path}/c", "--listen", "8.8.8.8:1", "--storage"]
    made_in(tmp_path)
    shell.refuses(*arguments, STORAGE, code="bad_option", naming="8.8.8.8")
    other = STORAGE.replace("7100", "7999")
    shell.refuses(*arguments, other, code="bad_option", naming="127.0.0.1:7100")


@pytest.mark.parametrize("count", ["0", "-1", "4097", "many"])
def test_partitions_out_of_range(shell: Shell, tmp_path: Path, count: str) -> None:
    status, _, errors = shell.run(*started("server", tmp_path), "--partitions", count)
    assert status == 2, "a usage error, told by the command line itself"
    assert "--partitions" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "c").exists()


def test_a_coordinator_that_is_no_directory(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a file")
    for path in (f"{tmp_path}/c", f"{tmp_path}/c/below"):
        shell.refuses(
            "server", "run", "--coordinator", f"file:{path}", "--storage", STORAGE,
            code="bad_option", naming=f"{path} is not a directory",
        )  # fmt: skip


async def test_a_coordinator_where_no_directory_can_be_made(shell: Shell, tmp_path: Path) -> None:
    async with observed_storage(tmp_path) as node:
        ended = await asyncio.to_thread(
            run_polonaise, "cluster", "create", "--coordinator", "file:/proc/nope", "--storage", node.address
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("polonaise: [coordinator_unavailable] ")
    assert "can't be made" in ended.stderr


def test_a_damaged_coordinator(shell: Shell, tmp_path: Path) -> None:
    arguments = [*started("server", tmp_path), "--listen", "8.8.8.8:1"]
    made_in(tmp_path)
    description = tmp_path / "c" / "description"
    description.write_bytes(description.read_bytes().replace(b"7100", b"7200"))
    shell.refuses(*arguments, code="coordinator_damaged", naming="description")


# ---------------------------------------------------------------------- storage run


@pytest.mark.parametrize("kind", ["storage", "server"])
@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999", "::1:1", "unix:"])
def test_an_invalid_address_to_listen_on(shell: Shell, tmp_path: Path, kind: str, address: str) -> None:
    shell.refuses(*started(kind, tmp_path), "--listen", address, code="bad_option", naming=address)
    assert list(tmp_path.iterdir()) == []


def test_an_address_of_another_machine_leaves_no_directory(shell: Shell, tmp_path: Path) -> None:
    shell.refuses(*started("storage", tmp_path), "--listen", "8.8.8.8:1", code="bad_option", naming="8.8.8.8:1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["storage", "server", "zookeeper"])
def test_a_port_in_use(shell: Shell, tmp_path: Path, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        made_in(tmp_path)
        shell.refuses(*started(kind, tmp_path), "--listen", address, code="address_in_use", naming=address)
    assert kind == "zookeeper" or not (tmp_path / "s").exists()


@pytest.mark.parametrize("below", ["", "/deeper"])
def test_a_directory_that_cannot_be_written(shell: Shell, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    directory = f"{tmp_path}/file{below}"
    shell.refuses("storage", "run", "--directory", directory, code="not_a_directory", naming=directory)
    assert (tmp_path / "file").read_text() == "not a directory"


def test_a_directory_that_cannot_be_made(shell: Shell) -> None:
    shell.refuses("storage", "run", "--directory", "/proc/nope", code="disk_failed", naming="can't be made")


def test_a_directory_that_may_not_be_made(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:  # the tests may run as root, who may do everything
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "makedirs", refuse)
    shell.refuses(*started("storage", tmp_path), code="access_denied", naming="let the user")


def test_an_empty_name_is_not_the_working_directory(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shell.refuses("storage", "run", "--directory", "", code="bad_option", naming="--directory")
    assert list(tmp_path.iterdir()) == []


def test_partitions_without_their_control_file(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    shell.refuses(
        "storage", "run", "--directory", tmp_path, code="control_file_missing", naming=f"{tmp_path} without {CONTROL}"
    )
    assert [path.name for path in tmp_path.iterdir() if path.name != "disk.lock"] == ["0"]


@pytest.mark.parametrize("raw", [b"", b"noise" * 200, bytes(512)], ids=["empty", "noise", "zeros"])
def test_a_damaged_control_file(shell: Shell, tmp_path: Path, raw: bytes) -> None:
    (tmp_path / CONTROL).write_bytes(raw)
    shell.refuses(
        "storage", "run", "--directory", tmp_path, code="control_file_damaged", naming=f"{tmp_path}/{CONTROL}"
    )
    assert (tmp_path / CONTROL).read_bytes() == raw, "what is refused is left as it is"


def test_a_directory_of_another_format(shell: Shell, tmp_path: Path) -> None:
    raw = bytearray(encode_header(bytes(16), 0))
    raw[4] = 9
    raw[124:128] = crc32(raw[:124]).to_bytes(4, "little")
    (tmp_path / CONTROL).write_bytes(bytes(raw))
    naming = f"{tmp_path}/{CONTROL} is of storage format 9"
    shell.refuses("storage", "run", "--directory", tmp_path, code="unsupported_format", naming=naming)
    assert (tmp_path / CONTROL).read_bytes() == bytes(raw)


def test_a_directory_that_another_process_has(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / CONTROL).write_bytes(encode_header(bytes(range(16)), 0))
    arguments = ["storage", "run", "--directory", str(tmp_path)]
    with start_polonaise(*arguments, stderr=None) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline().startswith("listening ")
            shell.refuses(*arguments, code="directory_in_use", naming=str(tmp_path))
        finally:
            first.terminate()
    assert first.returncode == 0


# ---------------------------------------------------------------------- demo


HEADER = "trans_id,account_id,date,direction,operation,amount,balance,purpose\n"


@pytest.mark.parametrize(
    ("content", "naming"),
    [
        pytest.param("a,b\n1,2\n", "trans_id", id="no columns"),
        pytest.param("", "trans_id", id="empty"),
        pytest.param(HEADER, "no valid payment", id="no rows"),
        pytest.param(HEADER + "x,1,d,credit,o,1,1,\n", "line 2", id="malformed rows only"),
        pytest.param("\xff\xfe\x00", "not a file of payments", id="not text"),
    ],
)
def test_a_file_that_holds_no_payments(shell: Shell, tmp_path: Path, content: str, naming: str) -> None:
    path = tmp_path / "payments.csv"
    path.write_bytes(content.encode("latin-1"))
    shell.refuses("demo", "bank", "--payments", path, code="bad_option", naming=naming)


def test_a_file_of_payments_that_is_not_there(shell: Shell, tmp_path: Path) -> None:
    shell.refuses("demo", "bank", "--payments", tmp_path / "nowhere.csv", code="bad_option", naming="nowhere.csv")


def test_output_that_goes_nowhere(tmp_path: Path) -> None:
    for arguments in (["--version"], ["storage", "run", "--directory", str(tmp_path / "s")]):
        with open("/dev/full", "w") as full:
            ended = run_polonaise(*arguments, capture_output=False, stdout=full, stderr=subprocess.PIPE)
        assert ended.returncode == 1
        assert ended.stderr.startswith("polonaise: [bad_option] standard output can't be written: No space left")
        assert len(ended.stderr.splitlines()) == 1


def test_an_interruption_before_a_command_runs(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(typer.main, "get_command", interrupted)
    assert shell.run("--version") == (ExitStatus.INTERRUPTED, "", "")


def test_segments_too_large_to_be_files(shell: Shell, tmp_path: Path) -> None:
    status, _, errors = shell.run(*started("storage", tmp_path), "--segment-bytes", 10**24)
    assert (status, "--segment-bytes" in errors, "Traceback" in errors) == (2, True, False)
    assert list(tmp_path.iterdir()) == []


def test_storage_addresses_that_no_comma_parts(shell: Shell, tmp_path: Path) -> None:
    nodes = STORAGE.replace(",", ";")
    shell.refuses(
        "server", "run", "--coordinator", f"file:{tmp_path}/c", "--storage", nodes, code="bad_option", naming="comma"
    )


def test_the_version_is_told(shell: Shell) -> None:
    assert shell.run("--version") == (0, f"polonaise {version('polonaise')}\n", "")


@pytest.mark.parametrize(("command", "status"), [(("server", "run"), 78), (("cluster", "status"), 1)])
def test_as_a_process_a_refusal_is_an_exit_status_and_one_line(command: tuple[str, ...], status: int) -> None:
    ended = run_polonaise(*command, "--coordinator", "zookeeper:x")
    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr.startswith("polonaise: [bad_option] ")
    assert len(ended.stderr.splitlines()) == 1
