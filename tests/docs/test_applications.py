"""docs/applications.md tells the truth: its example of registers runs, and does what the page says."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from polonaise import testing

DOCUMENT = Path(__file__).parents[2] / "docs" / "applications.md"


def example_with(text: str) -> dict[str, Any]:
    """What the one example of the page defines that has this text in it."""
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL) if text in block]
    defined: dict[str, Any] = {}
    exec(compile(code, str(DOCUMENT), "exec"), defined)
    return defined


async def test_of_those_who_expect_a_register_to_be_absent_one_gets_it() -> None:
    reserve = example_with("tx.expect(")["reserve"]
    cluster = testing.MemoryCluster()
    async with cluster.connect() as one, cluster.connect() as other:
        told = await asyncio.gather(*(reserve(log, 7, guest) for log, guest in ((one, b"Ada"), (other, b"Emmy"))))
        assert sorted(told) == [False, True]
        winner = b"Ada" if told[0] else b"Emmy"
        assert await one.list_registers(b"seat/") == {b"seat/7": winner}
        assert [tx.data for tx in one.transactions()] == [b"7 " + winner]
        assert await reserve(other, 8, b"Emmy"), "another seat is free"
