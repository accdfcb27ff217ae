"""What a stream to a target tells its player, kept in a list."""

from __future__ import annotations

import asyncio
from typing import Any

from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.endpoint import DeliveryEndpoint
from polonaise.player.protocol.entries import DeliveryBatch, Fence, RoutedEntry
from rigs.waiting import wait_until

SOURCE = DeliverySource(b"\1" * 16, "p", "t")


class ToldEvents:
    """Keeps what it is told, each as the name of the event and what it is about."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def connected(self, applied: dict[int, int]) -> None:
        self.told.append(("connected", applied))

    def fenced(self, kept: Fence) -> None:
        self.told.append(("fenced", kept))

    def written(self) -> None:
        self.told.append(("written",))

    def acknowledged(self, partition: int, through: int) -> None:
        self.told.append(("acknowledged", partition, through))

    def refused(self, partition: int, last: int, reason: str) -> None:
        self.told.append(("refused", partition, last, reason))

    def disconnected(self, reason: str) -> None:
        self.told.append(("disconnected", reason))

    async def one(self, name: str, count: int = 1) -> tuple[Any, ...]:
        """Wait for the event of this name, or that many of them, and return the last one."""
        named = await wait_until(
            lambda: len(found := [each for each in self.told if each[0] == name]) >= count and found,
            f"{count} × {name}, told was {self.told}",
        )
        return named[-1]  # type: ignore[no-any-return]


class RunStream:
    """A stream whose task runs, with what it has told. A context manager, which closes it and waits for its task."""

    def __init__(
        self, endpoint: DeliveryEndpoint, fence: Fence, source: DeliverySource = SOURCE, open_s_max: float = 20.0
    ) -> None:
        self.events = ToldEvents()
        self.stream = endpoint.stream(fence, self.events)
        self.task = asyncio.get_running_loop().create_task(self.stream.serve(source, open_s_max))

    def send(self, *batches: DeliveryBatch) -> None:
        self.stream.send(batches)

    async def ended(self) -> str:
        """Wait until the stream has ended by itself, and return why."""
        (_, reason) = await self.events.one("disconnected")
        await self.task
        return str(reason)

    async def __aenter__(self) -> RunStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stream.close()
        await self.task


def batch(partition: int, previous: int, *ids: int, payload: bytes | None = b"x") -> DeliveryBatch:
    return DeliveryBatch(partition, previous, [RoutedEntry(id, payload) for id in ids])
