"""Who keeps no archive does not load what reads one."""

from __future__ import annotations

from pathlib import Path

from rigs.programs import output_of, run_python

HOST = """
import asyncio, sys, polonaise
async def main():
    async with polonaise.connect(sys.argv[1]) as log:
        await log.append(b"x", 0)
        assert (await log.health(0))["partitions"]["0"]["ready"]
asyncio.run(main())
print(sorted({"pyarrow", "obstore", "numpy"} & set(sys.modules)))
"""


def test_a_server_without_a_store_loads_neither_parquet_nor_object_stores(tmp_path: Path) -> None:
    assert output_of(run_python("-c", HOST, f"embedded:{tmp_path / 'log'}")).strip() == "[]"
