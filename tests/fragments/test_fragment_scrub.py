"""The scrub of fragments: a server reads them again and again, and mends from its log what has rotted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise import scrubrounds
from polonaise.admin import archive as archives
from polonaise.admin.trimming import trim
from polonaise.fragments import format as fragment_format
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.protocol.scrubschedule import FragmentScrub, ListStore, Pause, Verify
from polonaise.fragments.store import ObstoreStore
from polonaise.node.reasons import Condition
from polonaise.scrubrounds import DAMAGES_MAX
from rigs import storagefiles, trimmed
from rigs.fragments import MoodyStore, moody_store
from rigs.health import condition_when
from rigs.trimmed import Cluster, archived, contents, fill
from rigs.waiting import nothing_happens_for

pytestmark = pytest.mark.slow


def named(number: int) -> FragmentName:
    return FragmentName(0, number * 10, number * 10 + 9, f"{number:064x}")


FRAGMENTS = {named(number): 1_000 for number in range(3)}

# ------------------------------------------------------------------ the decisions


def test_a_damaged_fragment_that_is_deleted_counts_as_unrepaired_no_more() -> None:
    scrub = FragmentScrub(1_000, every_s=100.0, first_s=0.0)
    scrub.listed(0.0, 7, FRAGMENTS)
    for name, deleted in zip(
        FRAGMENTS, (lambda: scrub.gone(9, named(0)), lambda: scrub.good(9, named(1))), strict=False
    ):
        scrub.damaged(8, name, "rotten")
        assert scrub.unrepaired == 1
        deleted()
        assert scrub.unrepaired == 0
    scrub.damaged(8, named(2), "rotten")
    scrub.listed(100.0, 9, {named(0): 1_000})
    assert scrub.unrepaired == 0
    assert scrub.scrubbed.found == 3


def test_a_round_reads_every_fragment_once_and_the_next_one_waits_for_its_time() -> None:
    scrub = FragmentScrub(1_000, every_s=100.0, first_s=5.0)
    assert scrub.next(0.0) == Pause(5.0)
    assert scrub.next(5.0) == ListStore()
    scrub.listed(5.0, 7, FRAGMENTS)
    for name in FRAGMENTS:
        assert scrub.next(5.0) == Verify(name, 1_000)
        scrub.good(8, name)
    told = scrub.scrubbed
    assert (told.rounds, told.fragments, told.fragments_of, told.started_us, told.finished_us) == (1, 3, 3, 7, 8)
    assert scrub.next(5.0) == Pause(100.0)
    assert scrub.next(105.0) == ListStore()


def test_what_was_read_of_a_fragment_holds_up_the_next_one() -> None:
    scrub = FragmentScrub(1_000, every_s=1.0, first_s=0.0)
    assert scrub.pace(0.5, 2_000) == 2.0
    assert scrub.next(1.0) == Pause(1.5)
    assert scrub.scrubbed.bytes == 2_000


def test_a_store_that_can_not_be_read_accuses_no_fragment_and_is_tried_again() -> None:
    scrub = FragmentScrub(1_000, every_s=100.0, first_s=0.0)
    scrub.unreachable(0.0, "it does not answer")
    assert scrub.scrubbed.trouble == "it does not answer"
    assert scrub.next(0.0) == Pause(60.0)
    assert scrub.next(60.0) == ListStore()
    scrub.listed(60.0, 0, FRAGMENTS)
    assert scrub.scrubbed.trouble == ""
    scrub.unreachable(60.0, "gone again")
    assert scrub.next(120.0) == Verify(named(0), 1_000), "the same one"
    assert scrub.scrubbed.found == 0


def test_what_can_not_be_repaired_is_looked_at_again_and_does_not_hold_up_the_rest() -> None:
    scrub = FragmentScrub(1_000, every_s=10_000.0, first_s=0.0)
    scrub.listed(0.0, 0, FRAGMENTS)
    first, second, third = FRAGMENTS
    scrub.damaged(5, first, "bad")
    scrub.not_repaired(0.0, 6, Verify(first, 1_000), "trimmed: restore it", passing=False)
    assert scrub.next(0.0) == Verify(second, 1_000)
    scrub.damaged(7, second, "bad")
    scrub.not_repaired(0.0, 7, Verify(second, 1_000), "not ready", passing=True)
    scrub.good(8, third)
    assert [each.why for each in scrub.scrubbed.damages] == ["trimmed: restore it", "not ready"]
    assert scrub.next(0.0) == Pause(60.0)
    assert scrub.next(60.0) == Verify(second, 1_000)
    scrub.damaged(9, second, "bad")
    scrub.good(10, second)
    assert scrub.next(60.0) == Pause(540.0)
    assert scrub.next(600.0) == Verify(first, 1_000)
    scrub.good(11, first)  # an operator has restored it
    told = scrub.scrubbed
    assert (told.rounds, told.found, told.repaired, [each.repaired_us for each in told.damages]) == (1, 2, 2, [11, 10])


def test_a_fragment_that_alone_can_not_be_read_is_told_and_holds_up_no_other() -> None:
    scrub = FragmentScrub(1_000, every_s=10_000.0, first_s=0.0)
    scrub.listed(0.0, 0, FRAGMENTS)
    first, second, third = FRAGMENTS
    scrub.unreadable(0.0, 5, Verify(first, 1_000), "input/output error")
    for name in (second, third):
        assert scrub.next(0.0) == Verify(name, 1_000)
        scrub.good(6, name)
    assert (scrub.scrubbed.rounds, scrub.scrubbed.found, scrub.scrubbed.damages[0].why) == (1, 1, "input/output error")
    assert scrub.next(60.0) == Verify(first, 1_000)
    scrub.unreadable(60.0, 7, Verify(first, 1_000), "input/output error")
    assert scrub.scrubbed.found == 1
    scrub.good(8, first)
    assert scrub.scrubbed.damages[0].repaired_us == 8


def test_what_is_damaged_again_is_another_finding() -> None:
    scrub = FragmentScrub(1_000, every_s=1.0, first_s=0.0)
    for time in range(2):
        scrub.listed(float(time), time, {named(0): 1_000})
        scrub.damaged(time, named(0), "bad")
        scrub.good(time + 1, named(0))
    assert (scrub.scrubbed.found, scrub.scrubbed.repaired, len(scrub.scrubbed.damages)) == (2, 2, 2)


def test_a_damaged_fragment_that_was_moved_away_is_no_damage_any_more() -> None:
    scrub = FragmentScrub(1_000, every_s=1.0, first_s=0.0)
    scrub.listed(0.0, 0, FRAGMENTS)
    scrub.damaged(1, named(0), "bad")
    scrub.not_repaired(0.0, 1, Verify(named(0), 1_000), "why", passing=False)
    scrub.listed(5.0, 2, {named(1): 1_000})
    assert scrub.scrubbed.damages == ()
    scrub.gone(3, named(1))
    assert scrub.next(5.0) == Pause(1.0)
    assert scrub.next(1_000.0) == ListStore(), "nor is it looked for"


def test_findings_are_remembered_up_to_a_bound() -> None:
    scrub = FragmentScrub(1_000, every_s=1.0, first_s=0.0)
    scrub.listed(0.0, 0, {named(number): 1 for number in range(DAMAGES_MAX + 5)})
    for number in range(DAMAGES_MAX + 5):
        scrub.damaged(number, named(number), "bad")
        scrub.not_repaired(0.0, number, Verify(named(number), 1), "why", passing=False)
    assert scrub.scrubbed.found == DAMAGES_MAX + 5
    assert [damage.found_us for damage in scrub.scrubbed.damages] == list(range(5, DAMAGES_MAX + 5))
    # Read again: those that are no longer in the list are no new findings, and their repair counts.
    scrub.damaged(1_000, named(0), "bad")
    scrub.not_repaired(0.0, 1_000, Verify(named(0), 1), "why", passing=False)
    assert scrub.scrubbed.found == DAMAGES_MAX + 5
    scrub.good(1_001, named(0))
    scrub.good(1_002, named(9))
    assert (scrub.scrubbed.found, scrub.scrubbed.repaired) == (DAMAGES_MAX + 5, 2)
    assert len(scrub.scrubbed.damages) == DAMAGES_MAX


# ------------------------------------------------------------------ a server


@pytest.fixture
def store(tmp_path: Path) -> MoodyStore:
    return moody_store(tmp_path / "fragments")


@pytest.fixture
async def log(cluster: Cluster, store: MoodyStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[polonaise.Log]:
    """An archived log whose server scrubs all the time."""
    quick = replace(
        trimmed.SETTINGS, scrub_first_s=0.05, scrub_every_s=0.05, scrub_bytes_per_s=10_000_000, scrub_again_s=0.05
    )
    monkeypatch.setattr(trimmed, "SETTINGS", quick)
    monkeypatch.setattr(scrubrounds, "ROUND_S_MIN", 0.05)
    async with cluster.served(store) as log:
        await fill(log, 200)
        await archived(log, store)
        yield log


async def scrub_when(log: polonaise.Log, wanted: Callable[[Any], Any]) -> Condition:
    return await condition_when(log, lambda told: wanted(told.fragments_scrub))


def place_of(store: ObstoreStore, name: FragmentName) -> Path:
    assert store._directory is not None
    return store._directory / name.path


def flip(store: ObstoreStore, name: FragmentName) -> Path:
    path = place_of(store, name)
    storagefiles.flip(path, 40)
    return path


async def fragment_of(store: ObstoreStore, place: int) -> FragmentName:
    return list(await archives.fragments_of(store, 0))[place]


def has_given_up(scrub: Any) -> bool:
    return any(damage["why"] for damage in scrub["damages"])


async def test_what_rots_is_found_and_written_again_from_the_log_however_often(
    log: polonaise.Log, store: MoodyStore
) -> None:
    name = await fragment_of(store, 1)
    before = await store.get(name.path)
    told = await scrub_when(log, lambda scrub: scrub["rounds"] and scrub["fragments"])
    assert told.troubles == []
    for time in (1, 2):
        path = flip(store, name)
        told = await scrub_when(log, lambda scrub, time=time: scrub["repaired"] == time)
        assert path.read_bytes() == before
        assert told.fragments_scrub is not None
        assert told.fragments_scrub["damages"][-1]["path"] == name.path
        assert told.troubles == []
    assert (await archives.verify(store, 0)).troubles == []
    assert len(list(path.parent.iterdir())) == len(await archives.fragments_of(store, 0)), "nothing is left beside it"


@pytest.mark.parametrize("change", [lambda raw: raw[:100], lambda raw: raw + b"more"], ids=["cut", "longer"])
async def test_an_object_of_another_length_is_written_again_at_once(
    change: Callable[[bytes], bytes], log: polonaise.Log, store: MoodyStore, caplog: pytest.LogCaptureFixture
) -> None:
    name = await fragment_of(store, 0)
    before = await store.get(name.path)
    place_of(store, name).write_bytes(change(before))
    await scrub_when(log, lambda scrub: scrub["repaired"] == 1)
    assert await store.get(name.path) == before
    assert "is not repaired" not in caplog.text


async def test_a_fragment_that_can_not_be_read_is_told_and_the_others_are_mended(
    log: polonaise.Log, store: MoodyStore
) -> None:
    store.withheld = (await fragment_of(store, 0)).path
    told = await scrub_when(log, has_given_up)
    assert any(store.withheld in line and "input/output error" in line for line in told.troubles)
    flip(store, await fragment_of(store, 1))
    await scrub_when(log, lambda scrub: scrub["repaired"] == 1)
    store.withheld = ""
    told = await scrub_when(log, lambda scrub: scrub["repaired"] == 2)
    assert told.troubles == []


async def test_what_the_log_has_dropped_is_told_with_what_to_do_until_somebody_restores_it(
    log: polonaise.Log, store: MoodyStore
) -> None:
    await trim(log, store, 0)
    name = await fragment_of(store, 0)
    before = await store.get(name.path)
    path = flip(store, name)
    told = await scrub_when(log, has_given_up)
    (line,) = told.troubles
    assert name.path in line
    assert "the storage nodes no longer hold its transactions" in line
    assert f"restore {name.path} from a copy" in line
    assert told.ready
    assert path.read_bytes() != before, "what can't be proved is not written"
    path.write_bytes(before)
    told = await scrub_when(log, lambda scrub: scrub["repaired"] == 1)
    assert told.troubles == []
    assert len(await contents(log)) > 0


async def test_what_another_fragment_holds_is_written_again_although_the_log_has_dropped_it(
    log: polonaise.Log, store: MoodyStore
) -> None:
    whole = {name: await store.get(name.path) for name in await archives.fragments_of(store, 0)}
    for name in whole:
        await store.delete(name.path)
    (large,) = await archived(log, store, size=2**20)
    for name, raw in whole.items():
        assert await store.put_if_absent(name.path, raw)
    await trim(log, store, 0)
    first = next(iter(whole))
    path = flip(store, first)
    await scrub_when(log, lambda scrub: scrub["repaired"] == 1)
    assert path.read_bytes() == whole[first]
    assert large.last >= first.last


async def test_a_store_that_does_not_answer_is_told_and_accuses_nobody(log: polonaise.Log, store: MoodyStore) -> None:
    await scrub_when(log, lambda scrub: scrub["rounds"] > 0)
    store.away = True
    told = await scrub_when(log, lambda scrub: scrub["trouble"])
    assert any("the fragments are not scrubbed" in line and "does not answer" in line for line in told.server_troubles)
    store.away = False
    told = await scrub_when(log, lambda scrub: not scrub["trouble"] and scrub["rounds"] > 2)
    assert told.fragments_scrub is not None
    assert (told.fragments_scrub["found"], told.troubles, told.server_troubles) == (0, [], [])


async def test_a_store_that_can_not_be_written_keeps_the_damage_and_says_why(
    log: polonaise.Log, store: MoodyStore
) -> None:
    name = await fragment_of(store, 0)
    store.read_only = True
    flip(store, name)
    told = await scrub_when(log, has_given_up)
    assert "no writing today" in told.troubles[0]
    store.read_only = False
    await scrub_when(log, lambda scrub: scrub["repaired"] == 1)


async def test_another_object_than_the_name_says_is_never_written(
    log: polonaise.Log, store: MoodyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version may make other bytes of the same transactions, and another life of the log has others."""
    monkeypatch.setattr(fragment_format, "GROUP_ROWS", 3)
    name = await fragment_of(store, 0)
    path = flip(store, name)
    damaged = path.read_bytes()
    told = await scrub_when(log, has_given_up)
    assert "this version makes another object" in told.troubles[0]
    assert "polonaise archive run" in told.troubles[0]
    assert path.read_bytes() == damaged


async def test_a_server_that_is_told_not_to_scrub_does_not(
    cluster: Cluster, store: MoodyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimmed, "SETTINGS", replace(trimmed.SETTINGS, scrub_bytes_per_s=0))
    server = await cluster.start_server(store)
    await nothing_happens_for(0.2)
    scrub = server.health()["fragments_scrub"]
    assert (scrub["bytes_per_s"], scrub["rounds"], scrub["started_us"]) == (0, 0, 0)
