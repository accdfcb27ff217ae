"""Processes that make a cluster in the same place of a ZooKeeper at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from polonaise.coordination.backend import Entry
from polonaise.coordination.zookeeper import ZooKeeperBackend
from rigs.waiting import time_passes


class Place:
    """What the makers share."""

    def __init__(self) -> None:
        self.claim = 0
        self.made = False


class Maker(ZooKeeperBackend):
    """A process that needs many transactions, 0.2 s in all, to make a cluster."""

    def __init__(self, place: Place) -> None:
        super().__init__("127.0.0.1:1", "/bank")
        self._place = place

    async def _make_path(self, path: str) -> None:
        pass

    async def _claim(self) -> int | None:
        if self._place.made:
            return None
        self._place.claim += 1
        return self._place.claim

    async def _make(self, entries: Mapping[str, Entry], claim: int) -> bool:
        for _ in range(10):
            await time_passes(0.02)
            if self._place.claim != claim:
                return False
        self._place.made = True
        return True


async def test_of_two_makers_of_a_large_cluster_one_comes_to_its_end() -> None:
    place = Place()
    async with asyncio.timeout(20):
        made = await asyncio.gather(*(Maker(place).create({}) for _ in range(2)))
    assert sorted(made) == [False, True]
