"""What one target reads of the log holds up no other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from polonaise.errors import BadOption, PartitionNotReady, PolonaiseError
from polonaise.log.batch import Batch
from polonaise.player.logreading import LogReading
from polonaise.player.protocol.activeplayer import ActivePlayer
from polonaise.player.protocol.effects import ReadForTarget
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.protocol.targetqueue import RecoveryRead
from polonaise.player.routing import Route, Router
from polonaise.terms import Transaction
from rigs.log import Maker
from rigs.waiting import wait_until


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

    def stopped(self, *about: Any) -> None:
        self.events.append(("stopped", *about))


async def read(route: Route, count: int, batches: int = 1) -> list[tuple[Any, ...]]:
    """Read `count` transactions in some batches for target "a"; return what was told."""
    log = BatchesAtHand(Maker().batches(batches, count=count // batches))
    told = Told()
    machine = ActivePlayer(1, [0], PlayerSettings())
    reading = LogReading(log, machine, Router(route, {"a", "b"}, ()), told)  # type: ignore[arg-type]
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


class PutBack:
    """A log of which each reader has other batches, and whose register of the player's epoch was deleted."""

    def __init__(self, *readings: list[Batch], error: PolonaiseError | None = None) -> None:
        self._readings = list(readings)
        self._error = error or PartitionNotReady("nobody answers")

    async def read_batches(self, partition: int, *, after: int, follow: bool) -> AsyncIterator[Batch]:
        for batch in self._readings.pop(0):
            yield batch
        raise self._error

    async def register(self, key: bytes, partition: int, *, timeout: float) -> bytes | None:
        return None

    async def high_water_mark(self, partition: int, *, timeout: float) -> int:
        return 1


def reading_of(log: PutBack, epoch: int = 1) -> tuple[LogReading, ActivePlayer, Told]:
    told, settings = Told(), PlayerSettings(retry_s_min=0.001, retry_s_max=0.001)
    machine = ActivePlayer(epoch, [0], settings)
    router = Router(lambda tx: {"a": tx.data}, {"a"}, ())
    return LogReading(log, machine, router, told), machine, told  # type: ignore[arg-type]


async def test_a_main_stream_does_not_go_on_from_another_log_after_a_time_without_answers() -> None:
    batches, others = Maker().batches(2), Maker(crc=7).batches(2)
    reading, _, told = reading_of(PutBack(batches[:1], [], others[1:]))
    async with asyncio.timeout(5):
        await reading.follow(0, 1, 0)
    assert [event for event, *_ in told.events] == ["fetched", "forked"]


async def test_a_main_stream_that_begins_again_does_not_go_on_from_another_log() -> None:
    batches, others = Maker().batches(2), Maker(crc=7).batches(2)
    reading, _, told = reading_of(PutBack(batches[:1], others[1:], error=BadOption("for good")))
    async with asyncio.timeout(5):
        await reading.follow(0, 1, 0)
        await reading.follow(0, 2, 1)
    assert [event for event, *_ in told.events] == ["fetched", "stopped", "forked"]


async def test_a_log_that_knows_less_of_the_epoch_than_the_player_has_taken_is_told_as_trouble() -> None:
    reading, _, told = reading_of(PutBack(), epoch=3)
    watching = asyncio.ensure_future(reading.watch(b"key"))
    await wait_until(lambda: bool(reading.trouble(0)), "the player has looked at its epoch")
    watching.cancel()
    assert "the epoch of this player's name in the log is none, and this one has taken 3" in reading.trouble(0)
    assert [event for event, *_ in told.events] == ["mark_seen"]
