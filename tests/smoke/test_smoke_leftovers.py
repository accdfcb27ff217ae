"""What a run has outside of its directory is found by the next one if the run is dead, and left alone if it lives."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from polonaise.errors import BadOption
from polonaise_proving.record.faultkinds import Fault, FaultKind, NodeGroup, nodes_of
from polonaise_proving.stages import watchdog
from polonaise_proving.stages.hosts import hosts as hosts_module
from polonaise_proving.stages.hosts.hosts import NamespaceHosts, PacketLoss, namespaces_possible
from polonaise_proving.stages.hosts.leftovers import Notes, names_of, sweep
from polonaise_proving.stages.processes import state_of
from polonaise_proving.stages.watchdog import unwatched, watched
from rigs.lacking import program
from rigs.waiting import block_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are told apart by /proc")

_KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from polonaise.host.environment import variables
from polonaise_proving.stages.hosts.leftovers import Notes
from polonaise_proving.stages.watchdog import RUN
notes = Notes(Path(sys.argv[1]))
with variables({RUN: str(notes.path)}):
    started = subprocess.Popen(["/bin/sh", "-c", "sleep 600; true"], stdout=subprocess.DEVNULL)
print(notes.run, started.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_run(directory: Path) -> tuple[str, int]:
    """A run whose watchdog was killed with it, and a process of it that has another one below it."""
    done = subprocess.run([sys.executable, "-c", _KILLED, str(directory)], stdout=subprocess.PIPE, check=False)
    run, pid = done.stdout.decode().split()
    return run, int(pid)


def is_gone(pid: int) -> bool:
    return state_of(pid) in "ZX"


def test_processes_of_a_killed_run_are_killed_by_the_next_also_those_that_are_stopped(tmp_path: Path) -> None:
    run, pid = killed_run(tmp_path)
    below = block_until(lambda: [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()])
    for each in (pid, *below):
        os.kill(each, signal.SIGSTOP)
    assert sweep(tmp_path) == [run]
    assert all(map(is_gone, (pid, *below)))
    assert sweep(tmp_path) == []


def test_a_run_that_lives_and_processes_of_others_are_left_alone(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    with watched("another run"):
        other = subprocess.Popen(["sleep", "600"])
        with watched(str(notes.path)):
            ours = subprocess.Popen(["sleep", "600"])
            assert sweep(tmp_path) == []
            assert ours.poll() is None
            notes.tidy()
            assert ours.wait(10) == -signal.SIGKILL
        assert other.poll() is None
    assert other.wait(10) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_notes_that_others_may_write_are_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("open", "link"):
        with pytest.raises(BadOption, match="this user alone"):
            sweep(tmp_path / name)
        with pytest.raises(BadOption, match="this user alone"):
            Notes(tmp_path / name)


def test_files_that_no_run_has_noted_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "abcd.notes").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".notes").touch()
    (tmp_path / "12345.notes").touch()
    assert sweep(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 4


# ------------------------------------------------------------------ hosts of their own


def test_two_faults_that_share_a_way_each_heal_what_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: set[tuple[str, str]] = set()

    def ip(*arguments: str) -> str:
        if "neighbour" in arguments:
            at = arguments[1] if arguments[0] == "-n" else ""
            verb, to = arguments[arguments.index("neighbour") + 1 :][:2]
            assert verb == "replace"
            if arguments[-1] == "failed":  # a way that is asked for anew
                lost.remove((at, to))
            else:
                lost.add((at, to))
        return ""

    monkeypatch.setattr(hosts_module, "_run", ip)
    hosts = NamespaceHosts("plnx", NODES)
    out, into = Fault(FaultKind.CUT_OUT, "server-1"), Fault(FaultKind.CUT_IN, "storage-1")
    hosts.cut(out)
    hosts.cut(into)
    hosts.heal(out)
    here = hosts.address("storage-1")
    assert lost == {(at, here) for at in ("plnx-server-1", "plnx-server-2", "")}
    hosts.heal(into)
    assert lost == set()


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
    program("ip", "iproute2")
    if why := namespaces_possible():
        pytest.skip(f"no network namespaces here: {why}")  # in CI as well: rights can't be installed
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


def test_a_server_that_is_cut_off_from_all_storage_nodes_reaches_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(hosts_module, "_run", lambda *arguments: said.append(arguments) or "")
    nodes = [*nodes_of(NodeGroup.STORAGE), *nodes_of(NodeGroup.SERVER)]
    hosts = NamespaceHosts("plnx", nodes)
    said.clear()
    hosts.cut(Fault(FaultKind.CUT_STORAGE, "server-2"))
    lost = {(arguments[1], arguments[4]) for arguments in said}
    here = hosts.address("server-2")
    assert lost == {("plnx-server-2", hosts.address(node)) for node in nodes_of(NodeGroup.STORAGE)} | {
        (f"plnx-{node}", here) for node in nodes_of(NodeGroup.STORAGE)
    }


@pytest.mark.slow
def test_a_host_that_loses_packets_passes_all_on_again_once_that_is_over(tmp_path: Path) -> None:
    carried_out = tmp_path / "said"
    loss = PacketLoss(
        ["sh", "-c", f"cat > {shlex.quote(str(carried_out))}"], ["lose a", "lose b"], ["pass a", "pass b"]
    )
    block_until(lambda: carried_out.exists() and carried_out.read_text().count("lose a") > 2, "some pulses")
    assert loss.end()
    lines = carried_out.read_text().splitlines()
    assert lines == ["lose a", "lose b", "pass a", "pass b"] * (len(lines) // 4)


def test_a_loss_whose_process_has_ended_says_so() -> None:
    loss = PacketLoss(["false"], ["lose"], ["pass"])
    loss._process.wait()
    assert not loss.end()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loss_whose_pulses_have_crashed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("crashed")

    monkeypatch.setattr(PacketLoss, "_say", crash)
    loss = PacketLoss(["cat"], ["lose"], ["pass"])
    block_until(lambda: not loss._thread.is_alive(), "the end of the thread")
    assert not loss.end()


def test_a_run_ends_its_own_processes_and_leaves_what_was_started_out_of_it() -> None:
    with watched():
        own = subprocess.Popen(["sleep", "600"])
        with unwatched():
            other = subprocess.Popen(["sleep", "600"])
    try:
        assert own.wait(10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_processes_that_do_not_go_are_told_and_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watchdog, "GONE_S", 0.0)
    monkeypatch.setattr(watchdog, "_processes_of", lambda run: [os.getpid()])
    monkeypatch.setattr(os, "kill", lambda *_: None)
    watchdog.kill_all("some-run")
    assert f"processes of run some-run do not end, and are left: {os.getpid()}" in capsys.readouterr().err
