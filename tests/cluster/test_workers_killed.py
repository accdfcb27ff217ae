"""Workers as processes that are killed, stopped, and told to go: each effect once, in order, by one worker at a time.

`WORKER_FAULTS=100 pytest tests/cluster/test_workers_killed.py` runs the long form.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select

import polonaise
from polonaise.client.log import partitions_of
from polonaise.client.workergroup import COORDINATING, lease_prefix
from polonaise_proving.stages.databaseservers import engine_at
from rigs.cluster import connected, running
from rigs.waiting import PATIENCE_S, time_passes, wait_until
from rigs.worker import GROUP, Effects, effects

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 12
PROCESSES = 6
LEASE_S = 2.0
FAULTS = int(os.environ.get("WORKER_FAULTS", "8"))
PROGRAM = Path(__file__).parents[1] / "rigs" / "worker.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(PROGRAM.parents[1])])}


class Workers:
    """The worker processes of a test, and what they have done."""

    def __init__(self, log: polonaise.Log, address: str, url: str) -> None:
        self.log = log
        self._address = address
        self.url = url
        self.processes: list[asyncio.subprocess.Process] = []
        self._stopped: list[asyncio.subprocess.Process] = []

    async def start(self, wrong: str = "nothing") -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), self._address, self.url, str(LEASE_S), wrong,
            stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT,
        )  # fmt: skip
        self.processes.append(process)
        return process

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        self.processes.remove(process)
        process.kill()
        await process.wait()

    async def leave(self, process: asyncio.subprocess.Process) -> None:
        self.processes.remove(process)
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await process.stdout.readline(), "it has joined, and hears signals"
            process.terminate()
            assert await process.wait() == 0

    async def hang(self, process: asyncio.subprocess.Process, seconds: float) -> None:
        """Stop a worker for so long."""
        process.send_signal(signal.SIGSTOP)
        try:
            await time_passes(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        for process in list(self.processes):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def shares(self) -> dict[int, int]:
        """Return how many partitions each member has, by its number."""
        _, listed = await partitions_of(self.log).parts.requests.hold_leases(
            COORDINATING, 0, LEASE_S, [], lease_prefix(GROUP), PATIENCE_S
        )
        counts = {lease.holder: 0 for lease in listed if "/member/" in lease.name}
        for lease in listed:
            if "/partition/" in lease.name:
                counts[lease.holder] = counts.get(lease.holder, 0) + 1
        return counts

    async def settled(self, members: int) -> None:
        """Wait until so many members have shared all partitions."""
        least, larger = divmod(PARTITIONS, members)
        expected = sorted([least] * (members - larger) + [least + 1] * larger)

        async def at_rest() -> bool:
            return sorted((await self.shares()).values()) == expected

        await wait_until(at_rest, f"{members} members share {PARTITIONS} partitions", every_s=0.1)

    def rows(self) -> dict[int, list[tuple[int, int, int, float]]]:
        """Return (id, epoch, worker, time) of each effect by partition, in the order in which they were made."""
        found: dict[int, list[tuple[int, int, int, float]]] = defaultdict(list)
        with engine_at(self.url) as engine, engine.connect() as db:
            for row in db.execute(select(effects).order_by(effects.c.number)):
                found[row.partition].append((row.id, row.epoch, row.worker, row.at_s))
        return found

    async def applied(self) -> None:
        """Wait until all that is in the log has had its effect."""
        lasts = {}
        for partition in range(PARTITIONS):
            ids = [tx.id async for tx in self.log.read(partition)]
            lasts[partition] = ids[-1] if ids else -1

        def all_there() -> bool:
            rows = self.rows()
            return all(last < 0 or (rows[p] and max(r[0] for r in rows[p]) >= last) for p, last in lasts.items())

        await wait_until(all_there, "everything has had its effect", every_s=0.2)

    async def wrong(self) -> list[str]:
        """Return what is wrong with the effects, compared with the log."""
        found = []
        rows = self.rows()
        for partition in range(PARTITIONS):
            ids = [tx.id async for tx in self.log.read(partition)]
            had = [row[0] for row in rows[partition]]
            if had != ids[: len(had)]:
                found.append(f"partition {partition}: not each once and in order")
            if len(had) < len(ids):
                found.append(f"partition {partition}: {len(ids) - len(had)} are missing")
            epochs = [row[1] for row in rows[partition]]
            if epochs != sorted(epochs):
                found.append(f"partition {partition}: a worker that was replaced went on")
            if any(len({row[2] for row in rows[partition] if row[1] == epoch}) > 1 for epoch in set(epochs)):
                found.append(f"partition {partition}: two workers under one epoch")
        return found


@contextlib.asynccontextmanager
async def at_work(directory: Path, url: str) -> AsyncIterator[Workers]:
    """Yield workers of a cluster to whose partitions something is appended all the time; `url` has their effects."""
    made = Effects(url)
    await asyncio.to_thread(made.prepare)
    await made.close()
    with running(directory / "cluster", partitions=PARTITIONS) as cluster:
        async with connected(cluster) as log:
            workers = Workers(log, cluster.coordinator, url)

            async def append() -> None:
                while True:
                    for partition in range(PARTITIONS):
                        await log.ready(partition)
                        log.append(b"x", partition)
                    await time_passes(0.1)

            appending = asyncio.create_task(append())
            try:
                yield workers
            finally:
                appending.cancel()
                await asyncio.wait([appending])
                await workers.end()


async def settles_well(workers: Workers) -> None:
    """Wait until everything that is in the log now has had its effect, and check all effects."""
    await workers.applied()
    for process in list(workers.processes):
        await workers.leave(process)
    found = [each for each in await workers.wrong() if "missing" not in each]  # appended meanwhile
    assert found == []


def handed_over_s(workers: Workers, worker: int, at_s: float) -> float:
    """Return the seconds after `at_s` within which each partition that a worker had was gone on with by another one."""
    seconds = []
    for rows in workers.rows().values():
        before = [row for row in rows if row[3] <= at_s]
        if before and before[-1][2] == worker:
            later = [row[3] for row in rows if row[3] > at_s and row[2] != worker]
            seconds.append(later[0] - at_s if later else float("inf"))
    assert seconds, "it had partitions"
    return max(seconds)


@pytest.mark.alone
async def test_what_a_worker_had_is_taken_over_when_it_is_killed_and_when_it_leaves(
    tmp_path: Path, sqlite_url: str
) -> None:
    async with at_work(tmp_path, sqlite_url) as workers:
        for _ in range(3):
            await workers.start()
        await workers.settled(3)
        await workers.applied()
        victim = workers.processes[0]
        killed_s = time.time()
        await workers.kill(victim)
        await workers.settled(2)
        await workers.applied()
        took_s = handed_over_s(workers, victim.pid, killed_s)
        leaver = workers.processes[0]
        left_s = time.time()
        await workers.leave(leaver)
        await workers.settled(1)
        await workers.applied()
        gracefully_s = handed_over_s(workers, leaver.pid, left_s)
        print(f"handed over after a kill in {took_s:.2f} s, gracefully in {gracefully_s:.2f} s")  # noqa: T201
        assert took_s < LEASE_S + 1
        assert gracefully_s < LEASE_S / 2, "long before its lease would have run out"
        await settles_well(workers)


@pytest.mark.exhaustive  # of databases: what each of them does is tried with views
async def test_workers_that_are_killed_stopped_and_told_to_go_apply_each_transaction_once_and_in_order(
    tmp_path: Path, url: str
) -> None:
    chance = random.Random(int(os.environ.get("SEED", "1")))
    async with at_work(tmp_path, url) as workers:
        for _ in range(PROCESSES):
            await workers.start()
        await workers.settled(PROCESSES)
        for _ in range(FAULTS):
            what = chance.choice(("kill", "hang", "leave", "join"))
            victim = chance.choice(workers.processes)
            if what == "kill":
                await workers.kill(victim)
            elif what == "leave":
                await workers.leave(victim)
            elif what == "hang":
                await workers.hang(victim, LEASE_S * chance.uniform(0.3, 2.0))
            if len(workers.processes) < PROCESSES or (what == "join" and len(workers.processes) < PROCESSES + 2):
                await workers.start()
            await time_passes(chance.uniform(0.0, 1.5))
        while len(workers.processes) > PROCESSES:
            await workers.leave(workers.processes[0])
        await workers.settled(PROCESSES)
        await settles_well(workers)


async def replaced(workers: Workers, wrong: str) -> list[str]:
    """Let a worker hang until it is replaced, and go on. Return what is wrong with the effects."""
    await workers.start(wrong)
    await workers.settled(1)
    await workers.start()
    await workers.settled(2)
    await workers.applied()
    await workers.hang(workers.processes[0], 2 * LEASE_S)
    await time_passes(2 * LEASE_S)
    await workers.applied()
    return [each for each in await workers.wrong() if "missing" not in each]


@pytest.mark.exhaustive  # of databases: what each of them does is tried with views
async def test_a_worker_that_goes_on_after_it_was_replaced_changes_nothing(tmp_path: Path, url: str) -> None:
    async with at_work(tmp_path, url) as workers:
        assert await replaced(workers, "goes-on") == []


async def test_one_that_goes_on_and_is_not_fenced_is_caught(tmp_path: Path, sqlite_url: str) -> None:
    async with at_work(tmp_path, sqlite_url) as workers:
        assert [each for each in await replaced(workers, "unfenced") if "was replaced went on" in each]
