"""Polonaise: one server and three storage processes, the client on uvloop in this process."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop
from benchmarks.loads import Load, Missing, keep
from benchmarks.peers.figures import Configuration
from benchmarks.peers.peer import BODY_BYTES, GRACE_S

import polonaise
from polonaise.node.local import LocalCluster


class Polonaise:
    configuration = Configuration(
        peer="polonaise",
        name="Polonaise",
        acknowledged="two of three storage processes have synced it",
        durable=True,
        client=f"Python {platform.python_version()}, uvloop",
        locks="a transaction context with a WRITE lock on the account",
    )
    warming_s = (2.0, 1.0)

    def __init__(self) -> None:
        self._cluster: LocalCluster | None = None

    def install(self) -> str:
        return f"Polonaise {importlib.metadata.version('polonaise')}"

    def start(self, directory: Path) -> None:
        self._cluster = LocalCluster(directory)
        try:
            self._cluster.start()
        except polonaise.PolonaiseError as error:
            raise Missing(str(error)) from None

    def load(self, outstanding: int, seconds: float) -> Load:
        assert self._cluster is not None
        return _bounded(_appends(self._cluster.coordinator, outstanding, seconds), seconds)

    def withdraw(self, accounts: int, outstanding: int, seconds: float) -> Load:
        assert self._cluster is not None
        return _bounded(_withdrawals(self._cluster.coordinator, accounts, outstanding, seconds), seconds)

    def stop(self) -> None:
        if self._cluster:
            self._cluster.stop()
            self._cluster = None


def _bounded(work: Coroutine[None, None, Load], seconds: float) -> Load:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(asyncio.wait_for(work, seconds + GRACE_S))
        except (polonaise.PolonaiseError, TimeoutError) as error:
            raise Missing(f"the load ended early: {error or 'it took too long'}") from None


async def _appends(coordinator: str, outstanding: int, seconds: float) -> Load:
    body = bytes(BODY_BYTES)
    async with polonaise.connect(coordinator) as log:
        await log.append(body, partition=0)
        return await keep(lambda: log.append(body, partition=0), outstanding, seconds)


class Balances:
    """A view in memory of accounts that were opened with the same balance when it began."""

    def __init__(self, accounts: int, high_water_mark: int) -> None:
        self.balances = [1_000_000_000] * accounts
        self._high_water_mark = high_water_mark

    def high_water_mark(self, partition: int) -> int:
        return self._high_water_mark

    def apply(self, tx: polonaise.Transaction) -> None:
        self.balances[int.from_bytes(tx.data[:4], "big")] -= 1
        self._high_water_mark = tx.id

    def failed(self, partition: int, id: int, error: BaseException) -> None:
        raise error


async def _withdrawals(coordinator: str, accounts: int, outstanding: int, seconds: float) -> Load:
    async with polonaise.connect(coordinator) as log:
        mark = await log.high_water_mark(0)
    view = Balances(accounts, mark)
    padding = bytes(BODY_BYTES - 4)

    def withdraw(tx: Any, account: int) -> Any:
        tx.write_lock("account", account)
        if view.balances[account] < 1:
            return tx.abandon("insufficient funds")
        return tx.append(account.to_bytes(4, "big") + padding)

    async with polonaise.connect(coordinator, view=view) as log:
        return await keep(lambda: log.run(withdraw, random.randrange(accounts), partition=0), outstanding, seconds)
