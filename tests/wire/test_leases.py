"""Rows about leases survive the wire unchanged, and no bytes make their decoders do worse than refuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import ProtocolError
from polonaise.wire.leases import (
    ASKED_MAX,
    DURATION_MS_MAX,
    DURATION_MS_MIN,
    NAME_BYTES_MAX,
    NOTE_BYTES_MAX,
    AnsweredLease,
    AskedLease,
    LeaseAnswer,
    ListedLease,
    check_duration,
    encode_answered,
    encode_asked,
    encode_listed,
    encode_names,
    parse_answered,
    parse_asked,
    parse_listed,
    parse_names,
)

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
notes = st.binary(max_size=NOTE_BYTES_MAX)
holders = st.integers(-(2**63), 2**63 - 1)
times = st.integers(0, 2**32 - 1)


@given(st.lists(st.builds(AskedLease, names, notes, st.booleans()), max_size=5, unique_by=lambda each: each.name))
def test_what_is_asked_for_survives_the_wire(asked: list[AskedLease]) -> None:
    assert parse_asked(encode_asked(asked)) == asked


@given(st.lists(st.builds(AnsweredLease, st.sampled_from(LeaseAnswer), times, holders), max_size=5))
def test_answers_survive_the_wire(answered: list[AnsweredLease]) -> None:
    assert parse_answered(encode_answered(answered)) == answered


@given(st.lists(st.builds(ListedLease, names, holders, times, notes), max_size=5), st.lists(names, max_size=5))
def test_lists_survive_the_wire(listed: list[ListedLease], named: list[str]) -> None:
    assert parse_listed(encode_listed(listed)) == listed
    assert parse_names(encode_names(named)) == named


@pytest.mark.parametrize("parse", [parse_asked, parse_answered, parse_listed, parse_names])
@given(raw=st.binary(max_size=80))
def test_no_bytes_do_worse_than_to_be_refused(parse: Callable[[bytes], list[Any]], raw: bytes) -> None:
    try:
        assert isinstance(parse(raw), list)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (encode_asked([AskedLease("")]), "a lease's name of 0 bytes"),
        (encode_asked([AskedLease("n" * (NAME_BYTES_MAX + 1))]), "a lease's name of 256 bytes"),
        (encode_asked([AskedLease("n", b"x" * (NOTE_BYTES_MAX + 1))]), "a note of 1025 bytes"),
        (encode_asked([AskedLease("n"), AskedLease("n")]), "asks twice"),
        (encode_asked(AskedLease(f"{n}") for n in range(ASKED_MAX + 1)), "more than 1024 leases"),
        (encode_asked([AskedLease("n", b"xy")])[:-1], "cut short"),
    ],
)
def test_what_is_beyond_a_bound_is_refused_with_the_bound(raw: bytes, told: str) -> None:
    with pytest.raises(ProtocolError, match=told):
        parse_asked(raw)


@pytest.mark.parametrize("duration_ms", [0, DURATION_MS_MIN - 1, DURATION_MS_MAX + 1])
def test_a_duration_beyond_its_bounds_is_refused(duration_ms: int) -> None:
    check_duration(DURATION_MS_MIN)
    check_duration(DURATION_MS_MAX)
    with pytest.raises(ProtocolError, match="1000 ms at the least and 60000"):
        check_duration(duration_ms)
