"""What the command line is given by mistake: one line with a code and advice, exit status not 0, and nothing changed.

Run in this process, through the command's own entry: none of these gets as far as serving.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

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


SERVER = "server run --coordinator file:{c} --storage 127.0.0.1:7100,127.0.0.1:7101"
STORAGE_NODE = "storage run --directory {s}"
ZOOKEEPER = "zookeeper run --directory {s}"
MISTAKES = [
    *(
        (f"server run --storage 127.0.0.1:7100 --coordinator {address}", "bad_option", naming)
        for address, naming in (
            ("etcd://127.0.0.1:2379/bank", "file:PATH"),
            ("/a/path", "file:PATH"),
            ("file:", "file:PATH"),
            ("''", "--coordinator is empty"),
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
            ("file:{file}", "{file} is not a directory"),
            ("file:{file}/below", "{file}/below is not a directory"),
        )
    ),
    *(
        (f"{SERVER} --listen {address}", "bad_option", "Give the address under which they reach it")
        for address in ("0.0.0.0:7000", "[::]:7000", "0:0", "[0:0:0:0:0:0:0:0]:0", "[::ffff:0.0.0.0]:7000")
    ),
    *(
        (f"server run --coordinator file:{{c}} --storage '127.0.0.1:7100,{address}'", "bad_option", naming)
        for address, naming in (
            # A description is written once: a cluster that names a node which can't exist is one that never works.
            *((each, each) for each in ("nonsense", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:0", "::1:7100")),
            *((each, each) for each in ("a..b:7100", "unix:")),
            ("127.0.0.1:7101, 127.0.0.1:7100", "twice"),
            ("127.0.0.1:7101;127.0.0.1:7102", "comma"),
        )
    ),
    *(
        (f"{command} --listen {address}", "bad_option", address)
        for command in (SERVER, STORAGE_NODE, ZOOKEEPER)
        for address in ("nonsense", "127.0.0.1:99999", "::1:1", "unix:")
    ),
    (f"{STORAGE_NODE} --listen 8.8.8.8:1", "bad_option", "8.8.8.8:1"),
    (f"{ZOOKEEPER} --listen 8.8.8.8:2181", "bad_option", "Cannot assign requested address: name an address of this"),
    *((f"{ZOOKEEPER} --ensemble {servers}", "bad_option", "odd number") for servers in (2, 4)),
    ("zookeeper run --listen 127.0.0.1:0 --directory {file}", "not_a_directory", "{file}"),
    ("cluster create --coordinator file:{c}", "bad_option", "--storage"),
    ("cluster create --coordinator file:{c} --storage a=127.0.0.1:1", "connection_lost", "no cluster was made"),
    ("storage run --directory {file}", "not_a_directory", "{file}"),
    ("storage run --directory {file}/deeper", "not_a_directory", "{file}/deeper"),
    ("storage run --directory /proc/nope", "disk_failed", "can't be made"),
    ("storage run --directory ''", "bad_option", "--directory"),
    ("demo bank --payments {c}.csv", "bad_option", "c.csv"),
]


@pytest.mark.parametrize(("command", "code", "naming"), MISTAKES)
def test_a_command_that_can_not_be_meant_makes_nothing(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: str, naming: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("a file")
    places = {"c": tmp_path / "c", "s": tmp_path / "s", "file": tmp_path / "file"}
    shell.refuses(*shlex.split(command.format(**places)), code=code, naming=naming.format(**places))
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file", "a file")]


@pytest.mark.parametrize("name", ["", "a/b", "x" * 101, "ü"])
def test_a_group_that_can_t_be_is_neither_reset_nor_described(shell: Shell, name: str) -> None:
    shell.cluster()
    naming = "a group's name has 1 to 100 letters"
    shell.refuses("group", "reset", name, "memory:log", "--to", "end", "--new", code="bad_option", naming=naming)
    shell.refuses("group", "describe", name, "memory:log", code="bad_option", naming=naming)
    assert shell.run("log", "registers", "memory:log").rows == []


def test_zookeeper_without_its_library(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    monkeypatch.delitem(sys.modules, "polonaise.coordination.zookeeper", raising=False)
    shell.refuses(
        "server", "run", "--coordinator", "zookeeper://127.0.0.1:2181/bank", "--storage", STORAGE,
        code="extra_missing", naming="pip install 'polonaise[zookeeper]'",
    )  # fmt: skip


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


async def test_a_coordinator_where_no_directory_can_be_made(shell: Shell, tmp_path: Path) -> None:
    async with observed_storage(tmp_path) as node:
        ended = await asyncio.to_thread(
            run_polonaise, "cluster", "create", "--coordinator", "file:/proc/nope", "--storage", node.address
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("polonaise: [coordinator_unavailable] ")
    assert "can't be made" in ended.stderr


@pytest.mark.parametrize("kind", ["storage", "server", "zookeeper"])
def test_a_port_in_use(shell: Shell, tmp_path: Path, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        made_in(tmp_path)
        shell.refuses(*started(kind, tmp_path), "--listen", address, code="address_in_use", naming=address)
    assert kind == "zookeeper" or not (tmp_path / "s").exists()


def test_a_directory_that_may_not_be_made(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:  # the tests may run as root, who may do everything
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "makedirs", refuse)
    shell.refuses(*started("storage", tmp_path), code="access_denied", naming="let the user")


@pytest.mark.parametrize("raw", [b"", b"noise" * 200, bytes(512)], ids=["empty", "noise", "zeros"])
def test_a_damaged_control_file(shell: Shell, tmp_path: Path, raw: bytes) -> None:
    (tmp_path / CONTROL).write_bytes(raw)
    shell.refuses(
        "storage", "run", "--directory", tmp_path, code="control_file_damaged", naming=f"{tmp_path}/{CONTROL}"
    )
    assert (tmp_path / CONTROL).read_bytes() == raw, "what is refused is left as it is"


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


def test_the_version_is_told(shell: Shell) -> None:
    assert shell.run("--version") == (0, f"polonaise {version('polonaise')}\n", "")


@pytest.mark.parametrize(("command", "status"), [(("server", "run"), 78), (("cluster", "status"), 1)])
def test_as_a_process_a_refusal_is_an_exit_status_and_one_line(command: tuple[str, ...], status: int) -> None:
    ended = run_polonaise(*command, "--coordinator", "zookeeper:x")
    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr.startswith("polonaise: [bad_option] ")
    assert len(ended.stderr.splitlines()) == 1
