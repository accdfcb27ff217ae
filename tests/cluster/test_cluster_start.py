"""`polonaise cluster start`: a whole cluster that comes up, is followed, comes back, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest

from polonaise.admin.cluster import ClusterStatus, PartitionStatus, StorageStatus
from polonaise.admin.localcluster import LocalClusterRun, Told, _missing
from polonaise.admin.localplan import Wanted
from polonaise.errors import WrongClusterKey
from polonaise.node.local import LocalCluster, StartFailed
from rigs.localcluster import node_of, processes_in, started_cluster
from rigs.programs import POLONAISE, output_of, run_polonaise
from rigs.waiting import block_until

pytestmark = pytest.mark.slow
FILE = "--file-coordinator"


def status(coordinator: str) -> tuple[int, dict[str, Any]]:
    ended = run_polonaise("cluster", "status", "--coordinator", coordinator, "--json")
    return ended.returncode, json.loads(ended.stdout)


def rows(coordinator: str, *words: str) -> list[dict[str, Any]]:
    """Return what a command prints with --json."""
    told = output_of(run_polonaise(*words, "--coordinator", coordinator, "--json"))
    return [json.loads(line) for line in told.splitlines()]


def append(log: str, body: str) -> None:
    output_of(run_polonaise("log", "append", log, body, "--partition", "0"))


def bodies(log: str) -> list[str]:
    told = output_of(run_polonaise("log", "read", log, "--partition", "0", "--json"))
    return [json.loads(line)["data"] for line in told.splitlines()]


def test_an_address_for_http_that_all_nodes_would_share_is_for_none_of_them(tmp_path: Path) -> None:
    config = tmp_path / "p.toml"
    config.write_text('[server]\nhttp = "127.0.0.1:1"\n[storage]\nhttp = "127.0.0.1:1"\n')
    with started_cluster(tmp_path / "d", FILE, "--storage", "1", "--config", str(config)) as cluster:
        assert not cluster.until("ready")["trouble"]


def test_a_cluster_comes_up_well_and_ends_with_the_command(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    config = tmp_path / "p.toml"
    # Else, when the second server has settled, half of the partitions move to it while the test looks.
    config.write_text("[server]\nsettle_s = 3600\n")
    with started_cluster(directory, FILE, "--config", str(config)) as cluster:
        starting, ready = cluster.until("starting"), cluster.until("ready")
        assert (len(starting["storage"]), len(starting["servers"]), starting["partitions"]) == (3, 2, 4)
        assert len(processes_in(directory)) == 1 + 5
        exit_status, told = status(ready["coordinator"])
        assert (exit_status, told["wellness"]) == (0, "well")
        assert sorted(each["address"] for each in told["servers"]) == sorted(starting["servers"])
        assert ready["log"] == "polonaise://" + ",".join(starting["servers"]), "clients need no coordinator"
        append(ready["log"], "hello")
        assert bodies(ready["log"]) == ["hello"]
        assert sorted(each["address"] for each in rows(ready["coordinator"], "server", "list")) == sorted(
            starting["servers"]
        )
        listed = rows(ready["coordinator"], "storage", "list")
        assert [each["address"] for each in listed] == starting["storage"]
        assert [each["name"] for each in listed] == ["storage-0", "storage-1", "storage-2"]
        assert {each["state"] for each in rows(ready["coordinator"], "partition", "list")} == {"ready"}
        assert rows(ready["coordinator"], "partition", "list", "--troubled") == []
        (described,) = rows(ready["coordinator"], "partition", "describe", "0")
        assert described["committed_high_water_mark"] == 0
        assert [each["state"] for each in described["replicas"]] == ["engaged"] * 3
        assert "all is well" in output_of(run_polonaise("cluster", "status", "--coordinator", ready["coordinator"]))
        shown = {
            ("server", "list"): starting["servers"][0],
            ("storage", "list"): starting["storage"][0],
            ("partition", "list"): "ready",
            ("partition", "describe", "0"): "closing mark",
        }
        for words, text in shown.items():
            assert text in output_of(run_polonaise(*words, "--coordinator", ready["coordinator"]))
        assert cluster.end() == 0
        assert processes_in(directory) == {}
    for log in directory.glob("*.log"):
        assert "Traceback" not in log.read_text()


@pytest.mark.exhaustive  # of ways to end
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_however_the_command_ends_its_nodes_end_and_the_cluster_comes_back_at_its_ports(
    tmp_path: Path, end: signal.Signals
) -> None:
    directory = tmp_path / "d"
    with started_cluster(directory, FILE, "--storage", "1", "--servers", "1") as cluster:
        first = cluster.until("starting")
        append(cluster.until("ready")["log"], "kept")
        assert cluster.end(end) == (-signal.SIGKILL if end is signal.SIGKILL else 0)
        # At once: after kill -9 the nodes of the first run may still be on their way out.
        with started_cluster(directory) as again:
            second = again.until("starting")
            assert second == first
            assert bodies(again.until("ready")["log"]) == ["kept"]


@pytest.mark.exhaustive  # of coordinators
@pytest.mark.parametrize(("kind", "where"), [(FILE, "coordinator"), ("--zookeeper", "zookeeper")])
def test_a_cluster_whose_coordinator_is_lost_goes_on_without_servers_until_it_is_made_again(
    tmp_path: Path, kind: str, where: str
) -> None:
    directory = tmp_path / "d"
    with started_cluster(directory, kind, "--storage", "1", "--servers", "1") as cluster:
        append(cluster.until("ready")["log"], "kept")
        notes = directory / "storage-0/polonaise-cluster"
        block_until(lambda: notes.exists() and b'"unique_id": 0' not in notes.read_bytes(), "the values are noted")
        cluster.end()
    (directory / where).rename(tmp_path / "lost")
    with started_cluster(directory) as lost:
        coordinator = lost.until("starting")["coordinator"]
        told = lost.until("not_ready")
        assert "coordinator_lost" in told["why"]
        assert lost.process.poll() is None
        program, *words = told["recover"].split()
        assert program == "polonaise"
        output_of(run_polonaise(*words))
        code, seen = status(coordinator)
        assert code == 1
        assert {each["state"] for each in seen["partitions"]} == {"unknown"}
        assert all("no server has been started since" in str(each["troubles"]) for each in seen["partitions"])
        assert "recovered MISSING" not in str(seen)
        assert [(each["registered"], each["partitions"]) for each in seen["servers"]] == [(False, 0)]
        assert lost.end(signal.SIGINT) == 0
    with started_cluster(directory) as again:
        log = again.until("ready")["log"]
        append(log, "and more")
        assert bodies(log) == ["kept", "and more"]
        assert status(coordinator)[0] == 0


def test_a_cluster_whose_reader_goes_away_leaves_no_process_behind(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    command = [*POLONAISE, "cluster", "start", "--directory", str(directory), FILE, "--storage", "1", "--servers", "1"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while '"ready"' not in process.stdout.readline():
            assert process.poll() is None
        process.stdout.close()
        os.kill(node_of(directory, "server run"), signal.SIGKILL)
        assert process.wait(60) == 1
        assert process.stderr is not None
        assert "standard output can't be written" in process.stderr.read()
    assert processes_in(directory) == {}


def test_a_node_that_is_killed_is_told_of_and_comes_back(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    with started_cluster(directory, FILE) as cluster:
        log = cluster.until("ready")["coordinator"]
        for words in ("storage run --directory", "server run"):
            pid = min(pid for pid, line in processes_in(directory).items() if words in line)
            os.kill(pid, signal.SIGKILL)
            ended = cluster.until("ended")
            assert ended["exit_status"] == -signal.SIGKILL
            assert cluster.until("restarted")["node"] == ended["node"]
            block_until(lambda: status(log)[0] == 0, "the cluster is well again", every_s=0.5)
        append(log, "goes on")


def test_a_cluster_may_come_back_with_more_servers_and_keeps_the_ports_of_the_others(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    with started_cluster(directory, FILE, "--storage", "1", "--servers", "1") as cluster:
        first = cluster.until("starting")
        cluster.until("ready")
        assert cluster.end() == 0
    with started_cluster(directory, "--servers", "2") as more:
        second = more.until("starting")
        assert second["servers"][0] == first["servers"][0]
        assert len(set(second["servers"])) == 2
        assert second["storage"] == first["storage"]
        more.until("ready")


def test_settings_of_a_file_reach_the_nodes_and_the_command(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("[cluster]\ncoordinator = 'file'\nstorage = 1\nservers = 1\n[storage]\nsegment_bytes_max = 4096\n")
    directory = tmp_path / "d"
    with started_cluster(directory, "--config", str(file)) as cluster:
        assert len(cluster.until("starting")["storage"]) == 1
        log = cluster.until("ready")["coordinator"]
        for number in range(3):
            append(log, f"{number}" * 3_000)
        assert len(list((directory / "storage-0" / "0").glob("*.seq"))) > 1


def test_a_cluster_with_zookeeper_comes_up_and_its_coordinator_comes_back(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    with started_cluster(directory, "--zookeeper", "--storage", "1", "--servers", "1") as cluster:
        ready = cluster.until("ready")
        assert ready["coordinator"].startswith("zookeeper://127.0.0.1:")
        append(ready["log"], "kept")
        os.kill(node_of(directory, "polonaise.cli zookeeper run"), signal.SIGKILL)
        assert cluster.until("ended")["node"] == "zookeeper"
        cluster.until("restarted")
        block_until(lambda: status(ready["coordinator"])[0] == 0, "the cluster is well again", every_s=0.5)
        append(ready["log"], "and more")
        assert cluster.end(signal.SIGKILL) == -signal.SIGKILL  # and ZooKeeper ends, or it could not be started again
    with started_cluster(directory) as again:
        assert bodies(again.until("ready")["log"]) == ["kept", "and more"]


def test_the_status_is_shown_again_and_again(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    with started_cluster(directory, FILE, "--storage", "1", "--servers", "1") as cluster:
        log = cluster.until("ready")["coordinator"]
        command = [*POLONAISE, "cluster", "status", "--coordinator", log, "--watch", "--interval", "0.1", "--json"]
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert watching.stdout is not None
        with watching:
            seen = [json.loads(watching.stdout.readline())["wellness"] for _ in range(3)]
            watching.send_signal(signal.SIGINT)
            _, errors = watching.communicate(timeout=60)
        assert seen == ["well"] * 3
        assert (watching.returncode, errors) == (130, b"")
        assert _on_a_terminal(command[:-1]).count("all is well") >= 2


def _on_a_terminal(command: list[str]) -> str:
    """Run a command on a terminal until it has drawn its screen twice, interrupt it, and return what it has written."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    written = b""
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        while written.count(b"all is well") < 2:
            written += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # so Linux tells the end of a terminal
            while more := os.read(ours, 65_536):
                written += more
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(ours)
    assert written.startswith(b"\x1b[?1049h"), "a screen of its own"
    assert b"\x1b[?1049l" in written, "which is given back"
    return written.decode()


def test_directories_of_another_cluster_are_told_of_once() -> None:
    said = str(WrongClusterKey("the directory of this storage node belongs to another cluster"))
    storage = [StorageStatus(name, f"{name}:1", said, not_connected={1: said}) for name in ("a", "b")]
    partitions = [PartitionStatus(number, None, None, f"waits: {said}") for number in range(3)]
    seen = ClusterStatus("file:c", None, None, [], storage, partitions, {}, 0.1)
    missing = _missing(seen)
    assert missing.count("another cluster") == missing.count("[wrong_cluster_key]") == 1
    assert "directories of a, b belong to another cluster" in missing
    assert "they may be the only copy of a log" in missing


class Unready(LocalClusterRun):
    """A run whose processes are not there, and whose partitions are never ready."""

    async def _until_ready(self) -> str:
        raise StartFailed("the cluster was not ready after 60 s: partition 3 waits for its operator")


@pytest.mark.parametrize("is_new", [True, False])
def test_only_a_new_cluster_fails_when_a_partition_does_not_become_ready(tmp_path: Path, is_new: bool) -> None:
    told: list[Told] = []
    run = Unready(tmp_path, Wanted("file"), told.append)
    run._cluster, run._is_new = LocalCluster(tmp_path), is_new
    if is_new:
        with pytest.raises(StartFailed):
            run.wait_ready()
        return
    run.wait_ready()
    (event,) = told
    assert event.event == "not_ready"
    assert "partition 3 waits for its operator; the cluster goes on" in event.text
    assert run.cluster.coordinator in event.text
