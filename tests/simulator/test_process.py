"""Processes: a crash ends one at any await and everywhere at once, a pause holds it, a failure is heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from polonaise.errors import DiskFailed, InvariantViolated
from polonaise.host import Host
from polonaise_proving.stages.simulated import ClockConfiguration, Configuration, ProcessFailed, World
from rigs.scenarios import in_a_world


async def for_ever(host: Host) -> None:
    await asyncio.sleep(1e9)


class Listening:
    """A machine's process that listens, and what it was sent, with the times."""

    def __init__(self, world: World) -> None:
        self.got: list[tuple[float, bytes]] = []
        got = self.got

        class Listen(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                got.append((world.now, data))

        async def main(host: Host) -> None:
            await host.network.listen("peer:1", Listen)
            await for_ever(host)

        self.process = world.machine("peer").start(main)


@in_a_world
async def test_a_process_ends_with_its_main_coroutine_and_takes_its_tasks_along(world: World) -> None:
    beats: list[float] = []

    async def beat(host: Host) -> None:
        while True:
            await asyncio.sleep(1)
            beats.append(host.clock.monotonic_s())

    async def main(host: Host) -> None:
        host.spawn(beat(host), "beat")
        await asyncio.sleep(3.5)

    process = world.machine("a").start(main)
    await process.ended()
    assert not process.alive
    await asyncio.sleep(10)
    assert len(beats) == 3
    assert world.faults.injected() == {}


@in_a_world
async def test_what_finally_blocks_of_a_crashed_process_do_has_no_effect(world: World) -> None:
    reached: list[str] = []

    async def main(host: Host) -> None:
        file = await host.disk.open("log", create=True)
        transport, _ = await host.network.connect("peer:1", asyncio.Protocol)
        try:
            try:
                await asyncio.sleep(100)
            finally:
                reached.append("innermost")
                transport.write(b"from beyond")
                host.spawn(asyncio.sleep(1), "late")
        finally:
            reached.append("outer")
            await file.write(0, [b"from beyond"], sync=True)
            reached.append("never")

    peer = Listening(world)
    await asyncio.sleep(1)
    process = world.machine("a").start(main)
    await asyncio.sleep(1)
    process.crash()
    assert reached == ["innermost", "outer"]
    await asyncio.sleep(100)
    assert peer.got == []
    assert world.machine("a").disk.contents("log") == b""
    assert world.faults["crash"] == 1


@in_a_world
async def test_coroutines_of_a_dead_process_close_eldest_first_however_they_resist(world: World) -> None:
    closed: list[int] = []

    async def stubborn(number: int) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            closed.append(number)
            await asyncio.sleep(1)  # a dead process does not get to wait
            closed.append(-number)

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closed.append(99)
            await asyncio.sleep(1)
            closed.append(-99)

    async def iterate() -> None:
        async for _ in numbers():
            await asyncio.sleep(100)

    async def main(host: Host) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(1, 20):
                group.create_task(stubborn(number))
            group.create_task(iterate())

    process = world.machine("a").start(main)
    await asyncio.sleep(1)
    process.crash()
    await process.ended()
    await asyncio.sleep(1000)
    assert closed == [*range(1, 20), 99]


@in_a_world
async def test_a_process_may_crash_itself_in_the_middle_of_a_call(world: World) -> None:
    after: list[str] = []

    async def main(host: Host) -> None:
        file = await host.disk.open("a", create=True)
        await file.write(0, [b"x"])
        after.append("alive")

    for number, calls in ((1, 1), (2, 2), (3, 2)):
        process = world.machine("a").start(main)
        process.crash_on_call = number
        await process.ended()
        assert process.calls == calls
    assert after == ["alive"]


@in_a_world
async def test_a_paused_process_does_nothing_and_then_everything_in_order(world: World) -> None:
    third = asyncio.Event()
    ticks: list[float] = []

    async def main(host: Host) -> None:
        transport, _ = await host.network.connect("peer:1", asyncio.Protocol)
        while True:
            transport.write(b"tick")
            ticks.append(host.clock.monotonic_s())
            if len(ticks) == 3:
                third.set()
            await asyncio.sleep(1)

    peer = Listening(world)
    process = world.machine("a").start(main)
    await asyncio.sleep(0.5)
    await third.wait()
    process.pause()
    paused_at = world.now
    assert process.paused
    await asyncio.sleep(60)
    assert len(ticks) == 3
    assert len(peer.got) == 3  # what had left before the pause arrived
    assert peer.got[-1][0] > paused_at
    process.resume()
    await asyncio.sleep(0.5)
    assert len(ticks) == 4
    assert ticks[3] - ticks[2] == pytest.approx(60, abs=0.1)
    assert world.faults["pause"] == 1


@in_a_world
async def test_what_comes_for_a_paused_process_waits_for_it(world: World) -> None:
    async def main(host: Host) -> None:
        transport, _ = await host.network.connect("peer:1", asyncio.Protocol)
        transport.write(b"to a sleeper")
        await for_ever(host)

    peer = Listening(world)
    await asyncio.sleep(1)
    peer.process.pause(30)
    world.machine("a").start(main)  # the kernel of a paused process still accepts
    await asyncio.sleep(60)
    assert peer.got[0][0] == pytest.approx(10_031, abs=0.01)


@in_a_world
async def test_a_paused_process_can_be_killed(world: World) -> None:
    process = world.machine("a").start(for_ever)
    await asyncio.sleep(1)
    process.pause(5)
    process.crash()
    await process.ended()
    await asyncio.sleep(10)
    assert not process.paused


@in_a_world
async def test_termination_is_a_clean_stop(world: World) -> None:
    async def main(host: Host) -> None:
        file = await host.disk.open("a", create=True)
        try:
            await for_ever(host)
        finally:
            await file.write(0, [b"farewell"])

    process = world.machine("a").start(main)
    await asyncio.sleep(1)
    process.terminate()
    await process.ended()
    assert world.machine("a").disk.contents("a") == b"farewell"


@pytest.mark.parametrize("way", ["main", "task", "fail", "group"])
def test_a_failure_of_a_node_is_a_failure_of_the_schedule(way: str) -> None:
    world = World(3)

    async def broken() -> None:
        await asyncio.sleep(1)
        raise InvariantViolated("ids are dense")

    async def main(host: Host) -> None:
        if way == "main":
            await broken()
        elif way == "task":
            host.spawn(broken(), "broken")
        elif way == "fail":
            host.fail(InvariantViolated("ids are dense"))
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(broken())
        await for_ever(host)

    async def scenario() -> None:
        world.machine("b").start(main)
        await asyncio.sleep(100)

    with pytest.raises(ProcessFailed) as failure:
        world.run(scenario())
    assert failure.value.process == "b/1"
    assert "ids are dense" in repr(failure.value.error)


@in_a_world
async def test_a_failure_that_the_scenario_allows_ends_only_the_process(world: World) -> None:
    async def main(host: Host) -> None:
        file = await host.disk.open("a", create=True)
        try:
            await file.write(0, [b"x"], sync=True)
        except DiskFailed as error:
            host.fail(error)
            raise AssertionError("fail does not return") from None

    machine = world.machine("a")
    machine.disk.fail_syncs()
    process = machine.start(main, may_fail=(DiskFailed,))
    await process.ended()
    assert isinstance(process.failure, DiskFailed)


@in_a_world(configuration=Configuration(clock=ClockConfiguration(offset_s_max=10, drift_max=0.01)))
async def test_clocks_of_machines_differ_drift_and_jump(world: World) -> None:
    hosts: list[Host] = []

    async def main(host: Host) -> None:
        hosts.append(host)
        await for_ever(host)

    a, b = world.machine("a"), world.machine("b")
    a.start(main)
    b.start(main)
    await asyncio.sleep(1)
    assert hosts[0].clock.monotonic_s() != hosts[1].clock.monotonic_s()
    assert hosts[0].clock.wall_us() != hosts[1].clock.wall_us()
    monotonic, wall = hosts[0].clock.monotonic_s(), hosts[0].clock.wall_us()
    a.jump_clock(-3600)
    assert hosts[0].clock.wall_us() - wall == pytest.approx(-3.6e9, abs=2)
    assert hosts[0].clock.monotonic_s() == monotonic
    wall = hosts[0].clock.wall_us()
    a.set_drift(0.5)
    assert hosts[0].clock.wall_us() == pytest.approx(wall, abs=2)
    await asyncio.sleep(100)
    assert hosts[0].clock.wall_us() - wall == pytest.approx(150e6, abs=2)
    assert hosts[0].clock.monotonic_s() - monotonic == pytest.approx(100)
    assert world.faults["clock_jump"] == 1


def test_randomness_of_one_component_does_not_depend_on_another() -> None:
    first, second = World(5), World(5)
    first.random("a").random()
    assert first.random("b").random() == second.random("b").random()
    assert World(6).random("b").random() != second.random("b").random()
