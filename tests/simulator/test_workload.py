"""What the simulator's applications note of their appends: nothing that the library has not told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polonaise.errors import AppendUnknown
from polonaise_proving.record.observations import Fate, History, Kind
from polonaise_proving.work import workload


class EndingLog:
    """A log that ends while the first append is under way; the test is over with the second one."""

    def __init__(self) -> None:
        self.appends = 0

    def applied(self, partition: int) -> int:
        return -1

    async def ready(self, partition: int) -> None: ...

    async def append(self, body: bytes, partition: int, *, high_water_mark: int) -> Any:
        self.appends += 1
        if self.appends > 1:
            raise asyncio.CancelledError
        raise AppendUnknown("its client was closed")


async def test_a_last_append_of_unknown_fate_is_not_noted_as_failed() -> None:
    history = History(1)
    session = SimpleNamespace(
        application=SimpleNamespace(producing={0: None}, who="one"),
        history=history,
        log=EndingLog(),
        invoke=lambda partition, kind, rests: history.invoke("one", partition, Kind(kind), rests, 0),
        failed=lambda attempt, error: history.failed(attempt, str(error), None),
    )
    with pytest.raises(asyncio.CancelledError):
        await workload.last_step(cast(Any, session), 0)
    assert history.tries[0].fate is Fate.UNKNOWN
