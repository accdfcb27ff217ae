"""A partition's fragments end where an operator says, and nothing is deleted of which there is no other copy."""

from __future__ import annotations

from typing import Any

import pytest

from polonaise.admin.archive import verify
from polonaise.errors import BadOption, FragmentDamaged, NotFound, StoreUnavailable
from polonaise.fragments.cutting import GIVEN_UP, cut_fragments
from polonaise.fragments.format import batches_in
from polonaise.fragments.history import FragmentHistory
from polonaise.fragments.mark import MARK, put_mark
from polonaise.fragments.objects import fragments_of
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObstoreStore
from rigs.fragments import KEY, PARTITION, flip
from rigs.lives import FIRST, SECOND, put

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
