"""Every decoder of the storage directory's bytes: damage gives a `PolonaiseError`, or nothing, and never a lie."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polonaise.errors import ControlFileDamaged, PolonaiseError, SegmentDamaged, UnsupportedFormat
from polonaise.host import Host
from polonaise.log.batch import Batch
from polonaise.log.control import (
    NO_EVIDENCE,
    SECTOR_BYTES,
    Promises,
    PromiseSector,
    Slot,
    SyncEvidence,
    TrimMark,
    decode_header,
    encode_header,
    newest_promises,
)
from polonaise.log.partitionlog import LogSettings, digest
from polonaise.log.segment import Checkpoint, Index, SegmentHeader, frame_header, open_frame
from polonaise_proving.stages.simulated.world import Machine
from rigs.log import KEY, PARTITION, Maker, Open, contents, crcs, life, opened_on, simulate

int64 = st.integers(-(2**63), 2**63 - 1)
uint64 = st.integers(0, 2**64 - 1)
uint32 = st.integers(0, 2**32 - 1)
counts = st.integers(0, 2**63 - 1)
keys = st.binary(min_size=16, max_size=16)
evidences = st.builds(SyncEvidence, int64, int64, int64)
promises = st.builds(Promises, int64, int64, int64, int64, int64, st.booleans())
trims = st.builds(TrimMark, counts, uint32)
copies = st.builds(PromiseSector, st.just(PARTITION), uint64, uint64, promises, evidences, trims)
slots = st.builds(Slot, st.just(PARTITION), uint64, uint64, evidences)
headers = st.builds(
    SegmentHeader, int64, keys, uint32, uint32, counts, int64, uint64, uint64, st.integers(0, 16 * 1024 * 1024), uint32
)
checkpoints = st.builds(Checkpoint, keys, uint32, int64, uint64, uint64, int64, uint32, uint32)


# ------------------------------------------------------------------ what was written is read


@pytest.mark.slow
@given(copy=copies, slot=slots)
def test_promises_and_evidence_are_read_as_they_were_written(copy: PromiseSector, slot: Slot) -> None:
    assert len(copy.encode()) == len(slot.encode()) == SECTOR_BYTES
    assert PromiseSector.decode(copy.encode(), PARTITION) == copy
    assert Slot.decode(slot.encode(), PARTITION) == slot


@given(copy=copies, slot=slots)
def test_a_sector_of_another_partition_or_kind_is_none(copy: PromiseSector, slot: Slot) -> None:
    assert PromiseSector.decode(copy.encode(), PARTITION + 1) is None
    assert Slot.decode(slot.encode(), PARTITION + 1) is None
    assert PromiseSector.decode(slot.encode(), PARTITION) is None
    assert Slot.decode(copy.encode(), PARTITION) is None


@given(header=headers)
def test_a_segment_header_is_read_as_it_was_written(header: SegmentHeader) -> None:
    assert SegmentHeader.decode(header.encode()) == header


@given(checkpoint=checkpoints, entries=st.lists(st.tuples(int64, int64, int64), max_size=9))
def test_an_index_is_read_as_it_was_written(checkpoint: Checkpoint, entries: list[tuple[int, int, int]]) -> None:
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint
    index = Index()
    for entry in entries:
        index.add(*entry)
    read = Index.decode(index.encode(0, len(index)))
    assert (read.firsts, read.offsets, read.times) == (index.firsts, index.offsets, index.times)


@given(key=keys, created_us=int64)
def test_the_control_files_header_is_read_as_it_was_written(key: bytes, created_us: int) -> None:
    assert decode_header(encode_header(key, created_us), "ctl") == key


# ------------------------------------------------------------------ damage

COPY = PromiseSector(PARTITION, 7, 2, Promises(5, 4, 3, 2, 1, True), SyncEvidence(1, 2, 3)).encode()
SLOT = Slot(PARTITION, 7, 2, SyncEvidence(1, 2, 3)).encode()
HEADER = SegmentHeader(1, KEY, PARTITION, 2, 3, 4, 5, 6, 7, 8).encode()
CHECKPOINT = Checkpoint(KEY, PARTITION, 1, 2, 3, 4, 5, 6).encode()
CONTROL_HEADER = encode_header(KEY, 1)[:128]
FRAME = frame_header(Maker().batch(), offset=128, synced=128, seed=9)


def _refused_header(raw: bytes) -> bool:
    with pytest.raises((SegmentDamaged, UnsupportedFormat)):
        SegmentHeader.decode(raw)
    return True


def _refused_control(raw: bytes) -> bool:
    with pytest.raises((ControlFileDamaged, UnsupportedFormat)):
        decode_header(raw, "ctl")
    return True


DECODERS: dict[str, tuple[bytes, Callable[[bytes], bool]]] = {
    "copy": (COPY, lambda raw: PromiseSector.decode(raw, PARTITION) is None),
    "evidence": (SLOT, lambda raw: Slot.decode(raw, PARTITION) is None),
    "segment header": (HEADER, _refused_header),
    "index header": (CHECKPOINT, lambda raw: Checkpoint.decode(raw) is None),
    "control file": (CONTROL_HEADER, _refused_control),
    "frame": (FRAME, lambda raw: open_frame(raw, 0, offset=128, seed=9) is None),
}


@pytest.mark.parametrize("name", DECODERS)
def test_every_flipped_bit_and_every_lost_end_is_seen(name: str) -> None:
    raw, refuses = DECODERS[name]
    damaged = bytearray(raw)
    for position in range(len(raw)):
        for bit in (0, 3, 7):
            damaged[position] ^= 1 << bit
            assert refuses(bytes(damaged)), (position, bit)
            damaged[position] ^= 1 << bit
        assert refuses(raw[:position])


@pytest.mark.parametrize("place", [0, 1])
def test_promises_are_refused_once_the_slot_names_a_later_copy_that_cant_be_read(place: int) -> None:
    copy = PromiseSector(PARTITION, 7, 2, Promises(fence=5), NO_EVIDENCE)
    sectors = [bytes(SECTOR_BYTES), bytes(SECTOR_BYTES)]
    sectors[place] = copy.encode()

    def newest(named: int) -> tuple[PromiseSector, int, SyncEvidence] | None:
        slot = Slot(PARTITION, named, 2, NO_EVIDENCE).encode()
        return newest_promises(b"".join((*sectors, slot)), PARTITION, "ctl")

    for named in (6, 7):  # the slot is written a while after the copies
        assert newest(named) == (copy, place, NO_EVIDENCE)
    with pytest.raises(ControlFileDamaged, match=r"newest copy \(8\)"):
        newest(8)


@pytest.mark.parametrize("name", DECODERS)
@given(noise=st.binary(max_size=600), keep=st.integers(0, 16))
def test_noise_is_nothing(name: str, noise: bytes, keep: int) -> None:
    raw, refuses = DECODERS[name]
    if (raw[:keep] + noise)[: len(raw)] != raw:
        assert refuses(raw[:keep] + noise)


def test_a_frame_of_another_place_or_file_is_none() -> None:
    assert open_frame(FRAME, 0, offset=128, seed=9) is not None
    assert open_frame(FRAME, 0, offset=136, seed=9) is None
    assert open_frame(FRAME, 0, offset=128, seed=8) is None


@pytest.mark.parametrize(("offset", "error"), [(4, UnsupportedFormat), (40, SegmentDamaged), (72, SegmentDamaged)])
def test_a_header_that_cannot_be_is_refused_even_with_a_right_checksum(
    offset: int, error: type[PolonaiseError]
) -> None:
    raw = bytearray(HEADER[:124])
    raw[offset : offset + 8] = b"\xff" * 8
    with pytest.raises(error):
        SegmentHeader.decode(bytes(raw) + crc32(raw).to_bytes(4, "little"))


# ------------------------------------------------------------------ whole directories

damages = st.lists(
    st.tuples(st.integers(0), st.sampled_from(["flip", "zero", "noise", "cut", "swap", "repeat"]), st.integers(0),
              st.binary(min_size=1, max_size=40)),
    min_size=1, max_size=4,
)  # fmt: skip


def _inflict(machine: Machine, damage: tuple[int, str, int, bytes]) -> None:
    which, kind, position, noise = damage
    disk = machine.disk
    paths = [path for path in disk.paths() if not path.endswith(".lock") and disk.contents(path)]
    path = paths[which % len(paths)]
    size = len(disk.contents(path))
    offset = position % size
    if kind == "flip":
        disk.flip_bit(path, offset, position % 8)
    elif kind == "zero":
        disk.zero_sector(path, offset // 512)
    elif kind == "noise":
        disk.overwrite(path, offset, noise[: size - offset])
    elif kind == "cut":
        disk.truncate(path, offset)
    elif kind == "swap":
        disk.overwrite(path, 0, disk.contents(paths[position % len(paths)])[:size])
    else:
        disk.overwrite(path, offset, disk.contents(path)[: size - offset])


@pytest.mark.slow
@settings(max_examples=150)
@given(done=damages)
def test_whatever_was_done_to_the_files_the_log_is_refused_or_true(done: list[tuple[int, str, int, bytes]]) -> None:
    """Damage at rest: what is read is what was written, and what is missing is known to be missing."""

    async def scenario(machine: Machine) -> None:
        maker = Maker()
        made: list[Batch] = [maker.batch(size=80, changes=[(b"n", b"%d" % n)] if n % 3 else None) for n in range(12)]

        async def look(host: Host) -> None:
            opened = await Open.on(host)
            found = await contents(opened.log, 500)
            assert crcs(found) == crcs(made[: len(found)])
            await digest(opened.log, 0, opened.log.last)
            if opened.log.last < 11:
                assert opened.slot.promises.lost_above <= opened.log.last
                await opened.log.cut(opened.log.last)
                await opened.log.append(made[opened.log.last + 1 :])

        async with opened_on(machine, LogSettings(segment_bytes_max=900)) as opened:
            await opened.append_each(made)
            await opened.close()
        for damage in done:
            _inflict(machine, damage)
        try:
            await life(machine, look)
        except PolonaiseError as error:
            assert error.code not in ("internal", "invariant_violated")  # noqa: PT017

    simulate(scenario)
