"""Who keeps no archive does not load what reads one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    command = [sys.executable, "-c", HOST, f"embedded:{tmp_path / 'log'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
