"""What lies in a store: names, coverage, what is planned, whose it is, its topics; and who loads what reads it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import BadOption, DiskFull, FragmentDamaged, LogForked, NotFound, WrongClusterKey
from polonaise.fragments.mark import MARK, claim, is_marked, mark_of, put_mark
from polonaise.fragments.objects import fragments_of
from polonaise.fragments.protocol.coverage import Coverage, Span, archived_up_to, cover
from polonaise.fragments.protocol.names import FragmentName, partition_prefix
from polonaise.fragments.store import ObstoreStore, open_store
from polonaise.fragments.topicrecord import record_topics, recorded_topics
from polonaise.terms import ClusterTopics
from rigs.programs import output_of, run_python

DIGEST = "ab" * 32
names = st.builds(
    lambda partition, first, count: FragmentName(partition, first, first + count, DIGEST),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62),
    st.integers(0, 2**61),
)


def fragment(first: int, last: int, digest: str = DIGEST) -> FragmentName:
    return FragmentName(0, first, last, digest)


@given(names)
def test_a_name_is_read_as_it_was_written(name: FragmentName) -> None:
    assert FragmentName.parse(name.path) == name
    assert name.path.startswith(partition_prefix(name.partition))


@pytest.mark.parametrize(
    "path",
    [
        "",
        "0/x.parquet",
        fragment(5, 4).path,
        f"01/{fragment(0, 4).path[2:]}",
        f"0/{2**63:020d}-{2**63:020d}-{DIGEST}.parquet",
        f"{2**31}/{fragment(0, 4).path[2:]}",
        fragment(0, 4, DIGEST.upper()).path,
        fragment(0, 4).path + "#1",
        "a/" + fragment(0, 4).path,
    ],
)
def test_what_else_lies_in_a_store_is_no_fragment(path: str) -> None:
    assert FragmentName.parse(path) is None


def test_a_partition_that_cannot_be_has_no_prefix() -> None:
    with pytest.raises(BadOption):
        partition_prefix(-1)


spans = st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))


@given(st.lists(spans, max_size=9), spans)
def test_every_id_is_taken_once_or_is_in_a_hole(held: list[Span], wanted: Span) -> None:
    found = cover([fragment(*span) for span in held], wanted)
    taken = [id for piece in found.pieces for id in range(piece.span.first, piece.span.last + 1)]
    missing = [id for hole in found.holes for id in range(hole.first, hole.last + 1)]
    there = {id for span in held for id in range(span.first, span.last + 1)}
    ids = range(wanted.first, wanted.last + 1)
    assert taken == [id for id in ids if id in there]
    assert missing == [id for id in ids if id not in there]
    for piece in found.pieces:
        assert piece.fragment.first <= piece.span.first <= piece.span.last <= piece.fragment.last


@given(st.lists(spans, max_size=6), spans)
def test_no_smaller_choice_covers_as_much(held: list[Span], wanted: Span) -> None:
    names = [fragment(*span) for span in held]
    found = cover(names, wanted)
    for left_out in range(1 << len(names)):
        chosen = [name for place, name in enumerate(names) if left_out >> place & 1]
        if len(chosen) < len(found.pieces):
            assert cover(chosen, wanted).holes != found.holes


@given(st.lists(spans, max_size=6), spans, st.randoms())
def test_everybody_chooses_the_same(held: list[Span], wanted: Span, random: object) -> None:
    names = [fragment(*span, f"{place:064x}") for place, span in enumerate(held)]
    shuffled = names[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert cover(names, wanted) == cover(shuffled, wanted)


def test_no_fragments_cover_nothing() -> None:
    assert cover([], Span(3, 5)) == Coverage((), (Span(3, 5),))
    assert cover([fragment(0, 9)], Span(3, 2)) == Coverage((), ())


@pytest.mark.parametrize(
    ("held", "end"),
    [
        ([], -1),
        ([(1, 5)], -1),
        ([(0, 5)], 5),
        ([(0, 5), (6, 7)], 7),
        ([(0, 5), (7, 9)], 5),
        ([(0, 9), (3, 4), (10, 11)], 11),
    ],
)
def test_archived_up_to_ends_before_the_first_hole(held: list[tuple[int, int]], end: int) -> None:
    assert archived_up_to([fragment(*span) for span in held]) == end


MINE, OTHERS = bytes(range(16)), bytes(16)


async def test_a_store_that_is_made_is_claimed_for_good(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    made = open_store(place)
    assert not await is_marked(made, MINE)
    await claim(made, MINE)
    assert (tmp_path / "store" / MARK).read_bytes() == mark_of(MINE)
    later = open_store(place)
    assert await is_marked(later, MINE)
    await claim(later, MINE)
    for ask in (is_marked, claim, put_mark):
        with pytest.raises(
            WrongClusterKey, match=f"belongs to cluster {MINE.hex()}, and this is cluster {OTHERS.hex()}"
        ):
            await ask(later, OTHERS)
    assert (tmp_path / "store" / MARK).read_bytes() == mark_of(MINE)


async def test_a_directory_that_was_there_is_claimed_by_nobody_unless_it_is_said(tmp_path: Path) -> None:
    found = open_store(str(tmp_path))
    (tmp_path / "lost+found").mkdir()
    with pytest.raises(NotFound, match=r"mount what belongs there.*archive init"):
        await claim(found, MINE)
    assert not (tmp_path / MARK).exists()
    await put_mark(found, MINE)
    await claim(found, MINE)


async def test_a_store_of_objects_can_not_be_away_unnoticed() -> None:
    store = open_store("memory:///")
    await claim(store, MINE)
    assert await is_marked(store, MINE)


@pytest.mark.parametrize("said", [b"", b"\xff", b"[]", b'{"cluster_key": 7}', b'{"cluster_key": "xyz"}', b"{}"])
async def test_a_mark_that_cant_be_read_is_named_and_believed_by_nobody(tmp_path: Path, said: bytes) -> None:
    (tmp_path / MARK).write_bytes(said)
    for ask in (is_marked, claim, put_mark):
        with pytest.raises(FragmentDamaged, match=rf"{MARK} in .* can't be read: remove it.*archive init"):
            await ask(open_store(str(tmp_path)), MINE)


async def test_a_store_that_was_copied_is_as_good(tmp_path: Path) -> None:
    await claim(open_store(str(tmp_path / "store")), MINE)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    assert await is_marked(open_store(str(tmp_path / "copy")), MINE)


async def test_a_directory_that_was_made_in_vain_is_not_there_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be one that was there before."""
    place = str(tmp_path / "store")
    full = open_store(place)

    async def fails(path: str, data: bytes) -> bool:
        raise DiskFull(path)

    monkeypatch.setattr(full, "put_if_absent", fails)
    with pytest.raises(DiskFull):
        await claim(full, MINE)
    assert not (tmp_path / "store").exists()
    await claim(open_store(place), MINE)


def test_the_mark_is_no_fragment() -> None:
    assert FragmentName.parse(MARK) is None


KEY = bytes(range(16))
FIRST = ClusterTopics(1, {"a": (2,), "b": (1,)})
GROWN = ClusterTopics(1, {"a": (2, 4, 3), "b": (1,)})


async def test_the_latest_record_counts_and_keeps_the_order_of_ids(store: ObstoreStore) -> None:
    assert await recorded_topics(store, KEY) is None
    await record_topics(store, KEY, ClusterTopics(1, {}))
    assert await recorded_topics(store, KEY) is None  # a store without topics is as before
    for topics in (FIRST, GROWN, GROWN, FIRST):  # the last one by an archiver that read before the topic grew
        await record_topics(store, KEY, topics)
    assert await recorded_topics(store, KEY) == GROWN
    assert await fragments_of(store) == {}


@pytest.mark.parametrize(
    "other", [ClusterTopics(1, {"a": (1,), "b": (2,)}), ClusterTopics(1, {"a": (1, 2, 3, 4), "b": (5,)})]
)
async def test_other_ids_for_the_same_numbers_are_refused(store: ObstoreStore, other: ClusterTopics) -> None:
    await record_topics(store, KEY, FIRST)
    with pytest.raises(LogForked, match="names other partitions for a topic"):
        await record_topics(store, KEY, other)
    assert await recorded_topics(store, KEY) == FIRST


async def test_a_record_of_another_cluster_or_a_damaged_one_is_refused(store: ObstoreStore, tmp_path: Path) -> None:
    await record_topics(store, KEY, FIRST)
    with pytest.raises(WrongClusterKey):
        await recorded_topics(store, bytes(16))
    (tmp_path / "store" / "_topics" / "0000000003.json").write_bytes(b"{}")
    with pytest.raises(FragmentDamaged, match="can't be read"):
        await recorded_topics(store, KEY)


HOST = """
import asyncio, sys, polonaise
async def main():
    async with polonaise.connect(sys.argv[1]) as log:
        await log.append(b"x", 0)
        assert (await log.health(0))["partitions"]["0"]["ready"]
asyncio.run(main())
print(sorted({"pyarrow", "obstore", "numpy"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_a_server_without_a_store_loads_neither_parquet_nor_object_stores(tmp_path: Path) -> None:
    assert output_of(run_python("-c", HOST, f"embedded:{tmp_path / 'log'}")).strip() == "[]"
