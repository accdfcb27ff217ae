"""`make torture-pipeline`: all scenarios once, then rounds of random faults; what was seen, as a table."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from polonaise_proving.mutations.children import put_into_children
from polonaise_proving.scenarios import running
from polonaise_proving.scenarios.pipeline import scenarios
from polonaise_proving.scenarios.pipeline.campaign import PipelineTorture, PipelineTortureReport
from polonaise_proving.scenarios.pipeline.drivers import Drivers
from polonaise_proving.scenarios.pipeline.ground import Ground
from polonaise_proving.scenarios.pipeline.scenarios import Rig
from polonaise_proving.scenarios.pipeline.snapshots import snapshots_agree
from polonaise_proving.stages.databases import KINDS, Databases

SCENARIOS: tuple[scenarios.Scenario, ...] = (snapshots_agree, *scenarios.ALL)
REPORT = "report.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make torture-pipeline", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="in all; those of an earlier run in DIRECTORY count")
    parser.add_argument("--seed", type=int, default=1, help="of the faults and their moments")
    parser.add_argument("--servers", type=int, default=2, help="that share the partitions")
    parser.add_argument("--directory", type=Path, default=Path("build/torture"), help="where the report is kept")
    parser.add_argument("--database", choices=KINDS, default="sqlite", help="of copies into tables")
    running.add_mutation(parser)
    arguments = parser.parse_args()
    kept = "" if arguments.database == "sqlite" else arguments.database
    directory = arguments.directory / kept / arguments.mutation
    console = Console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is cleared up then too
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / REPORT
    report = PipelineTortureReport.kept(path) if path.exists() else PipelineTortureReport(arguments.seed)
    with (
        put_into_children(arguments.mutation),
        tempfile.TemporaryDirectory(prefix="polonaise-torture-") as scratch,
        Drivers(Path(scratch)) as drivers,
    ):
        drivers.prepare()
        databases = Databases(arguments.database, Path(scratch))
        with databases, Ground(Path(scratch, "ground"), arguments.servers, databases) as ground:
            if not report.rounds:
                _moments(Rig(ground, drivers), report, console)
                report.keep(path)
            campaign = PipelineTorture(ground, drivers, report)
            while report.rounds < arguments.rounds:
                before = len(report.wrong)
                campaign.round()
                report.keep(path)
                verdict = "; ".join(report.wrong[before:]) or "right"
                console.print(f"round {report.rounds} of {arguments.rounds}: {verdict}", soft_wrap=True, markup=False)
    console.print(table_of(report))
    return int(bool(report.wrong))


def _moments(rig: Rig, report: PipelineTortureReport, console: Console) -> None:
    for scenario in SCENARIOS:
        wrong = scenario(rig)
        report.wrong += [f"{scenario.__name__}: {each}" for each in wrong]
        report.hit[scenario.__name__] += 1
        console.print(f"{scenario.__name__}: {'; '.join(wrong) or 'right'}", soft_wrap=True, markup=False)


def table_of(report: PipelineTortureReport) -> Table:
    figures = {"rounds": report.rounds, "rows copied": report.rows, **dict(sorted(report.hit.items()))}
    return running.table(f"Faults under the pipeline, seed {report.seed}", {**figures, "wrong": len(report.wrong)})


if __name__ == "__main__":
    sys.exit(main())
