"""A process that keeps a view up to date and is killed between two statements; run from a clean, threadless server."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, create_engine, event

from rigs.bankview import Bank, transactions

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["polonaise.views.sql", "sqlalchemy.dialects.sqlite", "psycopg", "pymysql"])


def apply_until_killed(url: str, kill_at: int, runs: list[int], partition: int = 0) -> None:
    """Apply runs of these lengths from where the view stands; die at the `kill_at`-th point between two statements."""
    points = itertools.count(1)

    def reach(*_: Any) -> None:
        if next(points) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    engine = create_engine(url)
    asyncio.run(_apply(Bank(engine), runs, partition, lambda: _watch(engine, reach)))
    engine.dispose()


def _watch(engine: Any, reach: Callable[..., None]) -> None:
    """Call `reach` around every statement and every end of a transaction from now on."""
    for name in ("before_cursor_execute", "after_cursor_execute", "begin", "commit", "rollback"):
        event.listen(engine, name, reach)
    dialect = engine.dialect
    commit = dialect.do_commit

    def commit_and_reach(connection: Connection) -> None:
        commit(connection)
        reach()

    dialect.do_commit = commit_and_reach


async def _apply(view: Bank, runs: list[int], partition: int, begin: Callable[[], None]) -> None:
    mark = await view.high_water_mark(partition)
    # The view's writer must be made under the events: on a connection that exists they would not be heard.
    await view.close()
    begin()
    end = sum(runs) - 1
    for length in itertools.cycle(runs):
        if mark >= end:
            break
        mark = await view.apply_run(transactions(min(length, end - mark), first=mark + 1, partition=partition))
    await view.close()


def run(*arguments: Any) -> int:
    """Run `apply_until_killed(*arguments)` in a process of its own. Return its exit status: -9 if it was killed."""
    process = context.Process(target=apply_until_killed, args=arguments)
    process.start()
    process.join(60)
    status = process.exitcode
    assert status is not None, "it hangs"
    process.close()
    return status
