"""Registers, producers and evidence as they are in the log: read as written, and damage is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import BatchDamaged, ProtocolError
from polonaise.log import registers
from polonaise.log.producers import IDS_KEPT, Produced, digest_of, pack_request, parse_request

keys = st.binary(max_size=6)
values = st.binary(max_size=10)
changes = st.lists(st.tuples(keys, st.one_of(st.none(), values)), max_size=8)
maps = st.dictionaries(keys, values, max_size=8)


@given(made=changes)
def test_changes_are_read_in_the_order_in_which_they_were_made(made: list[registers.Change]) -> None:
    assert list(registers.decode(registers.encode(made))) == made


@given(before=maps, made=changes)
def test_applying_a_section_is_making_its_changes_one_by_one(
    before: dict[bytes, bytes], made: list[registers.Change]
) -> None:
    expected = dict(before)
    for key, value in made:
        if value is None:
            expected.pop(key, None)
        else:
            expected[key] = value
    registers.apply(before, registers.encode(made))
    assert before == expected


@given(held=maps)
def test_a_snapshot_makes_the_same_map_out_of_nothing(held: dict[bytes, bytes]) -> None:
    rebuilt: dict[bytes, bytes] = {}
    registers.apply(rebuilt, registers.snapshot(held))
    assert rebuilt == held
    assert registers.snapshot(dict(reversed(held.items()))) == registers.snapshot(held)


@given(held=maps, section=st.binary(max_size=40))
def test_noise_is_refused_or_read_and_refused_noise_changes_nothing(held: dict[bytes, bytes], section: bytes) -> None:
    before = dict(held)
    try:
        made = list(registers.decode(section))
    except BatchDamaged:
        with pytest.raises(BatchDamaged):
            registers.apply(held, section)
        assert held == before
        return
    assert registers.encode(made) == section


@given(made=changes.filter(bool), data=st.data())
def test_a_section_cut_short_is_refused_unless_it_is_cut_between_two_changes(
    made: list[registers.Change], data: st.DataObject
) -> None:
    section = registers.encode(made)
    length = data.draw(st.integers(0, len(section) - 1))
    whole = [registers.encode(made[:count]) for count in range(len(made))]
    if section[:length] in whole:
        return
    with pytest.raises(BatchDamaged):
        list(registers.decode(section[:length]))


@pytest.mark.parametrize(
    "section",
    [
        pytest.param(b"\2" + bytes(6), id="unknown kind"),
        pytest.param(b"\1\0\0\1\0\0\0x", id="a deletion with a value"),
        pytest.param(b"\0\xff\xff\xff\xff\xff\xff", id="longest lengths, nothing behind"),
    ],
)
def test_a_section_that_cannot_be_is_refused(section: bytes) -> None:
    with pytest.raises(BatchDamaged):
        list(registers.decode(section))


def pages_of(held: dict[bytes, bytes], prefix: bytes) -> list[registers.RegisterPage]:
    made, first = [registers.page(held, sorted(held), prefix, prefix)], b""
    while made[-1].more:
        first = registers.after(made[-1].changes[-1][0])
        made.append(registers.page(held, sorted(held), prefix, first))
    return made


@pytest.mark.parametrize(("count_max", "bytes_max"), [(1, 10**6), (3, 10**6), (10**6, 1), (10**6, 12), (3, 12)])
@given(held=maps, prefix=st.binary(max_size=2))
def test_pages_together_are_all_registers_with_the_prefix_by_their_keys(
    count_max: int, bytes_max: int, held: dict[bytes, bytes], prefix: bytes
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registers, "PAGE_COUNT_MAX", count_max)
        patch.setattr(registers, "PAGE_BYTES_MAX", bytes_max)
        pages = pages_of(held, prefix)
    found = [change for page in pages for change in page.changes]
    assert found == sorted((key, value) for key, value in held.items() if key.startswith(prefix))
    assert all(len(page.changes) <= count_max for page in pages)
    for page in pages:
        sizes = [len(key) + len(value) for key, value in page.changes if value is not None]
        assert sum(sizes[:-1]) < bytes_max, "only the last one goes beyond"
    assert all(page.changes for page in pages[:-1])


@given(held=maps)
def test_what_was_sent_as_a_snapshot_is_read(held: dict[bytes, bytes]) -> None:
    assert dict(registers.sets_of(registers.snapshot(held))) == held


@pytest.mark.parametrize("sent", [registers.encode([(b"k", None)]), registers.encode([(b"k", b"v")])[:-1], b"x"])
def test_what_is_no_snapshot_is_refused(sent: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(registers.sets_of(sent))


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


@pytest.mark.slow
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
