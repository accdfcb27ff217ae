"""Logs and stores for the tests of fragments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import polonaise
from polonaise.fragments.store import ObstoreStore, open_store
from rigs.trimmed import Cluster, running


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[polonaise.Log]:
    """An embedded log of two partitions."""
    async with polonaise.connect(f"embedded:{tmp_path / 'log'}?partitions=2") as log:
        yield log


@pytest.fixture
def store(tmp_path: Path) -> ObstoreStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster without a server yet."""
    async with running(tmp_path) as cluster:
        yield cluster
