"""Registers as they travel: sections and snapshots are read as written, damage is refused and changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import BatchDamaged, ProtocolError
from polonaise.log import registers

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
