"""Each moment once, in small: real drivers, a real cluster, real kills. And bugs that the comparison must find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from polonaise.errors import JavaMissing
from polonaise.spark.java import find_java
from polonaise_proving.judges.rows import GROUP, judge, judge_figures, judge_files
from polonaise_proving.mutations.children import put_into_children
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.scenarios.pipeline import scenarios
from polonaise_proving.scenarios.pipeline.campaign import PipelineTortureReport
from polonaise_proving.scenarios.pipeline.copies import ToSql
from polonaise_proving.scenarios.pipeline.drivers import Drivers
from polonaise_proving.scenarios.pipeline.ground import Ground
from polonaise_proving.scenarios.pipeline.scenarios import Appender, Rig
from polonaise_proving.stages.databaseservers import Databases
from polonaise_proving.stages.watchdog import watched
from rigs.lacking import lacking
from rigs.waiting import block_until

DRIVER_DIES = [scenarios.killed_between_groups, scenarios.zombie]
EXPECTED = {0: ["a", "b"], 1: ["c"]}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    try:
        find_java()
    except JavaMissing as error:
        lacking(str(error))
    directory = tmp_path_factory.mktemp("torture")
    with watched(), Drivers(directory) as drivers:
        drivers.prepare()
        with Ground(directory / "ground") as ground:
            yield Rig(ground, drivers)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_appends_beside_a_trial_that_have_crashed_fail_it() -> None:
    """Else the trial would have shown what a snapshot is while nobody appends."""

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("crashed")

    ground = cast(Ground, SimpleNamespace(log=SimpleNamespace(ready=crash)))
    with pytest.raises(GaveUp, match="ended by themselves"), Appender(ground) as appender:
        block_until(lambda: not appender.is_alive(), "the end of the thread")


@pytest.mark.exhaustive  # of faults: the campaign draws all of them
@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [
        # A driver's death costs a new driver: `killed_between_groups` and `zombie` are its short form.
        pytest.param(each, marks=[pytest.mark.campaign] if each is scenarios.killed_before_the_checkpoint else [])
        for each in scenarios.ALL
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_each_row_is_there_once_and_in_order(rig: Rig, scenario: scenarios.Scenario) -> None:
    assert scenario(rig) == []


@pytest.mark.slow
@pytest.mark.exhaustive(of="databases that others configure, under kills")
@pytest.mark.parametrize("database", ["mariadb", "pooled"])
@pytest.mark.parametrize(
    "scenario", [scenarios.killed_between_groups, scenarios.zombie], ids=lambda each: each.__name__
)
def test_in_databases_that_others_configure_each_row_is_there_once(
    rig: Rig, scenario: scenarios.Scenario, database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(database)  # is skipped where it is not installed
    before = rig.ground.databases
    with Databases(database, tmp_path) as rig.ground.databases:
        try:
            assert scenario(rig) == []
        finally:
            rig.ground.databases = before


@pytest.mark.slow
def test_a_sink_that_appends_at_once_is_found_out(rig: Rig) -> None:
    assert "to_log: partition 4: 275 rows instead of 250" in scenarios.naive_task_raises(rig)
    assert "to_log: partition 4: 300 rows instead of 250" in scenarios.naive_worker_killed(rig)


@pytest.mark.slow
@pytest.mark.campaign  # `test_a_sink_that_appends_at_once_is_found_out` is its short form
def test_sinks_that_do_not_know_batches_are_found_out_when_a_driver_dies(rig: Rig) -> None:
    wrong = scenarios.naive_driver_killed(rig)
    assert "to_log: partition 4: 300 rows instead of 250" in wrong, "at once: the whole batch again"
    assert "to_log: partition 5: 300 rows instead of 250" in wrong
    assert "to_log: partition 6: 275 rows instead of 250" in wrong, "by task: the half that went to another task"
    assert "to_sql: partition 0: 300 rows instead of 250" in wrong
    assert not any("partition 7" in each and "rows instead" in each for each in wrong), "no other task had its rows"


@pytest.mark.slow
@pytest.mark.campaign  # `zombie` finds it, too; `mutations/views.py` names the short form
def test_a_mutation_in_the_processes_is_found(tmp_path: Path) -> None:
    with (
        put_into_children("mark-that-another-process-moved-moved-on"),
        watched(),
        Drivers(tmp_path) as drivers,
        Ground(tmp_path / "ground") as ground,
    ):
        rig, table = Rig(ground, drivers), ToSql(ground)
        drivers.prepare()
        fault = table.fault("sql/begin", "gate", batch=scenarios.MIDDLE)
        driver = rig.begin({table: fault})
        scenarios.all_hit([fault], driver)
        wrong = scenarios.overtaken(rig, [table], [fault], driver)
    assert any("to_sql" in each and "too many times" in each for each in wrong), wrong


# ------------------------------------------------------------------ the comparisons themselves


def test_what_is_as_expected_has_nothing_wrong() -> None:
    assert judge(EXPECTED, {0: ["a", "b"], 1: ["c"]}) == []
    assert judge(EXPECTED, {0: ["b", "a"], 1: ["c"]}, ordered=False) == []
    assert judge_files(EXPECTED, [("x", 0, 0, "a"), ("y", 0, 1, "b"), ("x", 1, 0, "c")]) == []


@pytest.mark.parametrize(
    ("found", "naming"),
    [
        ({0: ["a", "b", "b"], 1: ["c"]}, "partition 0: too many times: b"),
        ({0: ["a", "b"]}, "partition 1: missing: c"),
        ({0: ["a", "x"], 1: ["c"]}, "partition 0: missing: b"),
        ({0: ["a", "x"], 1: ["c"]}, "partition 0: too many times: x"),
        ({0: ["b", "a"], 1: ["c"]}, "partition 0: b at place 0"),
        ({0: ["a", "b"], 1: ["c"], 2: ["c"]}, "partition 2: 1 rows instead of 0"),
    ],
)
def test_what_is_not_as_expected_is_found(found: dict[int, list[str]], naming: str) -> None:
    wrong = judge(EXPECTED, found)
    assert any(naming in each for each in wrong), wrong


def test_files_with_rows_twice_or_out_of_order_are_found() -> None:
    rows = [("x", 0, 1, "b"), ("x", 0, 0, "a"), ("x", 1, 0, "c"), ("y", 1, 0, "c")]
    wrong = judge_files(EXPECTED, rows)
    assert any("x: ids of partition 0" in each for each in wrong)
    assert any("partition 1: too many times" in each for each in wrong)


CRCS = [(id, 10 + id) for id in range(GROUP)]
FINAL = [crc for _, crc in CRCS]
FIGURES = [[GROUP, GROUP - 1, sum(range(GROUP)), 30]]


def test_a_snapshot_that_is_one_has_nothing_wrong() -> None:
    assert judge_figures(FIGURES * 2, CRCS, 1, [*FINAL, 99]) == []


@pytest.mark.parametrize(
    ("figures", "crcs", "mark", "final", "naming"),
    [
        ([*FIGURES, [GROUP + 1, GROUP, 0, 30]], CRCS, 1, FINAL, "used 2 times"),
        ([[GROUP, GROUP, sum(range(GROUP)), 30]], CRCS, 1, FINAL, "gaps"),
        ([[GROUP, GROUP - 1, 7, 30]], CRCS, 1, FINAL, "gaps"),
        ([[3, 2, 3, 30]], CRCS[:3], 1, FINAL, "there in part"),
        (FIGURES, CRCS, GROUP, FINAL, "was committed before"),
        (FIGURES, CRCS[:2], 1, FINAL, "when they are collected"),
        (FIGURES, CRCS, 1, [*FINAL[:2], 99, *FINAL[3:]], "1 rows of a snapshot are not in the log, such as 2"),
        (FIGURES, CRCS, 1, FINAL[:-1], "not in the log"),
    ],
)
def test_a_snapshot_that_is_none_is_found(
    figures: list[list[int]], crcs: list[tuple[int, int]], mark: int, final: list[int], naming: str
) -> None:
    wrong = judge_figures(figures, crcs, mark, final)
    assert any(naming in each for each in wrong), wrong


def test_a_report_goes_on_where_it_was(tmp_path: Path) -> None:
    report = PipelineTortureReport(
        seed=3, rounds=2, hit=Counter({"worker killed": 4}), rows=500, wrong=["round 1: something"]
    )
    report.keep(tmp_path / "report.json")
    assert PipelineTortureReport.kept(tmp_path / "report.json") == report
