"""What a smoke test keeps on disk, its clocked nodes, its clients, and how its parts begin and stop."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from polonaise.errors import BadOption, DiskFull
from polonaise_proving.commands.smoke import smoke
from polonaise_proving.faults import hostfaults as injection
from polonaise_proving.judges.histories import BrokenPromise
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.record.faultkinds import Fault, FaultKind
from polonaise_proving.record.history import Line, LineKind
from polonaise_proving.record.journal import Follower, Journal, lines_in
from polonaise_proving.scenarios.arguments import Status
from polonaise_proving.scenarios.smoke import report as report_module
from polonaise_proving.scenarios.smoke import run as run_module
from polonaise_proving.scenarios.smoke.report import SmokeReport, this_version
from polonaise_proving.scenarios.smoke.run import SmokeOptions, SmokeRun
from polonaise_proving.stages.hosts import hosts as hosts_module
from polonaise_proving.stages.hosts.clientjob import ClientJob
from polonaise_proving.stages.hosts.clocked import clock_of, set_clock
from polonaise_proving.stages.hosts.hosts import LoopbackHosts, NamespaceHosts
from polonaise_proving.stages.hosts.leftovers import NoNetwork
from polonaise_proving.stages.hosts.parts import NodePart
from polonaise_proving.stages.hosts.town import Ports
from polonaise_proving.work import bankclient as client_module
from polonaise_proving.work.bankclient import Client
from rigs.programs import run_python


def begun() -> SmokeReport:
    ports = Ports((1, 2, 3), (4, 5, 6), (7, 8, 9, 10, 11, 12, 13, 14, 15))
    started = "2026-01-31T12:00:00+00:00"
    return SmokeReport("", 3, 1_000, "loopback", started, "", ports, steps=9, done=2, faults={"kill": 4})


def keep(report: SmokeReport, directory: Path) -> None:
    report.keep(directory / "report.json")


def run_in(directory: Path, transactions: int = 1_000, seed: int = 3) -> SmokeRun:
    return SmokeRun(SmokeOptions(directory, transactions, seed), lambda told: None)


def test_a_report_is_read_as_it_was_kept(tmp_path: Path) -> None:
    assert SmokeReport.begun(tmp_path / "none") is None
    assert SmokeReport.begun(tmp_path) is None
    report = begun()
    report.violations.append(BrokenPromise("status", "step 1: kill server-1 is not told"))
    keep(report, tmp_path)
    assert SmokeReport.begun(tmp_path) == report


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 3, "passed": true, "ports": [1]}'])
def test_a_report_that_can_not_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(BadOption, match="remove this one"):
        SmokeReport.begun(tmp_path)


def test_a_directory_with_something_else_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("dear")
    with pytest.raises(BadOption, match="something else than a smoke test"):
        run_in(tmp_path).run()
    assert (tmp_path / "letters").read_text() == "dear"
    assert [each.name for each in tmp_path.iterdir()] == ["letters"], "not even a lock is left"


@pytest.mark.parametrize(("transactions", "seed"), [(1_000, 4), (2_000, 3)])
def test_an_unfinished_run_of_other_parameters_is_refused(tmp_path: Path, transactions: int, seed: int) -> None:
    keep(begun(), tmp_path)
    command = SmokeOptions(tmp_path, 1_000, 3).command("loopback")
    with pytest.raises(BadOption, match=re.escape(f"resume it with {command}, or name")):
        run_in(tmp_path, transactions, seed).run()
    assert SmokeReport.begun(tmp_path) == begun()


def test_an_unfinished_run_by_a_version_with_another_schedule_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would go on amid faults that the report does not tell, and skip others."""
    monkeypatch.setattr(run_module, "sweep", list)
    earlier = begun()
    earlier.schedule = "a197ad1ca391eecc"
    keep(earlier, tmp_path)
    with pytest.raises(BadOption, match="by another version, or with other --faults"):
        run_in(tmp_path).run()
    assert SmokeReport.begun(tmp_path) == earlier


def test_a_journal_is_read_but_for_a_line_that_a_kill_has_torn(tmp_path: Path) -> None:
    path = tmp_path / "client-1.1.journal"
    follower = Follower(path)
    follower.follow()
    journal = Journal(path)
    journal.write(LineKind.OPEN)
    journal.write(LineKind.TASKS, id=12)
    journal.write(LineKind.ASK, 2, "client-1.1/1")
    follower.follow()
    assert (follower.opened, follower.tasks, follower.acknowledged) == (True, 12, 0)
    assert list(follower.pending) == ["client-1.1/1"]
    journal.write(LineKind.ACK, 2, "client-1.1/1", 7)
    with path.open("a") as file:
        file.write('["ack", 2, "client-1.1/2", ')
    follower.follow()
    assert (follower.acknowledged, follower.pending) == (1, {})
    with path.open("a") as file:
        file.write('8, 3.5]\n["quiet", -1, "", -1, 4]\n["end", -1, "", -1, 4]\n["ask", 1, "cl')
    follower.follow()
    assert (follower.acknowledged, follower.quiet, follower.ended) == (2, True, True)
    assert [line[:4] for line in lines_in(path)[2:4]] == [
        (LineKind.ASK, 2, "client-1.1/1", -1),
        (LineKind.ACK, 2, "client-1.1/1", 7),
    ]
    assert lines_in(path)[4] == Line(LineKind.ACK, 2, "client-1.1/2", 8, 3.5)
    assert len(lines_in(path)) == 7
    (asked_s, known_s), _ = follower.recent
    assert asked_s < known_s


def report() -> SmokeReport:
    command = "polonaise smoke --transactions 100 --seed 3"
    return SmokeReport(command, 3, 100, "loopback", "now", faults={"kill": 2}, finished=True)


def test_a_report_tells_what_is_broken(tmp_path: Path) -> None:
    broken = report()
    assert broken.passed
    assert "held: P1, P2" in broken.text()
    broken.violations.append(BrokenPromise("P6", "partition 1: a is in the log 2 times"))
    assert not broken.passed
    assert "FAILED" in broken.text()
    assert "BROKEN P6: partition 1: a is in the log 2 times" in broken.text()
    keep(broken, tmp_path)
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["violations"] == [{"promise": "P6", "text": "partition 1: a is in the log 2 times"}]
    assert told["passed"] is False


@pytest.mark.parametrize(
    ("loads", "broken", "status", "said"),
    [
        (3, [BrokenPromise("P6", "twice")], Status.WRONG, "BROKEN P6: twice"),
        (3, [], Status.NOT_FOUND, "not found: quorum-of-one"),
        (0, [], Status.UNTRIED, "no process has loaded polonaise.server.protocol.recovery"),
    ],
    ids=["found", "not found", "never loaded"],
)
def test_a_run_with_a_mutation_passes_never_and_says_what_came_of_it(
    monkeypatch: pytest.MonkeyPatch, loads: int, broken: list[BrokenPromise], status: int, said: str
) -> None:
    told = report()
    told.mutation, told.mutation_loads, told.violations = "quorum-of-one", loads, broken
    assert not told.passed
    assert said in told.text()
    monkeypatch.setattr(SmokeRun, "run", lambda _: told)
    application = typer.Typer()
    application.command()(smoke)
    ended = CliRunner().invoke(application, ["--mutation", "quorum-of-one"])
    assert ended.exit_code == status
    assert said in ended.output


def test_a_run_that_ended_early_has_not_passed() -> None:
    early = report()
    early.failure = "no append was acknowledged for 60 s"
    assert not early.passed
    assert "it ended early: no append was acknowledged for 60 s" in early.text()
    assert "held" not in early.text()


@pytest.mark.parametrize(
    ("error", "is_stopped", "is_finished"),
    [
        (GaveUp("stuck"), False, True),
        (DiskFull("full"), False, False),
        (DiskFull("full"), True, False),
        (OSError(errno.ENOSPC, "full"), False, False),
        (OSError(errno.ENOSPC, "full"), True, False),
    ],
)
def test_only_a_failure_of_the_test_itself_finishes_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_stopped: bool, is_finished: bool
) -> None:
    run = run_in(tmp_path)

    def work(*_: object) -> None:
        if is_stopped:
            run.stop_soon()
        raise error

    town = SimpleNamespace(kill=lambda: None, archiver=SimpleNamespace(runs=0))
    for name, value in (("_report", begun()), ("_town", town), ("_work", work)):
        monkeypatch.setattr(run, name, value, raising=False)
    told = run._in_town(())
    assert (told is None) == is_stopped
    assert told is None or str(error) in told.failure
    assert told is None or (tmp_path / "report.txt").read_text() == told.text() + "\n"
    kept = SmokeReport.begun(tmp_path)
    assert kept is not None
    assert kept.finished == is_finished


@pytest.mark.parametrize("error", [None, GaveUp("stuck")])
def test_a_report_that_can_not_be_written_is_told_and_its_run_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    run = run_in(tmp_path)

    def work(*_: object) -> None:
        (tmp_path / "report.txt").mkdir()
        keep(begun(), tmp_path)
        if error is not None:
            raise error

    town = SimpleNamespace(kill=lambda: None, archiver=SimpleNamespace(runs=0))
    for name, value in (("_report", begun()), ("_town", town), ("_work", work)):
        monkeypatch.setattr(run, name, value, raising=False)
    told = run._in_town(())
    assert told is not None
    assert not told.passed
    assert "the report can't be written" in told.failure
    assert error is None or "stuck" in told.failure
    kept = SmokeReport.begun(tmp_path)
    assert kept is not None
    assert not kept.finished


def test_the_command_of_a_report_names_the_directory_and_the_hosts() -> None:
    command = SmokeOptions(Path("a b"), 100, 3).command("loopback")
    assert command == "polonaise smoke --transactions 100 --seed 3 --directory 'a b' --hosts loopback"


def test_a_run_with_a_mutation_is_resumed_with_it_alone_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    report = begun()
    report.mutation = "quorum-of-one"
    keep(report, tmp_path)
    with pytest.raises(BadOption, match="--hosts loopback --mutation quorum-of-one, or name"):
        run_in(tmp_path).run()
    with pytest.raises(BadOption, match="unknown mutation 'quorum-of-two'"):
        SmokeRun(SmokeOptions(tmp_path, 1_000, 3, mutation="quorum-of-two"), lambda told: None).run()


def test_a_run_has_the_faults_that_it_is_asked_for(tmp_path: Path) -> None:
    only = SmokeOptions(tmp_path, 100, 3, faults="kill, wipe")
    assert only.command("loopback").endswith(" --hosts loopback --faults 'kill, wipe'")
    assert only.kinds() == {FaultKind.KILL, FaultKind.WIPE}
    assert SmokeOptions(tmp_path, 100, 3).kinds() == frozenset(FaultKind)


def test_a_fault_that_there_is_not_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    run = SmokeRun(SmokeOptions(tmp_path / "new", 100, 3, faults="kill,wiped"), lambda told: None)
    with pytest.raises(BadOption, match="there is no fault wiped; --faults takes kill, stop, cut, "):
        run.run()
    assert not (tmp_path / "new").exists()


def test_faults_of_a_network_are_refused_on_hosts_without_one(tmp_path: Path) -> None:
    run = SmokeRun(SmokeOptions(tmp_path, 100, 3, faults="cut,lose"), lambda told: None)
    with pytest.raises(BadOption, match="only hosts with a network of their own can have the faults cut,lose"):
        run._kinds(LoopbackHosts())


def test_a_report_says_of_which_code_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        git = ["git", "-C", str(root), "describe", "--always", "--abbrev=12"]
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        assert this_version().removesuffix("-dirty") == commit
    monkeypatch.setattr(report_module, "__file__", str(tmp_path / "a/b/c/d/report.py"))
    assert this_version() == f"version {version('polonaise')}"


def test_who_runs_the_package_is_told_the_command() -> None:
    done = run_python("-m", "polonaise_proving.scenarios.smoke")
    assert done.returncode == 1
    assert "polonaise smoke" in done.stderr


def test_a_report_says_how_many_faults_of_each_kind_were_judged_and_when_the_last_one_was_told() -> None:
    told = report()
    told.faults, told.judged, told.told_s = {"cut-pair": 2, "kill": 3}, {"cut-pair": 2}, {"cut-pair": 2.6}
    assert "judged      2 cut-pair, 0 kill\ntold within cut-pair 2.6 s\n" in told.text()


@pytest.mark.parametrize("status", [0, 1, -9])
def test_a_node_that_does_not_stop_gracefully_fails_the_run(status: int) -> None:
    node: Any = SimpleNamespace(pid=7, exit_status=status, log="last words", stop=lambda: None)
    if status:
        with pytest.raises(GaveUp, match=f"exit status {status}: last words"):
            NodePart("server-1", node).stop()
    else:
        NodePart("server-1", node).stop()


class Archiver:
    name = "archiver-1"

    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self.killed: list[int | None] = []

    def ended(self) -> str:
        return ""

    def start(self) -> None:
        self.pid = 8

    def kill(self) -> None:
        self.killed.append(self.pid)


@pytest.mark.parametrize(("pid", "killed"), [(7, 7), (None, 8)])
def test_an_archiver_is_killed_amid_a_run(monkeypatch: pytest.MonkeyPatch, pid: int | None, killed: int) -> None:
    monkeypatch.setattr(injection, "_ARCHIVING_S", 0.0)
    archiver = Archiver(pid)
    town: Any = SimpleNamespace(archiver=archiver, part=lambda name: archiver)
    assert injection.begin(town, Fault(FaultKind.KILL, "archiver-1"))
    assert archiver.killed == [killed]


def test_hosts_whose_name_is_taken_remove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def ip(*arguments: str) -> str:
        raise NoNetwork("File exists")

    removed: list[str] = []
    monkeypatch.setattr(hosts_module, "_run", ip)
    monkeypatch.setattr(hosts_module, "remove_namespaces", removed.append)
    with pytest.raises(NoNetwork, match="File exists"):
        NamespaceHosts("plnx", ["x"], "198.18.0")
    assert removed == []


def test_a_clock_is_set_while_somebody_goes_by_it(tmp_path: Path) -> None:
    set_clock(tmp_path / "clock", 0.0)
    time_ns = clock_of(tmp_path / "clock", lambda: 7)
    assert time_ns() == 7
    set_clock(tmp_path / "clock", 86_400.0)
    assert time_ns() == 86_400 * 10**9 + 7
    set_clock(tmp_path / "clock", -1.0)
    assert time_ns() == 7 - 10**9


def test_a_command_runs_by_the_clock_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "teller.py").write_text("import sys, time\nprint(time.time(), time.time_ns(), *sys.argv[1:])\n")
    set_clock(tmp_path / "clock", 86_400.0)
    command = [sys.executable, "-m", "polonaise_proving.stages.hosts.clocked", str(tmp_path / "clock")]
    done = subprocess.run(
        [*command, sys.executable, "-m", "teller", "--one", "two"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    seconds, nanoseconds, *arguments = done.stdout.split()
    assert 86_000 < float(seconds) - time.time() < 86_500
    assert 86_000 < int(nanoseconds) / 1e9 - time.time() < 86_500
    assert arguments == ["--one", "two"]


async def test_an_append_without_an_answer_fails_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_LAST_S", 0.01)
    job = ClientJob("polonaise://localhost", str(tmp_path), "sqlite://", "client-1", 1, 1, 1.0)
    nothing: Any = None
    client = Client(nothing, nothing, job)
    with pytest.raises(GaveUp, match="no answer"):
        await client._fate("client-1.1/1", 0, asyncio.get_running_loop().create_future())
    assert job.journal.read_text() == ""
