"""A sync, cut or store that failed: nobody knows what is on the disk, and no acknowledgement speaks for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polonaise.errors import DiskFailed, NotJoined, PolonaiseError, TooManyOpenFiles
from polonaise.host import Host
from polonaise.log.batch import Batch
from polonaise.terms import UNRESOLVED
from polonaise.wire.messages import Health, HealthIs, SessionInfo
from polonaise_proving.stages.simulated.diskimages import FileImage
from rigs.log import PARTITION, Maker, crcs
from rigs.storage import Node, Owner, connected, fenced, filled, opened, simulate, simulated


async def _end_its_life(node: Node, how: str) -> None:
    if how != "goes on":
        await node.restart(power_loss=how == "power loss")


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


_LONG_S = 1.0
"""Virtual seconds in which everything that was sent has been answered."""

Way = Callable[[Owner, Node, Batch, Batch], Awaitable[None]]


async def _disk_full(owner: Owner, node: Node, batch: Batch, _: Batch) -> None:
    node.disk.fill(100)
    owner.send(2, batch)
    await asyncio.sleep(_LONG_S)
    node.disk.free()


async def _failed_sync(owner: Owner, node: Node, batch: Batch, _: Batch) -> None:
    node.disk.fail_syncs(1)
    owner.send(2, batch)
    await asyncio.sleep(_LONG_S)


async def _too_many_open_files(owner: Owner, node: Node, batch: Batch, _: Batch) -> None:
    """In the moment in which a full segment has to be followed by a new one."""
    create = node.disk.create

    def refuse(path: str) -> FileImage:
        if path.endswith(".seq.new"):
            raise TooManyOpenFiles("planted")
        return create(path)

    node.disk.create = refuse  # type: ignore[method-assign]
    owner.send(2, batch)
    await asyncio.sleep(_LONG_S)
    node.disk.create = create  # type: ignore[method-assign]


async def _a_gap(owner: Owner, _: Node, __: Batch, after: Batch) -> None:
    owner.send(2, after)
    await asyncio.sleep(_LONG_S)


async def _damaged_on_the_way(owner: Owner, _: Node, batch: Batch, __: Batch) -> None:
    raw = bytearray(batch.view)
    raw[-1] ^= 1
    damaged = Batch.parse(raw, verify=False)
    owner.send(2, damaged)
    await asyncio.sleep(_LONG_S)


WAYS: dict[str, tuple[Way, str, str]] = {
    "disk full": (_disk_full, "disk_full", "not_joined"),
    "failed sync": (_failed_sync, "disk_failed", "partition_unavailable"),
    "too many open files": (_too_many_open_files, "too_many_open_files", "not_joined"),
    "a gap": (_a_gap, "out_of_order", "not_joined"),
    "damaged on the way": (_damaged_on_the_way, "batch_damaged", "not_joined"),
}
"""What goes wrong with the second `Store`, how it is refused, and how what follows is."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("then", ["a barrier", "a batch that fits"])
def test_no_acknowledgement_covers_a_store_that_was_refused(way: str, then: str) -> None:
    refuse, code, code_after = WAYS[way]

    async def script(host: Host, node: Node) -> tuple[int, list[tuple[int, str]]]:
        owner = await opened(host)
        maker = Maker()
        first, second, third = maker.batches(3, size=2000)
        await owner.store(1, first)
        await refuse(owner, node, second, third)
        fits = [Maker(first.last, first.crc).batch(salt=9)] if then == "a batch that fits" else []
        owner.send(3, *fits)
        await asyncio.sleep(_LONG_S)
        return owner.acknowledged, [(number, error.code) for number, error in owner.refusals]

    acknowledged, refusals = simulate(script, segment_batches_max=1)
    assert acknowledged == 1
    assert refusals == [(2, code), (3, code_after)]


@pytest.mark.parametrize("refuse", [_disk_full, _too_many_open_files])
def test_after_what_passes_the_next_session_goes_on_where_the_log_ends(refuse: Way) -> None:
    async def script(host: Host, node: Node) -> Any:
        owner = await opened(host)
        first, second = Maker().batches(2, size=2000)
        await owner.store(1, first)
        await refuse(owner, node, second, second)
        owner.refusals.clear()
        with pytest.raises(NotJoined):
            await owner.store(3)
        owner.refusals.clear()
        owner.acknowledged = 0
        info = await owner.open(2)
        assert (info.max_synced, info.last_crc) == (first.last, first.crc)
        await owner.store(1, second)
        return [batch.crc for batch in await owner.read_all()] == [first.crc, second.crc]

    assert simulate(script, segment_batches_max=1)


def test_a_refused_store_of_an_older_session_does_not_end_the_newer_one_on_another_connection() -> None:
    async def script(host: Host, _: Node) -> int:
        older, newer = await connected(host), await connected(host)
        await older.open(1)
        await newer.open(2)
        older.send(1)
        await asyncio.sleep(_LONG_S)
        assert [error.code for _, error in older.refusals] == ["fenced"]
        await newer.store(1, Maker().batch(session=2))
        return newer.acknowledged

    assert simulate(script) == 1
