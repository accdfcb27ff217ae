"""The host of a simulated process: its clocks, and its ends of the disk and of the network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from polonaise.host import Clock, Disk, Network
from polonaise_proving.stages.simulated.disk import SimulatedDisk
from polonaise_proving.stages.simulated.disk_port import DiskPort
from polonaise_proving.stages.simulated.network import NetworkPort, SimulatedNetwork
from polonaise_proving.stages.simulated.process import Process


class SimulatedClock:
    """The clocks of one process: the port `host.Clock`."""

    def __init__(self, process: Process, offset_s: float, wall_us: Callable[[], int]) -> None:
        self._process = process
        self._loop = process.environment.loop
        self._offset_s = offset_s
        self._wall_us = wall_us

    def monotonic_s(self) -> float:
        if self._process.dead:  # not by `check_alive`: this is called more often than anything else
            self._process.check_alive()
        return self._loop.now + self._offset_s

    def wall_us(self) -> int:
        self._process.check_alive()
        return self._wall_us()

    def slept_s(self) -> float:
        return 0.0


class SimulatedHost:
    """The ports of one process: `host.Host`."""

    def __init__(
        self,
        process: Process,
        source: random.Random,
        wall_us: Callable[[], int],
        disk: SimulatedDisk,
        network: SimulatedNetwork,
        machine: str,
    ) -> None:
        self._process = process
        self.random = source
        # Each process's monotonic clock begins elsewhere: code that compares those of two processes fails at once.
        self.clock: Clock = SimulatedClock(process, source.uniform(1.0, 100_000.0), wall_us)
        # In this order: when the process ends, its peers hear of it before its calls to the disk are broken off.
        self.network: Network = NetworkPort(process, network, machine)
        self.disk: Disk = DiskPort(process, disk)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._process.supervise(coroutine, name)

    def fail(self, error: BaseException) -> None:
        self._process.failed(error)
