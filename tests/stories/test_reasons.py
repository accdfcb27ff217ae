"""An append that failed is told why, truly: on it rests whether it is sent again, or built anew."""

from __future__ import annotations

import asyncio

import pytest

from polonaise.client.log import Log
from polonaise.client.protocol.locks import Lock
from polonaise.errors import LockConflict, Retry
from polonaise.testing import log as log_in_memory
from rigs.town import Town, in_a_town

ACCOUNT = [Lock("account", 1)]


async def three_at_once(log: Log) -> None:
    """Two withdrawals from one account, and something else, in one turn of the loop."""
    first = log.append(b"withdraw 60", 0, locks=ACCOUNT)
    second = log.append(b"withdraw 70", 0, locks=ACCOUNT)
    other = log.append(b"something else", 0)
    receipts = await asyncio.gather(first, second, other, return_exceptions=True)
    assert isinstance(receipts[1], LockConflict), f"and not {receipts[1]!r}"
    assert receipts[1].retry is Retry.REBUILT
    assert receipts[1].conflict == receipts[0].id  # type: ignore[union-attr]


async def obedient(log: Log) -> None:
    """A loop that does what the error says: it sends again only what it is told to send again."""

    async def withdraw(body: bytes) -> None:
        while True:
            try:
                await log.append(body, 0, locks=ACCOUNT)
                return
            except LockConflict:
                return  # to be built anew, on the new balance

    await asyncio.gather(withdraw(b"withdraw 60"), withdraw(b"withdraw 70"), log.append(b"something else", 0))


async def one_mark_beyond(log: Log) -> None:
    good = [log.append(b"%d" % number, 0) for number in range(3)]
    bad = log.append(b"bad", 0, high_water_mark=10**9)
    *receipts, refused = await asyncio.gather(*good, bad, return_exceptions=True)
    assert [receipt.id for receipt in receipts] == [0, 1, 2]  # type: ignore[union-attr]
    assert getattr(refused, "code", "") == "mark_beyond_log", f"and not {refused!r}"
    assert "committed up to" in str(refused)
    assert (await log.append(b"and on", 0)).id == 3


async def bodies(log: Log) -> list[bytes]:
    return [tx.data async for tx in log.read(0)]


def test_a_lock_conflict_is_told_as_that_also_when_a_younger_append_commits_with_what_it_rests_on() -> None:
    async def story(town: Town) -> list[bytes]:
        await town.application("teller", three_at_once)
        await town.application("teller", obedient)
        return await town.log()

    log = Town(1).run(story)
    assert log[:2] == [b"withdraw 60", b"something else"]
    assert b"withdraw 70" not in log


async def test_the_log_in_memory_tells_the_same_reason() -> None:
    async with log_in_memory() as log:
        await three_at_once(log)
        assert await bodies(log) == [b"withdraw 60", b"something else"]


@in_a_town
async def test_a_mark_beyond_the_log_is_the_mistake_of_one_append(town: Town) -> None:
    await town.application("teller", one_mark_beyond)


@pytest.mark.parametrize("mark", [1, 10**9])
async def test_the_log_in_memory_refuses_such_a_mark_alone(mark: int) -> None:
    async with log_in_memory() as log:
        good, bad = log.append(b"good", 0), log.append(b"bad", 0, high_water_mark=mark)
        receipt, refused = await asyncio.gather(good, bad, return_exceptions=True)
        assert receipt.id == 0  # type: ignore[union-attr]
        assert getattr(refused, "code", "") == "mark_beyond_log"
