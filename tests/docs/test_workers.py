"""docs/workers.md tells the truth: its example shares a log between two workers, each transaction once."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import polonaise
import polonaise.blocking
from polonaise.errors import Closed
from polonaise_proving.stages.databaseservers import engine_at
from rigs.waiting import wait_until

DOCUMENT = Path(__file__).parents[2] / "docs" / "workers.md"
COUNT = 12


def examples() -> list[str]:
    """Those with a view, with a handler, and with a handler for threads."""
    found = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(found) == 3
    return found


async def test_the_example_for_threads_works(tmp_path: Path) -> None:
    mails: list[bytes] = []
    address = f"embedded:{tmp_path}/log"
    names: dict[str, Any] = {"polonaise": polonaise, "address": address, "send_mail": lambda tx: mails.append(tx.data)}
    working = asyncio.create_task(asyncio.to_thread(exec, examples()[2], names))
    async with polonaise.connect(address) as log:
        await log.append(b"hello", 0)
        await wait_until(lambda: working.done() or mails == [b"hello"])
        await asyncio.to_thread(names["group"].leave)
        with pytest.raises(Closed):
            await working
    assert mails == [b"hello"]


@pytest.mark.slow
async def test_the_example_works(tmp_path: Path) -> None:
    example = examples()[0]
    names: dict[str, Any] = {}
    exec(example, names)
    address, url = f"embedded:{tmp_path}/log?partitions=3", f"sqlite:///{tmp_path}/invoices.db"

    def rows() -> int:
        with engine_at(url) as engine, engine.connect() as db:
            if not db.execute(text("SELECT 1 FROM sqlite_master WHERE name = 'invoices'")).all():
                return 0
            return int(db.execute(text("SELECT count(*) FROM invoices")).scalar_one())

    async with polonaise.connect(address) as log:
        working = [asyncio.create_task(names["work"](f"embedded:{tmp_path}/log", url)) for _ in range(2)]
        try:
            for number in range(COUNT):
                await log.append(b"%d" % number, number % 3)
            await wait_until(lambda: any(each.done() for each in working) or rows() == COUNT)
            assert rows() == COUNT
        finally:
            for each in working:
                each.cancel()
            await asyncio.wait(working)
