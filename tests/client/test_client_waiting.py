"""Slots and marks: nobody waits for ever, nothing leaks when somebody gives up."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from polonaise.client.waiting import Admission, AppliedMark
from polonaise.errors import Closed


async def test_a_slot_given_to_somebody_who_was_cancelled_goes_to_the_next() -> None:
    slots = 0
    admission = Admission(lambda taken: taken < slots)
    first, second = [asyncio.ensure_future(admission.take(None)) for _ in range(2)]
    await asyncio.sleep(0)
    slots = 1
    admission.admit()
    first.cancel()
    await asyncio.wait([first, second], timeout=1)
    assert first.cancelled()
    assert second.done()
    assert admission.taken == 1


async def test_slots_are_given_in_order_of_asking() -> None:
    slots = 0
    admission = Admission(lambda taken: taken < slots)
    order: list[int] = []

    async def take(number: int) -> None:
        await admission.take(None)
        order.append(number)

    waiting = [asyncio.ensure_future(take(number)) for number in range(5)]
    await asyncio.sleep(0)
    slots = 5
    admission.admit()
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]


async def test_waiting_for_a_slot_has_a_deadline_and_an_end() -> None:
    admission = Admission(lambda taken: False)
    with pytest.raises(TimeoutError):
        await admission.take(asyncio.get_running_loop().time() + 0.001)
    waiting = asyncio.ensure_future(admission.take(None))
    await asyncio.sleep(0)
    admission.stop(Closed("over"))
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await admission.take(None)
    assert admission.taken == 0


async def test_waits_for_a_slot_that_were_given_up_are_forgotten() -> None:
    admission = Admission(lambda taken: False)
    past = asyncio.get_running_loop().time() - 1
    waiting = [asyncio.ensure_future(admission.take(None)) for _ in range(3)]
    await asyncio.sleep(0)
    for _ in range(100):
        with pytest.raises(TimeoutError):
            await admission.take(past)
    waiting[1].cancel()
    await asyncio.wait(waiting[1:2])
    assert len(admission._waiting) == 2
    admission.stop(Closed("over"))
    with pytest.raises(Closed):
        await waiting[0]
    with pytest.raises(Closed):
        await waiting[2]


async def test_whoever_waits_for_a_mark_is_woken_when_it_is_reached() -> None:
    mark = AppliedMark(-1)
    waiting = [asyncio.ensure_future(mark.wait(value)) for value in (5, 2, 9)]
    await asyncio.sleep(0)
    mark.reach(5)
    await asyncio.wait(waiting[:2], timeout=1)
    assert [task.done() for task in waiting] == [True, True, False]
    mark.stop(Closed("over"))
    with pytest.raises(Closed):
        await waiting[2]


async def test_waits_for_a_mark_that_were_given_up_are_forgotten() -> None:
    mark = AppliedMark(-1)
    past = asyncio.get_running_loop().time() - 1
    for _ in range(3_000):
        with pytest.raises(TimeoutError):
            await mark.wait(10**6, past)
    assert len(mark._waiting) <= 1_024


async def test_a_wait_for_a_mark_that_was_given_up_keeps_no_object_of_its_caller() -> None:
    """It stays in the row of waits until the mark is reached, which may be never: with a receipt and its value."""
    mark = AppliedMark(-1)

    class Built:
        pass

    async def applied(built: Built) -> None:
        with pytest.raises(TimeoutError):
            await mark.wait(10**6, asyncio.get_running_loop().time())

    built = Built()
    gone = weakref.ref(built)
    await applied(built)
    del built
    gc.collect()
    assert gone() is None
