"""What a server finds in its fragments while it reads for somebody is told at once, until it is whole again."""

from __future__ import annotations

import asyncio

import pytest

from polonaise.admin.trimming import trim
from polonaise.client.log import Log
from polonaise.errors import FragmentDamaged, FragmentMissing
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.protocol.scrubschedule import FragmentScrub, Pause, Verify
from polonaise.node.condition import conditions_in
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.detail import Detail
from polonaise.node.monitoring.face import ObservedServer
from polonaise.node.reasons import Reason, Trouble
from polonaise_proving.stages.simulated.cluster import CLUSTER_KEY
from rigs.archivedtown import ArchivedTown
from rigs.fragments import batches_of, named_fragment
from rigs.waiting import wait_until

SELDOM = {"scrub_first_s": 86_400.0, "archive_look_s": 86_400.0, "cache_bytes_max": 1}
"""Neither the scrub nor the watch of the archive looks by itself while the story is told, and no read is of memory."""


async def trimmed_archive(town: ArchivedTown) -> tuple[FragmentName, bytes]:
    """Archive the log as two fragments, and trim most of it. Return the first one, which holds id 0."""
    for part in range(2):
        await town.append(*(b"%d" % number * 200_000 for number in range(4 + 5 * part)))
        await town.archive()

    async def trimmed(log: Log) -> int:
        return (await trim(log, town.store, 0)).first

    assert await town.application("operator", trimmed) > 0
    (server,) = town.cluster.servers
    server.crash()  # the trim has read the fragment, and would have it in memory
    await wait_until(lambda: server.running and bool(town.server.partitions), within_s=120.0, every_s=1.0)
    return min(town.store.fragments().items())


def flipped(raw: bytes) -> bytes:
    """Return the fragment with one wrong bit in its rows."""
    return raw[:40] + bytes([raw[40] ^ 1]) + raw[41:]


async def read_first(log: Log) -> bytes:
    batches = log.read_batches(0, timeout=30.0)
    try:
        return bytes((await anext(batches)).view)
    finally:
        await batches.aclose()


def stray(partition: int, last: int) -> tuple[FragmentName, bytes]:
    """Return a fragment with the ids up to `last`, of a life of the log that was given up."""
    rows = [(1, 2, number, 0, b"other", -1, []) for number in range(last + 1)]
    return named_fragment(batches_of([(rows, 3, 4, 0, False, False)], partition=partition), CLUSTER_KEY)


def troubles(town: ArchivedTown) -> list[Trouble]:
    return conditions_in(town.server.health())[0].reasons


async def degraded(town: ArchivedTown, reason: Reason) -> float | None:
    samples = await ObservedServer(lambda: town.server, town.server.parts.shared.host.clock).samples(Detail())
    return samples.value(metrics.NODE_DEGRADED, reason.value)


async def refused(log: Log, town: ArchivedTown, error: type[Exception]) -> list[Trouble]:
    """Read in vain; return what the server's health says directly afterwards."""
    with pytest.raises(error):
        await read_first(log)
    return troubles(town)


@pytest.mark.parametrize("scrub_bytes_per_s", [2**21, 0])
def test_a_damaged_fragment_that_a_reader_met_is_told_at_once_and_until_it_is_put_back(scrub_bytes_per_s: int) -> None:
    async def story(town: ArchivedTown) -> None:
        name, raw = await trimmed_archive(town)
        assert troubles(town) == []

        async def reader(log: Log) -> None:
            town.store.put_now(name.path, flipped(raw))
            ((reason, line),) = await refused(log, town, FragmentDamaged)
            assert reason is Reason.FRAGMENT_DAMAGE
            assert name.path in line
            assert await degraded(town, Reason.FRAGMENT_DAMAGE) == 1
            samples = await ObservedServer(lambda: town.server, town.server.parts.shared.host.clock).samples(Detail())
            assert samples.value(metrics.FRAGMENTS_UNREPAIRED) == 1
            await wait_until(lambda: "restore" in troubles(town)[0][1], within_s=30.0, every_s=0.5)
            await asyncio.sleep(700.0)  # it is looked at again meanwhile
            ((again, line),) = troubles(town)
            assert (again, name.path in line) == (reason, True)
            town.store.put_now(name.path, raw)
            assert await read_first(log)
            assert troubles(town) == []
            assert await degraded(town, Reason.FRAGMENT_DAMAGE) == 0

        await town.application("reader", reader)

    ArchivedTown(**SELDOM, scrub_bytes_per_s=scrub_bytes_per_s).tell(story)


def test_a_fragment_that_was_cut_and_put_back_is_told_no_more_though_nobody_reads_it() -> None:
    async def story(town: ArchivedTown) -> None:
        name, raw = await trimmed_archive(town)

        async def reader(log: Log) -> None:
            town.store.put_now(name.path, raw[:-100])
            ((reason, _),) = await refused(log, town, FragmentDamaged)
            assert reason is Reason.FRAGMENT_DAMAGE
            await asyncio.sleep(100.0)
            assert troubles(town)
            town.store.put_now(name.path, raw)
            await wait_until(lambda: not troubles(town), within_s=700.0, every_s=5.0)

        await town.application("reader", reader)

    ArchivedTown(**SELDOM).tell(story)


def test_ids_that_a_reader_missed_are_told_at_once_and_until_they_are_back() -> None:
    async def story(town: ArchivedTown) -> None:
        name, raw = await trimmed_archive(town)

        async def reader(log: Log) -> None:
            await town.store.delete(name.path)
            ((reason, line),) = await refused(log, town, FragmentMissing)
            assert reason is Reason.FRAGMENTS_MISSING
            assert "id 0" in line
            assert await degraded(town, Reason.FRAGMENTS_MISSING) == 1
            await asyncio.sleep(60.0)
            assert [kind for kind, _ in troubles(town)] == [Reason.FRAGMENTS_MISSING]
            town.store.put_now(name.path, raw)
            await wait_until(lambda: not troubles(town), within_s=30.0, every_s=1.0)

        await town.application("reader", reader)

    ArchivedTown(**SELDOM).tell(story)


def test_fragments_that_contradict_each_other_are_told_until_the_read_that_was_refused_succeeds() -> None:
    async def story(town: ArchivedTown) -> None:
        name, raw = await trimmed_archive(town)
        other, its_raw = stray(0, name.last)

        async def reader(log: Log) -> None:
            town.store.put_now(name.path, flipped(raw))
            town.store.put_now(other.path, its_raw)
            await refused(log, town, FragmentDamaged)
            await asyncio.sleep(2.0)  # then the store is listed anew
            told = await refused(log, town, FragmentDamaged)
            assert {reason for reason, _ in told} == {Reason.FRAGMENT_DAMAGE}
            lines = [line for _, line in told]
            assert any(name.path in line and "SHA-256" in line for line in lines), lines
            assert any(other.path in line and "contradict each other" in line for line in lines), lines
            await asyncio.sleep(300.0)
            told = troubles(town)
            assert len(told) == 2, "the digest of the other life's fragment is right, and that proves nothing"
            assert any("id 0 still can't be read" in line for _, line in told), told
            town.store.put_now(name.path, raw)
            assert await read_first(log)
            await wait_until(lambda: not troubles(town), within_s=100.0, every_s=1.0)

        await town.application("reader", reader)

    ArchivedTown(**SELDOM).tell(story)


def test_what_a_read_could_not_use_counts_as_damaged_and_is_looked_at_next() -> None:
    first, second = (FragmentName(0, number * 10, number * 10 + 9, f"{number:064x}") for number in range(2))
    scrub = FragmentScrub(1_000, every_s=100.0, first_s=50.0)
    assert scrub.next(0.0) == Pause(50.0)
    scrub.refused(0.0, 7, second, 12, "bad")
    assert (scrub.unrepaired, scrub.scrubbed.found, scrub.refused_id(second)) == (1, 1, 12)
    assert scrub.next(0.0) == Verify(second, 0), "before the first round"
    scrub.damaged(8, second, "its digest is wrong")
    scrub.not_repaired(0.0, 8, Verify(second, 1_000), "restore it", passing=False)
    for _ in range(3):
        scrub.refused(1.0, 9, second, 11, "bad")
    assert (scrub.scrubbed.found, scrub.refused_id(second)) == (1, 12), "reads hurry nothing that is known"
    assert scrub.next(1.0) == Pause(49.0)
    scrub.listed(50.0, 10, {first: 1_000, second: 1_000})
    scrub.good(11, second)
    assert (scrub.unrepaired, scrub.refused_id(second), scrub.scrubbed.repaired) == (0, None, 1)
    for over in (lambda: scrub.gone(12, second), lambda: scrub.listed(150.0, 12, {first: 1_000})):
        scrub.refused(50.0, 12, second, 12, "bad")
        over()
        assert (scrub.unrepaired, scrub.refused_id(second)) == (0, None)


def test_without_a_scrub_only_what_reads_could_not_use_is_looked_at() -> None:
    name = FragmentName(0, 0, 9, "0" * 64)
    scrub = FragmentScrub(0, every_s=100.0, first_s=0.0)
    assert scrub.next(1e9) == Pause(float("inf"))
    scrub.refused(1e9, 7, name, 3, "bad")
    assert scrub.next(1e9) == Verify(name, 0)
    assert scrub.pace(1e9, 10**9) == 0.0
    scrub.good(8, name)
    assert scrub.next(1e9) == Pause(float("inf"))
