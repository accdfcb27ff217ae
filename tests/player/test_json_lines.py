"""A target in a file of JSON lines: each entry once, in order, and nothing of a stream that was replaced."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

import polonaise
from polonaise.checksum import crc32
from polonaise.errors import BadOption, Closed, DiskFull, Forked, UnsupportedFormat, ViewUnavailable, ViewUnfit
from polonaise.host import files
from polonaise.player import jsonlines
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource
from polonaise.player.jsonlines import JsonLinesTarget
from polonaise.player.linesfile import LinesFile
from polonaise.player.linesmemory import LinesMemory, read_memory
from polonaise.player.player import Player
from polonaise.player.protocol.entries import DeliveryBatch, Fence, RoutedEntry
from polonaise.player.protocol.reception import Reception, Verdict
from polonaise.player.protocol.settings import PlayerSettings
from rigs.deliverycalls import SOURCE, StreamCalls, batch_of, stream
from rigs.raised import IN_A_THREAD
from rigs.waiting import block_until, wait_until


def batch(previous: int, *payloads: str | None, partition: int = 0) -> DeliveryBatch:
    return batch_of(previous, payloads, partition)


def kept(path: Path) -> list[tuple[int, str]]:
    """By line of the file, the partition and the payload; each id stands behind the one before."""
    ids: dict[int, int] = {}
    found = []
    for line in path.read_text().splitlines():
        said = json.loads(line)
        assert said["id"] > ids.get(said["partition"], -1)
        ids[said["partition"]] = said["id"]
        found.append((said["partition"], said["payload"]))
    return found


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[JsonLinesTarget]:
    if "line_of" not in options:
        options = {"decode": bytes.decode, **options}
    target = JsonLinesTarget(path, **options)
    try:
        yield target
    finally:
        await target.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "entries.jsonl"


@pytest.fixture
def memory(path: Path) -> Path:
    return path.with_name("entries.jsonl.memory")


async def test_entries_are_written_with_their_ids_and_told_to_the_next_stream(path: Path, memory: Path) -> None:
    async with opened(path) as target:
        session = StreamCalls(target, Fence(1, 1))
        assert await session.greet() == Acceptance(True, Fence(1, 1), {})
        assert await session.take(batch(-1, "a", "é\n")) == AppliedBatch(Verdict.APPLY, 1, Fence(1, 1))
        assert await session.take(batch(-1, "x", partition=3)) == AppliedBatch(Verdict.APPLY, 0, Fence(1, 1))
    async with opened(path) as again:
        acceptance = await StreamCalls(again, Fence(1, 2)).greet()
        assert acceptance == Acceptance(True, Fence(1, 2), {0: 1, 3: 0})
    assert path.read_text() == (
        '{"partition": 0, "id": 0, "payload": "a"}\n'
        '{"partition": 0, "id": 1, "payload": "é\\n"}\n'
        '{"partition": 3, "id": 0, "payload": "x"}\n'
    )
    assert sorted(path.parent.iterdir()) == [path, memory]


@pytest.mark.parametrize(
    ("options", "payload", "line"),
    [
        ({"decode": None}, b"\xff\0", '{"partition": 2, "id": 7, "payload": "/wA="}'),
        ({"decode": json.loads}, b'{"b":[1,null]}', '{"partition": 2, "id": 7, "payload": {"b": [1, null]}}'),
        ({"decode": json.loads}, b'"\\ud800"', '{"partition": 2, "id": 7, "payload": "\\ud800"}'),
        ({"line_of": lambda partition, entry: [partition, entry.id, len(entry.payload)]}, b"abc", "[2, 7, 3]"),
    ],
)
async def test_what_a_line_says_is_for_the_application_to_choose(
    path: Path, options: dict[str, Any], payload: bytes, line: str
) -> None:
    async with opened(path, **options) as target:
        await (await stream(target)).take(DeliveryBatch(2, -1, [RoutedEntry(7, payload)]))
    assert path.read_text() == line + "\n"


async def test_a_line_is_one_for_every_reader(path: Path) -> None:
    texts = ["one\u2028two", "\u2029", "\x85", "\x0b\x0c\x1c\x1d\x1e\r\n", "\ud800\u2028 half a pair", "grün"]
    async with opened(path, decode=lambda payload: {texts[int(payload)]: texts[int(payload)]}) as target:
        session = await stream(target)
        await session.take(batch(-1, *map(str, range(len(texts)))))
    text = path.read_bytes().decode()
    assert len(text.splitlines()) == len(texts)
    assert [json.loads(line)["payload"] for line in text.splitlines()] == [{each: each} for each in texts]
    assert "grün" in text


def decoded(payload: bytes) -> object:
    """What the documentation shows."""
    return json.loads(payload, parse_float=Decimal, object_pairs_hook=unique)


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return found


async def test_numbers_keep_their_digits_and_a_key_that_is_there_twice_is_refused(path: Path) -> None:
    bodies = ['{"a": [1234567890123456.78, {"b": 0.10}], "1": "0.10", "c": 1E+400, "d": null}', '{"id": 1, "id": 2}']
    async with opened(path, decode=decoded) as target:
        session = await stream(target)
        told = await session.take(batch(-1, *bodies))
    assert (told.last, "a key is there twice" in told.refusal) == (0, True)
    assert path.read_text() == f'{{"partition": 0, "id": 0, "payload": {bodies[0]}}}\n'


async def test_a_stream_is_accepted_only_above_the_one_before(path: Path) -> None:
    async with opened(path) as target:
        await stream(target, 2, 5)
        for lower in (Fence(2, 5), Fence(2, 4), Fence(1, 9)):
            assert await target.accept(lower, SOURCE) == Acceptance(False, Fence(2, 5), {})
    async with opened(path) as again:
        assert not (await again.accept(Fence(2, 5), SOURCE)).accepted, "it is kept durably"
        assert (await again.accept(Fence(3, 1), SOURCE)).accepted


async def test_what_an_older_stream_still_brings_is_not_applied(path: Path) -> None:
    async with opened(path) as target:
        older = await stream(target, 1, 1)
        await older.take(batch(-1, "a"))
        newer = await stream(target, 1, 2)
        told = await older.take(batch(0, "b"))
        assert (told.verdict, told.kept) == (Verdict.FENCED, Fence(1, 2))
        await newer.take(batch(0, "b"))
    assert kept(path) == [(0, "a"), (0, "b")]


async def test_a_dummy_raises_the_id_and_writes_no_line(path: Path) -> None:
    async with opened(path) as target:
        session = await stream(target)
        assert await session.take(batch(-1, "a", None)) == AppliedBatch(Verdict.APPLY, 1, Fence(1, 1))
        assert await session.take(batch(1, None)) == AppliedBatch(Verdict.APPLY, 2, Fence(1, 1))
    async with opened(path) as again:
        assert (await again.accept(Fence(2, 1), SOURCE)).applied == {0: 2}
    assert kept(path) == [(0, "a")]


async def test_a_batch_that_does_not_follow_is_not_applied(path: Path) -> None:
    async with opened(path) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        for previous in (-1, 1):
            assert await session.take(batch(previous, "b")) == AppliedBatch(Verdict.OUT_OF_PLACE, 0, Fence(1, 1))
    assert kept(path) == [(0, "a")]


async def test_an_entry_that_can_not_be_applied_is_refused_and_those_before_it_are_kept(path: Path) -> None:
    bad = ["bad"]

    def decode(payload: bytes) -> str:
        if payload.decode() in bad:
            raise ValueError("no such account\nin postgresql://me:secret@host/db")
        return payload.decode()

    async with opened(path, decode=decode) as target:
        session = await stream(target)
        told = await session.take(batch(-1, "a", "bad", "c"))
        assert told == AppliedBatch(Verdict.APPLY, 0, Fence(1, 1), "ValueError: no such account")
        assert (await session.take(batch(2, "d"))).verdict is Verdict.PASS_OVER, "it was sent before the player knew"
        assert (await session.take(batch(-1, "x", partition=1))).verdict is Verdict.APPLY
        assert (await session.take(batch(0, "bad", "c"))).refusal, "once more"
        bad.clear()
        assert await session.take(batch(0, "bad", "c", "d")) == AppliedBatch(Verdict.APPLY, 3, Fence(1, 1))
    assert kept(path) == [(0, "a"), (1, "x"), (0, "bad"), (0, "c"), (0, "d")]


@pytest.mark.parametrize(
    ("value", "why"),
    [(float("nan"), "ValueError: Out of range float"), (b"bytes", "TypeError: Object of type bytes is not JSON")],
)
async def test_what_json_can_not_say_is_refused(path: Path, value: Any, why: str) -> None:
    async with opened(path, decode=lambda _: value) as target:
        told = await (await stream(target)).take(batch(-1, "a"))
    assert told.refusal.startswith(why)
    assert told.last == -1
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({1: "a", "1": "b"}, '"1"'),
        ({"true": "a", True: "b"}, '"true"'),
        ({None: "a", "null": "b"}, '"null"'),
        ([{"a": ({1.5: "a", "1.5": "b"}, Decimal(1))}], '"1.5"'),
    ],
)
async def test_an_object_in_which_two_keys_are_one_text_is_refused(path: Path, value: Any, key: str) -> None:
    async with opened(
        path, line_of=lambda _, entry: value if entry.payload == b"bad" else {1: 0, "2": {None: 0}}
    ) as to:
        told = await (await stream(to)).take(batch(-1, "good", "bad"))
    assert (told.last, told.refusal) == (
        0,
        f"ValueError: the key {key} is twice in one object, where all keys are texts",
    )
    assert path.read_text() == '{"1": 0, "2": {"null": 0}}\n'


@pytest.mark.parametrize("raised", IN_A_THREAD)
async def test_whatever_makes_no_line_is_a_refusal(path: Path, raised: BaseException) -> None:
    def decode(payload: bytes) -> str:
        if payload == b"bad":
            raise raised
        return payload.decode()

    async with opened(path, decode=decode) as target:
        session = await stream(target)
        told = await session.take(batch(-1, "a", "bad"))
        assert (told.last, told.verdict) == (0, Verdict.APPLY)
        assert "raised" in told.refusal
        assert (await session.take(batch(-1, "x", partition=1))).last == 0
    assert kept(path) == [(0, "a"), (1, "x")]


async def test_an_error_of_the_application_reaches_the_player_without_passwords(path: Path) -> None:
    def decode(_: bytes) -> str:
        raise RuntimeError(f"postgresql://me:secret@host/db {'x' * 2_000}")

    async with opened(path, decode=decode) as target:
        told = await (await stream(target)).take(batch(-1, "a"))
    assert "secret" not in told.refusal
    assert len(told.refusal) == 500


async def test_batches_of_several_partitions_share_their_syncs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[dict[int, int]] = []
    append = LinesFile.append

    async def watched(self: LinesFile, lines: bytes, applied: Any) -> None:
        steps.append(dict(applied))
        await append(self, lines, applied)

    monkeypatch.setattr(LinesFile, "append", watched)
    async with opened(path) as target:
        session = await stream(target)
        told = await asyncio.gather(
            *(session.take(batch(-1, f"{partition}", partition=partition)) for partition in range(3)),
            session.take(batch(0, "more", partition=1)),
        )
        assert [each.last for each in told] == [0, 0, 0, 1]
    assert steps == [{0: 0, 1: 0, 2: 0}, {1: 1}]
    assert kept(path) == [(0, "0"), (1, "1"), (2, "2"), (1, "more")]


async def test_a_batch_that_is_given_up_is_done_whole_or_not_at_all(path: Path) -> None:
    applying, go_on = threading.Event(), threading.Event()

    def decode(payload: bytes) -> str:
        applying.set()
        assert go_on.wait(60)
        return payload.decode()

    async with opened(path, decode=decode) as target:
        session = await stream(target)
        first = asyncio.ensure_future(session.take(batch(-1, "a")))
        await wait_until(applying.is_set, "the first is being applied")
        second = asyncio.ensure_future(session.take(batch(0, "b")))
        await asyncio.sleep(0)
        for each in (first, second):
            each.cancel()
        go_on.set()
        assert (await target.accept(Fence(1, 2), SOURCE)).applied == {0: 0}, "the second had not begun"
        assert [task for task in asyncio.all_tasks() if task.get_name().startswith("lines of")] == []
    assert kept(path) == [(0, "a")]


async def test_a_file_has_one_writer(path: Path) -> None:
    async with opened(path) as target:
        await stream(target)
        async with opened(path) as other:
            with pytest.raises(ViewUnavailable, match="is in use: another process, or another target of this one"):
                await other.accept(Fence(2, 1), SOURCE)
            await target.close()
            assert (await other.accept(Fence(2, 1), SOURCE)).accepted


@pytest.mark.parametrize(
    "other", [SOURCE._replace(log_key=bytes(16)), SOURCE._replace(player="q"), SOURCE._replace(target="b")]
)
async def test_the_file_of_another_log_player_or_target_is_refused(path: Path, other: DeliverySource) -> None:
    async with opened(path) as target:
        session = await stream(target)
        with pytest.raises(ViewUnfit, match=r"is of target 'a' of player 'p'.*Give each target a file of its own"):
            await target.accept(Fence(9, 9), other)
        assert (await session.take(batch(-1, "a"))).verdict is Verdict.APPLY, "its own stream goes on"
    assert kept(path) == [(0, "a")]


async def test_a_file_that_was_there_before_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_text("somebody's\n")
    async with opened(path) as target:
        with pytest.raises(ViewUnfit, match=r"holds something, and there is no .*memory that says what"):
            await target.accept(Fence(1, 1), SOURCE)
    assert path.read_text() == "somebody's\n"


async def test_a_directory_that_is_missing_is_named(path: Path) -> None:
    async with opened(path.parent / "none" / "x.jsonl") as target:
        with pytest.raises(ViewUnavailable, match=r"none/x\.jsonl can't be made, because its directory does not exist"):
            await target.accept(Fence(1, 1), SOURCE)
        (path.parent / "none").mkdir()
        assert (await target.accept(Fence(1, 1), SOURCE)).accepted


def changed(path: Path, memory: Path, how: str) -> None:
    match how:
        case "gone":
            path.rename(path.with_name("moved"))
        case "shorter":
            path.write_bytes(path.read_bytes()[:-1])
        case "emptied":
            path.write_bytes(b"")
        case "longer":
            with path.open("a") as file:
                file.write("somebody's\n")
        case "other":
            path.write_bytes(b"x" * path.stat().st_size)
        case "memory":
            memory.write_bytes(memory.read_bytes().replace(b'"term": 1', b'"term": 0'))
        case "no memory":
            memory.unlink()
        case "empty memory":
            memory.write_bytes(b"")
        case "other memory":
            memory.write_bytes(b"x" * memory.stat().st_size)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("gone", r"entries.jsonl is gone: another program has changed it\. Put both"),
        ("shorter", r"has 83 bytes, and 84 were written: another program"),
        ("emptied", r"has 0 bytes, and 84 were written: another program"),
        ("longer", r"has 95 bytes, and 84 were written: another program.*Take out what lies behind.*truncate -s 84 /"),
        ("other", "does not hold what was written last: another program"),
        ("memory", r"memory is damaged: the target does not know what it has applied\. Put both files back"),
        ("empty memory", "memory is damaged"),
        ("no memory", "holds something, and there is no"),
    ],
)
async def test_files_that_do_not_go_together_are_refused_until_they_are_put_back(
    path: Path, memory: Path, how: str, why: str
) -> None:
    async with opened(path) as target:
        session = await stream(target)
        for each in (0, 1):
            await session.take(batch(each - 1, f"{each}"))
    lines, whole = path.read_bytes(), memory.read_bytes()
    changed(path, memory, how)
    async with opened(path) as target:
        for _ in range(2):
            with pytest.raises(ViewUnfit, match=why):
                await target.accept(Fence(2, 1), SOURCE)
        assert path.exists() == (how != "gone"), "nothing is made where something was lost"
        assert how != "longer" or path.read_bytes().endswith(b"somebody's\n"), "what is somebody else's is left alone"
        path.write_bytes(lines)
        memory.write_bytes(whole)
        assert (await target.accept(Fence(2, 1), SOURCE)).applied == {0: 1}
    assert kept(path) == [(0, "0"), (0, "1")]


@pytest.mark.parametrize("how", ["gone", "shorter", "emptied", "longer", "other"])
@pytest.mark.parametrize("offered", [False, True], ids=["batch", "stream"])
async def test_a_file_that_is_changed_while_it_is_in_use_takes_nothing_more(
    path: Path, memory: Path, how: str, offered: bool
) -> None:
    """As a rotation of logs does, of either kind: what is written then would be lost with the file."""
    async with opened(path) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        lines = path.read_bytes()
        changed(path, memory, how)
        with pytest.raises(ViewUnfit, match="another program has changed it"):
            await (target.accept(Fence(1, 2), SOURCE) if offered else session.take(batch(0, "b")))
        left = path.read_bytes() if path.exists() else b""
        for term in (3, 4):
            with pytest.raises(ViewUnfit, match="another program has changed it"):
                await target.accept(Fence(1, term), SOURCE)
        assert (path.read_bytes() if path.exists() else b"") == left, "nothing is cut, and nothing made"
        path.write_bytes(lines)
        assert (await session.take(batch(0, "b"))).last == 1
    assert kept(path) == [(0, "a"), (0, "b")]


@pytest.mark.parametrize("how", ["shorter", "emptied", "longer"])
@pytest.mark.parametrize("moment", ["with_step", "step", "step_ended"])
async def test_a_file_that_is_changed_within_a_step_gets_no_hole_and_the_step_does_not_count(
    path: Path, memory: Path, how: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any moment between looking at the file and telling the player: before its lines are noted, or behind them."""
    async with opened(path) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        with monkeypatch.context() as patch:
            make = getattr(LinesMemory, moment)

            def meanwhile(self: LinesMemory, *given: Any) -> Any:
                changed(path, memory, how)
                return make(self, *given)

            patch.setattr(LinesMemory, moment, meanwhile)
            step = session.take(batch(0, "b"))
            if moment == "step_ended":  # acknowledged, as if it was changed behind that: the next step is refused
                await step
            else:
                with pytest.raises(ViewUnfit, match="another program has changed it"):
                    await step
        assert b"\0" not in path.read_bytes()
        left = path.read_bytes()
        with pytest.raises(ViewUnfit, match="another program has changed it"):
            await target.accept(Fence(1, 2), SOURCE)
        assert path.read_bytes() == left
    async with opened(path) as target:
        with pytest.raises(ViewUnfit, match="another program has changed it"):
            await target.accept(Fence(2, 1), SOURCE)


async def test_a_file_that_is_cut_while_the_lines_of_a_torn_step_are_written_again_is_refused(
    path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path) as target:
        session = await stream(target)
        for each in (0, 1):
            await session.take(batch(each - 1, f"{each}"))
    # As a crash leaves it: nothing says that the lines of the last step are there.
    raw = memory.read_bytes()
    memory.write_bytes(raw[: raw.rindex(b"\n", 0, -1) + 1])
    write = os.pwritev

    def behind_a_cut(descriptor: int, buffers: Any, offset: int) -> int:
        if b'"payload"' in bytes(buffers[0]):
            os.truncate(path, 10)
        return write(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", behind_a_cut)
    async with opened(path) as target:
        for _ in range(2):
            with pytest.raises(ViewUnfit, match="another program has changed it"):
                await target.accept(Fence(2, 1), SOURCE)


async def test_a_memory_that_is_cut_within_a_step_is_written_again(
    path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is noted then lies behind a hole, which no start could read."""
    async with opened(path) as target:
        session = await stream(target)
        for each in (0, 1):
            await session.take(batch(each - 1, f"{each}"))
        with monkeypatch.context() as patch:
            make = LinesMemory.with_step

            def meanwhile(self: LinesMemory, *given: Any) -> LinesMemory:
                os.truncate(memory, 300)
                return make(self, *given)

            patch.setattr(LinesMemory, "with_step", meanwhile)
            await session.take(batch(1, "2"))
        await session.take(batch(2, "3"))
        assert read_memory(memory.read_bytes(), str(memory)).applied == {0: 3}
    async with opened(path) as target:
        assert (await target.accept(Fence(2, 1), SOURCE)).applied == {0: 3}
    assert kept(path) == [(0, f"{each}") for each in range(4)]


@pytest.mark.parametrize("how", ["no memory", "empty memory", "other memory"])
async def test_a_memory_that_is_removed_or_emptied_while_in_use_is_written_again(
    path: Path, memory: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The target knows what was in it; the steps that it went on to write would be lost with the file."""
    async with opened(path) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        await session.take(batch(-1, "other", partition=3))
        changed(path, memory, how)
        await session.take(batch(0, "b"))
        assert f"{memory} was removed or changed" in caplog.text
        whole = read_memory(memory.read_bytes(), str(memory))
        assert (whole.fence, whole.applied) == (Fence(1, 1), {0: 1, 3: 0})
        await session.take(batch(1, "c"))
    async with opened(path) as target:
        again = StreamCalls(target, Fence(2, 1))
        assert (await again.greet()).applied == {0: 2, 3: 0}
        await again.take(batch(2, "d"))
    assert kept(path) == [(0, "a"), (3, "other"), (0, "b"), (0, "c"), (0, "d")]


@pytest.mark.parametrize("offered", [False, True], ids=["batch", "stream"])
async def test_a_memory_that_is_replaced_while_in_use_is_not_written_over(
    path: Path, memory: Path, offered: bool
) -> None:
    async with opened(path) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        other = memory.with_name("other")
        other.write_bytes(memory.read_bytes())
        other.rename(memory)
        with pytest.raises(ViewUnfit, match="has another memory beside it than was written"):
            await (target.accept(Fence(1, 2), SOURCE) if offered else session.take(batch(0, "b")))
        assert (await target.accept(Fence(1, 3), SOURCE)).applied == {0: 0}
    assert kept(path) == [(0, "a")]


async def test_a_stream_that_is_offered_while_the_file_is_moved_away_makes_no_memory(path: Path, memory: Path) -> None:
    async with opened(path) as target:
        await (await stream(target)).take(batch(-1, "a"))
        for each in (path, memory):
            each.rename(each.with_name(f"aside.{each.name}"))
        with pytest.raises(ViewUnfit, match="was moved or replaced"):
            await target.accept(Fence(1, 2), SOURCE)
        assert not memory.exists()


async def test_files_that_are_both_moved_away_while_in_use_are_waited_for_and_not_made(
    path: Path, memory: Path
) -> None:
    """A new file would get everything once more, and be in the way of the one that is put back."""
    async with opened(path) as target:
        await (await stream(target)).take(batch(-1, "a"))
        for each in (path, memory):
            each.rename(each.with_name(f"aside.{each.name}"))
        with pytest.raises(ViewUnfit, match="was moved or replaced"):
            await StreamCalls(target, Fence(1, 1)).take(batch(0, "b"))
        for term in (2, 3):
            with pytest.raises(ViewUnfit, match=r"is gone: another program.*move both away, start this process again"):
                await target.accept(Fence(1, term), SOURCE)
        assert not path.exists()
        assert not memory.exists()
        for each in (path, memory):
            each.with_name(f"aside.{each.name}").rename(each)
        again = StreamCalls(target, Fence(1, 4))
        assert (await again.greet()).applied == {0: 0}
        await again.take(batch(0, "b"))
    assert kept(path) == [(0, "a"), (0, "b")]


async def test_a_memory_of_a_newer_format_is_refused(path: Path, memory: Path) -> None:
    async with opened(path) as target:
        await stream(target)
    about = LinesMemory(*read_memory(memory.read_bytes(), ""))
    newer = about.whole().replace(b'"format": 1', b'"format": 2')
    text = newer.rstrip(b"\n").partition(b" ")[2]
    memory.write_bytes(b"%08x %s\n" % (crc32(text), text))
    async with opened(path) as target:
        with pytest.raises(UnsupportedFormat, match="is of format 2; this version of Polonaise reads format 1"):
            await target.accept(Fence(2, 1), SOURCE)


@pytest.mark.slow
async def test_a_memory_is_written_anew_when_it_has_grown(path: Path, memory: Path) -> None:
    async with opened(path) as target:
        session = await stream(target)
        sizes = []
        for number in range(800):
            await session.take(batch(number - 1, "x"))
            sizes.append(memory.stat().st_size)
        assert 60_000 < max(sizes) <= 66_000
        assert sizes[-1] < max(sizes)
    async with opened(path) as again:
        assert (await again.accept(Fence(2, 1), SOURCE)).applied == {0: 799}
    assert len(kept(path)) == 800


async def test_a_target_that_was_closed_says_so(path: Path) -> None:
    target = JsonLinesTarget(path)
    await target.close()
    await target.close()
    with pytest.raises(Closed, match="was closed"):
        await target.accept(Fence(1, 1), SOURCE)


async def test_a_close_that_is_given_up_closes_all_the_same(path: Path) -> None:
    target = JsonLinesTarget(path)
    await stream(target)
    closing = asyncio.ensure_future(target.close())
    await asyncio.sleep(0)
    closing.cancel()
    async with opened(path) as other:
        await wait_until(lambda: accepts(other), "the file is unlocked")
    await target.close()


async def accepts(target: JsonLinesTarget) -> bool:
    try:
        return (await target.accept(Fence(2, 1), SOURCE)).accepted
    except ViewUnavailable:
        return False


@pytest.mark.slow
async def test_a_disk_that_hangs_keeps_the_file_locked_and_lets_nobody_wait_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, go_on = threading.Event(), threading.Event()
    target = JsonLinesTarget(path)
    await stream(target)

    def sync(descriptor: int) -> None:
        hangs.set()
        assert go_on.wait(60)

    monkeypatch.setattr(files, "_sync_data", sync)
    monkeypatch.setattr(jsonlines, "_CLOSE_S_MAX", 0.1)
    applying = asyncio.ensure_future(target.apply(batch(-1, "a"), Reception(Fence(1, 1)).judge))
    await wait_until(hangs.is_set, "the disk hangs")
    waiting = [asyncio.ensure_future(target.accept(Fence(1, 2 + each), SOURCE)) for each in range(3)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    assert not target._waiting, "nothing gathers behind it"
    await target.close()
    async with opened(path) as other:
        assert not await accepts(other), "it may still write"
        go_on.set()
        with pytest.raises(Closed):
            await applying
        assert not await accepts(other)
        target._disk.release()  # type: ignore[attr-defined]  # as the end of the process does
        assert (await other.accept(Fence(2, 1), SOURCE)).applied == {}, "what was not acknowledged does not count"


async def test_a_target_that_was_forked_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as target:
        await stream(target)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(Forked, match="make one in each process, after the fork"):
                await target.accept(Fence(2, 1), SOURCE)
            await target.close()
        assert (await target.accept(Fence(2, 1), SOURCE)).accepted, "the parent's is open"


def test_what_can_not_be_meant_is_refused(path: Path) -> None:
    async def waits(_: bytes) -> str:
        return ""

    with pytest.raises(BadOption, match="give one of the two"):
        JsonLinesTarget(path, decode=json.loads, line_of=lambda *_: 0)
    for nothing in ("", None, 7):
        with pytest.raises(BadOption, match="the path of a file"):
            JsonLinesTarget(nothing)  # type: ignore[arg-type]
    for bad in (waits, "text"):
        with pytest.raises(BadOption, match="give a plain function"):
            JsonLinesTarget(path, decode=bad)  # type: ignore[arg-type]


async def test_a_full_disk_is_said_and_nothing_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = [False]
    write = os.pwritev

    def some(descriptor: int, buffers: Any, offset: int) -> int:
        if full[0]:
            write(descriptor, [bytes(buffers[0])[:5]], offset)
            raise OSError(28, "No space left on device")
        return write(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", some)
    async with opened(path) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        full[0] = True
        with pytest.raises(ViewUnavailable, match=r"no space left for .*entries.jsonl.*free some") as failed:
            await session.take(batch(0, "b"))
        assert isinstance(failed.value.__cause__, DiskFull)
        with pytest.raises(ViewUnavailable, match="no space left"):
            await target.accept(Fence(1, 2), SOURCE)
        full[0] = False
        again = StreamCalls(target, Fence(1, 3))
        assert (await again.greet()).applied == {0: 0}
        assert (await again.take(batch(0, "b"))).last == 1
    assert kept(path) == [(0, "a"), (0, "b")]


# ---------------------------------------------------------------------- with a player

PLAYER = """
import asyncio, json, sys
import polonaise
from polonaise.player import JsonLinesTarget, Player, PlayerSettings

async def main(directory, path):
    target = JsonLinesTarget(path, decode=json.loads)
    settings = PlayerSettings(batch_entries_max=5)
    async with polonaise.connect(f"embedded:{directory}?partitions=2") as log:
        async with Player(log, "p", lambda tx: {"a": tx.data}, {"a": target}, settings=settings) as player:
            for partition in range(2):
                await player.delivered("a", partition, await log.high_water_mark(partition))
    await target.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_player_that_is_killed_again_and_again_writes_each_entry_once(path: Path) -> None:
    directory = path.parent / "log"
    entries = 3_000

    async def fill() -> None:
        async with polonaise.connect(f"embedded:{directory}?partitions=2") as log:
            await asyncio.gather(*(log.append(b"%d" % number, partition=number % 2) for number in range(entries)))

    asyncio.run(fill())
    kills = 0
    random = Random(1)
    while True:
        before = path.stat().st_size if path.exists() else 0
        more = random.randrange(1, 12_000)
        with subprocess.Popen([sys.executable, "-c", PLAYER, str(directory), str(path)]) as process:
            block_until(
                lambda before=before, more=more, process=process: (
                    process.poll() is not None or (path.exists() and path.stat().st_size > before + more)
                )
            )
            if process.poll() is not None:
                break
            process.kill()
            kills += 1
    assert process.returncode == 0
    assert kills > 8
    found = kept(path)
    for partition in range(2):
        assert [payload for each, payload in found if each == partition] == list(range(partition, entries, 2))


async def test_what_is_wrong_with_the_file_shows_in_the_players_health_and_passes(path: Path) -> None:
    settings = PlayerSettings(retry_s_min=0.01, retry_s_max=0.1)
    path.write_text("somebody's\n")
    async with polonaise.connect(f"embedded:{path.parent / 'log'}") as log, opened(path) as target:
        await log.append(b"a")
        async with Player(log, "p", lambda tx: {"a": tx.data}, {"a": target}, settings=settings) as player:
            await wait_until(lambda: "holds something" in player.health()["targets"]["a"]["reason"], "it is said")
            assert not player.health()["well"]
            path.unlink()
            await player.delivered("a", 0, 0)
            await wait_until(lambda: player.health()["well"], "all is well again")
    assert kept(path) == [(0, "a")]
