"""A coordinator that is damaged, or another cluster's by now, under a server at work: what it owns goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.client.log import Log
from polonaise.coordination.coordinator import first_entries
from polonaise.errors import CoordinatorDamaged, CoordinatorUnavailable, PolonaiseError
from polonaise.server import node as server_node
from polonaise.server.node import Server
from rigs.town import Town, in_an_application
from rigs.waiting import wait_until


@pytest.mark.parametrize("error", [CoordinatorDamaged("its directory is gone"), CoordinatorUnavailable("no answer")])
async def test_a_lease_that_cannot_be_renewed_does_not_end_the_server(
    error: PolonaiseError, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def renew() -> None:
        nonlocal tries
        tries += 1
        raise error

    monkeypatch.setattr(server_node, "RENEW_S", 0.001)
    made: Any = Server(None, None)  # type: ignore[arg-type]
    made._membership = SimpleNamespace(renew=renew)
    keeping = asyncio.ensure_future(made._keep_lease())
    await wait_until(lambda: tries > 3 or keeping.done())
    assert not keeping.done()
    keeping.cancel()


@in_an_application
async def test_another_clusters_coordinator_in_place_of_its_own_does_not_end_a_server(town: Town, log: Log) -> None:
    await log.append(b"before", 0)
    other = replace(town.cluster.description, key=b"k" * 16)
    own = town.cluster.service.snapshot()
    town.cluster.service.restore(first_entries(other))
    await asyncio.sleep(10)
    receipt = await log.append(b"meanwhile", 0)
    assert receipt.committed
    town.cluster.service.restore(own)
    await asyncio.sleep(10)
    (receipt,) = [await log.append(b"after", 0)]
    assert receipt.committed
    assert [node.restarts for node in town.cluster.servers] == [0]
