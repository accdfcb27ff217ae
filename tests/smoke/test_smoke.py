"""The smoke test itself: its short form, the whole as a campaign, and one that is interrupted, killed and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polonaise.errors import DirectoryInUse
from polonaise.host.files import try_lock
from polonaise_proving.record.faultkinds import KINDS, PROCESS_KINDS, FaultKind, Telling
from polonaise_proving.scenarios.smoke.run import LOOPBACK, NAMESPACES, SmokeOptions, SmokeRun
from polonaise_proving.stages.hosts.hosts import namespaces_possible
from polonaise_proving.stages.hosts.leftovers import PREFIX, names_of, notes_directory
from rigs.lacking import program
from rigs.localcluster import processes_in
from rigs.programs import POLONAISE
from rigs.waiting import block_until

pytestmark = pytest.mark.slow

RUN_S = 600
TRANSACTIONS = 1_500
"""Of a run that is interrupted."""


def networks() -> set[str]:
    """The namespaces and links on this machine of runs that live no more: others may run beside this test."""

    def listed() -> set[str]:
        return {*names_of("netns", PREFIX), *names_of("link", PREFIX)}

    dead = {name for name in listed() if not lives(name.removeprefix(PREFIX)[:4])}
    return dead & listed()  # a run that ended meanwhile has removed its own before


def lives(run: str) -> bool:
    notes = notes_directory() / f"{run}.notes"
    if notes.exists():
        try:
            try_lock(str(notes)).release()
        except DirectoryInUse:
            return True
    return False


def until_tidy(before: set[str]) -> None:
    """Wait until no network is left that was not there before: a run beside this test may be killed, and swept then."""
    block_until(lambda: networks() <= before, "no network is left")


class Command:
    """`polonaise smoke` as a process, whose events are read as they come."""

    def __init__(self, directory: Path, hosts: str) -> None:
        self._lines = directory.with_suffix(".events")
        self._lines.touch()
        self._seen = len(self._lines.read_text().splitlines())
        with self._lines.open("ab") as events:
            self.process = subprocess.Popen(
                [
                    *POLONAISE, "smoke", "--json", "--directory", str(directory),
                    "--transactions", str(TRANSACTIONS), "--hosts", hosts,
                ],
                stdout=events,
            )  # fmt: skip

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self._lines.read_text().splitlines(keepends=True)[self._seen :]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def until_fault(self) -> None:
        block_until(
            lambda: self.process.poll() is not None or any(each["event"] == "fault" for each in self.events),
            "a fault",
            within_s=120,
        )
        assert self.process.poll() is None, self.events

    def status(self) -> int:
        return self.process.wait(RUN_S)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    before = networks()
    yield tmp_path / "run"
    assert block_until(lambda: not processes_in(tmp_path / "run"), "all processes have ended")
    until_tidy(before)


@pytest.mark.parametrize(
    ("transactions", "seed"),
    [
        (22_500, 126),  # no shorter run has all kinds of faults, whether hosts have networks of their own or not
        pytest.param(50_000, 1, marks=pytest.mark.campaign),
    ],
)
def test_a_run_with_faults_of_every_kind_breaks_no_promise(directory: Path, transactions: int, seed: int) -> None:
    run = SmokeRun(SmokeOptions(directory, transactions, seed), lambda told: None)
    report = run.run()
    assert report is not None
    assert report.failure == ""
    assert report.violations == []
    assert report.operations["acknowledged"] >= transactions
    assert report.committed >= report.operations["acknowledged"]
    assert report.operations["refused"] > 100
    assert report.archive_runs > 2
    told = {kind for kind in report.faults if KINDS[FaultKind(kind)].telling is not Telling.NOTHING}
    assert report.told_s.keys() == report.judged.keys() == told
    assert sum(report.faults.values()) >= report.steps
    assert report.faults.keys() == (set(FaultKind) if report.hosts == NAMESPACES else PROCESS_KINDS)
    assert json.loads((directory / "report.json").read_text()) == report.document()


def test_a_mutation_in_the_processes_is_found(directory: Path) -> None:
    """What it takes, a transaction that was built just before a session ended, not every run of real processes has."""
    for seed in range(1, 6):
        options = SmokeOptions(directory / str(seed), 100, seed, LOOPBACK, "lock-table-reset-to-zero")
        report = SmokeRun(options, lambda told: None).run()
        assert report is not None
        if report.violations:
            break
    assert report is not None
    assert {each.promise for each in report.violations} == {"P5"}
    assert report.mutation_loads > 0
    assert report.command.endswith(" --mutation lock-table-reset-to-zero")


@pytest.mark.exhaustive  # of stages
@pytest.mark.exhaustive
@pytest.mark.parametrize("hosts", [LOOPBACK, NAMESPACES])
def test_a_run_that_is_interrupted_and_killed_leaves_nothing_and_is_resumed(directory: Path, hosts: str) -> None:
    if hosts == NAMESPACES:
        program("ip", "iproute2")
        if why := namespaces_possible():
            pytest.skip(f"no network namespaces here: {why}")  # in CI as well: rights can't be installed
    before = networks()
    run = Command(directory, hosts)
    run.until_fault()
    run.process.send_signal(signal.SIGINT)
    assert run.status() == 130
    assert processes_in(directory) == {}
    until_tidy(before)

    run = Command(directory, hosts)
    run.until_fault()
    run.process.kill()
    assert run.status() == -signal.SIGKILL

    run = Command(directory, hosts)
    assert run.status() == 0, run.events[-3:]
    assert run.events[0]["event"] == "swept"
    report = run.events[-1]
    assert report["event"] == "report"
    assert report["interruptions"] == 2
    assert report["violations"] == []
    assert report["operations"]["acknowledged"] >= TRANSACTIONS
