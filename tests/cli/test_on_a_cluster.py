"""The commands on real processes: beside a running node, in a pipe, and under Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from polonaise.node.local import LocalCluster
from rigs.programs import POLONAISE, run_polonaise, run_program, start_polonaise
from rigs.shell import Shell
from rigs.waiting import block_for

pytestmark = pytest.mark.slow
ENDS_S = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def end(process: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[int, str]:
    process.send_signal(number)
    _, errors = process.communicate(timeout=ENDS_S)
    return process.returncode, errors


def test_whoever_types_lines_sees_each_fate_and_control_c_ends_it(cluster: LocalCluster) -> None:
    typing = start_polonaise("log", "append", cluster.coordinator)
    assert typing.stdin is not None
    assert typing.stdout is not None
    for line in ("one\n", "two\n"):
        typing.stdin.write(line)
        typing.stdin.flush()
        assert typing.stdout.readline().startswith("0 ")
    assert end(typing) == (130, "")


def test_following_shows_what_comes_and_control_c_ends_it(cluster: LocalCluster) -> None:
    following = start_polonaise("log", "tail", cluster.coordinator, "-n", 0, "-f", "--json")
    assert following.stdout is not None
    block_for(1.5)  # so that it follows by then, and has nothing to show
    assert run_polonaise("log", "append", cluster.coordinator, "seen").returncode == 0
    assert json.loads(following.stdout.readline())["data"] == "seen"
    assert end(following) == (130, "")


def test_a_reader_that_goes_away_is_no_fault(cluster: LocalCluster) -> None:
    lines = "".join(f"{number}\n" for number in range(20_000))
    assert run_polonaise("log", "append", cluster.coordinator, input=lines).returncode == 0
    reading = start_polonaise("log", "read", cluster.coordinator)
    assert reading.stdout is not None
    reading.stdout.readline()
    reading.stdout.close()
    with reading:
        assert reading.stderr is not None
        assert reading.stderr.read() == ""
        assert reading.wait(ENDS_S) == 141


def test_following_ends_when_its_reader_does_although_nothing_comes(cluster: LocalCluster) -> None:
    assert run_polonaise("log", "append", cluster.coordinator, "x").returncode == 0
    with start_polonaise("log", "tail", cluster.coordinator, "-n", 1, "-f", "--json") as following:
        assert following.stdout is not None
        following.stdout.readline()
        following.stdout.close()
        assert following.wait(ENDS_S) == 141
        assert following.stderr is not None
        assert following.stderr.read() == ""


def test_an_output_that_is_full_is_told_in_one_line(cluster: LocalCluster) -> None:
    with Path("/dev/full").open("wb") as full:
        command = ("log", "high-water-mark", cluster.coordinator)
        done = run_polonaise(*command, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.startswith("polonaise: [disk_failed] standard output")
    assert len(done.stderr.splitlines()) == 1


def test_files_are_verified_while_their_node_writes_them(cluster: LocalCluster, shell: Shell) -> None:
    writing = start_polonaise("log", "append", cluster.coordinator)
    assert writing.stdin is not None
    try:
        for _ in range(8):
            writing.stdin.write("x" * 50_000 + "\n" + "y\n" * 200)
            writing.stdin.flush()
            for number in range(3):
                done = shell.run("segment", "verify", cluster.directory / f"storage-{number}")
                assert (done.status, done.errors) == (0, ""), done.output
    finally:
        assert end(writing)[0] == 130
    statistics = shell.run("segment", "statistics", cluster.directory / "storage-0", "--json")
    assert statistics.status == 0
    assert statistics.objects[0]["transactions"] > 0


def test_a_standard_input_that_is_closed_is_told_in_one_line(cluster: LocalCluster) -> None:
    command = f"exec {' '.join(POLONAISE)} log append {cluster.coordinator} <&-"
    done = run_program("sh", "-c", command)
    assert done.returncode == 1
    assert done.stderr == "polonaise: [disk_failed] standard input can't be read: it is closed\n"
