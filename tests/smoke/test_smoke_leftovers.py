"""What a run has outside of its directory is found by the next one if the run is dead, and left alone if it lives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polonaise.smoke.hosts import NamespaceHosts, namespaces_possible
from polonaise.smoke.leftovers import Notes, birth_of, names_of, sweep
from polonaise.smoke.protocol.faults import Fault, FaultKind
from rigs.waiting import block_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are told apart by /proc")

_KILLED = """
import os, signal, sys
from pathlib import Path
from polonaise.smoke.leftovers import Notes
notes = Notes(Path(sys.argv[1]))
notes.started(int(sys.argv[2]))
print(notes.run, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run_of_a_killed_one(notes: Path, pid: int) -> str:
    done = subprocess.run([sys.executable, "-c", _KILLED, str(notes), str(pid)], capture_output=True, check=False)
    return done.stdout.decode().strip()


def test_a_process_of_a_killed_run_is_killed_by_the_next(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    run = run_of_a_killed_one(tmp_path, sleeper.pid)
    assert sweep(tmp_path) == [run]
    assert block_until(lambda: sleeper.poll() is not None)
    assert sweep(tmp_path) == []


def test_a_process_of_a_run_that_lives_is_left_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    notes = Notes(tmp_path)
    notes.started(sleeper.pid)
    assert sweep(tmp_path) == []
    assert sleeper.poll() is None
    notes.tidy()
    assert block_until(lambda: sleeper.poll() is not None)
    assert list(tmp_path.iterdir()) == []


def test_another_process_with_the_number_of_one_that_has_ended_is_left_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    notes = Notes(tmp_path)
    path = tmp_path / f"{notes.run}.notes"
    path.write_text(f"{sleeper.pid} {int(birth_of(sleeper.pid)) - 1}\n{sleeper.pid} \n")
    notes.tidy()
    assert sleeper.poll() is None


def test_a_process_that_is_not_there_has_no_birth() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert birth_of(process.pid) == ""
    assert birth_of(os.getpid())


# ------------------------------------------------------------------ hosts of their own

_REACHES = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=0.5)
except ConnectionRefusedError:
    print("yes")
except OSError:
    print("no")
"""
NODES = ("server-1", "server-2", "storage-1")
WAYS = [(one, other) for one in NODES for other in NODES if one != other]


def reached(hosts: NamespaceHosts) -> set[tuple[str, str]]:
    """The pairs of hosts between which a connection can be made, or rather: is refused, as nobody listens."""
    asking = {
        (one, other): subprocess.Popen(
            [*hosts.prefix(one), sys.executable, "-c", _REACHES, hosts.address(other)], stdout=subprocess.PIPE
        )
        for one, other in WAYS
    }
    return {way for way, process in asking.items() if process.communicate()[0] == b"yes\n"}


def without(*nodes: str) -> set[tuple[str, str]]:
    return {way for way in WAYS if not set(nodes) & set(way)}


@pytest.mark.slow
def test_links_are_cut_as_a_fault_says_and_healed_and_nothing_is_left(tmp_path: Path) -> None:
    if why := namespaces_possible():
        pytest.skip(f"no network namespaces here: {why}")
    notes = Notes(tmp_path)
    hosts = NamespaceHosts(notes.prefix, NODES)
    try:
        assert reached(hosts) == set(WAYS)
        # A connection needs both ways, so one that is cut one way only is refused in neither direction.
        for kind in (FaultKind.CUT, FaultKind.CUT_OUT, FaultKind.CUT_IN):
            fault = Fault(kind, "storage-1")
            hosts.cut(fault)
            assert reached(hosts) == without("storage-1")
            hosts.heal(fault)
            assert reached(hosts) == set(WAYS)
        pair = Fault(FaultKind.CUT_PAIR, "server-1", "storage-1")
        hosts.cut(pair)
        assert reached(hosts) == set(WAYS) - {("server-1", "storage-1"), ("storage-1", "server-1")}
        hosts.heal(pair)
        assert reached(hosts) == set(WAYS)
    finally:
        hosts.close()
        notes.tidy()
    assert names_of("netns", notes.prefix) == []
    assert names_of("link", notes.prefix) == []
