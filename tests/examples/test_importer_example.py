"""examples/importer.py: each row of the file is in the log once, however often the import is killed on the way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import polonaise
from rigs.examples import PATIENCE_S, Program, Programs, command, programs

pytestmark = pytest.mark.slow

ROWS = 6_000


def write(path: Path, count: int, **changed: int) -> None:
    amounts = [changed.get(f"row_{number}", number) for number in range(count)]
    path.write_text("account,note,amount\n" + "".join(f'{each % 7},"a, b",{each}\n' for each in amounts))


def importer(started: Programs) -> Program:
    """The command of the docstring."""
    return started.start(*command("importer.py", "python"))


async def amounts(log: polonaise.Log) -> list[int]:
    bodies = [json.loads(tx.data) async for tx in log.read(0)]
    assert all(
        body == {"account": str(int(body["amount"]) % 7), "note": "a, b", "amount": body["amount"]} for body in bodies
    )
    return [int(body["amount"]) for body in bodies]


async def until_committed(log: polonaise.Log, mark: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await log.wait_committed({0: mark}, timeout=PATIENCE_S):
            pass


async def test_an_import_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    write(tmp_path / "payments.csv", ROWS)
    async with programs(tmp_path) as started:
        program = importer(started)
        async with polonaise.connect(f"embedded:{tmp_path / 'payments'}?host=no", wait=PATIENCE_S) as log:
            for mark in (0, 700, 1_900, 4_000):
                await until_committed(log, mark)
                assert program.process.poll() is None
                program.kill()  # which hosts the log as well
                program = importer(started)
        assert await program.end() == 0
        assert program.output == f"{ROWS} rows are in the log\n"
        again = importer(started)
        assert await again.end() == 0
        assert again.output == program.output
    async with polonaise.connect(f"embedded:{tmp_path / 'payments'}") as log:
        assert await amounts(log) == list(range(ROWS))


async def test_of_two_at_a_time_one_goes_on(tmp_path: Path) -> None:
    # So many that the first one is at work until the second has begun, however slowly that starts.
    count = 5 * ROWS
    write(tmp_path / "payments.csv", count)
    async with programs(tmp_path) as started, polonaise.connect(f"embedded:{tmp_path / 'payments'}") as log:
        first = importer(started)
        await until_committed(log, 100)
        second = importer(started)
        assert await first.end() == 1
        assert first.errors.startswith("importer: [producer_fenced] ")
        assert await second.end() == 0
        assert await amounts(log) == list(range(count))


async def test_a_file_that_has_grown_goes_on_and_another_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "payments.csv"
    async with programs(tmp_path) as started, polonaise.connect(f"embedded:{tmp_path / 'payments'}") as log:

        async def refused() -> str:
            program = importer(started)
            assert await program.end() == 1
            assert program.output == ""
            return program.errors.removeprefix("importer: ")

        assert "payments.csv" in await refused(), "there is no such file"
        write(path, 40)
        path.write_text(f"{path.read_text()}1,short\n")
        assert await refused() == "payments.csv, line 42: not as many columns as in the first line\n"
        assert await log.high_water_mark(0) == -1
        for count in (40, 70):
            write(path, count)
            assert await importer(started).end() == 0
            assert await amounts(log) == list(range(count))
        write(path, 80, row_60=5)
        assert (await refused()).startswith("[producer_differs] ")
        write(path, 69)
        assert await refused() == "payments.csv has 69 rows, and 70 of 'january' are in the log\n"
        assert await amounts(log) == list(range(70))
