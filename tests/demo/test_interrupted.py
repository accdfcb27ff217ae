"""The demo that is told to stop, early or late: no traceback, no process and no directory stays."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from polonaise.cli.exitstatus import ExitStatus
from polonaise.node.local import LocalCluster, StartFailed
from polonaise_proving.demo import run
from polonaise_proving.demo.checks import DayFindings, Folded
from rigs.demosession import demo_until, session_of, until_ended
from rigs.waiting import block_for, block_until

pytestmark = pytest.mark.slow

WITHIN_S = 90.0
OUTPUT = "bank-demo"


@pytest.mark.exhaustive  # of ways to end
@pytest.mark.parametrize(
    ("number", "when"),
    [
        (signal.SIGINT, "storage-0"),
        pytest.param(signal.SIGTERM, "storage-2", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "server run", marks=pytest.mark.slow),
        (signal.SIGHUP, "demo.teller"),
    ],
)
def test_a_demo_that_is_told_to_stop_takes_all_of_it_along(number: signal.Signals, when: str, tmp_path: Path) -> None:
    with demo_until(when, tmp_path) as process:
        process.send_signal(number)
        output, _ = process.communicate(timeout=WITHIN_S)
    assert "Traceback" not in output
    assert "Unknown child" not in output
    assert session_of(process) == []
    assert process.returncode == ExitStatus.INTERRUPTED
    assert [path.name for path in tmp_path.iterdir()] == [OUTPUT]


@pytest.mark.exhaustive  # of ways to end
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_demo_that_is_stopped_while_spark_works_takes_spark_along(number: signal.Signals, tmp_path: Path) -> None:
    with demo_until("org.apache.spark", tmp_path, payments=50) as process:
        process.send_signal(number)
        process.communicate(timeout=WITHIN_S)
        until_ended(process)


STUCK_SPARK = """#!/bin/sh
sleep 60 &
echo $! > "$5/jvm"
wait
"""


async def test_a_spark_that_does_not_end_is_ended_with_all_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = tmp_path / "python"
    stuck.write_text(STUCK_SPARK)
    stuck.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stuck))
    monkeypatch.setattr(run, "SPARK_S", 0.5)
    seen = DayFindings(set(), set(), {}, Counter(), {}, Counter(), Folded(), {}, 3)
    with pytest.raises(StartFailed, match=r"within 0\.5 s .*spark\.log says .* run the demo again with fewer"):
        await run._run_spark_jobs("file:nowhere", "sqlite://", seen, tmp_path)
    child = Path("/proc") / (tmp_path / "jvm").read_text().strip() / "stat"
    block_until(lambda: not child.exists() or " Z " in child.read_text())


@pytest.mark.slow
def test_a_second_hangup_does_not_break_the_end_off(tmp_path: Path) -> None:
    """A shell sends it on to its jobs, and the system to the terminal's foreground."""
    with demo_until("demo.teller", tmp_path) as process:
        process.send_signal(signal.SIGHUP)
        block_for(0.05)
        process.send_signal(signal.SIGHUP)
        output, _ = process.communicate(timeout=WITHIN_S)
    assert "Traceback" not in output
    assert process.returncode == ExitStatus.INTERRUPTED
    assert [path.name for path in tmp_path.iterdir()] == [OUTPUT]


def test_a_demo_that_a_script_runs_in_the_background_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """Such a shell has it ignore the signal of Ctrl-C."""
    ignoring = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    with demo_until("storage-0", tmp_path, *ignoring) as process:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=WITHIN_S)
    assert "Traceback" not in output
    assert session_of(process) == []
    assert process.returncode == ExitStatus.INTERRUPTED


def test_a_demo_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    with demo_until("demo.teller", tmp_path) as process:
        process.kill()
        process.wait()
        until_ended(process)


@pytest.mark.slow
def test_a_demo_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    with demo_until("demo.teller", tmp_path, "nohup") as process:
        status = Path(f"/proc/{process.pid}/status").read_text()
        [ignored] = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
        assert int(ignored, 16) & 1 << signal.SIGHUP - 1
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WITHIN_S)
    assert process.returncode == ExitStatus.INTERRUPTED


CLUSTER = """
import sys, time
from pathlib import Path
from polonaise.node.local import LocalCluster
LocalCluster(Path(sys.argv[1])).start()
print("started", flush=True)
time.sleep(60)
"""


def test_the_nodes_of_a_process_that_is_killed_end(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        assert len(session_of(process)) == 5
        process.kill()
        process.wait()
        until_ended(process)
    assert [path.read_text() for path in tmp_path.glob("*.log")] == [""] * 4, "a clean stop"


def test_a_node_runs_for_as_long_as_its_parent_wants_and_no_other_holds_its_pipe(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        first = cluster.storage[0]
        first.kill()
        assert not first.alive
        assert [node.alive for node in cluster.storage[1:]] == [True, True], "killing one is nothing to the others"
        first.start()
        stopped = cluster.storage[1]
        assert stopped._process is not None
        assert stopped._process.stdin is not None
        stopped._process.stdin.close()
        block_until(lambda: not stopped.alive)
        assert [first.alive, cluster.storage[2].alive] == [True, True]
