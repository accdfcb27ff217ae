"""The scrub of storage nodes is in the health that a server tells: how far it is, what it found, what is repaired."""

from __future__ import annotations

import asyncio
import functools
import json

import pytest

from polonaise.admin.logs import conditions
from polonaise.client.log import Log
from polonaise.errors import ProtocolError
from polonaise.log.segment import SegmentHeader
from polonaise.server.serverhealth import _parsed
from rigs.health import condition_when
from rigs.town import Town, in_an_application

until_found = functools.partial(condition_when, within_s=300.0, every_s=0.5)
"""In virtual time."""


async def filled(town: Town, log: Log) -> str:
    """Appends two segments of one storage node, one of them sealed: its path."""
    for _ in range(4):
        await log.append(bytes(500_000), 0)
    disk = town.cluster.storage[0].machine.disk
    sealed, *_ = sorted(path for path in disk.paths() if path.endswith(".seq"))
    return sealed


@in_an_application(seed=3)
async def test_how_far_the_scrub_is_and_what_it_found_is_in_health_until_it_is_repaired(town: Town, log: Log) -> None:
    node = town.cluster.storage[0]
    name = town.cluster.storage_id(node)
    path = await filled(town, log)
    told = await until_found(log, lambda told: len(told.scrub) == 3 and told.scrub[name]["rounds"] > 0)
    assert told.troubles == []
    scrub = told.scrub[name]
    assert scrub["bytes"] > 0
    assert scrub["finished_us"] >= scrub["started_us"] > 0
    disk = node.machine.disk
    disk.fail_appends(None)  # it can't be copied anew before anybody has looked
    disk.flip_bit(path, SegmentHeader.decode(disk.contents(path)).data_start + 400)
    told = await until_found(log, lambda told: told.scrub[name]["found"])
    assert any(f"the scrub of {name} found" in line for line in told.troubles)
    assert any("not repaired yet" in line for line in told.troubles)
    assert told.ready
    (damage,) = told.scrub[name]["damages"]
    assert not damage["repaired_us"]
    disk.mend()
    told = await until_found(log, lambda told: told.scrub[name]["repaired"] and len(told.engaged) == 3)
    assert told.troubles == []
    (damage,) = told.scrub[name]["damages"]
    assert damage["repaired_us"] >= damage["found_us"] > 0


@in_an_application(seed=3)
async def test_what_is_damaged_again_after_its_repair_is_found_and_repaired_again(town: Town, log: Log) -> None:
    node = town.cluster.storage[0]
    name = town.cluster.storage_id(node)
    path = await filled(town, log)
    disk = node.machine.disk
    for time in (1, 2):
        disk.flip_bit(path, SegmentHeader.decode(disk.contents(path)).data_start + 400)
        await until_found(log, lambda told, time=time: told.scrub.get(name, {"found": 0})["found"] == time)
        await until_found(log, lambda told, time=time: told.scrub[name]["repaired"] == time)
        await until_found(log, lambda told: len(told.engaged) == 3)


@in_an_application(seed=3)
async def test_a_storage_node_that_does_not_answer_holds_up_nobody_who_asks_for_health(town: Town, log: Log) -> None:
    await until_found(log, lambda told: len(told.scrub) == 3)
    node = town.cluster.storage[2]
    assert node.process is not None
    await asyncio.sleep(2)
    node.process.pause()
    began_s = asyncio.get_running_loop().time()
    told, *_ = await asyncio.gather(*(conditions(log, [0], 10.0) for _ in range(20)))
    assert asyncio.get_running_loop().time() - began_s < 2.5
    assert town.cluster.storage_id(node) not in told[0].scrub
    assert len(told[0].scrub) == 2
    node.process.resume()


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"{}", b'{"scrub": 3}', b"\xff"])
def test_a_document_that_is_none_is_refused(document: bytes) -> None:
    with pytest.raises(ProtocolError):
        _parsed(document)


def test_a_document_is_read() -> None:
    assert _parsed(json.dumps({"scrub": {"found": 0}}).encode()) == {"scrub": {"found": 0}}
