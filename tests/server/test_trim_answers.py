"""What an owner answers to a trim: whole segments are dropped, and replicas end theirs at different ids."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.server import trimming
from polonaise.wire.messages import Trimmed


async def test_the_first_id_is_the_one_from_which_on_every_replica_holds_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    firsts = {"a": [40, 80], "b": [95], "c": [0]}

    async def drop_one(reader: Any, session: Any, name: str, before: int, certain: int) -> Trimmed:
        first = firsts[name].pop(0)
        return Trimmed(first, not firsts[name])

    monkeypatch.setattr(trimming, "_drop_one", drop_one)
    session: Any = SimpleNamespace(engaged=list(firsts), id=1)
    reader: Any = SimpleNamespace(owner=SimpleNamespace(session=session, partition=0))
    told = await trimming._drop(reader, session, 100, 101)
    assert (told.first, bool(told.done)) == (95, True)
