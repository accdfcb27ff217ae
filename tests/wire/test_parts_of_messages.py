"""Rows within messages: what was put in comes out, and no bytes do worse than to be refused."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import ProtocolError
from polonaise.wire import codec
from polonaise.wire.codec import _KINDS, FRAME_BYTES_MAX, Frames
from polonaise.wire.deliveries import (
    DeliverEntries,
    DeliveryAccepted,
    encode_applied,
    entries_frame,
    parse_applied,
    parse_entries,
)
from polonaise.wire.fetches import encode_bodies, encode_fetch, parse_bodies, parse_fetch
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
from polonaise.wire.messages import _ASKED, Bodies, Fetch, Health, HighWaterMark, Truncate, request_words

ids = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=8, unique=True).map(sorted)
payloads = st.one_of(st.none(), st.binary(max_size=30))


def sent(previous: int, entries: Sequence[tuple[int, bytes | None]]) -> DeliverEntries:
    """The message of these entries, as it arrives."""
    (frame,) = Frames(FRAME_BYTES_MAX).feed(b"".join(entries_frame(3, previous, entries)))
    assert frame.partition == 3
    decoded = codec.decode(frame)
    assert isinstance(decoded, DeliverEntries)
    return decoded


@given(ids, st.data())
def test_entries_arrive_as_they_were_dummies_and_empty_ones_included(ids: list[int], data: st.DataObject) -> None:
    entries = [(id, data.draw(payloads)) for id in ids]
    assert parse_entries(sent(ids[0] - 1, entries)) == entries


def made(previous: int, columns: bytes, data: bytes) -> DeliverEntries:
    return DeliverEntries(previous, crc32(data), columns, [data] if data else [])


@pytest.mark.parametrize(
    ("previous", "ids", "lengths", "data", "why"),
    [
        (-1, [], [], b"", "0 bytes of columns"),
        (0, [0], [1], b"x", "must rise, from above 0 on"),
        (-2, [0], [1], b"x", "must rise"),
        (-1, [1, 1], [1, 0], b"x", "must rise"),
        (-1, [2, 1], [1, 0], b"x", "must rise"),
        (-1, [0], [2], b"x", "takes 2 bytes, and 1 are left"),
        (-1, [0], [-2], b"x", "takes -2 bytes"),
        (-1, [0, 1], [1, -1], b"xy", "1 bytes left over"),
    ],
)
def test_entries_that_no_player_sends_are_refused(
    previous: int, ids: list[int], lengths: list[int], data: bytes, why: str
) -> None:
    columns = struct.pack(f"<{len(ids)}q{len(ids)}i", *ids, *lengths)
    with pytest.raises(ProtocolError, match=why):
        parse_entries(made(previous, columns, data))


def test_a_payload_that_was_damaged_on_its_way_is_refused() -> None:
    message = sent(-1, [(0, b"abc")])
    with pytest.raises(ProtocolError, match="arrived damaged"):
        parse_entries(DeliverEntries(message.previous, message.crc, message.columns, [b"abd"]))


@given(st.integers(-3, 5), st.binary(max_size=60), st.binary(max_size=30))
def test_any_bytes_as_a_delivery_are_read_or_refused(previous: int, columns: bytes, data: bytes) -> None:
    try:
        entries = parse_entries(made(previous, columns, data))
    except ProtocolError:
        return
    assert sent(previous, entries) == made(previous, columns, data)


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.integers(-1, 2**63 - 1), max_size=6))
def test_the_ids_that_a_target_has_applied_arrive(applied: dict[int, int]) -> None:
    assert parse_applied(encode_applied(applied)) == applied


@pytest.mark.parametrize(
    "rows", [[(-1, 0)], [(0, -2)], [(0, 1), (0, 2)]], ids=["no partition", "no id", "a partition twice"]
)
def test_ids_that_no_target_has_applied_are_refused(rows: list[tuple[int, int]]) -> None:
    with pytest.raises(ProtocolError, match="which can't be"):
        parse_applied(DeliveryAccepted(b"".join(struct.pack("<iq", *row) for row in rows)))
    with pytest.raises(ProtocolError, match="cut short"):
        parse_applied(DeliveryAccepted(b"123"))


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
notes = st.binary(max_size=NOTE_BYTES_MAX)
holders = st.integers(-(2**63), 2**63 - 1)
times = st.integers(0, 2**32 - 1)


@pytest.mark.slow
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


def test_no_name_of_a_message_is_told() -> None:
    for kind in _KINDS.values():
        words = request_words(kind.__new__(kind))
        assert not re.search("[a-z][A-Z]|^[A-Z]", words), words
    assert request_words(HighWaterMark()) == "what is committed"
    assert request_words(Health()) == "how it is"
    assert request_words(Truncate.__new__(Truncate)) == "'truncate'"
    assert {*_ASKED} - {kind.__name__ for kind in _KINDS.values()} <= {"ReadHistory"}
