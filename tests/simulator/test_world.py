"""What a scenario does to a whole world at once."""

from __future__ import annotations

import asyncio
import contextlib

from polonaise.errors import ConnectionLost
from polonaise.host import Host
from polonaise_proving.stages.simulated import Configuration, World
from rigs.scenarios import in_a_world


async def works(host: Host) -> None:
    """Writes and sends for ever, whatever comes of it."""
    file = await host.disk.open("a", create=True)
    await host.network.listen("localhost:1", asyncio.Protocol)
    await asyncio.sleep(1)
    while True:
        await file.write(0, [host.random.randbytes(2000)], sync=True)
        for number in range(3):
            with contextlib.suppress(ConnectionLost):
                transport, _ = await host.network.connect(f"m{number}:1", asyncio.Protocol)
                transport.write(bytes(500))
                transport.close()
        await asyncio.sleep(0.1)


@in_a_world
async def test_the_data_centre_loses_power_at_once(world: World) -> None:
    processes = [world.machine(f"m{number}").start(works) for number in range(3)]
    await asyncio.sleep(2)
    world.power_loss_all()
    assert not any(process.alive for process in processes)
    assert world.faults["power_loss"] == 3


@in_a_world(configuration=Configuration(record=True))
async def test_a_recorded_trace_is_readable(world: World) -> None:
    process = world.machine("m0").start(works)
    await asyncio.sleep(0.5)
    world.trace.note("half a second")
    process.crash()
    assert world.trace.lines is not None
    events = [line.split(maxsplit=1)[1] for line in world.trace.lines]
    assert events[0].split() == ["start", "m0/1", "0"]
    assert events[-2].split() == ["note", "half", "a", "second"]
    assert events[-1].split() == ["crash", "m0/1", "0"]
