"""Staging: what a task is given comes out of its blocks again, in groups within bounds; leftovers go, needs stay."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.client.protocol.draft import Limits
from polonaise.client.protocol.locks import Lock
from polonaise.errors import BadOption, DeadlineExceeded, NotFound
from polonaise.fragments.store import ObstoreStore, open_store
from polonaise.spark import staging
from polonaise.spark.protocol.blocks import Block, joined
from polonaise.spark.protocol.plans import INLINE, Plan, Staged, plans_of
from polonaise.spark.protocol.sinkprogress import SinkProgress, register_key
from polonaise.spark.publishing import RealPublicationPort
from polonaise.spark.rows import RowColumns
from polonaise.spark.staging import Stage, collect, discard, staging_of, store_plan
from polonaise.terms import LockMode
from rigs.faults import raises_code
from rigs.stepping import APP, LIMITS, piece, staged_by


@pytest.fixture
def store(tmp_path: Path) -> ObstoreStore:
    return open_store(str(tmp_path / "staging"))


def rows_of(plan: Plan, objects: dict[str, bytes]) -> list[list[bytes]]:
    """The bodies of each group."""
    groups = []
    for refs in plan.groups:
        raws = [
            (plan.inline if ref.object == INLINE else objects[plan.objects[ref.object]])[
                ref.offset : ref.offset + ref.length
            ]
            for ref in refs
        ]
        group = joined([Block.decode(raw) for raw in raws])
        ends = list(group.data_ends)
        bodies = [bytes(group.data[start:stop]) for start, stop in zip([0, *ends], ends, strict=False)]
        assert list(group.data_crcs) == [crc32(body) for body in bodies]
        groups.append(bodies)
    return groups


BODIES = st.lists(st.binary(max_size=12), max_size=20)


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.integers(0, 2), BODIES, max_size=3), max_size=4), st.booleans())
def test_plans_hold_each_row_once_in_the_order_of_tasks_in_groups_within_bounds(
    tasks: list[dict[int, list[bytes]]], inline: bool
) -> None:
    limits = Limits(group_count_max=5, group_bytes_max=20)
    objects: dict[str, bytes] = {}
    staged = []
    for number, rows in enumerate(tasks):
        stage = Stage(number, objects.__setitem__, 10_000 if inline else 0, limits)
        for partition, bodies in rows.items():
            if bodies:
                stage.add(partition, piece(bodies))
        staged.append(stage.finish())
    plans = plans_of(APP, 7, reversed(staged), limits)
    for plan in plans:
        stored = Plan.parse(plan.pack(), "a plan")
        groups = rows_of(stored, objects)
        assert groups == rows_of(plan, objects)
        for group in groups:
            assert 0 < len(group) <= 5
            assert len(group) == 1 or sum(map(len, group)) <= 20
        assert [body for group in groups for body in group] == [
            body for rows in tasks for body in rows.get(plan.partition, [])
        ]
    assert {plan.partition for plan in plans} == {p for rows in tasks for p, bodies in rows.items() if bodies}


def test_headers_and_locks_go_with_their_rows_through_blocks_that_are_joined() -> None:
    locks = [b"", bytes(Lock("a", 1, LockMode.APPEND)), b"".join([Lock("b", 2), Lock("c", 3)])]
    objects: dict[str, bytes] = {}
    for held in (locks, [b""] * 3):
        stage = Stage(0, objects.__setitem__, 10_000, Limits(group_count_max=2))
        bare = piece([b"x", b"y", b"z"])
        stage.add(0, RowColumns(np.array([-1, 0, 7], np.int32), bare.crcs, bare.lengths, bare.data, held))
        staged = stage.finish()
        blocks = [Block.decode(staged.inline[ref.offset : ref.offset + ref.length]) for ref in staged.blocks]
        group = joined(blocks)
        assert len(blocks) == 2
        assert list(group.headers) == [-1, 0, 7]
        assert list(group.lock_ends) == ([0, 1, 3] if held is locks else [])
        assert list(group.lock_modes) == ([2, 1, 1] if held is locks else [])
        assert list(group.lock_hashes) == (
            [each.hash for each in (Lock("a", 1), Lock("b", 2), Lock("c", 3))] if held is locks else []
        )


def test_rows_up_to_the_limit_travel_inline_and_others_are_uploaded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "OBJECT_BYTES", 1_000)
    objects: dict[str, bytes] = {}
    small, large = Stage(0, objects.__setitem__, 500), Stage(0, objects.__setitem__, 500, Limits(group_count_max=10))
    small.add(0, piece([b"x" * 100]))
    assert small.finish().objects == ()
    for _ in range(10):
        large.add(0, piece([b"x" * 100] * 10))
    staged = large.finish()
    assert len(staged.objects) == len(objects) > 5
    assert all(len(data) < 3_000 for data in objects.values())
    assert staged.inline == b""
    assert sum(ref.rows for ref in staged.blocks) == 100


def test_what_a_task_holds_is_bounded_over_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "OPEN_BYTES_MAX", 1_000)
    objects: dict[str, bytes] = {}
    stage = Stage(0, objects.__setitem__, 0)
    for partition in range(50):
        stage.add(partition, piece([b"x" * 100]))
        assert stage._open_weight <= 1_100
    assert sorted(ref.partition for ref in stage.finish().blocks) == list(range(50))


# ------------------------------------------------------------------ what is damaged or gone


def test_a_plan_that_does_not_read_as_it_was_written_is_refused() -> None:
    (plan,) = plans_of(APP, 1, staged_by([{0: [b"a"]}], {}, inline=True), LIMITS)
    raw = plan.pack()
    assert Plan.parse(raw, "p") == plan
    for damaged in (raw[:-1], raw[:30] + b"x" + raw[31:], b"", raw.replace(b" 1 ", b" 2 ", 1)):
        with raises_code("sink_state_damaged", match="p in the staging store"):
            Plan.parse(damaged, "p")


async def test_staged_rows_that_changed_are_never_published(store: ObstoreStore) -> None:
    objects: dict[str, bytes] = {}
    (plan,) = plans_of(APP, 1, staged_by([{0: [b"abc"]}], objects), LIMITS)
    ((name, data),) = objects.items()
    await store.put_if_absent(name, data[:-1] + b"x")
    with raises_code("sink_state_damaged", match=name):
        async for _ in RealPublicationPort(None, store, 1.0).groups(plan, 0):  # type: ignore[arg-type]
            pass


def test_bytes_that_are_no_block_are_refused() -> None:
    block = staged_by([{0: [b"abc"]}], {}, inline=True)[0].inline
    Block.decode(block)
    for damaged in (b"", block[:-1], b"x" + block[1:], block + b"x"):
        with raises_code("sink_state_damaged"):
            Block.decode(damaged)


def test_a_register_that_no_sink_wrote_is_refused() -> None:
    assert SinkProgress.parse((some := SinkProgress(3, 1, 2, 4, ((0, 1),), "plans/x")).pack(), "app", 7) == some
    wrong = [SinkProgress(3, 0, 2, 1), SinkProgress(3, 3, 2, 1), SinkProgress(-1, 1, 1, 1), SinkProgress(3, 1, 1, 0)]
    for value in (b"", b"hello", *(progress.pack() for progress in wrong)):
        with raises_code("sink_state_damaged", match=r"register spark/app of partition 7 holds .* another txnAppId"):
            SinkProgress.parse(value, "app", 7)


@pytest.mark.parametrize(("app", "size"), [("", 0), ("x" * 1_100, 1_100), ("ü" * 600, 1_200)])
def test_an_application_without_a_usable_name_is_refused(app: str, size: int) -> None:
    with pytest.raises(BadOption, match=f"txnAppId has 1 to 1018 bytes, this one {size}$"):
        register_key(app)


# ------------------------------------------------------------------ leftovers


async def stored(store: ObstoreStore, staged: list[Staged], objects: dict[str, bytes]) -> list[str]:
    for name, data in objects.items():
        await store.put_if_absent(name, data)
    return [await store_plan(store, plan) for plan in plans_of(APP, 1, staged, LIMITS)]


async def names(store: ObstoreStore) -> set[str]:
    return {each.path for each in await store.list()}


async def test_old_leftovers_are_collected_but_not_what_an_unfinished_plan_refers_to(
    store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = datetime.now(UTC) - timedelta(days=8)
    with monkeypatch.context() as then:
        then.setattr(staging, "_new_name", lambda: f"{old.strftime('%Y%m%dT%H%M%SZ')}-{len(objects):04d}{len(given)}")
        objects: dict[str, bytes] = {}
        given: list[int] = []
        orphans = staged_by([{0: [b"never committed"]}], objects)
        kept_objects: dict[str, bytes] = {}
        given.append(1)
        kept = staged_by([{0: [b"a", b"b", b"c"]}], kept_objects)
        given.append(2)
        (needed,) = await stored(store, kept, kept_objects)
        given.append(3)
        finished_objects: dict[str, bytes] = {}
        finished = staged_by([{1: [b"a", b"b", b"c"]}], finished_objects)
        given.append(4)
        (over,) = await stored(store, finished, finished_objects)
    for name, data in objects.items():
        await store.put_if_absent(name, data)
    new_objects: dict[str, bytes] = {}
    (young,) = await stored(store, staged_by([{2: [b"d"]}], new_objects), new_objects)

    async def is_needed(plan: Plan, name: str) -> bool:
        assert name != young, "a young plan is kept anyway"
        return name == needed

    assert orphans
    found = await collect(store, is_needed, 7 * 86_400.0)
    assert await names(store) == {needed, young, *kept_objects, *new_objects}
    assert found.objects == 3
    assert not await names(store) & {over, *finished_objects, *objects}


async def test_a_staging_store_that_does_not_answer_is_waited_for_in_bounds() -> None:
    never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    with pytest.raises(DeadlineExceeded, match="staging store did not answer"):
        await staging.within(0.01, never)


async def test_discarding_what_is_gone_is_no_error(store: ObstoreStore) -> None:
    await discard(store, ["staged/nothing-00000"], 1.0)
    with pytest.raises(NotFound):
        await store.get("staged/nothing-00000")


def test_rows_are_staged_beside_the_log_without_an_option() -> None:
    assert staging_of("embedded:/data/log?partitions=4") == "/data/log/staging"
    assert staging_of("file:/data/coordinator") == "/data/coordinator-staging"
