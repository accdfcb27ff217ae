"""What the system tells while something is the matter, in stories, and a service of announcements on it."""

from __future__ import annotations

import asyncio

import pytest

from polonaise.client.log import Log
from polonaise.client.protocol.draft import Draft
from polonaise.client.protocol.locks import Lock
from polonaise.errors import Abandoned, AppendUnknown, LockConflict, Retry
from polonaise.terms import Transaction
from polonaise.testing import log as log_in_memory
from rigs.town import Fold, Meeting, Town, in_a_town

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


SEEDS = range(4)


def last_written(value: int, tx: Transaction) -> int:
    return int(tx.data)


def summed(value: int, tx: Transaction) -> int:
    return value + int(tx.data)


# ---------------------------------------------------------------------- read-modify-write


def count_to_two(seed: int, *, locks: bool) -> int:
    """Two services increment one counter at the same time, each writing what it read plus one; the counter then."""

    async def story(town: Town) -> int:
        both_have_read = Meeting(2)

        async def increment(tx: Draft, counter: Fold) -> None:
            if locks:
                tx.write_lock("counter", 1)
            read = counter.value
            await both_have_read.meet()
            tx.append(str(read + 1).encode())

        async def service(name: str) -> None:
            counter = Fold(last_written)

            async def main(log: Log) -> None:
                await log.run(increment, counter, partition=0, timeout=60)

            await town.application(name, main, counter)

        await asyncio.gather(service("service-1"), service("service-2"))
        return int((await town.log())[-1])

    return Town(seed).run(story)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_an_increment_is_lost_without_locks_and_never_with_them(seed: int) -> None:
    assert count_to_two(seed, locks=False) == 1, "without locks the second write hides the first"
    assert count_to_two(seed, locks=True) == 2


# ---------------------------------------------------------------------- constraints


def withdraw_twice(seed: int, *, locks: bool) -> tuple[list[int], list[str]]:
    """100 on the account, two tellers pay out 70 of it at the same time: every balance that ever was, and who paid."""

    async def story(town: Town) -> tuple[list[int], list[str]]:
        both_have_looked = Meeting(2)
        paid: list[str] = []

        async def deposit(log: Log) -> None:
            await log.append(b"100", partition=0)

        async def withdraw(tx: Draft, balance: Fold) -> None:
            if locks:
                tx.write_lock("account", 1)
            enough = balance.value >= 70
            await both_have_looked.meet()
            if enough:
                tx.append(b"-70")
            else:
                tx.abandon("insufficient funds")

        async def teller(name: str) -> None:
            balance = Fold(summed)

            async def main(log: Log) -> None:
                await log.wait_applied(0, partition=0, timeout=60)
                try:
                    await log.run(withdraw, balance, partition=0, timeout=60)
                    paid.append(name)
                except Abandoned:
                    pass

            await town.application(name, main, balance)

        await town.application("depositor", deposit)
        await asyncio.gather(teller("teller-1"), teller("teller-2"))
        balances = [0]
        for change in await town.log():
            balances.append(balances[-1] + int(change))
        return balances, paid

    return Town(seed).run(story)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_balance_goes_below_zero_without_locks_and_never_with_them(seed: int) -> None:
    balances, paid = withdraw_twice(seed, locks=False)
    assert (min(balances), len(paid)) == (-40, 2), "without locks both looked at the same 100"
    balances, paid = withdraw_twice(seed, locks=True)
    assert balances == [0, 100, 30]
    assert len(paid) == 1


# ---------------------------------------------------------------------- duplicates


PAYMENT = b"order 7: 100"


def pay_again_after_an_unknown_write(seed: int, *, numbered: bool) -> tuple[int, bool]:
    """A shop sends a payment, its answer is lost, it dies, comes back, and pays again because it can't know.

    How often the payment is in the log, and whether paying again was answered with the first one's id.
    """

    async def story(town: Town) -> tuple[int, bool]:
        network = town.world.network

        async def pay(log: Log, timeout: float) -> int:
            if numbered:
                producer = await log.producer("shop", partition=0)
                if timeout < 60:
                    lose_answers()
                return await producer.append(0, PAYMENT, timeout=timeout)
            await log.ready(0)
            if timeout < 60:
                lose_answers()
            receipt = await log.run(lambda tx: tx.append(PAYMENT), partition=0, timeout=timeout)
            return receipt.id

        def lose_answers() -> None:
            network.partition("server-0", "shop", both=False)

        async def first_life(log: Log) -> None:
            with pytest.raises(AppendUnknown):
                await pay(log, 1.0)

        async def second_life(log: Log) -> int:
            return await pay(log, 60.0)

        await town.application("shop", first_life)
        network.heal()
        before = await town.log()
        assert before.count(PAYMENT) == 1, "the write whose answer was lost had happened"
        second = await town.application("shop", second_life)
        opened = 1 if numbered else 0  # that the producer was opened has an id, too
        return (await town.log()).count(PAYMENT), second == opened + before.index(PAYMENT)

    return Town(seed).run(story)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_payment_is_made_twice_without_numbers_and_once_with_them(seed: int) -> None:
    assert pay_again_after_an_unknown_write(seed, numbered=False) == (2, False)
    assert pay_again_after_an_unknown_write(seed, numbered=True) == (1, True)
