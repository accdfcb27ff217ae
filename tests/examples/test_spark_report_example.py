"""examples/spark_report.py: what it says of the booking service's log; one that dies leaves the one before."""

from __future__ import annotations

import csv
import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

import polonaise
from polonaise.errors import JavaMissing
from polonaise.spark.java import find_java
from rigs.examples import EXAMPLES, PATIENCE_S, Program, Programs, command, programs
from rigs.lacking import lacking
from rigs.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def _java() -> None:
    try:
        find_java()
    except JavaMissing as error:
        lacking(str(error))


def booking_service() -> ModuleType:
    """The other example, which writes the log that this one reads."""
    spec = importlib.util.spec_from_file_location("booking", EXAMPLES / "booking.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(started: Programs) -> Program:
    """The command of the docstring."""
    return started.start(*command("spark_report.py", "python"))


def table(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return [row[:3] for row in csv.reader(file)]


@pytest.mark.exhaustive("polonaise.spark", "examples/spark_report.py", of="programs on Spark that pages show")
async def test_the_report_is_of_the_log_and_one_that_dies_changes_nothing(tmp_path: Path) -> None:
    booking = booking_service()
    view = booking.Bookings(f"sqlite:///{tmp_path / 'booking.db'}")
    csv_file, page = tmp_path / "report" / "shows.csv", tmp_path / "report" / "index.html"
    async with (
        programs(tmp_path) as started,
        polonaise.connect(f"embedded:{tmp_path / 'booking-log'}", view=view) as log,
    ):

        async def book(show: int, seat: int, guest: str) -> None:
            await log.once(f"{show} {seat}", booking.book, view, show, seat, guest, partition=0, timeout=PATIENCE_S)

        for seat, guest in enumerate(("Ada", "Emmy", "Ada"), 1):
            await book(1, seat, guest)
        await book(2, 1, "Ada")
        first = report(started)
        assert await first.end() == 0, first.errors
        assert first.output == "4 bookings of 2 shows: report/index.html\n"
        assert table(csv_file) == [["show", "seats", "guests"], ["1", "3", "2"], ["2", "1", "1"]]
        assert "<td>3</td><td>2</td>" in page.read_text()
        assert "Transactions that are no bookings: 0</p>" in page.read_text()

        kept = csv_file.read_text(), page.read_text()
        await book(3, 1, "Emmy")
        await log.append(b"no booking")  # the service itself could go on behind this only when its view passes over it
        killed = report(started)
        await wait_until(lambda: "java" in killed.living(), "Spark's start", every_s=0.05)
        killed.kill()
        assert (csv_file.read_text(), page.read_text()) == kept
        last = report(started)
        assert await last.end() == 0, last.errors
        assert table(csv_file)[-1] == ["3", "1", "1"]
        assert "Transactions that are no bookings: 1</p>" in page.read_text()
        assert sorted(os.listdir(page.parent)) == ["index.html", "shows.csv"]
