"""What one target reads of the log holds up no other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from polonaise.log.batch import Batch
from polonaise.player.logreading import LogReading
from polonaise.player.protocol.activeplayer import ActivePlayer
from polonaise.player.protocol.effects import ReadForTarget
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.protocol.targetqueue import RecoveryRead
from polonaise.player.routing import Route, Router
from polonaise.terms import Transaction
from rigs.log import Maker


class BatchesAtHand:
    """A log whose batches are all there: reading them waits for nothing."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    async def read_batches(self, partition: int, *, after: int, until: int) -> AsyncIterator[Batch]:
        for batch in self._batches:
            yield batch


class Told:
    """Keeps the events that the machine is told."""

    name = "player"

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def happened(self, event: Any, *about: Any) -> None:
        self.events.append((event.__name__, *about))


async def read(route: Route, count: int, batches: int = 1) -> list[tuple[Any, ...]]:
    """Read `count` transactions in some batches for target "a"; return what was told."""
    log = BatchesAtHand(Maker().batches(batches, count=count // batches))
    told, settings = Told(), PlayerSettings()
    machine = ActivePlayer(1, [0], settings)
    reading = LogReading(log, machine, Router(route, {"a", "b"}, ()), settings, told)  # type: ignore[arg-type]
    await reading.read(ReadForTarget("a", 0, RecoveryRead(1, 0, count - 1)))
    return told.events


@pytest.mark.parametrize("batches", [1, 500])
async def test_a_read_is_routed_in_turns_so_that_others_are_served_meanwhile(batches: int) -> None:
    routed = 0
    seen: list[int] = []

    def route(tx: Transaction) -> dict[str, bytes]:
        nonlocal routed
        routed += 1
        return {"a": tx.data, "b": tx.data}

    async def other() -> None:
        while routed < 1_000:
            seen.append(routed)
            await asyncio.sleep(0)

    (told, _) = await asyncio.gather(read(route, 1_000, batches), other())
    ((event, target, partition, number, entries, through),) = told
    assert (event, target, partition, number, through) == ("recovered", "a", 0, 1, 999)
    assert [entry.id for entry in entries] == list(range(1_000))
    steps = [later - earlier for earlier, later in itertools.pairwise(seen)]
    assert max(steps) <= 50


async def test_what_comes_before_a_transaction_that_can_not_be_routed_is_told() -> None:
    def route(tx: Transaction) -> dict[str, bytes]:
        return {"a" if tx.id < 150 else "nobody": tx.data}

    ((event, *_, entries, through),) = await read(route, 300)
    assert (event, through) == ("recovered", 149)
    assert [entry.id for entry in entries] == list(range(150))


@pytest.mark.parametrize("wrong", [{"nobody": b""}, {"a": "text"}, None], ids=str)
async def test_a_read_whose_first_transaction_can_not_be_routed_has_failed(wrong: Any) -> None:
    ((event, _, _, number, reason),) = await read(lambda _: wrong, 3)
    assert (event, number) == ("recovery_failed", 1)
    assert "transaction 0 can't be routed" in reason
