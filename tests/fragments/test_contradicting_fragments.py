"""Fragments of a life of the log that was given up, beside those of the life that goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from polonaise.admin.archive import verify
from polonaise.admin.restore import HowToRestore, restore
from polonaise.admin.trimming import trim
from polonaise.errors import FragmentDamaged
from polonaise.fragments.agreement import FragmentFacts, contradictions, ids_to_compare
from polonaise.fragments.history import FragmentHistory, HistorySettings
from polonaise.fragments.mark import put_mark
from polonaise.fragments.objects import fragments_of, looked_at, verified
from polonaise.fragments.protocol.coverage import BatchEnd
from polonaise.fragments.store import ObstoreStore
from polonaise.log.batch import Batch
from rigs.faults import raises_code
from rigs.fragments import KEY, PARTITION, batches_of, flip
from rigs.lives import EACH, FIRST, SECOND, put
from rigs.trimmed import Cluster, archived, contents, fill


async def facts_of(store: ObstoreStore) -> list[FragmentFacts]:
    listed = await fragments_of(store, PARTITION)
    ids = ids_to_compare(listed)
    read = [await verified(store, name, ids[name]) for name in listed]
    assert read == [await looked_at(store, name, size, ids[name]) for name, size in listed.items()]
    return read


@pytest.mark.parametrize("group_rows", [131_072, 6])
@pytest.mark.parametrize(
    ("others", "overlap"),
    [
        ((2, 8), "8 to 19"),  # begins where another one does, and ends within a third one
        ((2, 5), "8 to 19"),  # has the very ids of another one
        ((0, 4), "8 to 15"),  # begins before both lives part
        ((3, 4), "12 to 15"),  # lies within another one
        ((7, 14), "28 to 55"),  # ends where the last one does
        ((9, 14), "36 to 55"),
    ],
)
async def test_fragments_that_overlap_and_differ_are_named(
    others: tuple[int, int], overlap: str, group_rows: int, store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polonaise.fragments.format.GROUP_ROWS", group_rows)
    for start, stop in ((0, 2), (2, 5), (5, 14)):
        await put(store, SECOND[start:stop])
    assert contradictions(await facts_of(store)) == []
    assert (await verify(store, PARTITION)).troubles == []
    same = await put(store, SECOND[slice(*others)])  # of the same life nothing contradicts, wherever it is cut
    assert contradictions(await facts_of(store)) == []
    assert (await verify(store, PARTITION)).troubles == []
    await store.delete(same.path)
    for start, stop in ((0, 2), (2, 5), (5, 14)):
        await put(store, SECOND[start:stop])
    stray = await put(store, FIRST[slice(*others)])
    wrong = contradictions(await facts_of(store))
    told = [each.what for each in wrong]
    assert any(stray.path in each and f"hold different transactions of ids {overlap}" in each for each in told), told
    assert all(stray in (each.one, each.other) for each in wrong), wrong
    assert all("move those" in each for each in (await verify(store, PARTITION)).troubles)


async def test_a_batch_that_another_fragment_cuts_elsewhere_is_a_contradiction(store: ObstoreStore) -> None:
    await put(store, SECOND[:4])
    (other,) = batches_of([([(1, 2, n, 0, b"long", -1, []) for n in range(6)], 3, 4, 0, False, False)])
    await put(store, [other])
    assert len(contradictions(await facts_of(store))) == 1


@pytest.mark.parametrize("stray", [(2, 5), (2, 8), (2, 14), (3, 4), (6, 9)])
async def test_a_restore_is_refused_where_fragments_overlap_and_differ(
    stray: tuple[int, int], store: ObstoreStore, tmp_path: Path
) -> None:
    for start, stop in ((0, 2), (2, 5), (5, 14)):
        await put(store, SECOND[start:stop])
    name = await put(store, FIRST[slice(*stray)])
    with raises_code("history_incomplete", match=f"not of one log: .*{name.digest}.* move those") as refused:
        await restore(store, str(tmp_path / "again"), HowToRestore())
    assert not (tmp_path / "again").exists(), refused.value


async def read_all(history: FragmentHistory, up_to: int, follows: BatchEnd | None) -> list[bytes]:
    async def told() -> BatchEnd:
        assert follows is not None
        return follows

    read: list[bytes] = []
    first = 0
    while first <= up_to:
        batches = await history.read(PARTITION, first, 1_000, 1, follows=told if follows else None)
        read += [bytes(batch.view) for batch in batches]
        first = batches[-1].last + 1
    return read


@pytest.mark.parametrize("stray", [(2, 5), (2, 8), (2, 14), (0, 14), (0, 4), (3, 4), (6, 9), (4, 6)])
async def test_a_reader_follows_the_life_that_the_log_goes_on_from(stray: tuple[int, int], store: ObstoreStore) -> None:
    await put_mark(store, KEY)
    for start, stop in ((0, 2), (2, 5), (5, 10), (10, 14)):
        await put(store, SECOND[start:stop])
    name = await put(store, FIRST[slice(*stray)])
    history = FragmentHistory(store, KEY, HistorySettings(listing_s=0.0))
    held = SECOND[12]  # the log still holds what is behind it, and this batch
    read = await read_all(history, held.first - 1, BatchEnd(held.first - 1, held.previous_crc))
    assert read[:12] == [bytes(batch.view) for batch in SECOND[:12]]
    with pytest.raises(FragmentDamaged, match=f"{name.digest}.*contradict each other.*move those"):
        await read_all(FragmentHistory(store, KEY), held.first - 1, None)
    # By time as well, with however many batches in a row group: those of the other life are earlier and later.
    for batch in SECOND[:12]:
        for again in (history, FragmentHistory(store, KEY)):
            found = await again.read(PARTITION, 0, held.first - 1, 1, batch.commit_time_us, lambda: told(held))
            assert [bytes(each.view) for each in found] == [bytes(batch.view)]
    assert not await history.read(PARTITION, 0, 55, 1, held.commit_time_us, lambda: told(held))


@pytest.mark.parametrize("stray", [(2, 8), (2, 14), (0, 14), (6, 9)])
async def test_a_reader_follows_on_when_the_log_holds_less_than_before(
    stray: tuple[int, int], store: ObstoreStore
) -> None:
    await put_mark(store, KEY)
    for start, stop in ((0, 2), (2, 14)):
        await put(store, SECOND[start:stop])
    await put(store, FIRST[slice(*stray)])
    history = FragmentHistory(store, KEY)
    for held in (SECOND[4], SECOND[8], SECOND[3], SECOND[13]):  # replicas hold it from different ids on
        read = await read_all(history, held.first - 1, await told(held))
        assert read[: held.first // EACH] == [bytes(batch.view) for batch in SECOND[: held.first // EACH]]


async def test_a_fragment_is_not_believed_where_the_one_that_would_contradict_it_is_damaged(
    store: ObstoreStore,
) -> None:
    await put_mark(store, KEY)
    own = [await put(store, SECOND[start:stop]) for start, stop in ((0, 2), (2, 5))]
    stray = await put(store, FIRST[2:5])
    await flip(store, own[1], -20)
    held = await told(SECOND[5])
    for follows in (None, held):
        with pytest.raises(FragmentDamaged, match=own[1].digest):
            await read_all(FragmentHistory(store, KEY), held.last, follows)
    await store.delete(stray.path)
    same = await put(store, SECOND[1:5])
    read = await read_all(FragmentHistory(store, KEY), held.last, held)
    assert read[:5] == [bytes(batch.view) for batch in SECOND[:5]], same.path


async def test_a_search_by_time_passes_over_nothing_that_only_another_life_s_fragment_holds(
    store: ObstoreStore,
) -> None:
    await put_mark(store, KEY)
    await put(store, SECOND[2:14])
    stray = await put(store, FIRST[:14])  # the first two batches are of both
    held = await told(SECOND[12])
    history = FragmentHistory(store, KEY)
    assert (await read_all(history, held.last, held))[:12] == [bytes(batch.view) for batch in SECOND[:12]]
    for batch in SECOND[2:12]:
        with pytest.raises(FragmentDamaged, match=stray.digest):
            await history.read(PARTITION, 0, held.last, 1, batch.commit_time_us, lambda: told(SECOND[12]))


async def told(held: Batch) -> BatchEnd:
    return BatchEnd(held.first - 1, held.previous_crc)


async def test_a_fragment_of_the_other_life_is_not_read_in_place_of_a_missing_one(store: ObstoreStore) -> None:
    await put_mark(store, KEY)
    for start, stop in ((0, 2), (5, 14)):
        await put(store, SECOND[start:stop])
    stray = await put(store, FIRST[2:5])
    history = FragmentHistory(store, KEY, HistorySettings(listing_s=0.0))
    end = BatchEnd(SECOND[-1].last, SECOND[-1].crc)
    with pytest.raises(FragmentDamaged, match=stray.digest):
        await read_all(history, 55, end)
    lost = await put(store, SECOND[2:5])
    await store.delete(stray.path)
    assert await read_all(FragmentHistory(store, KEY), 55, end) == [bytes(batch.view) for batch in SECOND]
    assert lost.first == stray.first


@pytest.mark.slow
async def test_a_fragment_of_an_earlier_life_comes_back_before_a_trim_and_after_it(
    cluster: Cluster, store: ObstoreStore, tmp_path: Path
) -> None:
    async with cluster.served(store) as log:
        await fill(log, 20)
        await archived(log, store)
    await cluster.stop_server()
    await cluster.stop_node(0)
    kept = ("coordinator", "storage-0", "store")
    for name in kept:
        shutil.copytree(tmp_path / name, tmp_path / "backup" / name)
    await cluster.start_node(0)
    async with cluster.served(store) as log:
        await fill(log, 100)
        (stray,) = await archived(log, store, 1 << 20)
    await cluster.stop_server()
    await cluster.stop_node(0)
    (tmp_path / "store").rename(tmp_path / "first")
    for name in kept:
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        (tmp_path / "backup" / name).rename(tmp_path / name)
    await cluster.start_node(0)
    async with cluster.served(store) as log:
        await fill(log, 70)
        await archived(log, store, 2_000)
        await fill(log, 100)
        await archived(log, store, 2_000)
        before = await contents(log)
        back = tmp_path / "store" / stray.path
        shutil.copy(tmp_path / "first" / stray.path, back)
        assert any(stray.path in each for each in (await verify(store, 0)).troubles)
        alone = f"move those .*; by their last batches 0/[^ ]*{stray.digest}.parquet are not$"
        with pytest.raises(FragmentDamaged, match=f"nothing was trimmed: .*{alone}"):
            await trim(log, store, 0)
        assert cluster.first_held(0) == 0
        back.unlink()
        assert (await trim(log, store, 0)).first > stray.last
        shutil.copy(tmp_path / "first" / stray.path, back)
        await cluster.start_server(store)
        assert await contents(log) == before
        assert [tx.data async for tx in log.read(0, after=stray.first, timeout=10)]
