"""The player on an embedded log: what targets end up with is what the route function makes of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

import polonaise
from polonaise.errors import (
    AccessDenied,
    BadOption,
    BatchDamaged,
    Closed,
    DataDamaged,
    DeliveryStopped,
    FragmentDamaged,
    FragmentMissing,
    PartitionNotReady,
    PolonaiseError,
    ProducerFenced,
    ViewUnavailable,
)
from polonaise.host.unawaited import fail
from polonaise.log.producers import KEY_PREFIX
from polonaise.player import remote, serve
from polonaise.player.delivery import Delivery
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, Judge
from polonaise.player.player import ASKED_TERM, Player, check_kept_epochs
from polonaise.player.protocol.entries import NO_FENCE, DeliveryBatch, Fence
from polonaise.player.protocol.reception import Reception, Verdict
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.routing import PAYLOAD_BYTES_MAX, Router
from polonaise.terms import Transaction
from rigs.unretrieved import errors_nobody_took
from rigs.waiting import wait_until

QUICK = PlayerSettings(retry_s_min=0.01, retry_s_max=0.1, start_patience_s=0.2)


class ListTarget:
    """Keeps what it applies in a list. Faults come as `random` has it; an answer may be lost after the deed."""

    def __init__(self, random: Random | None = None) -> None:
        self.applied: dict[int, list[bytes]] = {}
        self.ids: dict[int, int] = {}
        self.kept = NO_FENCE
        self.random = random
        self.faults = 0
        self.open = asyncio.Event()
        self.open.set()

    def _may_fail(self) -> None:
        if self.random is not None and self.random.random() < 0.1:
            self.faults += 1
            raise ViewUnavailable("as drawn")

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        self._may_fail()
        if not Reception.accepts(self.kept, offered):
            return Acceptance(False, self.kept, {})
        self.kept = offered
        self._may_fail()
        return Acceptance(True, offered, dict(self.ids))

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        await self.open.wait()
        self._may_fail()
        last = self.ids.get(batch.partition, -1)
        verdict = judge(self.kept, last, batch)
        if verdict is not Verdict.APPLY:
            return AppliedBatch(verdict, last, self.kept)
        for entry in batch.entries:
            if self.random is not None and self.random.random() < 0.05:
                self.faults += 1
                return AppliedBatch(verdict, self.ids.get(batch.partition, -1), self.kept, "refused, as drawn")
            self.ids[batch.partition] = entry.id
            if entry.payload is not None:
                self.applied.setdefault(batch.partition, []).append(entry.payload)
        self._may_fail()
        return AppliedBatch(verdict, batch.last, self.kept)

    async def close(self) -> None:
        """Nothing is open."""


def route(tx: Transaction) -> Mapping[str, bytes]:
    """To `a` what begins with an `a`, and so on: a transaction may go to several targets, or to none."""
    names, _, rest = tx.data.partition(b":")
    return {chr(name): rest for name in names}


def expected(written: Mapping[int, list[bytes]], name: str) -> dict[int, list[bytes]]:
    """What the target gets of these bodies, by partition."""
    routed = {
        partition: [rest for names, _, rest in (body.partition(b":") for body in bodies) if name.encode() in names]
        for partition, bodies in written.items()
    }
    return {partition: rests for partition, rests in routed.items() if rests}


def delivery_of(player: Player) -> Delivery:
    """What runs of a player that was started."""
    assert player._delivery is not None
    return player._delivery


async def write(log: polonaise.Log, written: dict[int, list[bytes]], partition: int, *bodies: bytes) -> None:
    await asyncio.gather(*(log.append(body, partition=partition) for body in bodies))
    written.setdefault(partition, []).extend(bodies)


async def got(target: ListTarget, written: Mapping[int, list[bytes]], name: str) -> None:
    """Wait until the target has what it should have, and no more."""
    await wait_until(lambda: target.applied == expected(written, name), f"target {name} has got everything")


async def test_each_target_gets_what_is_routed_to_it_in_order(tmp_path: Path) -> None:
    written: dict[int, list[bytes]] = {}
    async with polonaise.connect(f"embedded:{tmp_path}?partitions=2") as log:
        await write(log, written, 0, b"a:0", b"b:1", b":2")
        targets = {"a": ListTarget(), "b": ListTarget()}
        async with Player(log, "p", route, targets) as player:
            await write(log, written, 1, b"ab:3", b"b:4")
            await write(log, written, 0, b"a:5", b"ab:6")
            for name, target in targets.items():
                await got(target, written, name)
            assert player.health()["well"]


async def test_entries_go_on_where_they_stopped_when_a_player_begins_again(tmp_path: Path) -> None:
    written: dict[int, list[bytes]] = {}
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        target = ListTarget()
        for number in range(3):
            async with Player(log, "p", route, {"a": target}):
                await write(log, written, 0, *(b"a:%d" % each for each in range(10 * number, 10 * number + 10)))
                await got(target, written, "a")
                assert target.kept.epoch == number + 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_no_entry_is_lost_or_doubled_by_faults_of_targets_and_players_that_are_replaced(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    written: dict[int, list[bytes]] = {}
    settings = PlayerSettings(
        retry_s_min=0.001, retry_s_max=0.01, start_patience_s=0.05, batch_entries_max=4, queue_entries_max=12,
        join_transactions=random.choice((2, 20)), dummy_transactions=30, recovery_bytes_max=300,
    )  # fmt: skip
    async with polonaise.connect(f"embedded:{tmp_path}?partitions=2") as log:
        targets = {name: ListTarget(random) for name in "abc"}
        players: list[Player] = []
        for number in range(60):
            if number % 20 == 0:
                # The one before goes on until a target tells it.
                players.append(Player(log, "p", route, targets, settings=settings))
                await players[-1].start()
            names = "".join(random.sample("abc", random.randrange(4)))
            bodies = [b"%s:%d.%d" % (names.encode(), number, each) for each in range(random.randrange(1, 8))]
            await write(log, written, random.randrange(2), *bodies)
        for name, target in targets.items():
            await got(target, written, name)
            assert target.faults
        for player in players[:-1]:
            with pytest.raises(ProducerFenced, match="delivers nothing more"):
                await player.ended()
        for player in players:
            await player.close()


@pytest.mark.slow
async def test_a_target_that_hangs_keeps_no_other_waiting_and_is_caught_up(tmp_path: Path) -> None:
    written: dict[int, list[bytes]] = {}
    settings = PlayerSettings(queue_entries_max=50, progress_s_max=0.3, retry_s_min=0.01, join_transactions=20)
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        targets = {"a": ListTarget(), "b": ListTarget()}
        targets["a"].open.clear()
        async with Player(log, "p", route, targets, settings=settings) as player:
            for number in range(10):
                await write(log, written, 0, *(b"ab:%d.%d" % (number, each) for each in range(50)))
            await got(targets["b"], written, "b")
            assert targets["a"].applied == {}
            await wait_until(lambda: not player.health()["well"], "health tells of it")
            assert player.health()["targets"]["b"]["state"] == "up"
            targets["a"].open.set()
            await got(targets["a"], written, "a")
            await wait_until(lambda: player.health()["well"], "all is well again")


async def test_a_transaction_that_can_not_be_routed_stops_its_partition_and_is_not_skipped(tmp_path: Path) -> None:
    written: dict[int, list[bytes]] = {}
    async with polonaise.connect(f"embedded:{tmp_path}?partitions=2") as log:
        target = ListTarget()
        async with Player(log, "p", route, {"a": target}) as player:
            await write(log, written, 0, b"a:0", b"a:1")
            await log.append(b"x:nobody", partition=0)
            await log.append(b"a:2", partition=0)
            await write(log, written, 1, b"a:3")
            await got(target, written, "a")
            await wait_until(lambda: player.health()["partitions"]["0"]["stopped"] != "", "the partition has stopped")
            stopped = player.health()["partitions"]["0"]["stopped"]
            assert stopped == "transaction 3 can't be routed: no target is called 'x': there are a"
            assert not player.health()["well"]
            await write(log, written, 1, b"a:4")
            await got(target, written, "a")
            await player.delivered("a", 0, 2)
            with pytest.raises(DeliveryStopped, match="no more of partition 0: transaction 3 can't be routed"):
                await player.delivered("a", 0, 4)
            waiting = asyncio.ensure_future(player.delivered("a", 1, 1_000))
            await log.append(b"x:nobody", partition=1)
            with pytest.raises(DeliveryStopped, match="no more of partition 1"):
                await waiting
            with pytest.raises(DeliveryStopped, match="no more of any partition"):
                await player.ended()
            assert player.health()["ended"] != ""


async def test_what_was_brought_is_delivered_before_the_player_ends(tmp_path: Path) -> None:
    written: dict[int, list[bytes]] = {}
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        target = ListTarget()
        target.open.clear()
        async with Player(log, "p", route, {"a": target}) as player:
            await write(log, written, 0, b"a:0", b"a:1")
            await log.append(b"x:nobody", partition=0)
            await wait_until(lambda: player.health()["partitions"]["0"]["stopped"] != "", "the partition has stopped")
            assert player.health()["ended"] == ""
            target.open.set()
            with pytest.raises(DeliveryStopped, match="no more of any partition: transaction 3 can't be routed"):
                await player.ended()
            assert target.applied == expected(written, "a")


async def test_targets_are_added_and_removed_while_the_player_runs(tmp_path: Path) -> None:
    written: dict[int, list[bytes]] = {}
    async with polonaise.connect(f"embedded:{tmp_path}?partitions=2") as log:
        targets = {name: ListTarget() for name in "abc"}
        async with Player(log, "p", route, {"a": targets["a"]}) as player:
            await write(log, written, 0, b"a:0", b"ab:1", b"a:2")
            await wait_until(lambda: player.health()["partitions"]["0"]["stopped"] != "", "the partition has stopped")
            with pytest.raises(BadOption, match="has a target 'a' already"):
                player.add_target("a", targets["b"])
            with pytest.raises(BadOption, match="the log has partitions 0 to 1"):
                player.add_target("b", targets["b"], {7: 1})
            with pytest.raises(BadOption, match="target 'b' is int"):
                player.add_target("b", 3)  # type: ignore[arg-type]
            player.add_target("b", targets["b"])
            for name in "ab":
                await got(targets[name], written, name)
            player.add_target("c", targets["c"], {0: 4})
            await write(log, written, 0, b"abc:3", b"abc:4")
            await wait_until(lambda: targets["c"].applied == {0: [b"4"]}, "it begins where it was told to")
            await got(targets["b"], written, "b")
            hung = asyncio.ensure_future(player.delivered("b", 0, 1_000))
            with pytest.raises(BadOption, match="has no target 'd': there are a, b, c"):
                await player.remove_target("d")
            await wait_until(lambda: delivery_of(player)._waiting, "it waits")
            await player.remove_target("b")
            with pytest.raises(DeliveryStopped, match="target b was removed"):
                await hung
            await write(log, {}, 0, b"abc:5")
            written[0].append(b"ac:5")
            await got(targets["a"], written, "a")
            await got(targets["b"], written, "b")
            assert player.health()["well"]
            player.add_target("b", targets["b"])
            await wait_until(lambda: targets["b"].applied[0][-1] == b"5", "what it lacks is delivered")


async def test_a_player_that_delivers_nothing_learns_that_it_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polonaise.player.logreading._WATCH_S", 0.02)
    async with (
        polonaise.connect(f"embedded:{tmp_path}") as log,
        Player(log, "p", route, {}) as player,
        Player(log, "other", route, {}),
        Player(log, "p", route, {}),
    ):
        with pytest.raises(ProducerFenced, match="a player of this name has epoch 2, and this one has epoch 1"):
            await player.ended()


async def test_a_player_whose_log_is_behind_what_a_target_keeps_is_refused_however_often_it_begins(
    tmp_path: Path,
) -> None:
    target, other, silent = ListTarget(), ListTarget(), ListTarget()
    target.kept, other.kept = Fence(3, 2), Fence(2, 9)
    silent.open.clear()
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        for _ in range(5):
            with pytest.raises(
                ProducerFenced,
                match=r"a keeps epoch 3, target c keeps epoch 2, .* behind \(none\): the log was put back.* 3 times",
            ):
                await Player(log, "p", route, {"b": silent, "a": target, "c": other}, settings=QUICK).start()
        assert target.kept == Fence(3, 2)
        for _ in range(3):  # as the error says
            await log.producer("player p", partition=0)
        appended = await log.append(b"a:1", partition=0)
        async with Player(log, "p", route, {"a": target}, settings=QUICK) as player:
            await player.delivered("a", 0, appended.id)
            assert target.kept.epoch == player.health()["epoch"] == 4


@pytest.mark.parametrize("scheme", ["link", "grpc"])
async def test_a_target_elsewhere_is_asked_what_it_keeps_as_well(tmp_path: Path, scheme: str) -> None:
    target = ListTarget()
    target.kept = Fence(3, 2)
    async with polonaise.connect(f"embedded:{tmp_path}") as log, serve(target, f"{scheme}://127.0.0.1:0") as server:
        settings = PlayerSettings(start_patience_s=20.0)
        for _ in range(4):
            with pytest.raises(ProducerFenced, match="target a keeps epoch 3"):
                await Player(log, "p", route, {"a": remote(server.address)}, settings=settings).start()


@pytest.mark.parametrize("scheme", ["link", "grpc"])
async def test_what_a_target_is_asked_is_in_the_way_of_no_player(tmp_path: Path, scheme: str) -> None:
    """Neither of the first one of a name, whose target keeps nothing, nor of one that is active while another asks."""
    target = ListTarget()
    async with polonaise.connect(f"embedded:{tmp_path}") as log, serve(target, f"{scheme}://127.0.0.1:0") as server:
        endpoints = {"a": remote(server.address)}
        async with Player(log, "p", route, endpoints, settings=QUICK) as player:
            appended = await log.append(b"a:0", partition=0)
            await player.delivered("a", 0, appended.id)
            assert player.health()["targets"]["a"]["term"] == ASKED_TERM + 1, "the first stream"
            key = KEY_PREFIX + b"player p"
            await check_kept_epochs(log, "p", key, {"a": remote(server.address)}, 20.0)
            appended = await log.append(b"a:1", partition=0)
            await player.delivered("a", 0, appended.id)
            assert player.health()["targets"]["a"]["term"] == ASKED_TERM + 1, "the first stream"


async def test_a_wait_for_a_target_that_is_given_up_ends(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        target = ListTarget()
        target.ids[0] = 7
        async with Player(log, "p", route, {"a": target}) as player:
            await log.append(b"a:0", partition=0)
            with pytest.raises(DeliveryStopped, match="it has applied 7, and the log ends with"):
                await player.delivered("a", 0, 8)


class Unprintable(Exception):
    """An error that can't say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (None, "NoneType, and not a mapping"),
        ({"a": "text"}, "target a is to get is str"),
        (ValueError("no"), "ValueError: no"),
        (SystemExit(5), "SystemExit: 5"),
        (Unprintable(), "Unprintable: Unprintable without a text"),
        (ValueError(f"{'x' * 440} postgresql://app:secret@db"), "x postgresql://app:*"),
        ({"a": bytes(PAYLOAD_BYTES_MAX + 1)}, "62914561 bytes, and a message to a target carries 62914560 at most"),
    ],
)
async def test_what_a_route_function_may_not_do_is_said(tmp_path: Path, returned: Any, why: str) -> None:
    def bad(tx: Transaction) -> Any:
        if isinstance(returned, BaseException):
            raise returned
        return returned

    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        await log.append(b"0")
        async with Player(log, "p", bad, {"a": ListTarget()}) as player:
            await wait_until(lambda: why in player.health()["partitions"]["0"]["stopped"], "it is said")


@pytest.mark.slow
async def test_an_entry_that_is_refused_is_named_in_health_and_comes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Refuses(ListTarget):
        refuses = True

        async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
            if self.refuses:
                return AppliedBatch(Verdict.APPLY, batch.previous, self.kept, "no such account")
            return await super().apply(batch, judge)

    written: dict[int, list[bytes]] = {}
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        target = Refuses()
        async with Player(log, "p", route, {"a": target}, settings=QUICK) as player:
            await write(log, written, 0, b"a:0", b"a:1")
            refused = "it refuses the entry after id -1: no such account"
            await wait_until(lambda: player.health()["targets"]["a"]["hindered"] == {"0": refused}, "it is named")
            await wait_until(lambda: player.refusals["a"] > 3, "it comes again")
            told = [each for each in caplog.messages if "a refuses the entry after -1 of partition 0: no such" in each]
            assert len(told) == 1, "once a minute, not each time"
            target.refuses = False
            await got(target, written, "a")
            await wait_until(lambda: player.health()["well"], "all is well again")


async def test_a_new_target_begins_after_the_id_that_is_given(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        for number in range(6):
            await log.append(b"ab:%d" % number)
        targets = {"a": ListTarget(), "b": ListTarget()}
        async with Player(log, "p", route, targets, start_after={"b": {0: 3}}):
            await wait_until(lambda: len(targets["a"].applied.get(0, [])) == 6, "the other gets everything")
            await wait_until(lambda: targets["b"].applied == {0: [b"4", b"5"]}, "what follows")


async def test_a_wait_for_a_target_ends_when_it_has_all_up_to_an_id(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        target = ListTarget()
        async with Player(log, "p", route, {"a": target}) as player:
            for body in (b"a:0", b":1"):
                last = await log.append(body)
                await player.delivered("a", 0, last.id)
            assert target.applied == {0: [b"0"]}
            assert player.health()["targets"]["a"]["lag"] == {"0": 0}
            target.open.clear()
            last = await log.append(b"a:2")
            waiting = asyncio.ensure_future(player.delivered("a", 0, last.id))
            await wait_until(lambda: player.health()["targets"]["a"]["in_flight"] > 0, "a batch is under way")
            assert player.health()["targets"]["a"]["lag"] == {"0": 1}
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(player.delivered("a", 0, last.id), 0.01)
            assert len(delivery_of(player)._waiting) == 1
            target.open.set()
            await waiting
            for unknown in (("b", 0), ("a", 7)):
                with pytest.raises(BadOption, match=r"does not deliver .* it has partitions 0 and targets a"):
                    await player.delivered(*unknown, 0)
            waiting = asyncio.ensure_future(player.delivered("a", 0, 10**6))
            await asyncio.sleep(0)
        with pytest.raises(Closed, match="was closed"):
            await waiting
        with pytest.raises(Closed, match="was started or closed before"):
            await player.start()


async def test_a_player_that_was_closed_says_so_and_leaves_no_task(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        target = ListTarget()
        target.open.clear()
        before = asyncio.all_tasks()
        player = Player(log, "p", route, {"a": target})
        with pytest.raises(Closed, match="was not started"):
            await player.ended()
        await player.start()
        await log.append(b"a:0")
        waiting = asyncio.ensure_future(player.ended())
        await wait_until(lambda: player.health()["targets"]["a"]["in_flight"] > 0, "a batch is under way")
        await player.close()
        with pytest.raises(Closed, match="was closed"):
            await waiting
        ours = [task for task in asyncio.all_tasks() - before if task.get_name().startswith("player")]
        assert ours == []


@pytest.mark.parametrize(
    "damages",
    [
        [BatchDamaged("a bit was flipped"), DataDamaged("a bit was flipped")],
        [FragmentDamaged("restore it"), FragmentMissing("restore it"), AccessDenied("let it be read")],
    ],
    ids=["on its way", "in the archive, until it is restored"],
)
async def test_what_is_damaged_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damages: list[PolonaiseError]
) -> None:
    written: dict[int, list[bytes]] = {}
    target = ListTarget()
    routed = Router.routed

    def damaged(router: Router, *about: Any) -> Any:
        if damages:
            raise damages.pop()
        return routed(router, *about)

    monkeypatch.setattr(Router, "routed", damaged)
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        await write(log, written, 0, b"a:0", b"a:1")
        async with Player(log, "p", route, {"a": target}, settings=QUICK) as player:
            await got(target, written, "a")
            assert not damages
            await wait_until(lambda: player.health()["well"], "nothing is wrong any more")


async def test_a_log_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("polonaise.player.logreading._WATCH_S", 0.02)
    async with polonaise.connect(f"embedded:{tmp_path}?partitions=4") as log:
        away = False
        asked = log.high_water_mark

        async def high_water_mark(*about: Any, **more: Any) -> int:
            if away:
                raise PartitionNotReady("no session")
            return await asked(*about, **more)

        monkeypatch.setattr(log, "high_water_mark", high_water_mark)
        async with Player(log, "p", route, {"a": ListTarget()}) as player:
            await wait_until(lambda: player.health()["well"], "all is well")
            away = True
            for partition in "0123":
                await wait_until(
                    lambda which=partition: "no session" in player.health()["partitions"][which]["trouble"],
                    "it is told",
                )
            assert not player.health()["well"]
            assert len([each for each in caplog.messages if "no session" in each]) == 1, "not for each partition"
            away = False
            await wait_until(lambda: player.health()["well"], "all is well again")


class Odd(ListTarget):
    """Does something odd the first times that it is called."""

    def __init__(self, odd: Any, times: int = 2) -> None:
        super().__init__()
        self.odd, self.times = odd, times

    def _is_odd(self) -> bool:
        self.times -= 1
        if self.times >= 0 and isinstance(self.odd, BaseException):
            raise self.odd
        return self.times >= 0

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        return self.odd if self._is_odd() else await super().accept(offered, source)

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        return self.odd if self._is_odd() else await super().apply(batch, judge)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (None, "the target returned None"),
        (ValueError("postgresql://me:secret@host/db" + "x" * 1_000), "the target failed: ValueError("),
    ],
)
async def test_whatever_a_target_does_ends_its_own_stream_alone(
    tmp_path: Path, odd: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    written: dict[int, list[bytes]] = {}
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        targets = {"a": Odd(odd), "b": ListTarget()}
        async with Player(log, "p", route, targets, settings=QUICK) as player:
            await write(log, written, 0, b"ab:0", b"ab:1")
            for name, target in targets.items():
                await got(target, written, name)
            assert player.health()["targets"]["b"]["term"] == ASKED_TERM + 1
            assert player.health()["targets"]["a"]["term"] > ASKED_TERM + 1
    told = [record.getMessage() for record in caplog.records if "no stream to a" in record.getMessage()]
    assert any(why in each for each in told)
    assert not any("secret" in each or len(each) > 600 for each in told)


async def test_a_target_that_does_not_accept_its_stream_keeps_no_other_waiting(tmp_path: Path) -> None:
    class Late(ListTarget):
        async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
            await self.open.wait()
            return await super().accept(offered, source)

    written: dict[int, list[bytes]] = {}
    settings = PlayerSettings(open_s_max=0.05, start_patience_s=0.05, retry_s_min=0.01, retry_s_max=0.05)
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        targets = {"a": Late(), "b": ListTarget()}
        targets["a"].open.clear()
        async with Player(log, "p", route, targets, settings=settings) as player:
            await write(log, written, 0, b"ab:0", b"ab:1")
            await got(targets["b"], written, "b")
            await wait_until(lambda: player.health()["targets"]["a"]["term"] > 2, "it is tried again and again")
            await wait_until(
                lambda: "did not answer within 0." in player.health()["targets"]["a"]["reason"], "it is told"
            )
            targets["a"].open.set()
            await got(targets["a"], written, "a")
            await wait_until(lambda: player.health()["well"], "all is well")
            assert len(delivery_of(player)._over) < 3


async def test_an_end_without_words_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}") as log, Player(log, "p", route, {}) as player:
        fail(delivery_of(player).ended, AssertionError())
        assert player.health()["ended"] == "AssertionError()"
        assert not player.health()["well"]


async def test_a_player_that_was_closed_first_does_not_start(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        player = Player(log, "p", route, {})
        await player.close()
        with pytest.raises(Closed, match="was started or closed before"):
            await player.start()


async def test_a_wait_that_is_given_up_as_the_delivery_ends_leaves_no_error_behind(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}") as log, Player(log, "p", route, {"a": ListTarget()}) as player:
        with errors_nobody_took() as told:
            waiting = asyncio.ensure_future(player.delivered("a", 0, 10**6))
            await asyncio.sleep(0)
            delivery_of(player)._waiting[0].done.set_exception(DeliveryStopped("the target was removed"))
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            del waiting
    assert told == []


async def test_what_a_retired_target_would_get_is_dropped(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        await log.append(b"ab:0")
        target = ListTarget()
        async with Player(log, "p", route, {"a": target}, retired=["b"]) as player:
            await player.delivered("a", 0, 0)
            assert target.applied == {0: [b"0"]}
            assert player.health()["well"]


async def test_a_player_is_started_once(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        player = Player(log, "p", route, {})
        results = await asyncio.gather(player.start(), player.start(), return_exceptions=True)
        assert [type(each) for each in results] == [type(None), Closed]
        await player.close()


async def test_a_player_that_is_closed_while_it_starts_does_not_start(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        before = asyncio.all_tasks()
        player = Player(log, "p", route, {"a": ListTarget()})
        starting = asyncio.ensure_future(player.start())
        await asyncio.sleep(0)
        await player.close()
        with pytest.raises(Closed, match="was closed"):
            await starting
        assert not [each for each in asyncio.all_tasks() - before if each.get_name().startswith("player")]


async def _coroutine(tx: Transaction) -> Mapping[str, bytes]:
    return {}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"start_after": {"b": {}}}, "names b, which is no target"),
        ({"retired": ["a"]}, "a can't be a target and retired"),
        ({"route": None}, "a plain function that takes a transaction"),
        ({"route": _coroutine}, "a plain function that takes a transaction"),
        ({"name": ""}, "a text of 1 to 200 characters"),
        ({"name": 5}, "a text of 1 to 200 characters"),
        ({"name": "\ud800"}, "that UTF-8 can encode"),
        ({"targets": {"a" * 201: ListTarget}}, "a text of 1 to 200 characters"),
        ({"partitions": []}, "name those to deliver, or leave it out for all"),
        ({"partitions": [0, "x"]}, "the log has partitions 0 to 0"),
        ({"partitions": [7]}, "the log has partitions 0 to 0"),
        ({"partitions": ["x"]}, "the log has partitions 0 to 0"),
        ({"partitions": [True]}, "the log has partitions 0 to 0"),
        ({"start_after": {"a": {5: 1}}}, "the log has partitions 0 to 0"),
        ({"start_after": {"a": {0: None}}}, "start_after of a=None"),
        ({"start_after": {"a": {0: -7}}}, "start_after of a=-7"),
    ],
)
async def test_what_can_not_be_meant_is_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        chosen = {"name": "p", "route": route, "targets": {"a": ListTarget()}, **options}
        with pytest.raises(BadOption, match=why):
            await Player(log, **chosen).start()
        assert await log.high_water_mark(0) == -1, "no player has become active"


@pytest.mark.parametrize("setting", ["batch_entries_max", "window_bytes", "open_s_max", "progress_s_max"])
@pytest.mark.parametrize("value", [0, -1, "1", None, True])
def test_a_bound_of_nothing_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(BadOption, match=f"PlayerSettings.{setting}="):
        PlayerSettings(**{setting: value})


@pytest.mark.parametrize("settings", [{"join_transactions": 0.5}, {"retry_s_min": 0}, {"retry_s_min": 99}])
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=r"PlayerSettings.*(whole number|above)"):
        PlayerSettings(**settings)
