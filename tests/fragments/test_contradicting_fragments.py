"""Fragments of a life of the log that was given up, and a partition's fragments that an operator cuts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from polonaise.admin.archive import verify
from polonaise.admin.restore import HowToRestore, restore
from polonaise.admin.trimming import trim
from polonaise.errors import BadOption, FragmentDamaged, NotFound, StoreUnavailable
from polonaise.fragments.agreement import FragmentFacts, contradictions, ids_to_compare
from polonaise.fragments.cutting import GIVEN_UP, cut_fragments
from polonaise.fragments.format import batches_in
from polonaise.fragments.history import FragmentHistory, HistorySettings
from polonaise.fragments.mark import MARK, put_mark
from polonaise.fragments.objects import fragments_of, looked_at, verified
from polonaise.fragments.protocol.coverage import BatchEnd
from polonaise.fragments.protocol.names import FragmentName
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


LAST = SECOND[6].last


async def objects(store: ObstoreStore) -> dict[str, bytes]:
    return {each.path: await store.get(each.path) for each in await store.list()}


async def held(store: ObstoreStore) -> list[bytes]:
    """The batches of the store's fragments, each once."""
    found: dict[bytes, None] = {}
    for name in await fragments_of(store, PARTITION):
        found |= dict.fromkeys(batches_in(await store.get(name.path)))
    return list(found)


def whole(up_to: int = 7) -> list[bytes]:
    return [bytes(batch.view) for batch in SECOND[:up_to]]


@pytest.mark.parametrize(
    ("fragments", "straddling", "above"),
    [
        ([(0, 14)], 1, 0),
        ([(0, 7), (7, 14)], 0, 1),
        ([(0, 5), (5, 9), (9, 14)], 1, 1),
        ([(0, 9), (5, 14)], 2, 0),
        ([(0, 7), (5, 14)], 1, 0),
    ],
    ids=["one", "at a fragment's end", "in the middle", "two that overlap", "held by others"],
)
async def test_fragments_end_at_the_id_and_what_they_held_above_is_kept_aside(
    fragments: list[tuple[int, int]], straddling: int, above: int, store: ObstoreStore
) -> None:
    await put_mark(store, KEY)
    names = [await put(store, SECOND[start:stop]) for start, stop in fragments]
    before = await objects(store)
    done = await cut_fragments(store, PARTITION, LAST)
    assert (len(done.written), len(done.moved)) == (straddling, straddling + above)
    after = await objects(store)
    for name in names:
        kept = name.path if name.last <= LAST else GIVEN_UP + name.path
        assert after[kept] == before[name.path], "nothing is lost"
    assert await held(store) == whole()
    assert (await verify(store, PARTITION)).troubles == []
    history = FragmentHistory(store, KEY)
    assert await history.highest(PARTITION, LAST) == LAST
    assert await history.read(PARTITION, 0, 1_000, 1)
    again = await cut_fragments(store, PARTITION, LAST)
    assert (again.written, again.moved) == ((), ())
    assert await objects(store) == after


async def test_at_minus_one_all_fragments_are_moved_aside(store: ObstoreStore) -> None:
    await put_mark(store, KEY)
    names = [await put(store, SECOND[:5]), await put(store, SECOND[5:])]
    assert (await cut_fragments(store, PARTITION, -1)).moved == tuple(names)
    assert set(await objects(store)) == {MARK, *(GIVEN_UP + name.path for name in names)}


async def test_an_id_within_a_batch_is_refused_with_its_neighbours_and_nothing_is_moved(store: ObstoreStore) -> None:
    await put_mark(store, KEY)
    await put(store, SECOND)
    before = await objects(store)
    with pytest.raises(BadOption, match=rf"are one: choose {LAST} or {LAST + 4}\. Do not move .* the only copy"):
        await cut_fragments(store, PARTITION, LAST + 1)
    assert await objects(store) == before


async def test_of_fragments_that_contradict_each_other_both_are_cut(store: ObstoreStore) -> None:
    await put_mark(store, KEY)
    await put(store, SECOND)
    await put(store, FIRST)
    assert len((await cut_fragments(store, PARTITION, LAST)).written) == 2, "only the log tells which is its own"


async def test_a_damaged_fragment_is_moved_only_if_others_hold_its_ids(store: ObstoreStore) -> None:
    await put_mark(store, KEY)
    damaged = await put(store, SECOND[:9])
    await flip(store, damaged)
    before = await objects(store)
    with pytest.raises(FragmentDamaged, match=damaged.digest):
        await cut_fragments(store, PARTITION, LAST)
    assert await objects(store) == before
    await put(store, SECOND)
    assert damaged in (await cut_fragments(store, PARTITION, LAST)).moved
    assert await held(store) == whole()


async def test_a_store_without_its_mark_is_not_cut(store: ObstoreStore) -> None:
    name = await put(store, SECOND)
    with pytest.raises(NotFound, match="mount what belongs there"):
        await cut_fragments(store, PARTITION, LAST)
    assert set(await objects(store)) == {name.path}


@pytest.mark.parametrize("calls", range(12))
async def test_a_cut_that_is_broken_off_at_any_call_is_repeated(
    calls: int, store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_mark(store, KEY)
    for start, stop in ((0, 5), (5, 9), (9, 14)):
        await put(store, SECOND[start:stop])
    left = calls

    def broken_off(name: str) -> Any:
        asked = getattr(ObstoreStore, name)

        async def ask(self: ObstoreStore, *args: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise StoreUnavailable("away")
            return await asked(self, *args)

        return ask

    with monkeypatch.context() as patched:
        for name in ("put_if_absent", "holds", "delete", "get"):
            patched.setattr(ObstoreStore, name, broken_off(name))
        with pytest.raises(StoreUnavailable):
            await cut_fragments(store, PARTITION, LAST)
    await cut_fragments(store, PARTITION, LAST)
    assert await held(store) == whole()
    moved = [FragmentName.parse(path.removeprefix(GIVEN_UP)) for path in await objects(store) if GIVEN_UP in path]
    assert sorted((name.first, name.last) for name in moved if name) == [(20, 35), (36, 55)]
