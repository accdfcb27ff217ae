"""The loop: virtual time, order by birth, and nothing that ends in silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from polonaise.host import Host
from polonaise_proving.stages.simulated import Configuration, Deadlock, ProcessFailed, StepsExceeded, World
from polonaise_proving.stages.simulated.loop import START_S
from rigs.scenarios import in_a_world, run_alone


@in_a_world
async def test_an_idle_day_costs_nothing_and_time_does_not_start_at_zero(world: World) -> None:
    assert asyncio.get_running_loop().time() == START_S > 0
    await asyncio.sleep(86_400)
    assert asyncio.get_running_loop().time() == START_S + 86_400
    assert world.loop.steps < 10


@in_a_world
async def test_timers_run_by_time_and_then_in_order_of_setting(world: World) -> None:
    order: list[str] = []
    loop = asyncio.get_running_loop()
    for name, delay in (("b", 2.0), ("c", 2.0), ("a", 1.0), ("never", 1.5)):
        timer = loop.call_later(delay, order.append, name)
        if name == "never":
            timer.cancel()
    await asyncio.sleep(3)
    assert order == ["a", "b", "c"]


@in_a_world
async def test_asyncio_s_own_tools_work_on_it(world: World) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(1)
    event = asyncio.Event()

    async def produce() -> None:
        for number in range(3):
            await queue.put(number)
        event.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        assert [await queue.get() for _ in range(3)] == [0, 1, 2]
    await event.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 5)
    done, _ = await asyncio.wait([asyncio.create_task(asyncio.sleep(1, "slept"))])
    assert [task.result() for task in done] == ["slept"]
    assert await asyncio.gather(asyncio.sleep(1, "gathered"), asyncio.sleep(2, "too")) == ["gathered", "too"]
    assert world.now == pytest.approx(START_S + 13)


@in_a_world
async def test_met_deadlines_do_not_pile_up(world: World) -> None:
    for _ in range(5_000):
        async with asyncio.timeout(3600):
            await asyncio.sleep(0)
    assert world.now == START_S


@in_a_world
async def test_a_task_group_cancels_in_order_of_birth(world: World) -> None:
    order: list[int] = []

    async def child(number: int) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            order.append(number)

    with contextlib.suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(child(number))
            await asyncio.sleep(1)
            raise ValueError
    assert order == list(range(50))


@in_a_world
async def test_waiting_for_futures_returns_them_in_order_of_birth(world: World) -> None:
    futures = [world.loop.create_future() for _ in range(50)]
    for number, future in enumerate(futures):
        world.loop.call_later(1, future.set_result, number)
    done, _ = await asyncio.wait(futures)
    assert [future.result() for future in done] == list(range(50))


def test_a_schedule_with_nothing_left_to_do_is_a_deadlock_that_names_who_waits() -> None:
    async def waits_in_vain(host: Host) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"a/1: main in .*waits_in_vain"):
        run_alone(World(1), waits_in_vain)


def test_a_loop_without_delay_is_found() -> None:
    world = World(1, Configuration(steps_max=1000))

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_soon(again)

        again()
        await asyncio.Event().wait()

    with pytest.raises(StepsExceeded):
        world.run(scenario())


def test_steps_that_were_granted_are_taken_and_no_more() -> None:
    world = World(1, Configuration(steps_max=1000))

    async def scenario() -> None:
        asyncio.get_running_loop().grant(500)  # type: ignore[attr-defined]
        while True:
            await asyncio.sleep(0)

    with pytest.raises(StepsExceeded, match="1500 steps"):
        world.run(scenario())
    assert world.loop.steps == 1501


def test_a_failing_callback_fails_the_schedule_under_the_name_of_its_process() -> None:
    async def main(host: Host) -> None:
        asyncio.get_running_loop().call_later(1, int, "no number")
        await asyncio.sleep(10)

    with pytest.raises(ProcessFailed, match="seed 7: a/1 failed: ValueError") as failure:
        run_alone(World(7), main)
    assert failure.value.process == "a/1"


def test_a_task_whose_failure_nobody_asks_for_fails_the_schedule() -> None:
    async def fails() -> None:
        raise ValueError("unheard")

    async def main(host: Host) -> None:
        task = asyncio.create_task(fails())
        await asyncio.sleep(1)
        del task

    with pytest.raises(ProcessFailed, match="unheard"):
        run_alone(World(1), main)


def test_what_the_scenario_raises_comes_out() -> None:
    async def scenario() -> None:
        raise AssertionError("a promise was broken")

    with pytest.raises(AssertionError, match="a promise"):
        World(1).run(scenario())


@in_a_world
async def test_computing_in_a_thread_is_done_in_the_schedule(world: World) -> None:
    assert await asyncio.to_thread(int, "7") == 7
    assert world.now > START_S
    with pytest.raises(ValueError, match="seven"):
        await asyncio.to_thread(int, "seven")


@in_a_world
async def test_who_gives_up_on_a_thread_is_not_told_of_its_end(world: World) -> None:
    task = world.loop.create_task(asyncio.to_thread(int, "7"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(1.0)
    assert task.cancelled()


@in_a_world
async def test_an_abandoned_generator_ends_in_the_schedule(world: World) -> None:
    ended: list[float] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            await asyncio.sleep(1)
            ended.append(world.now)

    async for _ in numbers():
        break
    await asyncio.sleep(5)
    assert ended == [START_S + 1]
