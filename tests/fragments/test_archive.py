"""Archiving a log: what is in the store is what was committed, once, however often and by however many it was done."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import polonaise
from polonaise.admin.archive import archive, check_archived_from, repair, verify
from polonaise.admin.restore import HowToRestore, restore
from polonaise.errors import (
    BatchDamaged,
    BeyondLog,
    FragmentDamaged,
    NotFound,
    StoreUnavailable,
    UnsupportedFormat,
    WrongClusterKey,
)
from polonaise.fragments import format as fragment_format
from polonaise.fragments.format import batches_in
from polonaise.fragments.mark import put_mark
from polonaise.fragments.objects import (
    ArchivedFragment,
    footer_of,
    fragments_of,
    partitions_in,
    write_fragments,
)
from polonaise.fragments.protocol.coverage import Span, belongs, spans_to_write
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObstoreStore, open_store
from polonaise.log.batch import Batch
from rigs.faults import raises_code
from rigs.fragments import flip, rewritten
from rigs.shell import Shell
from rigs.trimmed import contents, fill
from rigs.waiting import time_passes

pytestmark = pytest.mark.slow

Log = polonaise.Log


async def archived(log: Log, store: ObstoreStore, **how: Any) -> list[ArchivedFragment]:
    return [each async for each in archive(log, store, 0, **how)]


async def held(store: ObstoreStore, names: list[FragmentName]) -> list[bytes]:
    return [batch for name in names for batch in batches_in(await store.get(name.path))]


async def test_what_does_not_fill_a_fragment_is_left_for_the_next_time(log: Log, store: ObstoreStore) -> None:
    await fill(log, 50)
    assert await archived(log, store) == []
    written = await archived(log, store, fragment_bytes=2_000)
    assert 0 < written[-1].fragment.last < 49
    (rest,) = await archived(log, store, rest=True)
    assert rest.fragment.first == written[-1].fragment.last + 1
    assert rest.fragment.last == 49


async def test_several_at_once_write_the_same(log: Log, store: ObstoreStore) -> None:
    await fill(log, 200)
    written = await asyncio.gather(*(archived(log, store, fragment_bytes=2_000) for _ in range(3)))
    assert written[0] == written[1] == written[2]
    assert len(await store.list("0/")) == len(written[0])


async def test_a_hole_is_filled_and_nothing_is_written_twice(log: Log, store: ObstoreStore) -> None:
    await fill(log, 200)
    small = await archived(log, store, fragment_bytes=2_000, rest=True)
    await store.delete(small[1].fragment.path)
    await store.delete(small[2].fragment.path)
    await fill(log, 10)
    (filled,) = await archived(log, store)
    assert (filled.fragment.first, filled.fragment.last) == (small[1].fragment.first, small[2].fragment.last)
    report = await verify(store, 0)
    assert (report.transactions, report.last, report.holes, report.wrong) == (200, 199, (), [])


async def test_fragments_of_different_sizes_overlap_and_contradict_nothing(
    log: Log, store: ObstoreStore, tmp_path: Path
) -> None:
    await fill(log, 200)
    other = open_store(str(tmp_path / "other"))
    await archived(log, store, fragment_bytes=2_000, rest=True)
    for each in await archived(log, other, fragment_bytes=5_000, rest=True):
        await store.put_if_absent(each.fragment.path, await other.get(each.fragment.path))
    report = await verify(store, 0)
    assert (report.transactions, report.last, report.holes, report.wrong) == (200, 199, (), [])


async def test_an_archive_up_to_an_id_holds_that_and_nothing_above(log: Log, store: ObstoreStore) -> None:
    await fill(log, 200)
    ends = [Batch.parse(raw).last for raw in await contents(log)]
    whole, within = ends[5], ends[9] - 1
    (written,) = await archived(log, store, until=whole)
    assert (written.fragment.first, written.fragment.last) == (0, whole)
    assert await archived(log, store, until=whole) == []
    (more,) = await archived(log, store, until=within)
    assert (more.fragment.first, more.fragment.last) == (whole + 1, ends[8])
    with pytest.raises(BeyondLog, match="up to 200"):
        await archived(log, store, until=200)


async def test_spans_that_were_planned_by_ids_are_written_each_by_itself(log: Log, store: ObstoreStore) -> None:
    """As the tasks of a Spark job do: spans cut through batches, and each batch is one task's."""
    await fill(log, 200)
    await put_mark(store, log.cluster_key)
    batches = [Batch.parse(raw) for raw in await contents(log)]

    async def given(span: Span) -> AsyncIterator[Batch]:
        for batch in batches:
            if belongs(batch, span, 199):
                yield batch

    for span in reversed(spans_to_write([], 199, ids_max=7)):
        assert len([each async for each in write_fragments(store, log.cluster_key, given(span))]) <= 1
    report = await verify(store, 0)
    assert (report.transactions, report.holes, report.wrong) == (200, (), [])
    assert report.fragments > 10


async def test_ids_that_were_archived_once_and_are_missing_are_told_before_they_are_written_again(
    log: Log, store: ObstoreStore, tmp_path: Path
) -> None:
    for _ in range(3):
        await fill(log, 50)
        await archived(log, store, rest=True)
    await fill(log, 10)
    missing: list[Span] = []
    assert await archived(log, store, rest=True, tell_missing=missing.append)
    assert missing == [], "what is new is not missing"
    names = sorted(name for name in await fragments_of(store, 0))
    (tmp_path / "store" / names[1].path).unlink()
    report = await verify(store, 0)
    assert report.missing == report.holes == (Span(50, 99),)
    assert "no fragment holds 50 to 99: put the fragments back, or write them again" in report.troubles[0]
    with raises_code("history_incomplete", match=r"50 to 99.* polonaise archive run LOG STORE"):
        await restore(store, str(tmp_path / "again"), HowToRestore())
    assert [each.fragment for each in await archived(log, store, tell_missing=missing.append)] == [names[1]]
    assert missing == [Span(50, 99)]


async def test_a_damaged_fragment_is_told_with_what_writes_it_again(
    log: Log, store: ObstoreStore, tmp_path: Path
) -> None:
    await fill(log, 20)
    [(name, size)] = await archived(log, store, rest=True)
    path = tmp_path / "store" / name.path
    good = path.read_bytes()
    for at in (size // 3, size - 30):  # in its data, and in its footer
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        report = await verify(store, 0)
        assert (report.holes, report.missing) == ((), ())
        assert "polonaise archive verify STORE --repair LOG" in report.troubles[0]
        with pytest.raises(FragmentDamaged, match="polonaise archive verify STORE --repair LOG"):
            await restore(store, str(tmp_path / "again"), HowToRestore())


async def test_ids_that_nothing_holds_are_told_also_when_every_other_fragment_is_damaged(
    log: Log, store: ObstoreStore
) -> None:
    for _ in range(3):
        await fill(log, 20)
        await archived(log, store, rest=True)
    lost, kept, damaged = sorted(await fragments_of(store, 0))
    await store.delete(lost.path)
    await flip(store, damaged)
    report = await verify(store, 0)
    assert report.missing == (Span(lost.first, lost.last),)
    assert any(f"no fragment holds {lost.first} to {lost.last}: put" in each for each in report.troubles)
    await flip(store, kept)
    report = await verify(store, 0)
    assert report.damaged == [kept, damaged]
    assert any(f"no fragment holds {lost.first} to {lost.last}: put" in each for each in report.troubles)


@pytest.mark.parametrize("marked", [True, False])
async def test_a_store_is_not_repaired_from_another_log(
    marked: bool, log: Log, store: ObstoreStore, tmp_path: Path
) -> None:
    await fill(log, 20)
    await archived(log, store, rest=True)
    key = log.cluster_key
    if not marked:
        (tmp_path / "store" / "_cluster.json").unlink()
    await check_archived_from(log, store, key)
    await check_archived_from(log, store, None)
    async with polonaise.connect(f"embedded:{tmp_path / 'other'}") as other:
        with pytest.raises(WrongClusterKey, match=r"fragments of another log.* give the log that was archived there"):
            await check_archived_from(other, store, key)
        if marked:
            with pytest.raises(WrongClusterKey, match="fragments of another log"):
                await check_archived_from(other, store, None)


async def test_a_fragment_of_another_format_is_named_and_the_others_are_verified(
    log: Log, store: ObstoreStore, tmp_path: Path
) -> None:
    for _ in range(3):
        await fill(log, 20)
        await archived(log, store, rest=True)
    _, two, _ = sorted(await fragments_of(store, 0))
    newer = rewritten(await store.get(two.path), lambda table: table, {b"polonaise.format": b"2"})
    other = two._replace(digest=hashlib.sha256(newer).hexdigest())
    await store.delete(two.path)
    await store.put_if_absent(other.path, newer)
    report = await verify(store, 0)
    assert (report.fragments, report.transactions, report.damaged) == (3, 40, [])
    assert [other.path in wrong and "format" in wrong for wrong in report.wrong] == [True]
    assert report.holes == (Span(two.first, two.last),)
    with pytest.raises(UnsupportedFormat, match=other.digest):
        await footer_of(store, other, len(newer))
    with pytest.raises(UnsupportedFormat, match=other.digest):
        await restore(store, str(tmp_path / "again"), HowToRestore())


async def test_a_damaged_fragment_is_written_again_from_the_log_as_it_was(log: Log, store: ObstoreStore) -> None:
    await fill(log, 100)
    for name, _ in await archived(log, store, fragment_bytes=2_000):
        before = await store.get(name.path)
        await store.replace(name.path, before[: len(before) // 2])
        report = await verify(store, 0)
        assert report.damaged == [name]
        await repair(log, store, name)
        assert await store.get(name.path) == before
    assert (await verify(store, 0)).troubles == []


async def test_a_damaged_object_is_not_taken_for_the_fragment_that_it_was(log: Log, store: ObstoreStore) -> None:
    """Whoever archives the same again finds it under the name, and reads it back."""
    await fill(log, 30)
    ((name, _),) = await archived(log, store, rest=True)
    await flip(store, name)
    with pytest.raises(FragmentDamaged, match=f"{name.digest}.* does not read back .* archive again"):
        [each async for each in write_fragments(store, log.cluster_key, log.read_batches(0))]


async def test_what_batches_can_t_be_made_of_again_is_not_stored(
    log: Log, store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(log, 30)
    right = fragment_format.columns_of

    def wrong(batches: Sequence[Batch], columns: Sequence[str]) -> pa.RecordBatch:
        made = right(batches, columns)
        place = made.schema.get_field_index("header")
        return made.set_column(place, made.schema.field(place), pa.array([1] * made.num_rows, pa.int32()))

    monkeypatch.setattr(fragment_format, "columns_of", wrong)
    with pytest.raises(FragmentDamaged, match="can't be made again"):
        await archived(log, store, rest=True)
    assert await store.list("0/") == []


async def noticed(log: Log, then: Callable[[], Awaitable[None]]) -> AsyncIterator[Batch]:
    """The batches of the log; before each that is no part of the first fragment of 2,000 bytes, `then` is awaited."""
    size = 0
    async for batch in log.read_batches(0):
        if size >= 2_000:
            await then()
        size += batch.length
        yield batch


async def test_the_next_fragment_is_made_while_one_is_stored(
    log: Log, store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whoever stops in the middle leaves no task behind."""
    await fill(log, 200)
    await put_mark(store, log.cluster_key)
    may_go_on, begun, read_on, asked = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[str]()
    put = store.put_if_absent

    async def slow(path: str, data: bytes) -> bool:
        asked.append(path)
        begun.set()
        await may_go_on.wait()
        return await put(path, data)

    monkeypatch.setattr(store, "put_if_absent", slow)

    async def goes_on() -> None:
        read_on.set()

    before = asyncio.all_tasks()
    writing = write_fragments(store, log.cluster_key, noticed(log, goes_on), fragment_bytes=2_000)
    first = asyncio.ensure_future(anext(writing))
    await asyncio.wait_for(begun.wait(), 10)
    await asyncio.wait_for(read_on.wait(), 10)
    assert len(asked) == 1, "two are in memory, and no more"
    may_go_on.set()
    assert (await first).fragment.path == asked[0]
    may_go_on.clear()
    await writing.aclose()
    assert asyncio.all_tasks() <= before


async def test_what_was_whole_before_a_place_that_can_t_be_read_is_stored(
    log: Log, store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(log, 200)
    await put_mark(store, log.cluster_key)
    put = store.put_if_absent

    async def slow(path: str, data: bytes) -> bool:
        await time_passes(0.1)
        return await put(path, data)

    monkeypatch.setattr(store, "put_if_absent", slow)

    async def damaged() -> None:
        raise BatchDamaged("here")

    told: list[ArchivedFragment] = []

    async def tell() -> None:
        async for each in write_fragments(store, log.cluster_key, noticed(log, damaged), fragment_bytes=2_000):
            told.append(each)

    with pytest.raises(BatchDamaged, match="here"):
        await tell()
    assert len(told) == 1
    assert [each.path for each in await store.list("0")] == [told[0].fragment.path]


async def test_a_store_that_fails_ends_it_before_another_fragment_is_read(
    log: Log, store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(log, 200)
    await put_mark(store, log.cluster_key)
    failed = asyncio.Event()

    async def full(path: str, data: bytes) -> bool:
        failed.set()
        raise StoreUnavailable("full")

    monkeypatch.setattr(store, "put_if_absent", full)
    given = 0

    async def waits() -> None:
        nonlocal given
        await failed.wait()
        given += 1

    with pytest.raises(StoreUnavailable, match="full"):
        [each async for each in write_fragments(store, log.cluster_key, noticed(log, waits), fragment_bytes=2_000)]
    assert given <= 2


async def test_a_fragment_under_another_name_is_found(log: Log, store: ObstoreStore) -> None:
    await fill(log, 30)
    ((name, _),) = await archived(log, store, rest=True)
    raw = await store.get(name.path)
    other = name._replace(first=1)
    await store.put_if_absent(other.path, raw)
    assert [other.path in wrong for wrong in (await verify(store, 0)).wrong] == [True]


@pytest.mark.parametrize("is_other", [True, False])
async def test_a_store_that_is_swapped_under_an_archiver_gets_nothing(
    log: Log, store: ObstoreStore, tmp_path: Path, is_other: bool
) -> None:
    """Another log's store, or the directory that is left when one is not mounted any more."""
    await fill(log, 200)
    writing = archive(log, store, 0, fragment_bytes=2_000, rest=True)
    async with aclosing(writing):
        await anext(writing)
        Path(str(store)).rename(tmp_path / "aside")
        Path(str(store)).mkdir()
        if is_other:
            await put_mark(store, bytes(16))
        with pytest.raises(
            WrongClusterKey if is_other else NotFound, match=r"another address|mount what belongs there"
        ):
            [each async for each in writing]
    assert await partitions_in(store) == []


async def test_other_things_in_the_store_do_not_matter(log: Log, store: ObstoreStore) -> None:
    await store.put_if_absent("0/readme.txt", b"")
    await fill(log, 30)
    assert len(await archived(log, store, rest=True)) == 1
    assert await partitions_in(store) == [0]


# ------------------------------------------------------------------ the command


def test_the_commands_archive_and_verify(tmp_path: Path, shell: Shell) -> None:
    address, store = f"embedded:{tmp_path / 'log'}", tmp_path / "store"
    assert shell.run("log", "append", address, "hello").status == 0
    ran = shell.run("archive", "run", address, store, "--rest", "--json")
    assert ran.status == 0, ran.errors
    told = json.loads(ran.output)
    assert (told["partition"], told["first"], told["last"]) == (0, 0, 0)
    assert (store / told["path"]).stat().st_size == told["bytes"]
    nothing = "partition 0: nothing to write: all is archived\n"
    assert shell.run("archive", "run", address, store, "--rest").output == nothing
    well = shell.run("archive", "verify", store)
    assert (well.status, "well" in well.output) == (0, True)
    up_to = shell.run("archive", "run", address, store, "--until", "0=0").output
    assert up_to == "partition 0: nothing to write: all up to the requested id is archived\n"
    for until, said in (("1=0", "give an id for each"), ("0", "invalid PARTITION=ID"), ("0=1", "[beyond_log]")):
        refused = shell.run("archive", "run", address, store, "--until", until)
        assert (refused.status, said in refused.errors) == (1, True), refused.errors
    (store / told["path"]).write_bytes(b"PAR1")
    ill = shell.run("archive", "verify", store, "--json")
    assert ill.status == 1
    assert told["path"] in json.loads(ill.output)["wrong"][0]
    nowhere = shell.run("archive", "verify", store, "--repair", f"embedded:{tmp_path / 'nowhere'}")
    assert (nowhere.status, "[not_initialized]" in nowhere.errors) == (1, True)
    assert not (tmp_path / "nowhere").exists()
    other = f"embedded:{tmp_path / 'other'}"
    assert shell.run("log", "append", other, "another log's").status == 0
    refused = shell.run("archive", "verify", store, "--repair", other)
    assert (refused.status, "[wrong_cluster_key]" in refused.errors) == (1, True), refused.errors
    assert (store / told["path"]).read_bytes() == b"PAR1"
    mended = shell.run("archive", "verify", store, "--repair", address)
    assert (mended.status, f"{told['path']} was written again" in mended.output) == (0, True), mended.errors
    assert (store / told["path"]).stat().st_size == told["bytes"]
    assert shell.run("log", "append", address, "more").status == 0
    assert shell.run("archive", "run", address, store, "--rest").status == 0
    (store / told["path"]).unlink()
    again = shell.run("archive", "run", address, store)
    assert again.output.startswith("partition 0: no fragment held 0 to 0 when this run began, although later")
