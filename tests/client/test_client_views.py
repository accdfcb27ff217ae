"""Feeding a view: every transaction once, in order, again after a failure, and no partition waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from polonaise.client import condition
from polonaise.client import view as client_view
from polonaise.client.log import partitions_of
from polonaise.errors import BadOption, ClientAhead, DataDamaged, LogForked, ViewFailed, ViewUnavailable
from polonaise.terms import BodyForm, Transaction
from polonaise.wire.fetches import FETCH_MAX
from rigs.clients import Memo, World
from rigs.waiting import nothing_happens_for, time_passes, wait_until


async def test_a_view_is_given_everything_after_its_mark(world: World) -> None:
    world.log.fill(b"0", b"1", b"2")
    world.log.fill(b"3")
    view = Memo(mark=1)
    client = await world.client(view=view)
    await client.wait_applied(3)
    world.log.fill(b"4")
    world.server.feed_all()
    await client.wait_applied(4)
    assert view.bodies == [b"2", b"3", b"4"]
    assert [tx.id for tx in view.applied] == [2, 3, 4]


async def test_plain_and_coroutine_views_are_both_taken(world: World) -> None:
    class Plain:
        def __init__(self) -> None:
            self.seen: list[bytes] = []

        async def high_water_mark(self, partition: int) -> int:
            return -1

        def apply(self, tx) -> None:
            self.seen.append(tx.data)

        async def failed(self, partition: int, id: int, error: Exception) -> None: ...

    view = Plain()
    client = await world.client(view=view)
    await (await client.append(b"paid")).applied()
    assert view.seen == [b"paid"]


async def test_what_a_view_refuses_is_reported_and_delivered_again(world: World, view: Memo) -> None:
    view.fail_on = {1: 3}
    world.log.fill(b"0", b"1", b"2")
    client = await world.client(view=view)
    await client.wait_applied(2)
    assert view.bodies == [b"0", b"1", b"2"]
    assert [(partition, id) for partition, id, _ in view.failures] == [(0, 1)] * 3


async def test_a_view_that_fails_stops_only_its_own_partition(two_partitions: World) -> None:
    world = two_partitions

    class PerPartition:
        def __init__(self) -> None:
            self.views = {0: Memo(), 1: Memo()}

        def high_water_mark(self, partition: int) -> int:
            return self.views[partition].mark

        async def apply(self, tx) -> None:
            await self.views[tx.partition].apply(tx)

        def failed(self, partition: int, id: int, error: Exception) -> None:
            self.views[partition].failed(partition, id, error)

    view = PerPartition()
    view.views[0].fail_on = {0: 1_000_000}
    client = await world.client(view=view)
    await client.append(b"poison", 0)
    for number in range(20):
        await (await client.append(b"%d" % number, 1)).applied()
    assert len(view.views[1].applied) == 20
    assert not view.views[0].applied
    assert view.views[0].failures


async def test_a_slow_views_feed_is_held_by_credit_and_everything_arrives(world: World, view: Memo) -> None:
    view.gate = asyncio.Event()
    client = await world.client(view=view, settings={"credit_bytes": 4_000})
    for number in range(60):
        world.log.fill(b"x" * 300 + b"%d" % number)
    await wait_until(lambda: world.server.mounts.get(0))
    (mount,) = world.server.mounts[0].values()
    await time_passes(0.02)
    world.server.feed_all()
    fed = mount.next_id
    assert fed < 20
    await nothing_happens_for(0.02)
    assert mount.next_id == fed
    view.gate.set()
    await client.wait_applied(59, timeout=2)
    assert len(view.applied) == 60


@pytest.mark.slow
async def test_a_mount_waits_for_a_slow_view_without_being_given_up(world: World, view: Memo) -> None:
    for number in range(30):
        world.log.fill(b"x" * 300 + b"%d" % number)
    view.gate = asyncio.Event()
    client = await world.client(view=view, settings={"credit_bytes": 2_000})
    await nothing_happens_for(0.3)
    assert len(world.server.heard.mounts) == 1
    view.gate.set()
    await client.ready(timeout=2)


async def test_what_was_received_and_not_applied_survives_a_broken_connection(world: World, view: Memo) -> None:
    view.gate = asyncio.Event()
    world.log.fill(b"0", b"1")
    client = await world.ready_client(view=view)
    world.server.break_connections()
    world.log.fill(b"2")
    await wait_until(lambda: len(world.server.heard.mounts) == 2)
    assert world.server.heard.mounts[1].client_high_water_mark == 1
    view.gate.set()
    await client.wait_applied(2)
    assert view.bodies == [b"0", b"1", b"2"]


async def test_a_mark_that_a_view_can_not_tell_is_logged_once_for_the_same_cause(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Confused(Memo):
        asked = 0

        def high_water_mark(self, partition: int) -> int:
            self.asked += 1
            if self.asked <= 5:
                raise ValueError("no idea" if self.asked <= 3 else "not sure")
            return self.mark

    client = await world.client(view=Confused())
    await (await client.append(b"paid")).applied()
    logged = [record.message for record in caplog.records if "did not return its high-water mark" in record.message]
    assert [text.split(": ")[-1] for text in logged] == ["ValueError('no idea')", "ValueError('not sure')"]


@pytest.mark.parametrize(("error", "is_traced"), [(BadOption("correct the URL"), False), (ValueError("no"), True)])
async def test_only_what_does_not_say_what_to_do_is_logged_with_its_traceback(
    world: World, caplog: pytest.LogCaptureFixture, error: Exception, is_traced: bool
) -> None:
    class Unready(Memo):
        asked = 0

        def high_water_mark(self, partition: int) -> int:
            self.asked += 1
            if self.asked == 1:
                raise error from OSError("a driver's own, with many frames")
            return self.mark

        def close(self) -> None:
            raise error

    client = await world.client(view=Unready())
    await (await client.append(b"paid")).applied()
    await client.close()
    traced = {record.message.partition(":")[0]: bool(record.exc_info) for record in caplog.records}
    assert traced["the view did not return its high-water mark of partition 0"] is is_traced
    assert [is_ for text, is_ in traced.items() if "`close` failed" in text] == [is_traced]


async def test_a_view_that_another_process_has_moved_on_is_not_given_it_again(world: World, view: Memo) -> None:
    view.fail_on = {1: 1}
    seen: list[int] = []

    class Shared(Memo):
        def high_water_mark(self, partition: int) -> int:
            if self.failures:
                self.mark = max(self.mark, 2)
            return self.mark

        async def apply(self, tx) -> None:
            await super().apply(tx)
            seen.append(tx.id)

    shared = Shared()
    shared.fail_on = {1: 1}
    world.log.fill(b"0", b"1", b"2", b"3")
    client = await world.client(view=shared)
    await client.wait_applied(3)
    assert seen == [0, 3]


async def test_a_view_whose_database_went_back_is_fed_from_there_again(world: World) -> None:
    class Restored(Memo):
        def high_water_mark(self, partition: int) -> int:
            if len(self.failures) == 1 and self.mark == 2:
                self.mark = 0
                del self.applied[1:]
            return self.mark

    view = Restored()
    view.fail_on = {3: 1}
    for body in (b"0", b"1", b"2", b"3", b"4"):
        world.log.fill(body)
    client = await world.client(view=view)
    await wait_until(lambda: len(view.applied) == 5)
    assert view.bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert world.server.heard.mounts[-1].client_high_water_mark == 0
    assert (await client.append(b"5")).id == 5
    await client.wait_applied(5)


async def test_a_view_ahead_of_the_log_stops_its_partition_and_everybody_is_told(world: World) -> None:
    world.log.fill(b"0")
    client = await world.client(view=Memo(mark=7))
    pending = client.append(b"paid")
    with pytest.raises(ClientAhead):
        await client.ready()
    with pytest.raises(Exception, match="client_ahead"):
        await pending
    with pytest.raises(ClientAhead):
        await client.run(lambda tx: tx.append(b"x"))
    with pytest.raises(ClientAhead):
        await client.wait_applied(9)
    assert world.log.bodies() == [b"0"]


class Runs(Memo):
    """Takes runs, and passes over what another process has applied to the same store."""

    async def apply_run(self, run: Sequence[Transaction]) -> int:
        for tx in run:
            if self.gate is not None:
                await self.gate.wait()
            if tx.id == self.mark + 1:
                await self.apply(tx)
        return self.mark


async def test_a_view_that_comes_to_be_ahead_of_the_log_while_it_runs_stops_its_partition(world: World) -> None:
    view = Runs()
    client = await world.client(view=view)
    await client.append(b"0")
    await client.wait_applied(0)
    view.mark = 100
    receipt = await client.append(b"1")
    with pytest.raises(ClientAhead, match=r"ids up to 100 are .* and the log ended at 1"):
        await client.wait_applied(receipt.id)
    assert isinstance(client.trouble(0), ClientAhead)
    with pytest.raises(ClientAhead):
        await client.run(lambda tx: tx.append(b"x"))
    assert view.bodies == [b"0"]


async def test_a_view_that_is_ahead_of_the_log_when_it_is_asked_after_a_failure_stops_its_partition(
    world: World,
) -> None:
    view = Memo()
    view.fail_on = {1: 1}
    client = await world.client(view=view)
    await client.append(b"0")
    await client.wait_applied(0)
    view.failed = lambda *_: setattr(view, "mark", 7)  # type: ignore[method-assign]
    receipt = await client.append(b"1")
    with pytest.raises(ClientAhead, match=r"ids up to 7 are .* and the log ended at 1"):
        await client.wait_applied(receipt.id)


async def test_a_view_that_another_process_moves_on_is_believed_as_far_as_the_log_goes(world: World) -> None:
    view = Runs()
    client = await world.client(view=view)
    await client.append(b"0")
    await client.wait_applied(0)
    asked = partitions_of(client).parts.requests.high_water_mark
    answers: list[int] = []

    async def noted(*given: Any) -> int:
        answers.append(await asked(*given))
        return answers[-1]

    partitions_of(client).parts.requests.high_water_mark = noted  # type: ignore[method-assign]
    await client.append(b"1")
    await client.wait_applied(1)
    assert answers == [], "what this client was fed itself is compared with nothing"
    view.gate = asyncio.Event()
    await client.append(b"2")
    world.log.fill(b"3", b"4", b"5")
    view.mark = 4
    view.gate.set()
    await client.wait_applied(4)
    assert answers == [5]
    world.server.feed_all()
    await client.wait_applied(5)
    assert view.bodies == [b"0", b"1", b"5"]


async def test_a_log_that_is_behind_what_it_has_fed_is_client_ahead_too(world: World) -> None:
    world.log.fill(b"0")
    world.log.fill(b"1")
    client = await world.ready_client()
    world.log.batches.pop()
    world.server.break_connections()
    await wait_until(lambda: client.trouble(0) is not None and isinstance(client.trouble(0), ClientAhead))


async def test_a_damaged_feed_is_dropped_and_asked_for_again(world: World, view: Memo) -> None:
    world.log.fill(b"0" * 50)

    def flip(raw: bytes) -> bytes:
        world.server.damage = None
        return raw[:-20] + bytes([raw[-20] ^ 1]) + raw[-19:]

    world.server.damage = flip
    client = await world.client(view=view)
    await client.wait_applied(0, timeout=2)
    assert view.bodies == [b"0" * 50]
    assert len(world.server.heard.mounts) == 2


async def test_a_fork_in_the_feed_stops_the_partition_loudly(world: World, view: Memo) -> None:
    world.log.fill(b"0")
    client = await world.client(view=view)
    await client.wait_applied(0)
    world.log.batches[-1].crc ^= 1
    world.log.fill(b"1")
    world.server.feed_all()
    await wait_until(lambda: isinstance(client.trouble(0), LogForked))
    assert view.bodies == [b"0"]


# ------------------------------------------------------------------ bodies on demand


async def test_lazy_bodies_are_fetched_for_the_headers_that_are_wanted(world: World, view: Memo) -> None:
    for number in range(12):
        world.log.fill(b"body %d" % number, header=number % 3)
    client = await world.client(view=view, bodies=BodyForm.LAZY, wants=lambda header: header == 1)
    await client.wait_applied(11)
    assert view.bodies == [b"body %d" % n if n % 3 == 1 else b"" for n in range(12)]
    assert sorted(id for ids in world.server.heard.fetches for id in ids) == [1, 4, 7, 10]


async def test_without_a_choice_all_lazy_bodies_are_fetched_in_bounded_requests(world: World, view: Memo) -> None:
    world.log.fill(*[b"x" * 100 + b"%d" % number for number in range(30)])
    client = await world.client(view=view, bodies=BodyForm.LAZY, settings={"fetch_bytes": 500})
    await client.wait_applied(29)
    assert view.bodies == world.log.bodies()
    assert max(map(len, world.server.heard.fetches)) <= 5


async def test_one_request_asks_for_no_more_bodies_than_a_server_answers(world: World, view: Memo) -> None:
    count = 2 * FETCH_MAX + 1
    world.log.fill(*[b"%d" % number if number % 2 else b"" for number in range(count)])
    client = await world.client(view=view, bodies=BodyForm.LAZY)
    await client.wait_applied(count - 1)
    assert view.bodies == world.log.bodies()
    assert list(map(len, world.server.heard.fetches)) == [FETCH_MAX, FETCH_MAX, 1]


async def test_filtered_bodies_come_with_the_feed_and_the_others_only_if_wanted(world: World, view: Memo) -> None:
    for number in range(6):
        world.log.fill(b"body %d" % number, header=number)
    client = await world.client(
        view=view, bodies=BodyForm.FILTERED, header_filter=(1, 1), wants=lambda header: header == 4
    )
    await client.wait_applied(5)
    assert view.bodies == [b"", b"body 1", b"", b"body 3", b"body 4", b"body 5"]
    assert world.server.heard.fetches == [[4]]


async def test_a_choice_that_fails_stops_its_partition_and_no_other(two_partitions: World) -> None:
    """What `wants` raised ended the stream of all partitions, which then mounted again and were fed the same."""
    world = two_partitions
    world.logs[0].fill(b"0", header=1)
    world.logs[0].fill(b"1", header=7)
    world.logs[1].fill(b"other", header=1)
    seen: list[tuple[int, int, bytes]] = []

    class Seen:
        def high_water_mark(self, partition: int) -> int:
            return -1

        def apply(self, tx) -> None:
            seen.append((tx.partition, tx.id, tx.data))

        def failed(self, partition: int, id: int, error: Exception) -> None: ...

    def wants(header: int) -> bool:
        return {1: True}[header]

    client = await world.client(view=Seen(), bodies=BodyForm.LAZY, wants=wants)
    with pytest.raises(BadOption, match=r"wants= failed .* transactions 1 to 1 of partition 0: KeyError\(7\)"):
        await client.wait_applied(1, 0, timeout=2)
    await client.wait_applied(0, 1, timeout=2)
    assert sorted(seen) == [(0, 0, b"0"), (1, 0, b"other")]
    assert isinstance(client.trouble(0), BadOption)
    assert (await client.append(b"more", 1)).id == 1
    assert len(world.server.heard.mounts) == 2


async def test_a_damaged_body_is_never_applied(world: World, view: Memo) -> None:
    world.log.fill(b"paid")
    world.server.damage_bodies = True
    client = await world.client(view=view, bodies=BodyForm.LAZY)
    await wait_until(lambda: isinstance(client.trouble(0), DataDamaged))
    assert not view.applied
    assert len(world.server.heard.fetches) == 5


@pytest.mark.parametrize(
    "options",
    [
        {"bodies": BodyForm.FILTERED},
        {"header_filter": (1, 1)},
        {"wants": lambda header: True},
    ],
)
async def test_options_that_do_not_go_together_are_refused(world: World, options: dict[str, object]) -> None:
    with pytest.raises(BadOption):
        await world.client(view=Memo(), **options)


class Unlooked(Memo):
    """A view that can't be looked at, and whose error has no text."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self.raised: BaseException | None = raised

    async def stepped_back(self) -> list[int]:
        if self.raised is not None:
            raise self.raised
        return []

    def high_water_mark(self, partition: int) -> int:
        if self.raised is not None and self.mark >= 0:
            raise self.raised
        return super().high_water_mark(partition)


class Untold(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "raised", [RuntimeError("gone"), Untold(), asyncio.CancelledError(), StopIteration(), DataDamaged("torn")]
)
async def test_whatever_a_look_at_the_view_raises_is_its_trouble_and_not_the_clients_end(
    world: World, raised: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_view, "_LOOK_S", 0.01)
    view = Unlooked(raised)
    client = await world.client(view=view)
    await (await client.append(b"paid")).applied()
    await wait_until(lambda: isinstance(client.trouble(0), ViewFailed))
    assert client.failure is None
    view.raised = None
    await wait_until(lambda: client.trouble(0) is None)
    await (await client.append(b"paid")).applied()


async def test_a_view_that_does_not_tell_its_mark_is_told_while_it_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condition, "_SLOW_S", 0.05)
    told = asyncio.Event()

    class Silent(Memo):
        async def high_water_mark(self, partition: int) -> int:  # type: ignore[override]
            await told.wait()
            return self.mark

    client = await world.client(view=Silent())
    await wait_until(lambda: "has not told its high-water mark for" in str(client.trouble(0)))
    assert isinstance(client.trouble(0), ViewUnavailable)
    told.set()
    await wait_until(lambda: client.trouble(0) is None)
    await (await client.append(b"paid")).applied()
