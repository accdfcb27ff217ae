"""Publishing to a real log, embedded: kills, other splits, two committers, zombies, lost rows, full registers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise.client.log import Log, partitions_of
from polonaise.client.partitions import append_own
from polonaise.client.protocol.draft import Change, Limits
from polonaise.client.protocol.group import Group
from polonaise.errors import (
    AppendFailed,
    AppendUnknown,
    BadOption,
    Closed,
    CoordinatorUnavailable,
    DeadlineExceeded,
    ExpectationFailed,
    RegistersFull,
)
from polonaise.fragments.store import ObstoreStore, open_store
from polonaise.spark import publishing
from polonaise.spark.protocol.plans import Plan, Staged, plans_of
from polonaise.spark.protocol.sinkprogress import Origin, SinkProgress, register_key
from polonaise.spark.publishing import (
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    Publication,
    RealPublicationPort,
    collect_leftovers,
    publish,
    publish_unnamed,
)
from polonaise.spark.staging import Stage, store_plan
from polonaise.terms import OwnKind
from rigs.faults import raises_code
from rigs.stepping import APP, Rows, piece, staged_by
from rigs.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE_S = 20.0

SMALL = Limits(group_count_max=2)
BODIES = [b"%d" % n for n in range(7)]
ONE_SPLIT: Sequence[Rows] = [{0: BODIES[:3]}, {0: BODIES[3:], 1: [b"x"]}]
ANOTHER_SPLIT: Sequence[Rows] = [{0: BODIES[::2], 1: [b"x"]}, {0: BODIES[1::2]}]


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    async with polonaise.connect(f"embedded:{tmp_path / 'log'}?partitions=2") as log:
        yield log


@pytest.fixture
def store(tmp_path: Path) -> ObstoreStore:
    return open_store(str(tmp_path / "staging"))


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "Limits", lambda: SMALL)


async def staged(store: ObstoreStore, tasks: Sequence[Rows]) -> list[Staged]:
    objects: dict[str, bytes] = {}
    found = staged_by(tasks, objects)
    for name, data in objects.items():
        await store.put_if_absent(name, data)
    return found


async def write(
    log: Log, store: ObstoreStore, batch: int, tasks: Sequence[Rows], app: str | None = APP, *, in_order: bool = True
) -> None:
    await publish(log, store, app, batch, await staged(store, tasks), PATIENCE_S, in_order=in_order)


async def bodies(log: Log, partition: int) -> list[bytes]:
    return [tx.data async for tx in log.read(partition)]


async def progress(log: Log, partition: int = 0) -> SinkProgress:
    held = await log.register(register_key(APP), partition)
    assert held is not None
    return SinkProgress.parse(held, APP, partition)


async def names(store: ObstoreStore) -> list[str]:
    return [each.path for each in await store.list()]


async def killed_after(
    groups: int, log: Log, store: ObstoreStore, tasks: Sequence[Rows], batch: int = 0, *, in_order: bool = True
) -> None:
    """Write a batch, with the driver's process killed when so many groups are in partition 0."""
    append, done = RealPublicationPort.append, []

    async def mortal(self: RealPublicationPort, partition: int, *rest: Any) -> None:
        if partition == 0 and len(done) == groups:
            raise Closed("killed")
        await append(self, partition, *rest)
        done.append(partition) if partition == 0 else None

    with pytest.MonkeyPatch.context() as life:
        life.setattr(RealPublicationPort, "append", mortal)
        with pytest.raises(Closed):
            await write(log, store, batch, tasks, in_order=in_order)


# ------------------------------------------------------------------ exactly once


async def test_a_batch_is_published_once_in_the_order_of_its_tasks(log: Log, store: ObstoreStore) -> None:
    await write(log, store, 0, ONE_SPLIT)
    await write(log, store, 0, ANOTHER_SPLIT)
    assert await bodies(log, 0) == BODIES
    assert await bodies(log, 1) == [b"x"]
    assert (await progress(log)).finished
    assert await progress(log, 1) == SinkProgress(0, 1, 1, 2)
    assert await names(store) == []


@pytest.mark.parametrize("in_order", [False, True], ids=["named", "stream"])
async def test_a_finished_batch_adds_nothing_whatever_rows_it_comes_with_again(
    log: Log, store: ObstoreStore, caplog: pytest.LogCaptureFixture, in_order: bool
) -> None:
    """What an orchestrator's retry relies on, and a stream that begins again under its old name."""
    await write(log, store, 1, [{0: [b"a"]}], in_order=in_order)
    for again in ([{1: [b"b"]}], [{0: [b"a"], 1: [b"b"]}], [{0: [b"c"]}], [{}]):
        caplog.clear()
        await write(log, store, 1, again, in_order=in_order)
        assert caplog.messages == [f"batch 1 of {APP!r} was written before: nothing was added"]
    assert [await bodies(log, number) for number in (0, 1)] == [[b"a"], []]


async def test_a_version_without_rows_leaves_its_mark_and_no_application_is_given_it(
    log: Log, store: ObstoreStore, caplog: pytest.LogCaptureFixture
) -> None:
    await write(log, store, 1, [{}], in_order=False)
    assert not caplog.messages
    assert await progress(log) == SinkProgress(1, 1, 1, 1)
    for again in ([{1: [b"late"]}], [{0: [b"late"]}], [{}]):
        caplog.clear()
        await write(log, store, 1, again, in_order=False)
        assert caplog.messages == [f"batch 1 of {APP!r} was written before: nothing was added"]
    await write(log, store, 2, [{1: [b"b"]}], in_order=False)
    await write(log, store, 1, [{1: [b"late"]}], in_order=False)
    assert [await bodies(log, number) for number in (0, 1)] == [[], [b"b"]]
    assert await log.high_water_mark(0) == 0
    assert await names(store) == []


async def test_a_batch_without_rows_for_a_partition_leaves_it_alone(log: Log, store: ObstoreStore) -> None:
    await write(log, store, 0, [{1: [b"a"]}])
    assert await log.register(register_key(APP), 0) is None
    await write(log, store, 1, [{}])
    assert (await progress(log, 1)).batch == 0


@pytest.mark.parametrize(("groups", "rows"), [(0, 0), (2, 3)])
async def test_killed_between_two_groups_and_written_again_in_another_split(
    log: Log, store: ObstoreStore, groups: int, rows: int
) -> None:
    await killed_after(groups, log, store, ONE_SPLIT)
    assert await bodies(log, 0) == BODIES[:rows]
    await write(log, store, 0, ANOTHER_SPLIT)
    assert await bodies(log, 0) == (BODIES if groups else BODIES[::2] + BODIES[1::2])
    assert await bodies(log, 1) == [b"x"]


async def test_groups_are_as_large_as_the_log_takes_them(
    log: Log, store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "Limits", Limits)
    rows = [b"%d" % n for n in range(10_000)]
    stage = Stage(0, lambda *_: None, 10_000_000)
    stage.add(0, piece(rows))
    await publish(log, store, APP, 0, [stage.finish()], PATIENCE_S, in_order=True)
    assert await bodies(log, 0) == rows
    assert (await progress(log)).total == 3


# ------------------------------------------------------------------ what stops it


async def test_a_batch_after_one_that_is_there_in_part_is_refused(log: Log, store: ObstoreStore) -> None:
    await killed_after(1, log, store, ONE_SPLIT)
    with raises_code("batch_unfinished", match=r"whole in [01] of the 2 partitions"):
        await write(log, store, 1, [{0: [b"later"]}])
    with raises_code("batch_unfinished", match=r"1 of its 4 groups"):
        await publish(
            log, store, APP, 1, await staged(store, [{0: [b"later"]}]), PATIENCE_S, in_order=True, is_next=True
        )
    await write(log, store, 0, ONE_SPLIT)
    await write(log, store, 1, [{0: [b"later"]}])
    assert await bodies(log, 0) == [*BODIES, b"later"]


async def test_a_driver_of_another_query_is_refused_in_the_partition_itself(log: Log, store: ObstoreStore) -> None:
    """It has looked at all partitions before the other has begun."""
    publishing = [
        publish(
            log, store, APP, batch, await staged(store, [{0: [b"%d" % batch]}]), PATIENCE_S, in_order=True,
            is_next=bool(batch), origin=Origin(query, "1-00"),
        )
        for batch, query in enumerate(("mine", "another's"))
    ]  # fmt: skip
    await publishing[0]
    with pytest.raises(BadOption, match="is another's: query mine has written batch 0"):
        await publishing[1]
    assert await bodies(log, 0) == [b"0"]


NAMED = [{0: [b"v1-p0"], 1: [b"v1-p1"]}], [{0: [b"v2-p0"], 1: [b"v2-p1"]}]


async def test_a_named_write_is_refused_before_anything_while_an_earlier_one_is_not_in_all_its_partitions(
    log: Log, store: ObstoreStore
) -> None:
    """The partition that the earlier one did not come to has no trace of it."""
    append = RealPublicationPort.append

    async def holds_something() -> bool:
        return await log.high_water_mark(0) >= 0

    async def mortal(port: RealPublicationPort, partition: int, *what: Any) -> None:
        if partition == 1:
            await wait_until(holds_something)
            raise Closed("dead")
        await append(port, partition, *what)

    with pytest.MonkeyPatch.context() as life:
        life.setattr(RealPublicationPort, "append", mortal)
        with pytest.raises(Closed):
            await write(log, store, 1, NAMED[0], in_order=False)
    for later in (NAMED[1], [{0: [b"v2"]}], [{1: [b"v2"]}]):
        with raises_code("batch_unfinished", match=r"batch 1 .* whole in 1 of the 2 partitions"):
            await write(log, store, 2, later, in_order=False)
    with raises_code("batch_unfinished", match="for 2 partitions, and comes with rows for 1 now"):
        await write(log, store, 1, [{0: [b"v1"]}], in_order=False)
    await write(log, store, 1, NAMED[0], in_order=False)
    await write(log, store, 2, NAMED[1], in_order=False)
    assert [await bodies(log, number) for number in (0, 1)] == [[b"v1-p0", b"v2-p0"], [b"v1-p1", b"v2-p1"]]


async def test_a_named_write_that_is_overtaken_on_the_way_does_not_pass_for_written(
    log: Log, store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RealPublicationPort.append

    async def overtaken(port: RealPublicationPort, partition: int, *what: Any) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(publishing, "Limits", lambda: SMALL)
        await write(log, store, 2, [{0: [b"v2"]}], in_order=True)
        await append(port, partition, *what)

    monkeypatch.setattr(RealPublicationPort, "append", overtaken)
    with raises_code("batch_overtaken", match="of a later number, was written to partition 0"):
        await write(log, store, 1, [{0: [b"v1"]}], in_order=False)
    assert await bodies(log, 0) == [b"v2"]


async def test_a_plan_whose_rows_are_gone_is_said_by_name(log: Log, store: ObstoreStore) -> None:
    await killed_after(1, log, store, ONE_SPLIT)
    for name in await names(store):
        await store.delete(name)
    with raises_code("staging_lost", match="partition 0"):
        await write(log, store, 0, ANOTHER_SPLIT)
    assert await bodies(log, 0) == BODIES[:2], "and nothing else is put in their place"


async def test_own_rows_that_are_gone_are_said_by_name(log: Log, store: ObstoreStore) -> None:
    mine = await staged(store, [{0: [b"a"]}])
    await store.delete(mine[0].objects[0])
    with raises_code("staging_lost"):
        await publish(log, store, APP, 0, mine, PATIENCE_S, in_order=True)


async def test_a_register_of_somebody_else_is_refused(log: Log, store: ObstoreStore) -> None:
    await append_own(partitions_of(log), 0, OwnKind.BATCH, changes=[Change.set(register_key(APP), b"mine")])
    with raises_code("sink_state_damaged", match="another txnAppId"):
        await write(log, store, 0, [{0: [b"a"]}])


async def test_full_registers_say_what_to_delete(log: Log, store: ObstoreStore) -> None:
    for number in range(16):
        change = Change.set(b"%d" % number, bytes(65_500))
        await log.append(b"", 0, changes=[change])
    with pytest.raises(RegistersFull, match="txnAppId"):
        await write(log, store, 0, [{0: [b"a"]}], app="a" * 600)


class Unreachable(RealPublicationPort):
    """A log that nobody can reach; each try takes a second."""

    def __init__(self) -> None:
        super().__init__(None, None, 0.0)  # type: ignore[arg-type]
        self.now = 0.0
        self.pauses_s: list[float] = []

    async def register(self, key: bytes, partition: int) -> bytes | None:
        raise CoordinatorUnavailable("away")

    async def append(self, *_: Any) -> None:
        raise AppendFailed("away")

    async def pause(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now += 1.0

    def chance(self) -> float:
        return 1.0

    def now_s(self) -> float:
        return self.now


def inline_plan() -> Plan:
    return plans_of(APP, 1, staged_by([{0: [b"a", b"b", b"c"]}], {}, inline=True), SMALL)[0]


async def test_a_batch_that_gets_no_further_fails_in_time_and_says_how_to_go_on() -> None:
    port = Unreachable()
    with pytest.raises(DeadlineExceeded, match=r"run again"):
        await Publication(port, inline_plan(), 1, 5.0).run()
    assert port.now == 5.0
    with pytest.raises(DeadlineExceeded, match="txnAppId"):
        await publish_unnamed(port, inline_plan(), 5.0)


class Overtaken(Unreachable):
    """A port whose partition another driver publishes the same batch in, one group in each `every` seconds."""

    def __init__(self, plan: Plan, every: float) -> None:
        super().__init__()
        self._plan = plan
        self._every = every

    async def register(self, key: bytes, partition: int) -> bytes | None:
        done = min(1 + int(self.now / self._every), len(self._plan.groups))
        return SinkProgress(self._plan.batch, done, len(self._plan.groups), 1, (), "the other's plan").pack()

    async def load_plan(self, name: str) -> Plan:
        return self._plan

    async def groups(self, plan: Plan, start: int) -> AsyncGenerator[Group, None]:
        for _ in plan.groups[start:]:
            yield Group.of([b"a"])

    async def append(self, *_: Any) -> None:
        raise ExpectationFailed("somebody else was quicker")


async def test_while_another_driver_gets_further_with_the_batch_nobody_loses_patience() -> None:
    plan = plans_of(APP, 1, staged_by([{0: BODIES}], {}, inline=True), SMALL)[0]
    port = Overtaken(plan, every=4.0)
    await Publication(port, plan, 1, 5.0).run()
    assert port.now == 12.0, "longer than its patience, and until the last of four groups was there"
    stuck = Overtaken(plan, every=1_000.0)
    with pytest.raises(DeadlineExceeded, match="got no further in partition 0 for 5 s"):
        await Publication(stuck, plan, 1, 5.0).run()
    assert stuck.now == 5.0


async def test_what_fails_again_and_again_is_tried_less_and_less_often() -> None:
    port = Unreachable()
    for tries in (Publication(port, inline_plan(), 1, 100.0).run(), publish_unnamed(port, inline_plan(), 100.0)):
        port.pauses_s.clear()
        with pytest.raises(DeadlineExceeded):
            await tries
        assert port.pauses_s[:4] == [PAUSE_S_MIN, 2 * PAUSE_S_MIN, 4 * PAUSE_S_MIN, 8 * PAUSE_S_MIN]
        assert max(port.pauses_s) == PAUSE_S_MAX
        assert port.pauses_s[-1] == 1.0, "no longer than there is patience left"


class FailsForSome(Unreachable):
    """A port to a log that has our batch in part, by a plan of somebody else, and takes no group for some tries."""

    def __init__(self, plan: Plan, tries: int) -> None:
        super().__init__()
        self._plan, self._tries = plan, tries
        self.held = SinkProgress(plan.batch, 1, len(plan.groups), 1, (), "the other's plan").pack()
        self.loaded = 0

    async def register(self, key: bytes, partition: int) -> bytes | None:
        return self.held

    async def load_plan(self, name: str) -> Plan:
        self.loaded += 1
        return self._plan

    async def append(self, partition: int, group: Group, expectations: Any, changes: Sequence[Change]) -> None:
        if self._tries > 0:
            self._tries -= 1
            raise AppendFailed("away")
        self.held = changes[0].value


async def test_a_stored_plan_is_loaded_once_however_often_its_groups_fail() -> None:
    plan = plans_of(APP, 1, staged_by([{0: BODIES}], {}, inline=True), SMALL)[0]
    port = FailsForSome(plan, 20)
    await Publication(port, plan, 1, 100.0).run()
    assert SinkProgress.parse(port.held, APP, 0).finished
    assert (port.loaded, len(port.pauses_s)) == (1, 20)


async def test_nothing_is_left_in_the_staging_store_but_the_folders_themselves(
    log: Log, store: ObstoreStore, tmp_path: Path
) -> None:
    for batch in range(3):
        await write(log, store, batch, ONE_SPLIT)
    left = sorted(str(path.relative_to(tmp_path / "staging")) for path in (tmp_path / "staging").rglob("*"))
    assert [name.rpartition("/")[0] for name in left] == ["", "plans", ""]


# ------------------------------------------------------------------ without a name


async def test_without_a_name_rows_are_there_each_time_they_are_written(log: Log, store: ObstoreStore) -> None:
    for _ in range(2):
        await write(log, store, 0, ONE_SPLIT, app=None)
    assert await bodies(log, 0) == BODIES * 2
    assert await names(store) == []


async def test_without_a_name_a_group_that_certainly_failed_is_appended_again(
    log: Log, store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, failing = RealPublicationPort.append, [True, False] * 10

    async def moody(self: RealPublicationPort, *given: Any) -> None:
        if failing.pop():
            raise AppendFailed("passed over")
        await append(self, *given)

    monkeypatch.setattr(RealPublicationPort, "append", moody)
    await write(log, store, 0, [{0: BODIES}], app=None)
    assert await bodies(log, 0) == BODIES


async def test_without_a_name_a_group_that_may_be_there_is_not_appended_again(
    log: Log, store: ObstoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(self: RealPublicationPort, partition: int, group: Group, *_: Any) -> None:
        raise AppendUnknown("lost")

    monkeypatch.setattr(RealPublicationPort, "append", lost)
    with pytest.raises(AppendUnknown, match="look for its rows in the log before they are written again"):
        await write(log, store, 0, [{0: BODIES}], app=None)


# ------------------------------------------------------------------ leftovers


async def test_leftovers_are_collected_but_what_the_register_goes_by_and_what_is_of_other_logs_stays(
    log: Log, store: ObstoreStore
) -> None:
    await killed_after(1, log, store, ONE_SPLIT)
    await killed_after(0, log, store, ANOTHER_SPLIT)
    (foreign,) = plans_of(APP, 0, await staged(store, [{0: [b"another log's"]}]), SMALL, "of another log")
    kept = {await store_plan(store, foreign), *foreign.objects}
    await collect_leftovers(log, store, -10.0)
    assert {(await progress(log)).plan, *kept} < set(await names(store))
    await write(log, store, 0, ANOTHER_SPLIT)
    assert await bodies(log, 0) == BODIES
    await collect_leftovers(log, store, -10.0)
    assert set(await names(store)) == kept
