"""What a smoke test notes while it runs: faults that the status leaves out, and appends that planned changes fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise_proving.faults.dealing import FaultStep
from polonaise_proving.record.faultkinds import Fault, FaultKind
from polonaise_proving.record.history import LineKind
from polonaise_proving.record.journal import Follower, Journal
from polonaise_proving.scenarios.smoke import run as run_module
from polonaise_proving.scenarios.smoke.report import SmokeReport
from polonaise_proving.scenarios.smoke.run import SmokeOptions, SmokeRun

LEADER = Fault(FaultKind.STOP_LEADER, "zookeeper-1")
MOVE = Fault(FaultKind.MOVE, "server-1")
KILL = Fault(FaultKind.KILL, "server-1")


def status(wellness: str = "well", **zookeeper: str) -> dict[str, Any]:
    coordinator = {"trouble": "", "servers": {"z:1": "", "z:2": "", **zookeeper}}
    return {"wellness": wellness, "coordinator": coordinator, "servers": [], "storage": [], "partitions": []}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(run_module, "TOLD_S", 0.0)
    monkeypatch.setattr(run_module, "_TROUBLE_S", 0.0)
    running: Any = SmokeRun(SmokeOptions(tmp_path, 1_000, 3), lambda told: None)
    running._report = SmokeReport("", 3, 1_000, "loopback", "now")
    running._look = lambda: None
    running._town = SimpleNamespace(addresses={"zookeeper-1": "z:1", "zookeeper-2": "z:2"}, clients=[])
    return running


def says(run: Any, *statuses: dict[str, Any]) -> None:
    told = list(statuses)

    async def look(timeout_s: float) -> dict[str, Any]:
        return told.pop(0) if len(told) > 1 else told[0]

    run._town.status = look


def test_a_fault_that_the_status_tells_of_is_noted_with_its_time(run: Any) -> None:
    says(run, status("degraded", **{"z:1": "did not answer"}))
    run._until_told(FaultStep(0, 1, 2.0, (LEADER,)), [LEADER])
    assert run._report.violations == []
    assert run._report.told_s.keys() == {FaultKind.STOP_LEADER}


def test_it_is_looked_again_until_the_status_tells(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "TOLD_S", 60.0)
    says(run, status(), status(), status("degraded", **{"z:1": "did not answer"}))
    run._until_told(FaultStep(0, 1, 2.0, (LEADER,)), [LEADER])
    assert run._report.violations == []


@pytest.mark.parametrize("said", [status(), status("degraded", **{"z:2": "did not answer"})])
def test_a_fault_that_the_status_does_not_tell_of_is_a_violation(run: Any, said: dict[str, Any]) -> None:
    says(run, said)
    run._until_told(FaultStep(0, 1, 2.0, (LEADER,)), [LEADER])
    (found,) = run._report.violations
    assert found.promise == "status"
    assert found.text.startswith("step 0: stop-leader zookeeper-1: after")
    assert "stop-leader zookeeper-1 is not told" in found.text


@pytest.mark.parametrize("culprit", ["storage-2", "storage-3"])
def test_a_run_whose_status_has_named_the_wrong_culprit_has_failed(run: Any, tmp_path: Path, culprit: str) -> None:
    """The pair server-1 and storage-3 is cut, and the status names this one, or another pair."""
    server = {"server": 1, "name": "s1", "address": "s:1", "reachable": True, "troubles": []}
    storage = [
        {"name": name, "address": address, "reachable": True, "troubles": []}
        for name, address in (("storage-2", "d:2"), ("storage-3", "d:3"))
    ]
    blamed = next(node for node in storage if node["name"] == culprit)
    blamed["troubles"] = ["server 1 (s1) does not reach it: it has been silent for 2.7 s"]
    said = {**status("degraded"), "servers": [server], "storage": storage}
    run._town.addresses |= {"server-1": "s:1", "storage-2": "d:2", "storage-3": "d:3"}
    run._town.kill, run._town.archiver = lambda: None, SimpleNamespace(runs=0)
    run._report.faults["cut-pair"] = 1
    says(run, said)
    pair = Fault(FaultKind.CUT_PAIR, "server-1", "storage-3")
    run._work = lambda steps: run._until_told(FaultStep(0, 1, 2.0, (pair,)), [pair])
    report = run._in_town(())
    assert report.judged == {"cut-pair": 1}
    assert report.passed == (culprit == "storage-3")
    assert report.passed or "cut-pair server-1 from storage-3 is not told" in report.text()


@pytest.mark.parametrize(("faults", "broken"), [((MOVE,), True), ((KILL,), False)])
def test_an_append_that_fails_amid_planned_changes_alone_is_a_violation(
    run: Any, tmp_path: Path, faults: tuple[Fault, ...], *, broken: bool
) -> None:
    journal = Journal(tmp_path / "journal")
    follower = Follower(tmp_path / "journal")
    run._town.clients = [follower]
    journal.write(LineKind.FAILED, 0, "client-1.1/1")
    follower.follow()
    run._judge_planned(FaultStep(0, 1, 2.0, faults), 1)
    assert run._report.violations == []
    journal.write(LineKind.FAILED, 0, "client-1.1/2")
    follower.follow()
    run._judge_planned(FaultStep(1, 1, 2.0, faults), 1)
    assert [found.promise for found in run._report.violations] == ["planned"] * broken
    assert not broken or "failed 1 appends, such as client-1.1/2" in run._report.violations[0].text


def test_a_planned_change_comes_alone_in_its_step() -> None:
    for seed in range(20):
        for step in run_module.schedule_of(seed, 200_000, list(FaultKind)):
            assert step.is_planned == any(fault.kind is FaultKind.MOVE for fault in step.faults)
