"""A running cluster for hostile tests: one per module, and after each test it must be as if nothing had been."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from polonaise.node.local import LocalCluster
from rigs.cluster import running
from rigs.hostile import Target, assert_served, target_of, unharmed

PORTS = ("server", "storage")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("hostile")) as cluster:
        asyncio.run(assert_served(cluster))
        yield cluster


@pytest.fixture(params=PORTS)
async def target(request: pytest.FixtureRequest, cluster: LocalCluster) -> AsyncIterator[Target]:
    """Each open port in turn. Afterwards everybody is alive, and who behaves is served."""
    with unharmed(cluster):
        yield await target_of(cluster, request.param)
        await assert_served(cluster)


@pytest.fixture
async def server(cluster: LocalCluster) -> AsyncIterator[Target]:
    with unharmed(cluster):
        yield await target_of(cluster, "server")
        await assert_served(cluster)


@pytest.fixture
async def storage(cluster: LocalCluster) -> AsyncIterator[Target]:
    with unharmed(cluster):
        yield await target_of(cluster, "storage")
        await assert_served(cluster)
