"""Names say what a fragment holds, and coverage takes each id once, from as few fragments as can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import BadOption
from polonaise.fragments.protocol.coverage import Coverage, Span, archived_up_to, cover
from polonaise.fragments.protocol.names import FragmentName, partition_prefix

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
