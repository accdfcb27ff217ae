"""A run of a job: its progress as told to its caller, and its outcome, a report that a machine can read."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from polonaise.errors import BadOption, DiskFailed, PolonaiseError
from polonaise.host.replacing import may_be_replaced, replaced


class JobProgress(Protocol):
    """Receives the progress of a job, step by step. Each job documents what it counts."""

    def begin(self, what: str, total: int) -> None:
        """Hear that a step of `total` parts begins, and that the one before is done."""

    def done(self, parts: int) -> None:
        """Hear how many parts of this step are done, in all."""


class Silence:
    """Ignores all progress."""

    def begin(self, what: str, total: int) -> None:
        pass

    def done(self, parts: int) -> None:
        pass


class Report(Protocol):
    """The result of a job: what it found and did."""

    @property
    def well(self) -> bool:
        """Whether all is as it should be. Always true for a job that only makes something."""

    def fields(self) -> Mapping[str, Any]:
        """Return the report as values of JSON."""


ReportT = TypeVar("ReportT", bound=Report)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, and how it ended."""

    job: str
    began: datetime
    """When it began, UTC."""
    took_s: float
    report: Report | None
    """The job's result; None if it failed."""
    error: PolonaiseError | None = None

    @property
    def outcome(self) -> str:
        """`well`, `not well` (the job ended, and its report says what is wrong) or `failed`."""
        if self.report is None:
            return "failed"
        return "well" if self.report.well else "not well"

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "job": self.job,
            "outcome": self.outcome,
            "began": self.began.isoformat(timespec="milliseconds"),
            "took_s": round(self.took_s, 3),
        }
        if self.report is not None:
            fields["report"] = dict(self.report.fields())
        if self.error is not None:
            fields["error"] = {"code": self.error.code, "message": self.error.text}
        return fields


def run(job: str, work: Callable[[], ReportT], finished: Callable[[Run], None]) -> ReportT:
    """Do the work, tell `finished` how it ended, and return the report, or raise the `PolonaiseError` of the work."""
    began, began_s = datetime.now(UTC), time.perf_counter()
    try:
        report = work()
    except PolonaiseError as error:
        finished(Run(job, began, time.perf_counter() - began_s, None, error))
        raise
    finished(Run(job, began, time.perf_counter() - began_s, report))
    return report


class ReportFile:
    """The file for a run's report, checked before the run. Raises `BadOption` for a path that can't be written to."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        if not may_be_replaced(self._path):
            raise BadOption(f"the report can't be written to {path}: name a file in a writable directory")

    def write(self, run: Run) -> None:
        """Replace the file as `replaced` does. Raises `DiskFailed`."""
        try:
            with replaced(self._path) as file:
                file.write(json.dumps(run.fields(), indent=2).encode() + b"\n")
        except OSError as error:
            raise DiskFailed(f"the report can't be written to {self._path}: {error.strerror or error}") from error


def main(job: str) -> NoReturn:
    """Become `polonaise pipeline JOB`, with this process's arguments and environment, as `spark-submit` set them."""
    os.execv(sys.executable, [sys.executable, "-m", "polonaise.cli", "pipeline", job, *sys.argv[1:]])
