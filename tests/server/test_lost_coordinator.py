"""A coordinator that is another cluster's by now, under a server at work: what it owns goes on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from polonaise.client.log import Log
from polonaise.coordination.coordinator import first_entries
from rigs.town import Town, in_an_application


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


@in_an_application
async def test_a_server_that_stops_then_hands_nothing_over_and_closes(town: Town, log: Log) -> None:
    await log.append(b"before", 0)
    town.cluster.service.restore(first_entries(replace(town.cluster.description, key=b"k" * 16)))
    (server,) = town.cluster.owners.values()
    await server.close()
    assert not server.followed


@in_an_application
async def test_a_server_that_stops_while_the_coordinator_is_silent_says_why_it_hands_nothing_over(
    town: Town, log: Log
) -> None:
    await log.append(b"before", 0)
    server: Any = next(iter(town.cluster.owners.values()))

    async def silent() -> None:
        await asyncio.Event().wait()

    server.parts.shared.coordinator.assignment = silent
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("polonaise.server.assignmentfollowing")
    logger.addHandler(handler)
    try:
        await server.close()
    finally:
        logger.removeHandler(handler)
    assert [line.split(": ", 1)[1] for line in told if "handed over nothing" in line] == [
        "the coordinator gave no answer"
    ]
