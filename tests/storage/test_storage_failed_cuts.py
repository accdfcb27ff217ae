"""A cut whose sync failed: the bytes are gone from the cache and still on the disk, and must not come back."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from polonaise.errors import DiskFailed, PolonaiseError
from polonaise.host import Host
from polonaise.log.batch import Batch
from polonaise.terms import UNRESOLVED
from polonaise.wire.messages import Health, HealthIs
from rigs.log import PARTITION, Maker, crcs
from rigs.storage import Node, Owner, connected, filled, simulate, simulated

pytestmark = pytest.mark.slow


async def _cut_with_a_failing_sync(host: Host, node: Node, number: int, batches: int = 10) -> list[Batch]:
    """Session 1 writes ids from 0 on; session 2 cuts at 4, and the `number`-th sync of that fails. Then it restarts.

    A failed sync of promises stops the node; then the cut has not begun, or is over. Returns what was written.
    """
    made = Maker().batches(batches, size=200)
    owner = await filled(host, made)
    await owner.fence(2)
    node.fail_at("sync", number)
    with contextlib.suppress(PolonaiseError):
        await owner.truncate(4)
    node.mend()
    await node.restart()
    return made


async def _joined_at_4(host: Host, session: int) -> Owner:
    """The next session's owner: it cuts at 4 again if that has to be, and the copy joins there."""
    owner = await connected(host)
    info = await owner.fence(session)
    if info.max_synced > 4:
        await owner.truncate(4)
        info = await owner.fence(session)
    assert info.max_synced == 4
    await owner.join(info.max_synced, info.last_crc)
    return owner


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(8, 20))
@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_was_cut_stays_cut_when_the_power_goes_after_the_copy_has_joined(number: int, seed: int) -> None:
    async def script(host: Host, node: Node) -> None:
        await _cut_with_a_failing_sync(host, node, number)
        await _joined_at_4(host, 3)
        await node.restart(power_loss=True)
        info = await (await connected(host)).fence(4)
        assert (info.joined, info.prepared, info.max_synced, info.lost_above) == (3, 4, 4, UNRESOLVED)

    simulate(script, seed=seed, may_fail=(PolonaiseError,))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(8, 20))
@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_is_acknowledged_after_such_a_cut_lasts(number: int, seed: int) -> None:
    async def script(host: Host, node: Node) -> None:
        await _cut_with_a_failing_sync(host, node, number)
        owner = await _joined_at_4(host, 3)
        kept = await owner.read_all()
        more = Maker(kept[-1].last, kept[-1].crc).batches(2, session=3, size=200, salt=1)
        await owner.store_each(more)
        await asyncio.sleep(0.1)
        await node.restart(power_loss=True)
        after = await connected(host)
        info = await after.fence(4)
        assert (info.max_synced, info.lost_above) == (6, UNRESOLVED)
        assert crcs(await after.read_all()) == crcs([*kept, *more])

    simulate(script, seed=seed, may_fail=(PolonaiseError,))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("number", range(2, 12))
@pytest.mark.parametrize("appended", [0, 6])
def test_a_segment_that_was_removed_in_vain_never_hides_what_was_acknowledged_since(
    number: int, seed: int, appended: int
) -> None:
    """The sync of its removal failed, the log went on without it, and a loss of power brings it back."""

    async def script(host: Host, node: Node) -> None:
        # The node restarts with segments that are never full: what comes goes on where the log ends now.
        made = await _cut_with_a_failing_sync(host, node, number, 24)
        owner = await connected(host)
        info = await owner.open(3)
        held = made[: info.max_synced + 1]
        more = Maker(held[-1].last, held[-1].crc).batches(appended, session=3, size=200, salt=1)
        await owner.store_each(more)
        await asyncio.sleep(0.1)
        await node.restart(power_loss=True)
        after = await connected(host)
        info = await after.fence(4)
        assert (info.prepared, info.max_synced, info.lost_above) == (held[-1].last, [*held, *more][-1].last, UNRESOLVED)
        assert crcs(await after.read_all()) == crcs([*held, *more])

    simulate(script, seed=seed, may_fail=(PolonaiseError,), segment_bytes_max=1_200)


@simulated(segment_bytes_max=1_200)
async def test_a_stale_segment_that_is_put_back_is_damage_and_hides_nothing(host: Host, node: Node) -> None:
    """As a restored file would be: whole, of this partition, and of another life of the log."""
    made = Maker().batches(24, size=200)
    owner = await filled(host, made)
    stale, first = node.segments()[1], int(node.segments()[1][-24:-4])
    contents = node.disk.contents(stale)
    # Cut where the first segment ends, and one batch below, so that the log goes on in that segment.
    await owner.fence(2)
    await owner.truncate(first - 2)
    await node.restart()
    owner = await connected(host)
    info = await owner.open(3)
    more = Maker(info.max_synced, info.last_crc).batches(6, session=3, size=200, salt=1)
    await owner.store_each(more)
    node.process.crash()
    assert stale not in node.disk.paths()
    node.disk.create(stale).write(0, contents)
    node.start()
    after = await connected(host)
    info = await after.fence(4)
    assert info.lost_above == info.max_synced == more[-1].last
    assert crcs(await after.read_all()) == crcs([*made[: first - 1], *more])


@simulated
async def test_health_names_the_partition_until_its_log_is_opened_anew(host: Host, node: Node) -> None:
    async def unavailable() -> dict[str, str]:
        named: dict[str, str] = json.loads((await owner.ask(Health(), HealthIs)).document)["unavailable"]
        return named

    owner = await filled(host, Maker().batches(10, size=200))
    await owner.fence(2)
    assert await unavailable() == {}
    node.fail_at("sync", 2)  # the first one is of the promises
    with pytest.raises(DiskFailed):
        await owner.truncate(4)
    node.mend()
    named = await unavailable()
    assert list(named) == [str(PARTITION)]
    assert "disk_failed" in named[str(PARTITION)]
    await owner.fence(3)
    assert await unavailable() == {}
