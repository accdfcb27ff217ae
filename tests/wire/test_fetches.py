"""Fetches of bodies: what was put in comes out, and bytes that do not fit are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import ProtocolError
from polonaise.wire.fetches import encode_bodies, encode_fetch, parse_bodies, parse_fetch
from polonaise.wire.messages import Bodies, Fetch


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_the_ids_of_a_fetch_arrive_in_their_order(ids: list[int]) -> None:
    assert list(parse_fetch(encode_fetch(ids))) == ids


@given(st.binary(max_size=40))
def test_ids_that_do_not_parse_are_refused(raw: bytes) -> None:
    if len(raw) % 8:
        with pytest.raises(ProtocolError):
            parse_fetch(Fetch(raw))
    else:
        assert encode_fetch(parse_fetch(Fetch(raw))).ids == raw


def arrived(answer: Bodies) -> Bodies:
    return Bodies(answer.count, payload=[b"".join(answer.payload)])


@given(st.lists(st.binary(max_size=20), max_size=7))
def test_bodies_arrive_as_they_were_whatever_their_number_and_size(bodies: list[bytes]) -> None:
    assert parse_bodies(arrived(encode_bodies(bodies, [7] * len(bodies))), len(bodies)) == bodies


@given(st.lists(st.binary(max_size=20), max_size=7), st.integers(0, 8), st.integers(0, 200), st.binary(max_size=9))
def test_bodies_cut_lengthened_or_of_another_number_are_refused(
    bodies: list[bytes], expected: int, cut: int, more: bytes
) -> None:
    raw = b"".join(encode_bodies(bodies, [0] * len(bodies)).payload)
    changed = raw[:cut] if cut < len(raw) else raw + more
    if changed == raw and expected == len(bodies):
        return
    with pytest.raises(ProtocolError):
        parse_bodies(Bodies(len(bodies), payload=[changed]), expected)


@given(st.binary(max_size=80), st.integers(0, 9))
def test_any_bytes_as_a_fetch_are_read_or_refused(raw: bytes, expected: int) -> None:
    try:
        bodies = parse_bodies(Bodies(expected, payload=[raw]), expected)
    except ProtocolError:
        return
    assert len(bodies) == expected
