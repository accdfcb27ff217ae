"""History out of fragments: exact, by ids and by time, with bounded memory, and away from the event loop."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from polonaise.errors import (
    FragmentDamaged,
    FragmentMissing,
    NotFound,
    PolonaiseError,
    StoreUnavailable,
    WrongClusterKey,
)
from polonaise.fragments import format as fragment_format
from polonaise.fragments import history as histories
from polonaise.fragments import objects
from polonaise.fragments.history import FragmentHistory, HistorySettings
from polonaise.fragments.mark import MARK, mark_of
from polonaise.fragments.objects import footer_of
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import LateStore, Listed, ObstoreStore, open_store
from polonaise.log.batch import Batch
from rigs.faults import raises_code
from rigs.fragments import KEY, batches_of, named_fragment


def made(count: int, size: int = 3) -> list[Batch]:
    """So many batches of one log, of `size` transactions; two in a row have the same commit time."""
    plans = []
    for number in range(count):
        rows = [(7, 1, id, id % size, b"body %d" % id, -1, []) for id in range(number * size, (number + 1) * size)]
        plans.append((rows, 1 + number // 7, 1, 1_000 + number // 2, False, number % 3 == 0))
    return batches_of(plans, partition=0)


LOG = made(60)


class Store:
    """Objects in memory; what was fetched is noted."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {MARK: mark_of(KEY)}
        self.fetched: list[tuple[str, int]] = []
        self.listed = 0
        self.hangs = False
        self.history: FragmentHistory

    def __str__(self) -> str:
        return "the store"

    def put(self, batches: list[Batch]) -> FragmentName:
        name, raw = named_fragment(batches)
        self.objects[name.path] = raw
        return name

    async def list(self, prefix: str = "") -> list[Listed]:
        self.listed += 1
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return sorted(Listed(path, len(raw)) for path, raw in self.objects.items() if path.startswith(prefix))

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        self.fetched.append((path, length))
        if path not in self.objects:
            raise NotFound(path)
        return self.objects[path][offset : offset + length]

    async def get(self, path: str) -> bytes:
        assert path == MARK, "a fragment is never in memory as a whole"
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if path not in self.objects:
            raise NotFound(path)
        return self.objects[path]

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        raise AssertionError

    async def delete(self, path: str) -> None:
        raise AssertionError


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Six fragments of ten batches, each with several row groups."""
    monkeypatch.setattr(fragment_format, "GROUP_ROWS", 8)
    store = Store()
    for start in range(0, 60, 10):
        store.put(LOG[start : start + 10])
    return store


def history_of(store: Store, settings: HistorySettings | None = None) -> FragmentHistory:
    return FragmentHistory(store, KEY, settings or HistorySettings(listing_s=0.0, damaged_s=0.0))


async def all_from(history: FragmentHistory, first: int = 0, last: int = 179, bytes_max: int = 10**9) -> list[bytes]:
    found: list[bytes] = []
    while first <= last:
        batches = await history.read(0, first, last, bytes_max)
        assert batches, f"nothing from {first} on"
        found += [bytes(batch.view) for batch in batches]
        first = batches[-1].last + 1
    return found


@pytest.mark.parametrize("bytes_max", [1, 700, 10**9])
async def test_batches_come_as_they_were_whatever_is_asked_for(store: Store, bytes_max: int) -> None:
    assert await all_from(history_of(store), bytes_max=bytes_max) == [bytes(batch.view) for batch in LOG]


async def test_any_id_is_found_in_any_order(store: Store) -> None:
    history = history_of(store, HistorySettings(cache_bytes_max=1))
    for wanted in random.Random(1).sample(range(180), 60):
        (found,) = await history.read(0, wanted, 179, 1)
        assert bytes(found.view) == bytes(LOG[wanted // 3].view)
    assert await history.read(0, 4, 4, 1) == []  # its batch ends above what was asked for


async def test_a_search_by_time_finds_the_first_batch_of_that_time(store: Store) -> None:
    history = history_of(store)
    for time_us in range(998, 1_030):
        found = await history.read(0, 0, 179, 1, time_us)
        assert found[0].first == next(batch.first for batch in LOG if batch.commit_time_us >= time_us)
    assert (await history.read(0, 100, 179, 1, 1_000))[0].first == 99
    assert await history.read(0, 0, 179, 1, 1_030) == []


async def test_a_time_in_a_fragment_that_is_gone_is_no_later_time(store: Store) -> None:
    gone = sorted(store.objects)[2]
    del store.objects[gone]

    history = history_of(store)
    assert (await history.read(0, 0, 179, 1, LOG[5].commit_time_us))[0].first == LOG[4].first
    with pytest.raises(FragmentMissing, match="id 60"):
        await history.read(0, 0, 179, 1, LOG[25].commit_time_us)


@pytest.mark.parametrize("middle", ["damaged", "gone"])
async def test_a_search_by_time_blames_the_fragment_that_it_could_not_open(store: Store, middle: str) -> None:
    """The search looks at the fragment in the middle first; the time lies before that one, or in it."""
    history = history_of(store, HistorySettings(listing_s=0.0, damaged_s=60.0))
    await history.up_to(0)
    path = sorted(store.objects)[3]
    raw = store.objects.pop(path)
    if middle == "damaged":
        store.objects[path] = raw[:-1] + b"X"
    assert (await history.read(0, 0, 179, 1, LOG[12].commit_time_us))[0].first == LOG[12].first
    assert (await history.read(0, 0, 179, 1))[0].first == 0, "nothing is wrong with this one"
    with pytest.raises(
        FragmentMissing if middle == "gone" else FragmentDamaged, match="90" if middle == "gone" else path
    ):
        await history.read(0, 0, 179, 1, LOG[36].commit_time_us)
    assert (await history.read(0, 0, 179, 1))[0].first == 0


async def test_a_fragment_is_read_through_once_and_then_a_row_group_at_a_time(store: Store) -> None:
    history = history_of(store, HistorySettings(cache_bytes_max=1, chunk_bytes=500))
    await all_from(history)
    assert sum(length for path, length in store.fetched) < 4 * sum(map(len, store.objects.values()))
    store.fetched.clear()
    name = sorted(store.objects)[0]
    await history.read(0, 0, 2, 1)
    (group, *more) = store.fetched
    assert group[1] < len(store.objects[name]) * 3 / 4
    assert not more


async def test_what_is_kept_is_bounded(store: Store) -> None:
    history = history_of(store, HistorySettings(cache_bytes_max=2_000))
    for _ in range(2):
        await all_from(history)
        held = sum(batch.length for batches in history._groups.values() for batch in batches)
        assert held == history._groups_bytes <= 2_000


async def test_hashing_and_decoding_are_not_the_event_loop_s(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    decode = histories.decoded_group

    def noted(*arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return decode(*arguments)

    monkeypatch.setattr(histories, "decoded_group", noted)
    await all_from(history_of(store))
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("seed", range(12))
async def test_a_flipped_bit_anywhere_is_refused_by_name_and_nothing_of_it_given_out(store: Store, seed: int) -> None:
    path = sorted(store.objects)[1]
    raw = bytearray(store.objects[path])
    source = random.Random(seed)
    raw[source.randrange(len(raw))] ^= 1 << source.randrange(8)
    store.objects[path] = bytes(raw)

    history = history_of(store)
    assert (await history.read(0, 29, 179, 1))[0].last == 29
    with pytest.raises(FragmentDamaged, match=path):
        await history.read(0, 30, 179, 1)
    assert (await history.read(0, 60, 179, 1))[0].first == 60


async def test_a_listing_that_does_not_tell_is_renewed(store: Store) -> None:
    late = sorted(store.objects)[5]
    raw = store.objects.pop(late)

    history = history_of(store)
    with pytest.raises(FragmentMissing, match="id 150 of partition 0"):
        await history.read(0, 150, 179, 1)
    store.objects[late] = raw
    assert (await history.read(0, 150, 179, 1))[0].first == 150
    listed = store.listed
    await all_from(history)
    assert store.listed == listed, "what is known is not asked for again"
    del store.objects[late]
    history._groups.clear()
    history._opened.clear()
    with pytest.raises(FragmentMissing):
        await history.read(0, 150, 179, 1)


async def test_a_damaged_fragment_and_a_missing_one_do_not_make_it_list_and_read_without_end(store: Store) -> None:
    path = sorted(store.objects)[1]
    store.objects[path] = store.objects[path][:-1] + b"X"

    history = history_of(store, HistorySettings(listing_s=60.0, damaged_s=60.0))
    with pytest.raises(FragmentMissing):
        await history.read(0, 500, 600, 1)
    before = store.listed
    for _ in range(5):
        with pytest.raises(FragmentMissing):
            await history.read(0, 500, 600, 1)
    assert store.listed == before
    with pytest.raises(FragmentDamaged):
        await history.read(0, 30, 179, 1)
    store.fetched.clear()
    for _ in range(5):
        with pytest.raises(FragmentDamaged):
            await history.read(0, 30, 179, 1)
    assert store.fetched == []


@pytest.mark.parametrize("gone_first", [True, False])
async def test_of_two_refused_fragments_with_an_id_the_damaged_one_is_told_and_not_the_one_that_is_gone(
    store: Store, gone_first: bool
) -> None:
    history = history_of(store)
    await history.up_to(0)
    name = next(each for each in history._listings[0].fragments if each.first <= 30 <= each.last)
    refused: list[tuple[Any, PolonaiseError]] = [
        (name._replace(last=name.last + 30), NotFound("gone")), (name, FragmentDamaged("damaged"))
    ]  # fmt: skip
    with pytest.raises(FragmentDamaged):
        await history._holding(0, 30, dict(refused if gone_first else reversed(refused)))


class Vanishing(Store):
    """An object is removed as soon as it was read through, and somebody else lists the store by then."""

    vanishing = ""

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        raw = await super().get_range(path, offset, length)
        # Read for its footer, then for its digest.
        if path == self.vanishing and self.fetched.count((path, len(raw))) % 2 == 0:
            del self.objects[path]
            await self.history.covering(0, -1)
        return raw


async def test_a_fragment_that_is_gone_before_it_is_compared_is_missing_and_no_mistake() -> None:
    store = Vanishing()
    store.vanishing = store.put(LOG).path
    store.history = history_of(store)
    with pytest.raises(FragmentMissing, match="id 3 of partition 0"):
        await store.history.read(0, 3, 179, 1)
    assert not store.history.failed
    store.put(LOG)
    store.put(LOG[1:5])
    assert (await store.history.read(0, 3, 179, 1))[0].first == 3, "another one holds it"
    assert store.vanishing not in store.objects


async def test_damage_in_one_partition_is_not_told_of_another(store: Store) -> None:
    path = sorted(store.objects)[1]
    store.objects[path] = store.objects[path][:-1] + b"X"
    history = history_of(store, HistorySettings(listing_s=0.0, damaged_s=60.0))
    with pytest.raises(FragmentDamaged, match=path):
        await history.read(0, 30, 179, 1)
    with pytest.raises(FragmentMissing, match="id 30 of partition 1"):
        await history.read(1, 30, 179, 1)


async def test_a_store_that_is_swapped_for_another_logs_is_not_read_on(store: Store) -> None:
    """Whatever was listed before: a name has the digest of what it names, and the mark tells whose the store is."""
    history = history_of(store)
    first = await history.read(0, 0, 20, 10**9)
    other = [named_fragment(LOG[start : start + 10], bytes(16)) for start in range(0, 60, 10)]
    store.objects = {MARK: mark_of(bytes(16)), **{name.path: raw for name, raw in other}}
    for look in (lambda: history.read(0, first[-1].last + 1, 179, 10**9), lambda: history.highest(0, 0)):
        with pytest.raises(WrongClusterKey):
            await look()
    del store.objects[MARK]
    with pytest.raises(StoreUnavailable, match="mount what belongs there"):
        await history.read(0, first[-1].last + 1, 179, 10**9)
    assert await history.read(0, 0, 20, 10**9) == first, "what is in memory is the log's"


async def test_a_mark_that_cant_be_read_is_no_damage_of_a_fragment(store: Store) -> None:
    history = history_of(store, HistorySettings(listing_s=0.0, damaged_s=60.0))
    await history.up_to(0)
    name = next(iter(await history.held(0)))
    raw = store.objects.pop(name.path)  # so that the mark is looked at
    mark, store.objects[MARK] = store.objects[MARK], b"torn"
    for call in (history.held(), history.read(0, 0, 179, 1), history.check(name, len(raw), lambda _: asyncio.sleep(0))):
        with pytest.raises(StoreUnavailable, match=rf"{MARK} in the store can't be read: remove it.*archive init"):
            await call
    store.objects |= {MARK: mark, name.path: raw}
    assert (await history.read(0, 0, 179, 1))[0].first == 0, "nothing is wrong with the fragment"


async def test_what_it_reaches(store: Store) -> None:
    history = history_of(store)
    assert (await history.highest(0, 99), await history.up_to(0), await history.highest(1, -1)) == (179, 179, -1)
    assert [name.path for name in await history.covering(0, 59)] == sorted(store.objects)[:2]
    assert await history.covering(0, -1) == ()
    with raises_code("not_archived", match="180 to 181"):
        await history.covering(0, 181)


async def test_a_store_that_does_not_answer_is_given_up_on(store: Store) -> None:
    store.hangs = True

    history = history_of(store, HistorySettings(store_s_max=0.01))
    with pytest.raises(StoreUnavailable, match="did not answer"):
        await history.highest(0, -1)


async def test_a_directory_that_hangs_takes_one_thread_however_often_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, goes_on = [0], threading.Event()
    there = ObstoreStore.check_there

    def hanging(self: ObstoreStore) -> None:
        looks[0] += 1
        goes_on.wait(30.0)
        there(self)

    monkeypatch.setattr(ObstoreStore, "check_there", hanging)
    (tmp_path / MARK).write_bytes(mark_of(KEY))
    history = FragmentHistory(LateStore(str(tmp_path)), KEY, HistorySettings(store_s_max=0.01))
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="did not answer"):
            await history.look()
    assert looks == [1]
    goes_on.set()
    await FragmentHistory(LateStore(str(tmp_path)), KEY).look()


async def test_a_store_that_is_mounted_again_at_once_misses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark, looked at afterwards, is there again: by itself it says nothing of the moment before."""
    get_range, gone = store.get_range, [True]

    async def unmounted_once(path: str, offset: int, length: int) -> bytes:
        if gone:
            gone.clear()
            raise NotFound(path)
        return await get_range(path, offset, length)

    monkeypatch.setattr(store, "get_range", unmounted_once)
    assert await all_from(history_of(store)) == [bytes(batch.view) for batch in LOG]
    assert not gone


@pytest.mark.parametrize("left", [0, 5, 300])
async def test_a_fragment_that_was_cut_is_damaged_until_it_is_put_back(tmp_path: Path, left: int) -> None:
    """An empty range is nothing that a store is asked for; and the listing has the size of what was cut."""
    store = open_store(str(tmp_path))
    await store.put_if_absent(MARK, mark_of(KEY))
    name, raw = named_fragment(LOG[:10])
    await store.put_if_absent(name.path, raw)
    history = FragmentHistory(store, KEY, HistorySettings(listing_s=3600.0, damaged_s=0.0))
    for _ in range(2):  # cut before it was read for the first time, and after that
        (tmp_path / name.path).write_bytes(raw[:left])
        with pytest.raises(FragmentDamaged, match=name.digest):
            await FragmentHistory(store, KEY).read(0, 5, 29, 1)
        with pytest.raises(FragmentDamaged, match=name.digest):
            await history.check(name, left, unpaced)
        with pytest.raises(FragmentDamaged, match=name.digest):
            await history.read(0, 5, 29, 1)
        with pytest.raises(FragmentDamaged, match=name.digest):
            await footer_of(store, name, left)
        await store.replace(name.path, raw)
        assert [batch.first for batch in await history.read(0, 5, 29, 1)] == [3]


async def unpaced(length: int) -> None:
    """Read on at once."""


async def test_a_mistake_in_a_read_fails_that_read_and_is_told_until_the_id_was_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*arguments: Any) -> int:
        raise KeyError("nobody foresaw this")

    history = history_of(store)
    with monkeypatch.context() as patched:
        patched.setattr(histories, "bisect_right", mistaken)
        with pytest.raises(StoreUnavailable, match=r"ids from 5 on .*mistake of Polonaise: KeyError: .*foresaw"):
            await history.read(0, 5, 179, 1)
    await history.read(0, 50, 179, 1)
    assert history.failed[0][0] == 5
    await history.read(0, 5, 179, 1)
    assert not history.failed


@pytest.mark.parametrize("error", [ValueError, TypeError, KeyError, OverflowError, AttributeError, UnicodeError])
async def test_whatever_decoding_raises_is_damage_of_the_fragment(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def mistaken(*arguments: Any) -> int:
        raise error("odd bytes")

    monkeypatch.setattr(objects, "first_of_group", mistaken)
    with pytest.raises(FragmentDamaged, match=r"odd bytes.*restore it from a copy"):
        await history_of(store).read(0, 5, 179, 1)


async def test_whatever_the_way_to_the_store_raises_is_a_store_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mistaken(*arguments: Any) -> list[Listed]:
        raise TypeError("no such argument")

    monkeypatch.setattr(store, "list", mistaken)
    for asked in (history_of(store).held(), history_of(store).covering(0, 5), history_of(store).highest(0, 5)):
        with pytest.raises(StoreUnavailable, match="TypeError: no such argument"):
            await asked


async def test_fragments_that_are_to_be_relied_upon_are_opened_each(store: Store) -> None:
    history = history_of(store)
    names = await history.covering(0, 179)
    store.fetched.clear()
    await history.check_opens(0, names)
    assert sorted(path for path, _ in store.fetched) == [name.path for name in names]
    for raw in (
        b"",
        store.objects[names[3].path][:-1],
        store.objects[names[3].path][100:],
        store.objects[names[2].path],
    ):
        with_it = history_of(store)
        store.objects[names[3].path] = raw
        await with_it.covering(0, 179)
        await with_it.check_opens(0, names[:3])
        for each in (history, with_it):  # one that opened it when it was sound, and one that did not
            await each.covering(0, 179)
            with raises_code("not_archived", match=f"nothing was trimmed.*{names[3].digest}"):
                await each.check_opens(0, names)


async def test_a_fragment_that_was_found_damaged_is_not_relied_upon(store: Store) -> None:
    history = history_of(store, HistorySettings(listing_s=0.0))
    names = await history.covering(0, 179)
    raw = bytearray(store.objects[names[1].path])
    raw[50] ^= 1
    store.objects[names[1].path] = bytes(raw)
    await history.check_opens(0, names)  # its footer is sound
    with pytest.raises(FragmentDamaged):
        await history.check(names[1], len(raw), unpaced)
    with raises_code("not_archived", match=names[1].digest):
        await history.check_opens(0, names)
