"""A view in a file: exactly once without any database, through one atomic rename per run of transactions.

The state and the high-water mark are one JSON document. It is written beside the old one, synced, and renamed over it:
whoever reads the name finds the old document or the new one, never a part and never a state without its mark. Only
one client at a time may use a directory: of two, neither would learn that the other has written the file meanwhile.

    class Balances(FileView):
        def change(self, state, tx):
            account, amount = tx.data.decode().split()
            state[account] = state.get(account, 0) + int(amount)

    async with polonaise.connect("file:./bank/coordinator", view=Balances(Path("./balances"))) as log: ...
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import polonaise
from polonaise.errors import ViewUnavailable, ViewUnfit


class FileView:
    """One file per partition in `directory`. `states` holds what they hold, for transaction contexts to read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._marks: dict[int, int] = {}
        self.states: dict[int, dict[str, Any]] = {}

    def change(self, state: dict[str, Any], tx: polonaise.Transaction) -> None:
        """Change the partition's state, which must remain something that JSON can hold, as `tx` demands."""
        raise NotImplementedError

    def failed(self, partition: int, id: int, error: Exception) -> None:
        print(f"transaction {id} of partition {partition} can't be applied: {error!r}")

    async def high_water_mark(self, partition: int) -> int:
        self._marks[partition], self.states[partition] = await asyncio.to_thread(self._load, partition)
        return self._marks[partition]

    async def apply_run(self, run: Sequence[polonaise.Transaction]) -> int:
        partition, mark = run[0].partition, run[-1].id
        # A copy: a run that fails half-way must leave no trace, in the file or in memory.
        state = json.loads(json.dumps(self.states[partition]))
        for tx in run:
            self.change(state, tx)
        await asyncio.to_thread(self._store, partition, mark, state)
        self._marks[partition], self.states[partition] = mark, state
        return mark

    def path(self, partition: int) -> Path:
        return self._directory / f"partition-{partition}.json"

    def _load(self, partition: int) -> tuple[int, dict[str, Any]]:
        path = self.path(partition)
        try:
            checksum, _, document = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return -1, {}
        except OSError as error:
            raise ViewUnavailable(f"{path} can't be read: {error}") from error
        if checksum != b"%08x" % crc32(document):
            raise ViewUnfit(f"{path} is damaged: remove it, and the log will bring everything again")
        content = json.loads(document)
        return content["high_water_mark"], content["state"]

    def _store(self, partition: int, mark: int, state: dict[str, Any]) -> None:
        path = self.path(partition)
        new = path.with_suffix(".new")
        document = json.dumps({"high_water_mark": mark, "state": state}).encode()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with new.open("wb") as file:
                file.write(b"%08x\n" % crc32(document) + document)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise ViewUnavailable(f"{path} can't be written: {error}") from error
