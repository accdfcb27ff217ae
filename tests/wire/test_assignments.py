"""The rows of a told assignment: what is encoded is parsed again, and nothing else is taken for rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from polonaise.checksum import crc32
from polonaise.errors import ProtocolError
from polonaise.wire.messages import AssignmentIs
from polonaise.wire.topics import AssignedPartition, encode_assignment, parse_assignment

ROWS = [
    AssignedPartition(0, 7, "10.0.0.1:7000", 1),
    AssignedPartition(3, 8, "[::1]:7000", 2),
    AssignedPartition(2, 7, "10.0.0.1:7000", 5),
    AssignedPartition(1, 7, "moved-while-it-slept:7000", 5),
]


def told(rows: list[AssignedPartition] = ROWS, **changed: Any) -> AssignmentIs:
    return replace(encode_assignment(3, rows), **changed)


def with_payload(payload: bytes, **changed: Any) -> AssignmentIs:
    return told(payload=[payload], crc=crc32(payload), **changed)


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS])
def test_an_assignment_arrives_as_it_was_told(rows: list[AssignedPartition]) -> None:
    assert parse_assignment(told(rows)) == rows


def test_an_address_is_told_once_however_many_partitions_its_server_owns() -> None:
    many = encode_assignment(1, [AssignedPartition(each, 1, "server:7000", 1) for each in range(10_000)])
    assert many.servers == 1
    assert len(many.payload[0]) < 10_000 * 12 + 100


def test_an_address_that_would_move_a_terminals_cursor_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no address"):
        parse_assignment(told([AssignedPartition(0, 7, "10.0.0.1\x1b[2J:7000", 1)]))


def test_a_flipped_bit_is_noticed() -> None:
    whole = bytes(told().payload[0])
    for at in range(len(whole)):
        with pytest.raises(ProtocolError, match="damaged"):
            parse_assignment(told(payload=[whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]]))


def test_rows_that_are_cut_short_or_too_long_are_refused() -> None:
    whole = bytes(told().payload[0])
    for payload in (*(whole[:end] for end in range(len(whole))), whole + b"x"):
        with pytest.raises(ProtocolError):
            parse_assignment(with_payload(payload))


@pytest.mark.parametrize("changed", [{"servers": 0}, {"servers": 4}, {"servers": 2**32 - 1}, {"partitions": 3}])
def test_counts_that_do_not_fit_the_rows_are_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ProtocolError):
        parse_assignment(told(**changed))


def test_a_partition_of_a_server_that_is_not_there_is_refused() -> None:
    row = bytearray(told(ROWS[:1]).payload[0])
    row[-8] = 1
    with pytest.raises(ProtocolError, match="invalid rows"):
        parse_assignment(with_payload(bytes(row), servers=1, partitions=1))
