"""One seed is one history: whatever the hash seed of Python, and however often it runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from polonaise.errors import ConnectionLost
from polonaise.host import Host
from polonaise_proving.stages.simulated import Configuration, DiskConfiguration, NetworkConfiguration, World
from rigs.programs import output_of, run_python

ROUGH = Configuration(
    network=NetworkConfiguration(delay_chance=0.02, reset_chance=0.005, flip_chance=0.005),
    disk=DiskConfiguration(spike_chance=0.02),
    record=True,
)


class Echo(asyncio.Protocol):
    """Answers with what it gets, after storing it."""

    def __init__(self, host: Host, tasks: asyncio.TaskGroup) -> None:
        self.host = host
        self.tasks = tasks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.tasks.create_task(self.store(data))

    async def store(self, data: bytes) -> None:
        file = await self.host.disk.open(f"log-{data[:1].hex()}", create=True)
        await file.write(await file.size(), [data], sync=True)
        if not self.transport.is_closing():
            self.transport.write(data)


class Collect(asyncio.Protocol):
    def __init__(self) -> None:
        self.changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.changed.set()


async def server(host: Host) -> None:
    async with asyncio.TaskGroup() as tasks:
        await host.network.listen("server:1", lambda: Echo(host, tasks))
        await asyncio.Event().wait()


async def client(host: Host) -> None:
    while True:
        try:
            async with asyncio.timeout(2):
                transport, collect = await host.network.connect("server:1", Collect)
        except (ConnectionLost, TimeoutError):
            await asyncio.sleep(host.random.random() * 0.1)
            continue
        assert isinstance(collect, Collect)
        while not transport.is_closing():
            transport.write(host.random.randbytes(200))
            waits = {asyncio.create_task(collect.changed.wait()), asyncio.create_task(asyncio.sleep(0.02))}
            _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            collect.changed.clear()


def rough_schedule(seed: int) -> World:
    world = World(seed, ROUGH)
    choice = world.random("scenario")

    async def scenario() -> None:
        machine = world.machine("server")
        process = machine.start(server)
        for number in range(3):
            world.machine(f"client-{number}").start(client)
        for _ in range(12):
            await asyncio.sleep(choice.random() * 0.1)
            match choice.randrange(5):
                case 0:
                    process.crash()
                case 1:
                    machine.power_loss()
                case 2:
                    process.pause(choice.random())
                case 3:
                    world.network.partition("server", f"client-{choice.randrange(3)}", both=choice.random() < 0.5)
                case 4:
                    world.network.heal()
            if not process.alive:
                process = machine.start(server)

    world.run(scenario())
    return world


def test_the_same_seed_gives_the_same_history_and_another_seed_another_one() -> None:
    first, again, other = rough_schedule(1), rough_schedule(1), rough_schedule(2)
    assert first.trace.lines == again.trace.lines
    assert first.trace.fingerprint == again.trace.fingerprint
    assert first.loop.steps == again.loop.steps
    assert first.trace.fingerprint != other.trace.fingerprint


@pytest.mark.slow
def test_the_history_does_not_depend_on_the_hash_seed_of_python() -> None:
    def fingerprints(hash_seed: str) -> str:
        environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[1])}
        return output_of(run_python(Path(__file__), 3, 4, 5, environment=environment))

    first = fingerprints("1")
    assert first == fingerprints("2")
    assert len(set(first.split())) == 6


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        world = rough_schedule(int(argument))
        sys.stdout.write(f"{world.trace.fingerprint} {world.loop.steps}\n")
