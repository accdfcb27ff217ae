"""What a partition remembers of an idempotent producer."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import ProtocolError
from polonaise.log.producers import IDS_KEPT, Produced, pack_request, parse_request

int64 = st.integers(-(2**63), 2**63 - 1)


@given(epoch=int64, sequence=int64)
def test_a_request_is_read_as_it_was_written(epoch: int, sequence: int) -> None:
    assert parse_request(pack_request(epoch, sequence)) == (epoch, sequence)


@given(raw=st.binary(max_size=40).filter(lambda raw: len(raw) != 16))
def test_a_request_of_another_size_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_request(raw)


@given(epoch=int64, last=int64, ids=st.lists(int64, max_size=IDS_KEPT))
def test_what_is_remembered_survives_the_register(epoch: int, last: int, ids: list[int]) -> None:
    produced = Produced(epoch, last, tuple(ids))
    assert Produced.parse(produced.pack()) == produced


@given(raw=st.binary(max_size=60))
def test_noise_in_the_register_is_refused_or_read(raw: bytes) -> None:
    try:
        assert Produced.parse(raw).pack() == raw
    except ProtocolError:
        pass


def test_a_register_that_claims_more_ids_than_are_kept_is_not_a_producers() -> None:
    with pytest.raises(ProtocolError):
        Produced.parse(struct.pack("<qqI17q", 1, 16, 17, *range(17)))
    with pytest.raises(ProtocolError):
        Produced.parse(struct.pack("<qqI", 1, 16, 2**32 - 1))


@given(count=st.integers(0, 40), asked=st.integers(-50, 50))
def test_the_last_ids_are_told_again_and_no_others(count: int, asked: int) -> None:
    produced = Produced.none().opened(1)
    for number in range(count):
        produced = produced.produced(1_000 + 3 * number)
    assert produced.last_sequence == count - 1
    remembered = max(0, count - IDS_KEPT) <= asked < count
    assert produced.id_of(asked) == (1_000 + 3 * asked if remembered else None)


def test_opening_anew_keeps_what_was_produced() -> None:
    produced = Produced.none().opened(1).produced(10).produced(11).opened(2)
    assert produced == Produced(2, 1, (10, 11))
    assert produced.id_of(0) == 10
