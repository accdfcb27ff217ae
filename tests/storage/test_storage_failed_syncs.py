"""A sync that failed: nobody knows what is on the disk of what was written since the last one that did not.

A batch is acknowledged after its sync, so what is in doubt was never acknowledged, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from polonaise.errors import DiskFailed, PolonaiseError
from polonaise.host import Host
from polonaise.terms import UNRESOLVED
from polonaise.wire.messages import SessionInfo
from rigs.log import Maker, crcs
from rigs.storage import Node, connected, fenced, filled, simulate, simulated

pytestmark = pytest.mark.slow


async def _end_its_life(node: Node, how: str) -> None:
    if how != "goes on":
        await node.restart(power_loss=how == "power loss")


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("then", ["goes on", "crash", "power loss"])
def test_a_copy_tells_what_it_had_synced_and_takes_the_next_session_by_itself(then: str, seed: int) -> None:
    """Its bytes may have come to the disk whole: they are not told, and never stand beside what is written instead."""

    async def script(host: Host, node: Node) -> None:
        made = Maker().batches(5, size=200)
        owner = await filled(host, made)
        node.disk.fail_syncs(1)
        with pytest.raises(DiskFailed):
            await owner.store(6, *Maker(made[-1].last, made[-1].crc).batches(3, size=200))
        await _end_its_life(node, then)
        owner = await connected(host)
        info = await owner.open(2)
        assert (info.max_synced, info.last_crc, info.lost_above) == (4, made[-1].crc, UNRESOLVED)
        instead = Maker(made[-1].last, made[-1].crc).batches(1, session=2, size=200, salt=1)
        await owner.store(1, *instead)
        await node.restart(power_loss=True)
        owner, info = await fenced(host, 3)
        assert (info.max_synced, info.lost_above) == (5, UNRESOLVED)
        assert crcs(await owner.read_all()) == crcs([*made, *instead])

    simulate(script, seed=seed)


@pytest.mark.parametrize("then", ["goes on", "crash", "power loss"])
@simulated
async def test_a_copy_from_another_replica_that_could_not_be_synced_is_no_loss_either(
    host: Host, node: Node, *, then: str
) -> None:
    made = Maker().batches(8, size=200)
    owner, _ = await fenced(host, 1)
    await owner.copy(made[:4])
    node.disk.fail_syncs(1)
    with pytest.raises(DiskFailed):
        await owner.copy(made[4:])
    await _end_its_life(node, then)
    owner, info = await fenced(host, 2)
    assert (info.max_synced, info.lost_above) == (3, UNRESOLVED)
    assert (await owner.copy(made[4:])).last == 7
    await owner.join(7, made[-1].crc)


@pytest.mark.parametrize("known", [True, False], ids=["synced as far as is known", "more than is known"])
def test_a_start_whose_sync_fails_is_a_loss_only_of_what_was_not_known_to_be_synced(known: bool) -> None:
    """What is written again may have been acknowledged; what is known to be synced is not touched."""

    async def script(host: Host, node: Node, number: int) -> SessionInfo:
        await filled(host, Maker().batches(10, size=200))
        if known:
            await asyncio.sleep(0.1)  # the evidence is written
        node.process.crash()
        node.fail_at("sync", number)
        node.start(may_fail=(PolonaiseError,))
        with contextlib.suppress(PolonaiseError):
            await (await connected(host)).fence(2)
        node.mend()
        if not node.process.alive:
            node.start()
        return await (await connected(host)).fence(3)

    told = [simulate(lambda host, node, n=number: script(host, node, n)) for number in range(1, 12)]  # type: ignore[misc]
    assert all(info.max_synced in (9, info.lost_above) for info in told)
    assert any(info.lost_above != UNRESOLVED for info in told) == (not known)
