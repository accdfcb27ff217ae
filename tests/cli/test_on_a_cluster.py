"""The commands on real processes: beside a running node, in a pipe, and under Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polonaise.node.local import LocalCluster
from rigs.waiting import block_for

pytestmark = pytest.mark.slow
POLONAISE = [sys.executable, "-m", "polonaise.cli"]
ENDS_S = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*POLONAISE, *map(str, arguments)], capture_output=True, timeout=2 * ENDS_S, check=False, **options
    )


def start(*arguments: object) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*POLONAISE, *map(str, arguments)], stdin=pipe, stdout=pipe, stderr=pipe)


def end(process: subprocess.Popen[bytes], number: int = signal.SIGINT) -> tuple[int, bytes]:
    process.send_signal(number)
    _, errors = process.communicate(timeout=ENDS_S)
    return process.returncode, errors


def test_whoever_types_lines_sees_each_fate_and_control_c_ends_it(cluster: LocalCluster) -> None:
    typing = start("log", "append", cluster.coordinator)
    assert typing.stdin is not None
    assert typing.stdout is not None
    for line in (b"one\n", b"two\n"):
        typing.stdin.write(line)
        typing.stdin.flush()
        assert typing.stdout.readline().startswith(b"0 ")
    assert end(typing) == (130, b"")


def test_following_shows_what_comes_and_control_c_ends_it(cluster: LocalCluster) -> None:
    following = start("log", "tail", cluster.coordinator, "-n", 0, "-f", "--json")
    assert following.stdout is not None
    block_for(1.5)  # so that it follows by then, and has nothing to show
    assert run("log", "append", cluster.coordinator, "seen").returncode == 0
    assert json.loads(following.stdout.readline())["data"] == "seen"
    assert end(following) == (130, b"")


def test_a_reader_that_goes_away_is_no_fault(cluster: LocalCluster) -> None:
    lines = b"".join(b"%d\n" % number for number in range(20_000))
    assert run("log", "append", cluster.coordinator, input=lines).returncode == 0
    reading = start("log", "read", cluster.coordinator)
    assert reading.stdout is not None
    reading.stdout.readline()
    reading.stdout.close()
    with reading:
        assert reading.stderr is not None
        assert reading.stderr.read() == b""
        assert reading.wait(ENDS_S) == 141


def test_following_ends_when_its_reader_does_although_nothing_comes(cluster: LocalCluster) -> None:
    assert run("log", "append", cluster.coordinator, "x").returncode == 0
    with start("log", "tail", cluster.coordinator, "-n", 1, "-f", "--json") as following:
        assert following.stdout is not None
        following.stdout.readline()
        following.stdout.close()
        assert following.wait(ENDS_S) == 141
        assert following.stderr is not None
        assert following.stderr.read() == b""


def test_an_output_that_is_full_is_told_in_one_line(cluster: LocalCluster) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*POLONAISE, "log", "high-water-mark", cluster.coordinator],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=ENDS_S,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"polonaise: [disk_failed] standard output")
    assert len(done.stderr.splitlines()) == 1


def test_files_are_verified_while_their_node_writes_them(cluster: LocalCluster) -> None:
    writing = start("log", "append", cluster.coordinator)
    assert writing.stdin is not None
    try:
        for _ in range(8):
            writing.stdin.write(b"x" * 50_000 + b"\n" + b"y\n" * 200)
            writing.stdin.flush()
            for number in range(3):
                done = run("segment", "verify", cluster.directory / f"storage-{number}")
                assert (done.returncode, done.stderr) == (0, b""), done.stdout
    finally:
        assert end(writing)[0] == 130
    statistics = run("segment", "statistics", cluster.directory / "storage-0", "--json")
    assert statistics.returncode == 0
    assert json.loads(statistics.stdout.splitlines()[0])["transactions"] > 0


def test_a_standard_input_that_is_closed_is_told_in_one_line(cluster: LocalCluster) -> None:
    command = f"exec {' '.join(POLONAISE)} log append {cluster.coordinator} <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=2 * ENDS_S, check=False)
    assert done.returncode == 1
    assert done.stderr == b"polonaise: [disk_failed] standard input can't be read: it is closed\n"


def test_health_names_who_is_left_out_and_what_is_waited_for(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster") as own:
        assert run("log", "append", own.coordinator, "x").returncode == 0
        whole = run("log", "health", own.coordinator, "--json")
        assert (whole.returncode, len(json.loads(whole.stdout)["engaged"])) == (0, 3)
        own.storage[0].kill()
        deadline_s = time.monotonic() + ENDS_S
        while (degraded := run("log", "health", own.coordinator, "--json")).returncode != 3:
            assert time.monotonic() < deadline_s
        left = json.loads(degraded.stdout)
        assert (left["ready"], len(left["engaged"])) == (True, 2)
        assert list(left["left_out"]) == ["storage-0"]
        assert own.storage[0].address in left["left_out"]["storage-0"]
        own.storage[1].kill()
        while (lost := run("log", "health", own.coordinator)).returncode != 1:
            assert time.monotonic() < deadline_s
        assert b"NOT READY" in lost.stdout
        assert b"storage-1" in lost.stdout
