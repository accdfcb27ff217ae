"""Deliveries: what was put in comes out, and bytes that do not fit are refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import ProtocolError
from polonaise.wire import codec
from polonaise.wire.deliveries import (
    DeliverEntries,
    DeliveryAccepted,
    encode_applied,
    entries_frame,
    parse_applied,
    parse_entries,
)
from polonaise.wire.frame import FRAME_BYTES_MAX, Frames

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
