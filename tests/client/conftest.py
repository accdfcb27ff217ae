"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from polonaise.client.log import Log
from rigs.clients import Memo, World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


@pytest.fixture
async def client(world: World) -> Log:
    return await world.client()


@pytest.fixture
async def ready_client(world: World) -> Log:
    return await world.ready_client()


@pytest.fixture
def view() -> Memo:
    return Memo()


@pytest.fixture
async def two_partitions() -> AsyncIterator[World]:
    world = World(2)
    yield world
    await world.close()
