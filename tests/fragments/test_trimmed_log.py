"""A log whose oldest history lives in fragments only: it reads as it always did, and nothing goes unasked."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import polonaise
from polonaise.admin.archive import archive, check_lacks_nothing, init
from polonaise.admin.trimming import trim
from polonaise.client.log import partitions_of
from polonaise.errors import (
    BeyondLog,
    DeadlineExceeded,
    FragmentDamaged,
    FragmentMissing,
    FragmentsAhead,
    HistoryTrimmed,
    NotFound,
    StoreUnavailable,
    WrongClusterKey,
)
from polonaise.fragments.format import batches_in
from polonaise.fragments.mark import MARK
from polonaise.fragments.protocol.coverage import Span
from polonaise.fragments.protocol.names import FragmentName, fingerprint
from polonaise.fragments.store import ObstoreStore, open_store
from polonaise.log.batch import Batch, split
from polonaise.wire.messages import Batches, Read
from rigs.faults import raises_code
from rigs.fragments import batches_of, flip, moody_store, named_fragment
from rigs.health import until_engaged, until_waits_for
from rigs.restoring import Sum
from rigs.trimmed import Cluster, archived, contents, fill, running
from rigs.waiting import wait_until

pytestmark = pytest.mark.slow


@dataclass
class Trimmed:
    cluster: Cluster
    log: polonaise.Log
    store: ObstoreStore
    before: list[bytes]
    """The batches of the log, as they were before anything was trimmed."""
    fragments: list[FragmentName]
    first: int
    """What the storage nodes still hold begins here."""


@pytest.fixture
async def log(cluster: Cluster, store: ObstoreStore) -> AsyncIterator[polonaise.Log]:
    """A log of a hundred transactions, whose server knows the store."""
    async with cluster.served(store) as log:
        await fill(log, 100)
        yield log


@pytest.fixture
async def trimmed(cluster: Cluster, log: polonaise.Log, store: ObstoreStore) -> Trimmed:
    await fill(log, 100)
    fragments = await archived(log, store)
    before = await contents(log)
    report = await trim(log, store, 0, before=150)
    first = report.first
    assert cluster.first_held(0) == first > 100
    assert (report.held_from, report.dropped) == (0, True)
    assert (await trim(log, store, 0, before=150))[:3] == (150, first, first), "nothing more is there to be dropped"
    return Trimmed(cluster, log, store, before, fragments, first)


# ------------------------------------------------------------------ reading


async def test_a_trimmed_log_reads_as_it_did_byte_for_byte(trimmed: Trimmed) -> None:
    assert await contents(trimmed.log) == trimmed.before
    assert (await trimmed.log.transaction(3, 0)).data == b"3" * 20
    bodies = [batch async for batch in trimmed.log.read_batches(0, with_data=False)]
    assert [batch.last for batch in bodies][-1] == 199


async def test_parts_of_a_trimmed_log_have_no_batch_in_common_wherever_they_lie(trimmed: Trimmed) -> None:
    """In fragments, on replicas, in the server's memory."""
    parsed = [Batch.parse(raw) for raw in trimmed.before]
    for width in (1, 7, 50, 200):
        found: list[int] = []
        for first in range(0, 200, width):
            last = min(first + width, 200) - 1
            wanted = [batch.first for batch in parsed if first <= batch.first <= last]
            part = await answered(trimmed.log, Read(first, 1 << 20, 0, 1, 0, last))
            while len(part) < len(wanted):  # an answer ends with a row group; what is left begins where a batch does
                rest = await answered(trimmed.log, Read(wanted[len(part)], 1 << 20, 0, 1, 0, last))
                assert rest
                part += rest
            found += [batch.first for batch in part]
        assert found == [batch.first for batch in parsed]


async def answered(log: polonaise.Log, request: Read) -> list[Batch]:
    """What the server answers."""
    answer = await partitions_of(log).parts.requests.ask(0, request, Batches, 10)
    return split(answer.payload[0]) if answer.payload else []


async def test_a_trim_that_may_take_no_time_waits_for_no_answer(
    trimmed: Trimmed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def known(*_: Any, **__: Any) -> int:
        return 199

    monkeypatch.setattr(polonaise.Log, "high_water_mark", known)
    with pytest.raises(DeadlineExceeded):
        await trim(trimmed.log, trimmed.store, 0, timeout=0)


async def test_a_trimmed_log_goes_on_and_more_can_be_trimmed(trimmed: Trimmed) -> None:
    await fill(trimmed.log, 100)
    await archived(trimmed.log, trimmed.store)
    before = await contents(trimmed.log)
    first = (await trim(trimmed.log, trimmed.store, 0)).first
    assert first > 250
    assert await contents(trimmed.log) == before
    await trimmed.cluster.stop_server()
    await trimmed.cluster.restart_node(0)
    await trimmed.cluster.start_server(trimmed.store)
    assert await contents(trimmed.log) == before


async def test_a_trimmed_log_is_read_by_time_from_the_first_of_that_time_wherever_it_is(trimmed: Trimmed) -> None:
    parsed = [Batch.parse(raw) for raw in trimmed.before]
    for since in sorted({parsed[0].commit_time_us, parsed[7].commit_time_us, parsed[-2].commit_time_us}):
        expected = next(batch.first for batch in parsed if batch.commit_time_us >= since)
        found = [tx.id async for tx in trimmed.log.read_time(0, since=since, timeout=10)]
        assert found == list(range(expected, 200))
    border = next(batch for batch in parsed if batch.first == trimmed.first)
    found = [tx.id async for tx in trimmed.log.read_time(0, since=border.commit_time_us, timeout=10)]
    assert found[0] <= trimmed.first


async def test_a_view_that_is_behind_the_trim_is_fed_through_the_fragments(trimmed: Trimmed) -> None:
    view = Sum()
    async with polonaise.connect(trimmed.cluster.address, view=view) as log:
        await log.wait_applied(199, 0, timeout=20)
    assert view.ids == list(range(200))


async def test_without_a_store_the_range_and_what_to_do_are_named_at_once(trimmed: Trimmed) -> None:
    await trimmed.cluster.start_server(None)
    async with asyncio.timeout(10):
        with pytest.raises(HistoryTrimmed, match=rf"below {trimmed.first} .*--fragments"):
            await contents(trimmed.log)
        tail = [tx.id async for tx in trimmed.log.read(0, after=trimmed.first - 1)]
        assert tail == list(range(trimmed.first, 200))
        async with polonaise.connect(trimmed.cluster.address, view=Sum()) as log:
            with pytest.raises(HistoryTrimmed, match="--fragments"):
                await log.wait_applied(199, 0)


async def test_what_rots_after_it_was_verified_is_found_too(trimmed: Trimmed) -> None:
    await trimmed.cluster.start_server(trimmed.store, cache_bytes_max=1)
    assert await contents(trimmed.log) == trimmed.before
    damaged = trimmed.fragments[0]
    raw = await trimmed.store.get(damaged.path)
    bodies = pq.ParquetFile(pa.BufferReader(raw)).metadata.row_group(0).column(4)
    await flip(trimmed.store, damaged, bodies.data_page_offset + bodies.total_compressed_size // 2)
    with pytest.raises(FragmentDamaged, match=damaged.digest):
        await contents(trimmed.log)


async def test_another_fragment_that_holds_the_same_ids_takes_the_place_of_a_damaged_one(trimmed: Trimmed) -> None:
    stored = [await trimmed.store.get(name.path) for name in trimmed.fragments[:3]]
    batches = [Batch.parse(batch) for fragment in stored for batch in batches_in(fragment)]
    copy, raw = named_fragment(batches, trimmed.log.cluster_key)
    await trimmed.store.put_if_absent(copy.path, raw)
    await flip(trimmed.store, trimmed.fragments[1])
    await trimmed.cluster.start_server(trimmed.store)
    assert await contents(trimmed.log) == trimmed.before


async def test_a_lost_fragment_is_named_and_once_restored_reading_goes_on(trimmed: Trimmed) -> None:
    lost = trimmed.fragments[1]
    raw = await trimmed.store.get(lost.path)
    await trimmed.store.delete(lost.path)
    await trimmed.cluster.start_server(trimmed.store)
    with pytest.raises(FragmentMissing, match=f"id {lost.first} of partition 0"):
        await contents(trimmed.log)
    await trimmed.store.put_if_absent(lost.path, raw)
    assert await contents(trimmed.log) == trimmed.before


# ------------------------------------------------------------------ what is not trimmed


async def test_what_is_not_archived_is_not_trimmed(cluster: Cluster, log: polonaise.Log, store: ObstoreStore) -> None:
    with raises_code("not_archived", match="polonaise archive run"):
        await trim(log, store, 0)
    written = await archived(log, store)
    await fill(log, 50)
    with raises_code("not_archived", match="archived up to 99"):
        await trim(log, store, 0, before=120)
    with pytest.raises(BeyondLog):
        await log.trim(0, 1_000, fingerprint(written))
    await store.delete(written[1].path)
    # The server looks for itself, whatever it is told.
    with raises_code("not_archived", match=f"no fragment with ids {written[1].first} to"):
        await log.trim(0, 90, fingerprint(written))
    assert cluster.first_held(0) == 0


async def test_the_server_has_to_know_the_store_and_find_there_what_was_verified(
    cluster: Cluster, store: ObstoreStore, tmp_path: Path
) -> None:
    async with cluster.served(None) as log:
        await fill(log, 100)
        await archived(log, store)
        with raises_code("not_archived", match="without --fragments"):
            await trim(log, store, 0)
        await cluster.stop_server()
        other = open_store(str(tmp_path / "other"))
        await cluster.start_server(other)
        with raises_code("not_archived", match="no fragment with ids 0"):
            await trim(log, store, 0)
        await archived(log, other, 5_000)
        with raises_code("not_archived", match="name the same store"):
            await trim(log, store, 0)
        assert cluster.first_held(0) == 0


@pytest.mark.parametrize(("first", "last"), [(0, 0), (100, 0), (0, 100), (1000, 0), (0, 1000)])
async def test_a_copy_of_the_store_does_not_vouch_for_what_the_server_has(
    cluster: Cluster, log: polonaise.Log, store: ObstoreStore, tmp_path: Path, first: int, last: int
) -> None:
    """Of a fragment there the `first` or the `last` bytes are left."""
    written = await archived(log, store)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    copy, cut = open_store(str(tmp_path / "copy")), written[0]
    file = tmp_path / "store" / cut.path
    whole = file.read_bytes()
    file.write_bytes(whole[:first] + whole[len(whole) - last :])
    with raises_code("not_archived", match=f"nothing was trimmed.*{cut.digest}.*restore it from a copy"):
        await trim(log, copy, 0)
    assert cluster.first_held(0) == 0
    # What the server met is looked at next, and written again from the log, which has it still.
    await wait_until(lambda: file.read_bytes() == whole)
    before = await contents(log)
    report = await trim(log, copy, 0)
    assert report.dropped
    assert report.first > cut.last
    # What was trimmed already is relied upon as it is: its damage is the scrub's to tell.
    file.write_bytes(b"")
    await fill(log, 200)
    written = await archived(log, store)
    for name in written:
        await copy.put_if_absent(name.path, await store.get(name.path))
    assert (await trim(log, copy, 0)).first > report.first
    shutil.copy(tmp_path / "copy" / cut.path, file)
    await cluster.start_server(store)
    assert (await contents(log))[: len(before)] == before


async def test_no_second_store_is_begun_where_the_first_one_is_not_mounted(
    cluster: Cluster, log: polonaise.Log, store: ObstoreStore, trimmed: Trimmed, tmp_path: Path
) -> None:
    """The servers would believe its mark, and take what was trimmed for never archived."""
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    in_its_place = open_store(str(tmp_path / "store"))
    with pytest.raises(NotFound, match=r"its servers have a store already.*mount what belongs there.*archive init"):
        await archived(log, in_its_place)
    in_its_place.unmake()
    assert not (tmp_path / "store").exists()
    await cluster.start_server(None)
    other = open_store(str(tmp_path / "other"))
    with pytest.raises(HistoryTrimmed, match="without the fragments"):
        await archived(log, other)
    assert not list((tmp_path / "other").iterdir())


async def test_a_store_that_a_new_log_lacks_is_told_before_anything_waits(
    cluster: Cluster, store: ObstoreStore, tmp_path: Path
) -> None:
    await cluster.start_server(store, marked=False)
    async with polonaise.connect(cluster.address) as log:
        async with asyncio.timeout(10.0):
            with pytest.raises(NotFound, match="declare it once: polonaise archive init"):
                await archived(log, store)
        await init(log, store)
        await fill(log, 10)
        assert await archived(log, store)


async def test_the_fragment_within_which_storage_nodes_begin_is_relied_upon_too(
    cluster: Cluster, log: polonaise.Log, store: ObstoreStore, tmp_path: Path
) -> None:
    """They alone hold the rest of it, where it can't be opened."""
    await fill(log, 100)
    written = await archived(log, store, 10_000)
    first = (await trim(log, store, 0, before=150)).first
    assert cluster.first_held(0) == first
    (cut,) = [name for name in written if name.first < first <= name.last]
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "store" / cut.path).write_bytes(b"")
    with raises_code("not_archived", match=cut.digest):
        await trim(log, open_store(str(tmp_path / "copy")), 0)
    assert cluster.first_held(0) == first


async def test_a_damaged_archive_is_not_relied_upon(cluster: Cluster, log: polonaise.Log, store: ObstoreStore) -> None:
    written = await archived(log, store)
    await flip(store, written[0])
    with pytest.raises(FragmentDamaged, match=written[0].digest):
        await trim(log, store, 0)
    assert cluster.first_held(0) == 0


async def test_every_fragment_that_is_relied_upon_is_on_the_disk_before_anything_is_dropped(
    cluster: Cluster, log: polonaise.Log, store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever put one may have left it in the kernel's memory: the storage nodes' copy must not go before that."""
    steps: list[str] = []
    make_durable, drop = ObstoreStore.make_durable, polonaise.Log.trim

    async def noted(self: ObstoreStore, path: str) -> None:
        await make_durable(self, path)
        steps.append(path)

    async def dropped(*arguments: Any, **options: Any) -> Any:
        steps.append("dropped")
        return await drop(*arguments, **options)

    monkeypatch.setattr(ObstoreStore, "make_durable", noted)
    monkeypatch.setattr(polonaise.Log, "trim", dropped)
    await fill(log, 100)
    written = await archived(log, store)
    await trim(log, store, 0, before=150)
    relied_upon = [name.path for name in written if name.first < 150]
    assert steps[: len(relied_upon) + 1] == [*relied_upon, "dropped"]
    assert cluster.first_held(0) > 100


async def test_fragments_of_another_log_are_not_relied_upon(
    cluster: Cluster, log: polonaise.Log, store: ObstoreStore
) -> None:
    """The same ids under the same cluster key, and other batches: the CRC that the log goes on from tells."""
    written = await forged(log, store)
    with raises_code("not_archived", match="not of this log"):
        await log.trim(0, 90, fingerprint([written]))
    assert cluster.first_held(0) == 0


async def forged(log: polonaise.Log, store: ObstoreStore, *, last: int = 99) -> FragmentName:
    """A fragment from 0 on that is sound, and not of this log."""
    plans = []
    for first in range(0, last + 1, 10):
        rows = [(7, 1, id, 0, b"x", -1, []) for id in range(first, first + 10)]
        plans.append((rows, 1, 1, 1_000 + first, False, False))
    name, raw = named_fragment(batches_of(plans, partition=0), log.cluster_key)
    await store.put_if_absent(name.path, raw)
    return name


# ------------------------------------------------------------------ replicas


async def test_a_wiped_replica_is_filled_from_the_fragments(tmp_path: Path, store: ObstoreStore) -> None:
    async with running(tmp_path, storage=3) as cluster, cluster.served(store) as log:
        await fill(log, 200)
        await archived(log, store)
        before = await contents(log)
        await trim(log, store, 0, before=150)
        assert all(cluster.first_held(number) > 100 for number in range(3))
        await cluster.restart_node(1, wiped=True)
        await fill(log, 10)
        await until_engaged(log, 3)
        assert 0 < cluster.first_held(1) <= cluster.first_held(0), "what no other holds is dropped again"
        assert (await contents(log))[: len(before)] == before
        # It takes part in the next trim as before.
        await archived(log, store)
        await trim(log, store, 0, before=150)
        assert cluster.first_held(1) > 100


# ------------------------------------------------------------------ fragments that are ahead


async def test_nothing_is_appended_while_the_fragments_reach_farther_than_the_replicas(
    cluster: Cluster, log: polonaise.Log, store: ObstoreStore
) -> None:
    ahead = await forged(log, store, last=149)
    await cluster.start_server(store)
    with pytest.raises(FragmentsAhead, match=r"reach up to 149.*no more than 99"):
        await log.high_water_mark(0, timeout=10)
    with pytest.raises(DeadlineExceeded, match="fragments_ahead"):
        await log.ready(0, timeout=0.5)
    health = (await log.health(0))["partitions"]["0"]
    assert not health["ready"]
    assert health["waits_for"].startswith("[fragments_ahead]")
    # An operator has decided.
    await store.delete(ahead.path)
    await log.append(b"goes on", 0)
    assert await log.high_water_mark(0) == 100


async def test_a_damaged_footer_keeps_a_partition_from_starting_only_above_its_replicas(
    cluster: Cluster, log: polonaise.Log, store: ObstoreStore
) -> None:
    newest = (await archived(log, store))[-1]
    await store.replace(newest.path, (await store.get(newest.path))[:-1] + b"X")
    await cluster.start_server(store)
    await log.ready(0, timeout=10)
    await log.append(b"goes on", 0)
    ahead = await forged(log, store, last=149)
    await store.replace(ahead.path, (await store.get(ahead.path))[:-1] + b"X")
    await cluster.start_server(store)
    told = await until_waits_for(log, FragmentDamaged.code)
    assert "partition 0: by its name a fragment" in told
    assert ahead.path in told
    assert told.endswith("0=100"), told
    assert "give them up in the store: polonaise archive cut " in told


async def test_where_the_store_is_not_mounted_an_older_copy_gives_out_no_id_again(
    cluster: Cluster, log: polonaise.Log, store: ObstoreStore, tmp_path: Path
) -> None:
    await cluster.stop_server()
    await forged(log, store, last=149)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").mkdir()
    await forged(log, store, last=49)  # what an archiver was writing when the store was away
    await cluster.start_server(store, marked=False)
    with pytest.raises(DeadlineExceeded):
        await log.ready(0, timeout=0.5)
    assert "mount what belongs there" in await until_waits_for(log, StoreUnavailable.code)
    (tmp_path / "store").rename(tmp_path / "beneath")
    (tmp_path / "away").rename(tmp_path / "store")
    assert "reach up to 149" in await until_waits_for(log, FragmentsAhead.code)


async def test_while_the_store_can_t_be_read_nothing_is_appended_and_health_says_so(
    cluster: Cluster, tmp_path: Path
) -> None:
    away = moody_store(tmp_path / "store")
    away.away = True
    async with cluster.served(away) as log:
        with pytest.raises(DeadlineExceeded):
            await log.ready(0, timeout=0.5)
        assert "how far it reaches" in await until_waits_for(log, "store_unavailable")
        away.away = False
        await log.append(b"now", 0)
        # Later sessions of the same owner remember what is committed, and need no store.
        away.away = True
        await cluster.restart_node(0)
        await log.append(b"and now", 0)


async def test_a_store_of_another_cluster_is_told_as_such(cluster: Cluster, store: ObstoreStore) -> None:
    class Other:
        cluster_key = bytes(16)

    await forged(Other(), store, last=9)  # type: ignore[arg-type]
    async with cluster.served(store) as log:
        with pytest.raises(DeadlineExceeded):
            await log.ready(0, timeout=0.5)
        assert WrongClusterKey.code in await until_waits_for(log, WrongClusterKey.code)


async def test_ids_that_nobody_holds_any_more_are_told_as_that_and_the_others_archived(
    trimmed: Trimmed, tmp_path: Path
) -> None:
    first, *_ = trimmed.fragments
    lost = tmp_path / "store" / first.path
    lost.rename(tmp_path / "lost")
    await fill(trimmed.log, 20)
    told: list[Span] = []
    writing = archive(trimmed.log, trimmed.store, 0, rest=True, tell_missing=told.append)
    written = await anext(writing)
    assert (told, written.fragment.last) == ([], await trimmed.log.high_water_mark(0))
    ids = f"{first.first} to {first.last}"
    with pytest.raises(FragmentMissing, match=f"can't send them: {ids} .*put the fragments back"):
        await anext(writing)


async def test_a_store_that_lacks_what_was_trimmed_is_not_declared(
    cluster: Cluster, trimmed: Trimmed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is most probably not mounted, and with a mark nobody would notice that any more."""
    monkeypatch.setattr("polonaise.admin.archive._LACKS_S", 1.0)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    (tmp_path / "store").mkdir()
    unmounted = open_store(str(tmp_path / "store"))
    with pytest.raises(HistoryTrimmed, match=r"lacks ids 0 to 199 of partition 0, and the log can't.*Mount.*--insist"):
        await check_lacks_nothing(trimmed.log, unmounted)
    other = open_store(str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere" / MARK).unlink()
    await check_lacks_nothing(trimmed.log, other)
    (tmp_path / "elsewhere" / trimmed.fragments[1].path).unlink()
    with pytest.raises(HistoryTrimmed, match=f"lacks ids {trimmed.fragments[1].first} to {trimmed.fragments[1].last}"):
        await check_lacks_nothing(trimmed.log, other)
    await cluster.stop_server()
    with pytest.raises(HistoryTrimmed, match=r"can't be known: partition 0 is not served.*--insist"):
        await check_lacks_nothing(trimmed.log, unmounted)


async def test_a_second_store_of_a_trimmed_log_may_be_declared_while_the_first_one_is_read(
    trimmed: Trimmed, tmp_path: Path
) -> None:
    second = open_store(str(tmp_path / "second"))
    await check_lacks_nothing(trimmed.log, second)


async def test_a_trim_says_who_took_no_part(tmp_path: Path) -> None:
    async with running(tmp_path, storage=3) as cluster:
        store = open_store(str(tmp_path / "store"))
        async with cluster.served(store) as log:
            await fill(log, 100)
            await archived(log, store)
            assert (await trim(log, store, 0, before=30)).left_out == ()
            await cluster.stop_node(2)
            await fill(log, 10)
            report = await trim(log, store, 0)
            assert (report.dropped, report.left_out) == (True, (cluster.names[2],))
            assert len(report.taking_part) == 2
