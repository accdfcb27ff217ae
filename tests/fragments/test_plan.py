"""What is planned to be archived is what is committed and missing, each id once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.fragments.protocol.coverage import Span, spans_to_write
from polonaise.fragments.protocol.names import FragmentName

spans = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))


def fragments(held: list[Span]) -> list[FragmentName]:
    return [FragmentName(0, span.first, span.last, "ab" * 32) for span in held]


@given(st.lists(spans, max_size=6), st.integers(-1, 50), st.one_of(st.none(), st.integers(1, 9)))
def test_what_is_missing_is_planned_once(held: list[Span], committed: int, ids_max: int | None) -> None:
    planned = spans_to_write(fragments(held), committed, ids_max=ids_max)
    there = {id for span in held for id in range(span.first, span.last + 1)}
    assert [id for span in planned for id in range(span.first, span.last + 1)] == [
        id for id in range(committed + 1) if id not in there
    ]
    if ids_max is not None:
        assert all(span.first // ids_max == span.last // ids_max for span in planned)


@given(st.lists(spans, max_size=6), st.integers(-1, 50), st.integers(1, 9))
def test_what_does_not_fill_a_span_at_the_end_is_left(held: list[Span], committed: int, ids_max: int) -> None:
    planned = spans_to_write(fragments(held), committed, ids_max=ids_max, rest=False)
    everything = spans_to_write(fragments(held), committed, ids_max=ids_max)
    left = [span for span in everything if span not in planned]
    grows = (committed + 1) % ids_max != 0 and not any(span.first <= committed <= span.last for span in held)
    assert [span.last for span in left] == ([committed] if grows else [])


@pytest.mark.parametrize(
    ("held", "committed", "ids_max", "rest", "planned"),
    [
        ([], -1, None, True, []),
        ([], 9, None, True, [(0, 9)]),
        ([(3, 5)], 9, None, True, [(0, 2), (6, 9)]),
        ([], 9, 4, True, [(0, 3), (4, 7), (8, 9)]),
        ([], 9, 4, False, [(0, 3), (4, 7)]),
        ([], 7, 4, False, [(0, 3), (4, 7)]),
        ([(0, 4)], 9, 4, True, [(5, 7), (8, 9)]),
    ],
)
def test_the_edges_are_those_of_ids(
    held: list[tuple[int, int]], committed: int, ids_max: int | None, rest: bool, planned: list[tuple[int, int]]
) -> None:
    assert spans_to_write(fragments([Span(*span) for span in held]), committed, ids_max=ids_max, rest=rest) == planned
