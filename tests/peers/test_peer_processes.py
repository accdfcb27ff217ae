"""Programs of others: bounded in time, ended, and telling what went wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.floor import echo_ms, fdatasync_ms
from benchmarks.loads import Missing
from benchmarks.peers import install
from benchmarks.peers.figures import Floor
from benchmarks.peers.floor import busy, settled
from benchmarks.peers.processes import Server, free_ports, listens, run, stop_all, until

from rigs.lacking import program

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def python(code: str) -> list[object]:
    return [sys.executable, "-c", code]


def gone(pid: int) -> bool:
    """Whether there is no such process, or only what its parent has not yet asked about."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_program_that_succeeds_gives_what_it_printed() -> None:
    assert run(python("print('42')"), 30) == "42\n"


@pytest.mark.parametrize(
    ("command", "seconds", "reason"),
    [
        (python("import sys; sys.exit('the port is taken')"), 30, "ended with status 1: the port is taken"),
        (python("import sys; sys.exit(3)"), 30, "ended with status 3: it printed nothing"),
        (python("import time; time.sleep(60)"), 0.2, "took longer than 0.2 s"),
        (["./no-such-program"], 30, "no-such-program: No such file or directory"),
    ],
)
@pytest.mark.slow
def test_a_program_that_does_not_is_a_reason_for_the_table(command: list[object], seconds: float, reason: str) -> None:
    with pytest.raises(Missing, match=reason):
        run(command, seconds)


def test_a_tool_that_is_not_there_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Missing, match=r"Kafka needs `java`, which this machine does not have \(Debian: openjdk\)"):
        install.tool("java", "Kafka", "openjdk")


def test_free_ports_are_different_and_nobody_listens_there() -> None:
    ports = free_ports(6)
    assert len(set(ports)) == 6
    assert not any(listens(port) for port in ports)


def test_a_server_that_does_not_stop_when_asked_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.processes.STOP_S", 0.2)
    server = Server("deaf", python(DEAF), tmp_path / "output")
    until("it is up", lambda: "up" in server.printed(), 30, servers=[server])
    assert server.running
    stop_all([server])
    assert not server.running


def test_waiting_ends_with_the_reason_when_a_server_has_ended(tmp_path: Path) -> None:
    server = Server("short", python("print('no space left')"), tmp_path / "output")
    with pytest.raises(Missing, match="short ended: no space left"):
        until("it listens", lambda: False, 30, servers=[server])


def test_waiting_ends_at_its_deadline() -> None:
    with pytest.raises(Missing, match=r"it listens: not within 0\.2 s"):
        until("it listens", lambda: False, 0.2)


BENCHMARK = f"""
import signal, sys, time
from pathlib import Path
from benchmarks.peers.processes import Server, until

server = Server("one", [sys.executable, "-c", {DEAF!r}], Path(sys.argv[1]), ends_on=signal.SIGKILL)
until("it is up", lambda: "up" in server.printed(), 30, servers=[server])
print(server.pid, flush=True)
time.sleep(60)
"""


def test_no_server_outlives_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    program("setpriv", "util-linux")  # which tells the kernel
    benchmark = subprocess.Popen(
        [sys.executable, "-c", BENCHMARK, tmp_path / "output"], cwd=install.ROOT, stdout=subprocess.PIPE, text=True
    )
    with benchmark:
        assert benchmark.stdout is not None
        server = int(benchmark.stdout.readline())
        assert not gone(server)
        benchmark.kill()
    until("the server is gone", lambda: gone(server), 30)


def test_a_floor_that_differs_from_an_earlier_one_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = [Floor(3.0, 0.04), Floor(0.5, 0.04), Floor(0.2, 0.04), Floor(0.2, 0.04)]
    monkeypatch.setattr("os.sync", lambda: None)
    monkeypatch.setattr("benchmarks.peers.floor.floor", lambda directory: measured.pop(0))
    assert settled(tmp_path, Floor(0.2, 0.04), pause_s=0) == Floor(0.2, 0.04)
    assert len(measured) == 1


def test_a_floor_that_stays_high_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sync", lambda: None)
    monkeypatch.setattr("benchmarks.peers.floor.floor", lambda directory: Floor(3.0, 0.04))
    assert settled(tmp_path, Floor(0.2, 0.04), pause_s=0) == Floor(3.0, 0.04)


def test_the_floor_of_this_machine_is_a_time(tmp_path: Path) -> None:
    assert fdatasync_ms(tmp_path, 5) > 0
    assert echo_ms(50) > 0
    assert 0 <= busy(0.01) <= 1
    assert list(tmp_path.iterdir()) == []
