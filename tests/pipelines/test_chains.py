"""Walks over copies of batches: what is not well is named, and two copies that differ are told apart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from polonaise.fragments.protocol.coverage import Span
from polonaise.log.batch import Batch
from polonaise.pipelines import logaudit
from polonaise.pipelines.logaudit import begins_at_the_beginning, joined, suspects, walk
from rigs.fragments import batches_of, plain_batches


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logaudit, "BLOCK_IDS", 10)


GOOD = plain_batches([4, 5, 3, 8, 1, 7, 2])
"""Ids 0 to 29, in batches from 0, 4, 9, 12, 20, 21, 28."""


def damaged(batch: Batch, place: int) -> Batch:
    raw = bytearray(batch.view)
    raw[place] ^= 1
    return Batch.parse(bytes(raw), verify=False)


def forked(batches: Sequence[Batch], at: int) -> list[Batch]:
    """The same ids from the batch `at` on, with other bodies, as another owner would have written them."""
    kept = list(batches[:at])
    plans = [
        ([(9, 9, k, 0, b"other", -1, []) for k in range(each.count)], 3, 4, 10**9, False, False)
        for each in batches[at:]
    ]
    return kept + batches_of(plans, batches[at].first, kept[-1].crc)


def test_a_whole_copy_is_well() -> None:
    found = walk(GOOD)
    assert (found.trouble, found.transactions, found.end.last if found.end else None) == ("", 30, 29)
    assert begins_at_the_beginning(found) == ""
    assert set(found.digests) == {0, 1, 2}


def test_a_walk_of_parts_is_the_walk_of_the_whole() -> None:
    for cut in range(len(GOOD) + 1):
        assert joined([walk(GOOD[:cut]), walk([]), walk(GOOD[cut:])]) == walk(GOOD)


@pytest.mark.parametrize(
    ("batches", "trouble"),
    [
        (GOOD[:2] + GOOD[3:], "after 8 comes 12: ids are not dense"),
        ([*GOOD[:3], GOOD[2]], "after 11 comes 9: ids are not dense"),
        (GOOD[:2] + forked(GOOD, 1)[2:], "the batch from 9 follows another batch than the one that ends at 8: a fork"),
        ([*GOOD[:2], damaged(GOOD[2], 100)], "damaged: CRC of the batch that starts at 9 does not fit"),
    ],
)
def test_what_is_not_well_is_named(batches: list[Batch], trouble: str) -> None:
    assert walk(batches).trouble == trouble
    assert joined([walk(batches[:2]), walk(batches[2:])]).trouble == trouble, "also between two parts"


def test_times_and_sessions_never_go_back() -> None:
    rows = [(1, 1, 1, 0, b"a", -1, [])]
    earlier = batches_of([(rows, 3, 1, 1_000, False, False), (rows, 3, 1, 999, False, False)])
    assert walk(earlier).trouble == "the batch from 1 was committed before the one that ends at 0"
    older = batches_of([(rows, 3, 1, 1_000, False, False), (rows, 2, 1, 1_000, False, False)])
    assert walk(older).trouble == "the batch from 1 is of session 2, after one of session 3"


def test_a_copy_without_its_beginning_says_so() -> None:
    assert begins_at_the_beginning(walk(GOOD[2:])) == "it begins with 9"
    assert (
        begins_at_the_beginning(walk(batches_of([([(1, 1, 1, 0, b"", -1, [])], 1, 1, 1, False, False)], crc=7))) != ""
    )


@pytest.mark.parametrize("at", [1, 3, 4, 6])
def test_copies_that_differ_are_looked_at_where_they_first_do(at: int) -> None:
    other = forked(GOOD, at)
    (span,) = suspects(walk(GOOD), walk(other))
    assert span.first <= GOOD[at].first <= span.last
    assert suspects(walk(GOOD), walk(GOOD)) == []


def test_a_copy_that_is_behind_or_trimmed_is_compared_as_far_as_it_goes() -> None:
    whole = walk(GOOD)
    assert suspects(whole, walk(GOOD[:3])) == [Span(10, 11)], "only batch by batch can tell about half a block"
    assert suspects(whole, walk(GOOD[2:])) == [Span(9, 9)]
    assert suspects(whole, walk([])) == []
    assert suspects(whole, walk(forked(GOOD, 1)[:5])) == [Span(0, 9)]
