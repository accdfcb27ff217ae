"""What a partition remembers of an idempotent producer."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import ProtocolError
from polonaise.log.producers import IDS_KEPT, Produced, digest_of, pack_request, parse_request

int64 = st.integers(-(2**63), 2**63 - 1)
uint64 = st.integers(0, 2**64 - 1)


@given(epoch=int64, sequence=int64)
def test_a_request_is_read_as_it_was_written(epoch: int, sequence: int) -> None:
    assert parse_request(pack_request(epoch, sequence)) == (epoch, sequence)


@given(raw=st.binary(max_size=40).filter(lambda raw: len(raw) != 16))
def test_a_request_of_another_size_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_request(raw)


@given(epoch=int64, last=int64, kept=st.lists(st.tuples(int64, uint64), max_size=IDS_KEPT))
def test_what_is_remembered_survives_the_register(epoch: int, last: int, kept: list[tuple[int, int]]) -> None:
    produced = Produced(epoch, last, tuple(id for id, _ in kept), tuple(digest for _, digest in kept))
    assert Produced.parse(produced.pack()) == produced
    assert len(produced.pack()) <= 20 + 16 * IDS_KEPT, "bounded, however much was appended"


@given(ids=st.lists(int64, min_size=1, max_size=IDS_KEPT), digest=uint64)
def test_a_register_from_before_digests_answers_as_it_did(ids: list[int], digest: int) -> None:
    last = len(ids) - 1
    produced = Produced.parse(struct.pack(f"<qqI{len(ids)}q", 3, last, len(ids), *ids))
    assert (produced.epoch, produced.last_sequence, list(produced.ids)) == (3, last, ids)
    assert all(produced.is_same(number, digest) for number in range(len(ids)))
    following = produced.produced(7, 99)
    assert following.is_same(last + 1, 99)
    assert not following.is_same(last + 1, 98)


bodies = st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=5)), max_size=3)


@given(one=bodies, other=bodies)
def test_a_digest_tells_headers_bodies_and_their_division_apart(
    one: list[tuple[int, bytes]], other: list[tuple[int, bytes]]
) -> None:
    assert (digest_of(one) == digest_of(other)) == (one == other)
    assert 0 < digest_of(one) < 2**64


@given(raw=st.binary(max_size=60))
def test_noise_in_the_register_is_refused_or_read(raw: bytes) -> None:
    try:
        produced = Produced.parse(raw)
        assert produced.pack() == raw or not any(produced.digests)
    except ProtocolError:
        pass


def test_a_register_that_claims_more_ids_than_are_kept_is_not_a_producers() -> None:
    with pytest.raises(ProtocolError):
        Produced.parse(struct.pack("<qqI17q", 1, 16, 17, *range(17)))
    with pytest.raises(ProtocolError):
        Produced.parse(struct.pack("<qqI", 1, 16, 2**32 - 1))


@given(count=st.integers(0, 40), asked=st.integers(-50, 50))
def test_the_last_ids_are_told_again_and_no_others(count: int, asked: int) -> None:
    produced = Produced().opened(1)
    for number in range(count):
        produced = produced.produced(1_000 + 3 * number)
    assert produced.last_sequence == count - 1
    remembered = max(0, count - IDS_KEPT) <= asked < count
    assert produced.id_of(asked) == (1_000 + 3 * asked if remembered else None)


def test_opening_anew_keeps_what_was_produced() -> None:
    produced = Produced().opened(1).produced(10).produced(11).opened(2)
    assert produced == Produced(2, 1, (10, 11), (0, 0))
    assert produced.id_of(0) == 10
