"""Processes of a player as tasks of a test, on one embedded log, with leases that the test can take away."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import polonaise
from polonaise.errors import BadOption, PolonaiseError
from polonaise.host.real import RealHost
from polonaise.node.playernode import PlayerNode
from polonaise.node.playerplan import LoadedPlan, PlayerPlan, TargetPlan
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.terms import Transaction
from rigs.waiting import wait_until

QUICK = PlayerSettings(retry_s_min=0.01, retry_s_max=0.1, start_patience_s=0.2)


def route(tx: Transaction) -> Mapping[str, bytes]:
    """`ab:x` goes to the targets `a` and `b`."""
    names, _, rest = tx.data.partition(b":")
    return {chr(name): rest for name in names}


class HeldAlone(NamedTuple):
    """A lease as it is listed."""

    name: str
    note: bytes


class LeasesOfATest:
    """Grants each name to one at a time, until the test takes it away."""

    def __init__(self) -> None:
        self.holders: dict[str, LeaseOfATest] = {}
        self.refused: PolonaiseError | None = None
        """What to raise instead of granting a lease."""
        self.silent: PolonaiseError | None = None
        """What to raise instead of telling who holds a lease."""
        self.epochs = asyncio.Event()
        """Whether players get their epochs."""
        self.epochs.set()

    def take_away(self, name: str) -> None:
        self.holders.pop(name).end("as the test has it")


class LeaseOfATest:
    """One candidate for a lease."""

    def __init__(self, leases: LeasesOfATest, name: str, note: bytes) -> None:
        self._leases, self._name, self.note = leases, name, note
        self._over: asyncio.Future[str] | None = None

    async def acquire(self) -> None:
        def free() -> bool:
            if self._leases.refused is not None:
                raise self._leases.refused
            return self._name not in self._leases.holders

        await wait_until(free)
        self._leases.holders[self._name] = self
        self._over = asyncio.get_running_loop().create_future()

    async def lost(self) -> str:
        assert self._over is not None
        return await asyncio.shield(self._over)

    def end(self, why: str) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(why)

    async def release(self) -> None:
        if self._leases.holders.get(self._name) is self:
            del self._leases.holders[self._name]
        self.end("it was released")


class LogWithLeases:
    """A log whose leases are those of the test."""

    def __init__(self, log: polonaise.Log, leases: LeasesOfATest) -> None:
        self._log, self._leases = log, leases

    def lease(self, name: str, *, duration_s: float, note: bytes) -> LeaseOfATest:
        return LeaseOfATest(self._leases, name, note)

    async def list_leases(self, prefix: str, *, timeout: float) -> list[HeldAlone]:
        if self._leases.silent is not None:
            raise self._leases.silent
        return [HeldAlone(name, each.note) for name, each in self._leases.holders.items() if name.startswith(prefix)]

    async def producer(self, name: str, *, partition: int) -> Any:
        await self._leases.epochs.wait()
        return await self._log.producer(name, partition=partition)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class RunningNode:
    """A process of a player as a task."""

    def __init__(self, node: PlayerNode, host: RealHost) -> None:
        self.node = node
        self.told: list[str] = []
        self.host = host
        self.task: asyncio.Task[None] | None = None

    @property
    def state(self) -> str:
        return self.node.candidacy.state.value

    async def until(self, state: str) -> None:
        await wait_until(lambda: self.state == state, f"the process is {state}: {self.told}")

    async def until_told(self, words: str) -> str:
        await wait_until(lambda: any(words in each for each in self.told), f"{words}: {self.told}")
        return next(each for each in reversed(self.told) if words in each)

    async def stop(self) -> None:
        """Stop it as SIGTERM does."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class NodesOfAPlayer:
    """Starts processes of one player on a log."""

    def __init__(self, directory: Path, log: polonaise.Log) -> None:
        self.directory = directory
        self.log = log
        self.leases = LeasesOfATest()
        self.started: list[RunningNode] = []
        self.unreachable: PolonaiseError | None = None
        """What to raise instead of opening the log."""

    def plan(self, *targets: str, **options: Any) -> PlayerPlan:
        """Files of lines for these targets."""
        places = {name: TargetPlan(file=str(self.directory / f"{name}.jsonl"), decode="own") for name in targets}
        given: dict[str, Any] = {"hand_over_s_max": 5.0, "settings": QUICK, **options}
        return PlayerPlan("p", f"embedded:{self.directory}/log?host=no", "own:route", places, **given)

    def loaded(self, plan: PlayerPlan, routing: Any = route, **code: Any) -> LoadedPlan:
        return LoadedPlan(plan, routing, {**dict.fromkeys(plan.targets, bytes.decode), **code})

    @contextlib.asynccontextmanager
    async def _open(self, address: str) -> AsyncIterator[Any]:
        if self.unreachable is not None:
            raise self.unreachable
        async with polonaise.connect(address) as log:
            yield LogWithLeases(log, self.leases)

    def start(self, loaded: LoadedPlan) -> RunningNode:
        host, told = RealHost(), []
        node = PlayerNode(host, loaded, None, self._open, told.append)
        running = RunningNode(node, host)
        running.told = told
        running.task = asyncio.create_task(node.run())
        self.started.append(running)
        return running

    async def append(self, *bodies: bytes) -> None:
        for body in bodies:
            await self.log.append(body, partition=0)

    def lines(self, name: str) -> list[str]:
        """The payloads in a target's file."""
        path = self.directory / f"{name}.jsonl"
        return [json.loads(line)["payload"] for line in path.read_text().splitlines()] if path.exists() else []

    async def until_delivered(self, name: str, *payloads: str) -> None:
        await wait_until(
            lambda: len(self.lines(name)) >= len(payloads), f"{name} has {payloads} and not {self.lines(name)}"
        )
        assert self.lines(name) == list(payloads)


@contextlib.asynccontextmanager
async def nodes_of_a_player(directory: Path, partitions: int = 1) -> AsyncIterator[NodesOfAPlayer]:
    async with polonaise.connect(f"embedded:{directory}/log?partitions={partitions}") as log:
        nodes = NodesOfAPlayer(directory, log)
        try:
            yield nodes
        finally:
            for each in nodes.started:
                await each.stop()
                each.host.close()


def wrong_setting(text: str) -> LoadedPlan:
    """Raise as the reading of a wrong file does."""
    raise BadOption(text)
