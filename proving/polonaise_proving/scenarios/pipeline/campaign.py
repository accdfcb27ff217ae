"""`make torture-pipeline`: all scenarios once, then rounds of random faults, at moments that a seed decides.

Drivers, workers, the server and storage nodes go. What was hit is counted.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from polonaise_proving.record.failures import GaveUp
from polonaise_proving.record.keptreport import KeptReport
from polonaise_proving.scenarios import running
from polonaise_proving.scenarios.arguments import at_least_one
from polonaise_proving.scenarios.pipeline.copies import BY_BYTES, FINER, SPLIT, TorturedCopy
from polonaise_proving.scenarios.pipeline.drivers import Driver, DriverDied, Drivers, wait_for
from polonaise_proving.scenarios.pipeline.faults import SparkFault
from polonaise_proving.scenarios.pipeline.ground import FEW, MANY, Ground
from polonaise_proving.scenarios.pipeline.scenarios import ALL, Rig, three
from polonaise_proving.scenarios.running import Figures
from polonaise_proving.stages.databaseservers import KINDS, Databases
from polonaise_proving.stages.processes import session_of

SPLITS = (SPLIT, FINER, BY_BYTES, {"minPartitions": "3"})
PORT_STEPS = 12
"""The steps among which a fault is drawn: about as many as a commit of several groups has."""
FAULTS_MAX = 3
LATEST_S = 4.0
"""Seconds from a round's first micro-batch within which its faults come."""


@dataclass
class PipelineTortureReport(KeptReport):
    """The figures so far; kept in a file, from which a later run goes on."""

    FORMAT: ClassVar[int] = 1

    seed: int
    rounds: int = 0
    hit: Counter[str] = field(default_factory=Counter)
    """The number of faults that found their target at work, by kind."""
    rows: int = 0
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def restored(cls, fields: dict[str, Any]) -> Self:
        return cls(**{**fields, "hit": Counter(fields["hit"])})

    def figures(self) -> list[Figures]:
        done = {"rounds": self.rounds, "rows copied": self.rows, **dict(sorted(self.hit.items()))}
        return [Figures(f"Faults under the pipeline, seed {self.seed}", {**done, "wrong": len(self.wrong)})]


class PipelineTorture:
    """Rounds on one cluster. Each begins three copies, lets random faults happen, and checks what was copied."""

    def __init__(self, ground: Ground, drivers: Drivers, report: PipelineTortureReport) -> None:
        self._rig = Rig(ground, drivers)
        self._report = report
        self._chance = random.Random()
        self._zombies: list[Driver] = []
        """The drivers of this round that are stopped."""

    def round(self) -> None:
        """Run one round, and add to the report what was seen."""
        report = self._report
        self._chance.seed(f"{report.seed}/{report.rounds}")
        sources, trigger = self._chance.choice([(FEW, 100), (FEW, 60), (MANY, None), (MANY, 12_000)])
        copies = three(self._rig.ground, sources, trigger)
        self._zombies.clear()
        try:
            wrong = self._played(copies)
        except (GaveUp, DriverDied) as error:
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong:  # what is left of this round is not to be the next one's
            self._rig.drivers.end_all()
            self._rig.ground.account()
        report.wrong += [f"round {report.rounds}: {each}" for each in wrong]
        report.rows += len(copies) * sum(map(len, self._rig.ground.expected(sources).values()))
        report.rounds += 1
        for copy in copies if not wrong else ():
            copy.forget()

    def _played(self, copies: list[TorturedCopy]) -> list[str]:
        step = self._step(copies[0]) if self._chance.random() < 0.6 else None
        driver = self._rig.begin({each: step if each is copies[0] else None for each in copies}, self._split())
        wait_for(lambda: any(copy.begun for copy in copies), "a first micro-batch")
        for _ in range(self._chance.randint(1, FAULTS_MAX)):
            time.sleep(self._chance.uniform(0.2, LATEST_S / FAULTS_MAX))
            self._one_fault(driver)
            if not driver.alive or driver in self._zombies:
                break
        if step is not None and step.do == "gate" and step.hit and driver.alive and driver not in self._zombies:
            self._chance.choice([self._kill_driver, self._stop_driver])(driver)
        if step is not None:
            step.open_gate()
            if step.hit:
                self._report.hit[f"{step.do} at {step.step}"] += 1
        if driver.alive and driver not in self._zombies:
            driver.answer()
        shuffle = 3 if self._chance.random() < 0.2 else None
        wrong = self._rig.finish(copies, self._split(), shuffle)
        while self._zombies:
            self._wake(self._zombies.pop())
            wrong += [f"after a zombie: {each}" for each in self._rig.compared(copies)]
        return wrong

    def _split(self) -> dict[str, str]:
        return self._chance.choice(SPLITS)

    def _step(self, log: TorturedCopy) -> SparkFault:
        """Draw a fault at a random step of a task or of a commit of the sink."""
        if self._chance.random() < 0.3:
            step = self._chance.choice(["write/half", "write/done"])
            return log.fault(step, self._chance.choice(["fail", "kill_worker"]))
        do = self._chance.choice(["gate", "gate", "gate", "fail", "deaf", "kill_worker"])
        return log.fault("port", do, at=self._chance.randrange(PORT_STEPS))

    # ------------------------------------------------------------------ faults that come from outside

    def _one_fault(self, driver: Driver) -> None:
        doing: Callable[[Driver], Any] = self._chance.choices(
            [self._kill_driver, self._stop_driver, self._kill_worker, self._break_server, self._lose_storage],
            weights=[4, 2, 4, 2, 1],
        )[0]
        doing(driver)

    def _kill_driver(self, driver: Driver) -> None:
        self._rig.drivers.prepare()
        driver.kill()
        self._report.hit["driver killed"] += 1

    def _stop_driver(self, driver: Driver) -> None:
        self._rig.drivers.retire()
        driver.stop()
        wait_for(lambda: driver.stopped, "the driver to stop")
        self._zombies.append(driver)
        self._report.hit["driver stopped, and woken after its successor"] += 1

    def _kill_worker(self, driver: Driver) -> None:
        """Kill one of the Python workers of the driver, whatever the worker does at the moment."""
        workers = [pid for pid in session_of(driver.leader) if pid != driver.leader and _is_worker(pid)]
        if workers:
            os.kill(self._chance.choice(sorted(workers)), signal.SIGKILL)
            self._report.hit["worker killed"] += 1

    def _break_server(self, _: Driver) -> None:
        ground = self._rig.ground
        ground.break_server(lambda: None, self._chance.randrange(len(ground.local.servers)))
        self._report.hit["server killed"] += 1

    def _lose_storage(self, _: Driver) -> None:
        number = self._chance.randrange(3)
        self._rig.ground.lose_storage(number)
        time.sleep(self._chance.uniform(0, 0.5))
        self._rig.ground.replace_storage(number)
        self._report.hit["storage node lost, with its disk"] += 1

    def _wake(self, zombie: Driver) -> None:
        zombie.resume()
        try:
            zombie.answer()
        finally:
            self._rig.drivers.over(zombie)


def _is_worker(pid: int) -> bool:
    """Whether a process is a Python worker, and not one of Spark's shell scripts or its JVM."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("python")
    except (FileNotFoundError, ProcessLookupError):
        return False


def main() -> int:
    parser = running.options("pipeline.campaign", "make torture-pipeline ROUNDS=20 SEED=1 DATABASE=sqlite", __doc__)
    parser.add_argument(
        "--rounds", type=at_least_one, default=20, help="in all; those of an earlier run in DIRECTORY count"
    )
    parser.add_argument("--servers", type=at_least_one, default=2, help="that share the partitions")
    parser.add_argument("--directory", type=Path, default=Path("build/torture"), help="where the report is kept")
    parser.add_argument("--database", choices=KINDS, default="sqlite", help="of copies into tables")
    options = running.parsed(parser)
    database = "" if options.database == "sqlite" else options.database
    kept = options.directory / database / options.mutation / "report.json"
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        report = PipelineTortureReport.kept(kept) if kept.exists() else PipelineTortureReport(options.seed)
    except (OSError, ValueError) as error:
        parser.error(f"argument --directory: {error}")

    def campaign(directory: Path, progress: running.Progressed) -> PipelineTortureReport:
        with Drivers(directory) as drivers:
            drivers.prepare()
            databases = Databases(options.database, directory)
            with databases, Ground(directory / "ground", options.servers, databases) as ground:
                if not report.rounds:
                    for scenario in ALL:
                        progress(0)
                        report.wrong += [f"{scenario.__name__}: {each}" for each in scenario(Rig(ground, drivers))]
                        report.hit[scenario.__name__] += 1
                    report.keep(kept)
                torture = PipelineTorture(ground, drivers, report)
                while report.rounds < options.rounds:
                    progress(report.rounds)
                    torture.round()
                    report.keep(kept)
        return report

    return running.carry_out(options, options.rounds, "rounds", campaign)


if __name__ == "__main__":
    sys.exit(main())
