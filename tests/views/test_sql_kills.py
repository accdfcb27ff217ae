"""P7: processes that are killed with -9, or many, on one database: each transaction counts once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, bindparam

import polonaise
from polonaise.terms import Transaction
from polonaise_proving.stages.databaseservers import PostgreSQL
from rigs.bankview import Bank, accounts, body, check_fold, journal, open_accounts
from rigs.cluster import running
from rigs.killing import apply_until_killed, context, run
from rigs.waiting import block_for, time_passes

RUNS = [1, 2]


def kill_everywhere(url: str) -> None:
    """Die at every point in turn, each time going on from what the death before has left."""
    open_accounts(url)
    lives = 1
    while (status := run(url, lives, RUNS)) != 0:
        assert status == -9
        lives += 1
    check_fold(url, {0: sum(RUNS)})
    assert lives > 10


@pytest.mark.slow
def test_an_sqlite_view_dies_between_any_two_statements(sqlite_url: str) -> None:
    kill_everywhere(sqlite_url)


@pytest.mark.exhaustive  # of databases
@pytest.mark.slow
def test_a_servers_view_dies_between_any_two_statements(server_url: str) -> None:
    kill_everywhere(server_url)


@pytest.mark.slow
def test_several_processes_keep_one_database_and_are_killed_at_random(url: str) -> None:
    """Four processes apply the same two partitions; whoever dies is replaced."""
    open_accounts(url, 2)
    chance = random.Random(7)
    runs = [1, 5, 3, 8, 2, 1] * 4

    def start(place: int, kill_at: int) -> BaseProcess:
        process = context.Process(target=apply_until_killed, args=(url, kill_at, runs, place % 2))
        process.start()
        return process

    living = {place: start(place, chance.randrange(5, 120)) for place in range(4)}
    deaths = 0
    while living:
        for place, process in list(living.items()):
            process.join(60)
            assert process.exitcode in (0, -9)
            del living[place]
            if process.exitcode == -9:
                deaths += 1
                # The last lives are left alone, so that the end is reached.
                living[place] = start(place, chance.randrange(5, 120) if deaths < 12 else 0)
            process.close()
    assert deaths
    check_fold(url, {0: sum(runs), 1: sum(runs)})


PROCESSES = 10
PARTITIONS = 4
PER_SECOND = 2_000
SECONDS = 4
JOIN_S = 60

EVERY_S = 0.02
AT_ONCE = int(PER_SECOND / PROCESSES * EVERY_S)
COLUMNS = ("partition", "id", "account", "amount")
CREDIT = (
    accounts.update().where(accounts.c.account == bindparam("at")).values(balance=accounts.c.balance + bindparam("by"))
)


class Hasty(Bank):
    """Writes a run in two goes, the accounts in any order, so that partitions lock each other out now and then.

    Its first runs lock two accounts beforehand, partitions the one way and the other, so that some certainly do.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._cross = 2

    def apply_many(self, run: Sequence[Transaction], db: Connection) -> None:
        if self._cross:
            self._cross -= 1
            for account in (0, 1) if run[0].partition % 2 else (1, 0):
                db.execute(CREDIT, {"at": account, "by": 0})
                block_for(0.05)
        rows = [(tx.partition, tx.id, *(int(part) for part in tx.data.split())) for tx in run]
        db.execute(journal.insert(), [dict(zip(COLUMNS, row, strict=True)) for row in rows])
        db.execute(CREDIT, [{"at": account, "by": amount} for _, _, account, amount in rows])


def write_and_apply(coordinator: str, url: str, number: int, failures: Any) -> None:
    """One process: its share of the appends at its pace, and a view that applies everybody's."""
    asyncio.run(_write_and_apply(coordinator, url, number, failures))


async def _write_and_apply(coordinator: str, url: str, number: int, failures: Any) -> None:
    chance = random.Random(number)
    view = Hasty(url)
    receipts = []
    async with polonaise.connect(coordinator, view=view) as log:
        for partition in range(PARTITIONS):
            await log.ready(partition, timeout=JOIN_S)
        began_s = time.monotonic()
        for turn in range(round(SECONDS / EVERY_S)):
            for _ in range(AT_ONCE):
                receipts.append(log.append(body(chance.randrange(1_000)), chance.randrange(PARTITIONS)))
            await time_passes(max(0.0, began_s + (turn + 1) * EVERY_S - time.monotonic()))
        for receipt in receipts:
            await receipt
        for partition in range(PARTITIONS):
            mark = await log.high_water_mark(partition, timeout=JOIN_S)
            await log.wait_applied(mark, partition, timeout=JOIN_S)
    failures[number] = len(view.failures)


@pytest.mark.slow
async def test_ten_processes_apply_everything_once(tmp_path: Path, postgresql: PostgreSQL) -> None:
    url = postgresql.database()
    open_accounts(url, PARTITIONS)
    failures = context.Array("i", [-1] * PROCESSES)
    with running(tmp_path / "cluster", partitions=PARTITIONS) as cluster:
        processes = [
            context.Process(target=write_and_apply, args=(cluster.coordinator, url, number, failures))
            for number in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        for process in processes:
            await asyncio.to_thread(process.join, JOIN_S)
            assert process.exitcode == 0
            process.close()
        assert list(failures) == [0] * PROCESSES, "whatever stood in another's way was tried again, not reported"
        view = Hasty(url)
        async with polonaise.connect(cluster.coordinator, view=view) as log:
            lengths = {}
            for partition in range(PARTITIONS):
                mark = await log.high_water_mark(partition, timeout=JOIN_S)
                await log.wait_applied(mark, partition, timeout=JOIN_S)
                lengths[partition] = mark + 1
    assert sum(lengths.values()) == PROCESSES * round(SECONDS / EVERY_S) * AT_ONCE
    check_fold(url, lengths)
    assert "deadlock detected" in postgresql.log
