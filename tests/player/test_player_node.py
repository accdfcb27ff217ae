"""The process of a player: one delivers, others stand by, pause and take over; settings are read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from polonaise.errors import (
    BadOption,
    CertificateUnusable,
    Closed,
    DeliveryStopped,
    ExtraMissing,
    PolonaiseError,
    ProducerFenced,
    UnknownTopic,
    fault,
)
from polonaise.node.playerplan import TargetPlan
from polonaise.player.jsonlines import JsonLinesTarget
from polonaise.player.player import Player
from polonaise.player.protocol.candidacy import Candidacy, CandidateState, TurnEnd, turn_end_of
from polonaise.terms import Transaction
from rigs.playernodes import NodesOfAPlayer, nodes_of_a_player, route, wrong_setting
from rigs.waiting import nothing_happens_for, wait_until

LEASE = "player/p"


async def test_one_delivers_and_the_other_stands_by_and_takes_over_when_that_one_is_stopped(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        first = nodes.start(nodes.loaded(nodes.plan("a")))
        await first.until("active")
        epoch = first.node.candidacy.epoch
        assert epoch is not None
        second = nodes.start(nodes.loaded(nodes.plan("a")))
        await second.until("standby")
        await wait_until(lambda: second.node.active == first.node.active)
        assert second.node.player is None
        await nodes.append(b"a:1", b"a:2")
        await nodes.until_delivered("a", "1", "2")
        await first.stop()
        assert first.told[-1] == "handing over"
        await second.until("active")
        await nodes.append(b"a:3")
        await nodes.until_delivered("a", "1", "2", "3")
        assert second.node.candidacy.epoch == epoch + 1, "each turn has an epoch of its own"


async def test_a_process_whose_lease_is_lost_stands_by_again(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        node = nodes.start(nodes.loaded(nodes.plan("a")))
        await node.until("active")
        await nodes.append(b"a:1")
        nodes.leases.take_away(LEASE)
        await node.until_told("pausing: the lease is lost: as the test has it")
        await node.until("active")
        assert node.node.candidacy.turns == 2
        await nodes.append(b"a:2")
        await nodes.until_delivered("a", "1", "2")


async def test_a_lease_that_is_lost_before_the_player_has_its_epoch_ends_the_turn(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        nodes.leases.epochs.clear()
        node = nodes.start(nodes.loaded(nodes.plan("a")))
        await node.until("starting")
        await nothing_happens_for(0.05)
        nodes.leases.take_away(LEASE)
        await node.until_told("pausing: the lease is lost")
        nodes.leases.epochs.set()
        await node.until("active")
        assert node.node.candidacy.turns == 1


@pytest.mark.slow
async def test_settings_that_are_read_while_a_turn_begins_are_taken_up_when_it_has_begun(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        nodes.leases.epochs.clear()
        node = nodes.start(nodes.loaded(nodes.plan("a", "c")))
        await node.until("starting")
        await wait_until(lambda: node.node.player)
        await node.node.reload(lambda: nodes.loaded(nodes.plan("a", "b")))
        nodes.leases.epochs.set()
        await nodes.append(b"abc:1")
        await nodes.until_delivered("a", "1")
        await nodes.until_delivered("b", "1")
        await nothing_happens_for(0.1)
        assert node.node.player is not None
        assert set(node.node.player.health()["targets"]) == {"a", "b"}


@pytest.mark.slow
async def test_a_process_that_was_replaced_by_another_player_pauses_for_as_long_as_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polonaise.player.logreading._WATCH_S", 0.1)
    async with nodes_of_a_player(tmp_path) as nodes:
        node = nodes.start(nodes.loaded(nodes.plan("a", lease_s=60.0)))
        await node.until("active")
        other = Player(nodes.log, "p", route, {"a": JsonLinesTarget(tmp_path / "a.jsonl")})
        try:
            await other.start()
            await node.until("pausing")  # it looks by itself: it has nothing to deliver
            assert "[producer_fenced]" in node.told[-1]
            assert LEASE not in nodes.leases.holders
            assert other.health()["ended"] == ""
        finally:
            await other.close()


@pytest.mark.slow
async def test_what_can_not_be_routed_lets_another_process_try(tmp_path: Path) -> None:
    def older(tx: Transaction) -> dict[str, bytes]:
        raise ValueError("what is this")

    async with nodes_of_a_player(tmp_path) as nodes:
        await nodes.append(b"a:1")
        wrong = nodes.start(nodes.loaded(nodes.plan("a"), older))
        await wrong.until("pausing")
        assert "ValueError: what is this" in wrong.node.candidacy.reason
        right = nodes.start(nodes.loaded(nodes.plan("a")))
        await nodes.until_delivered("a", "1")
        await right.until("active")
        await wrong.until("standby")


@asynccontextmanager
async def stopped_amid_an_entry(tmp_path: Path, **settings: float) -> AsyncIterator[NodesOfAPlayer]:
    """A process that is told to stop while its target applies an entry, which lasts as long as this does."""
    async with nodes_of_a_player(tmp_path) as nodes:
        going_on = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slowly(payload: bytes) -> str:  # in a thread of the target's
            asyncio.run_coroutine_threadsafe(going_on.wait(), loop).result()
            return payload.decode()

        node = nodes.start(nodes.loaded(nodes.plan("a", **settings), a=slowly))
        await node.until("active")
        await nodes.append(b"a:1")
        await wait_until(lambda: node.node.player and node.node.player.health()["targets"]["a"]["in_flight"])
        stopping = asyncio.create_task(node.stop())
        await node.until("handing over")
        try:
            yield nodes
        finally:
            going_on.set()
            await stopping


async def test_a_process_that_hands_over_waits_for_what_is_in_flight(tmp_path: Path) -> None:
    async with stopped_amid_an_entry(tmp_path) as nodes:
        await nodes.append(b"a:2")
        await nothing_happens_for(0.1)
        assert LEASE in nodes.leases.holders
    assert LEASE not in nodes.leases.holders
    assert nodes.lines("a") == ["1"], "it took nothing new"


@pytest.mark.slow
async def test_a_process_that_hands_over_does_not_wait_for_ever(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        going_on = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stuck(payload: bytes) -> str:
            asyncio.run_coroutine_threadsafe(going_on.wait(), loop).result()
            return payload.decode()

        node = nodes.start(nodes.loaded(nodes.plan("a", hand_over_s_max=0.2), a=stuck))
        await node.until("active")
        await nodes.append(b"a:1")
        await wait_until(lambda: node.node.player and node.node.player.health()["targets"]["a"]["in_flight"])
        stopping = asyncio.create_task(node.stop())
        await wait_until(lambda: LEASE not in nodes.leases.holders, within_s=5.0)
        going_on.set()
        await stopping


@pytest.mark.slow
async def test_a_log_that_is_away_is_waited_for_and_one_that_can_not_be_ends_the_process(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        nodes.unreachable = fault("servers_unavailable", "nobody is there")
        node = nodes.start(nodes.loaded(nodes.plan("a")))
        await node.until("pausing")
        assert not node.node.candidacy.ready
        nodes.unreachable = None
        await node.until("active")
        nodes.unreachable = UnknownTopic("no such topic")
        other = nodes.start(nodes.loaded(nodes.plan("a")))
        assert other.task is not None
        with pytest.raises(UnknownTopic):
            await other.task


@pytest.mark.parametrize(
    "options", [{"partitions": (0, 3)}, {"targets": {"a": TargetPlan(file="f", start_after={3: 1})}}]
)
async def test_a_standby_sees_at_once_that_the_log_lacks_a_partition(
    tmp_path: Path, options: dict[str, object]
) -> None:
    async with nodes_of_a_player(tmp_path, partitions=2) as nodes:
        active = nodes.start(nodes.loaded(nodes.plan("a")))
        await active.until("active")
        wrong = nodes.start(nodes.loaded(replace(nodes.plan("a"), **options)))  # type: ignore[arg-type]
        assert wrong.task is not None
        with pytest.raises(BadOption, match="name partition 3, and this log has partitions 0 to 1"):
            await wrong.task


@pytest.mark.slow
async def test_leases_that_can_not_be_had_now_are_asked_for_again(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        nodes.leases.refused = fault("servers_unavailable", "not now")
        node = nodes.start(nodes.loaded(nodes.plan("a")))
        await node.until("pausing")
        nodes.leases.refused = None
        await node.until("active")
        assert node.node.candidacy.turns == 1


# ---------------------------------------------------------------------- settings that are read again


async def test_targets_come_and_go_with_the_settings(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        plan = nodes.plan("a", "b", retired=("c",))
        node = nodes.start(nodes.loaded(plan))
        await node.until("active")
        await nodes.append(b"abc:1")
        await nodes.until_delivered("a", "1")
        await nodes.until_delivered("b", "1")
        await node.node.reload(lambda: nodes.loaded(nodes.plan("a", "c", retired=("b",))))
        assert node.told[-1] == "settings read again: added: c; removed: b"
        await nodes.append(b"abc:2")
        await nodes.until_delivered("a", "1", "2")
        await nodes.until_delivered("c", "1", "2")
        assert nodes.lines("b") == ["1"]
        nodes.leases.take_away(LEASE)
        await wait_until(lambda: node.node.candidacy.turns == 2)
        await nodes.append(b"abc:3")
        await nodes.until_delivered("c", "1", "2", "3")
        assert nodes.lines("b") == ["1"], "the next turn has the same targets"


async def test_a_target_whose_place_has_changed_gets_there_what_is_lacking_there(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        plan = nodes.plan("a", "b")
        node = nodes.start(nodes.loaded(plan))
        await node.until("active")
        await nodes.append(b"a:1")
        await nodes.until_delivered("a", "1")
        moved = replace(plan, targets={"a": TargetPlan(file=str(tmp_path / "m.jsonl")), "b": plan.targets["b"]})
        await node.node.reload(lambda: nodes.loaded(moved))
        assert node.told[-1] == "settings read again: changed: a"
        await nodes.append(b"a:2")
        await nodes.until_delivered("m", "1", "2")
        assert nodes.lines("a") == ["1"]


async def test_a_standby_takes_up_settings_for_its_turn(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        first = nodes.start(nodes.loaded(nodes.plan("a", retired=("b",))))
        await first.until("active")
        second = nodes.start(nodes.loaded(nodes.plan("a", retired=("b",))))
        await second.until("standby")
        await second.node.reload(lambda: nodes.loaded(nodes.plan("a", "b")))
        await nodes.append(b"ab:1")
        await nodes.until_delivered("a", "1")
        assert nodes.lines("b") == []
        await first.stop()
        await nodes.until_delivered("b", "1")


async def test_settings_that_are_wrong_are_refused_and_the_others_stay(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        node = nodes.start(nodes.loaded(nodes.plan("a")))
        await node.until("active")
        await node.node.reload(partial(wrong_setting, "file player.toml: unknown setting"))
        assert node.node.reload_refused
        assert "refused, those before stay in use: file player.toml: unknown setting" in node.told[-1]
        beyond = replace(nodes.plan("a"), targets={"b": TargetPlan(file="b", start_after={7: 1})})
        await node.node.reload(lambda: nodes.loaded(beyond))
        assert "name partition 7" in node.node.last_reload
        await nodes.append(b"a:1")
        await nodes.until_delivered("a", "1")
        await node.node.reload(lambda: nodes.loaded(nodes.plan("a")))
        assert not node.node.reload_refused
        assert node.node.last_reload == "nothing has changed"


async def test_other_settings_need_a_restart_and_are_not_taken_up_by_the_next_turn_either(tmp_path: Path) -> None:
    async with nodes_of_a_player(tmp_path) as nodes:
        node = nodes.start(nodes.loaded(nodes.plan("a")))
        await node.until("active")
        changed = replace(nodes.plan("a", lease_s=9.0, retired=("z",)), route="other:route")
        await node.node.reload(lambda: nodes.loaded(changed))
        assert node.node.last_reload == "needs a restart: route, lease_s, retired"
        assert node.node.loaded.plan.lease_s == 5.0


@pytest.mark.parametrize(
    ("error", "connected", "end"),
    [
        (ProducerFenced("x"), True, TurnEnd.REPLACED),
        (BadOption("x"), True, TurnEnd.MISTAKEN),
        (ExtraMissing("x"), False, TurnEnd.MISTAKEN),
        (CertificateUnusable("x"), False, TurnEnd.MISTAKEN),
        (UnknownTopic("x"), False, TurnEnd.MISTAKEN),
        (fault("servers_unavailable", "x"), False, TurnEnd.FAILED),
        (DeliveryStopped("x"), True, TurnEnd.FAILED),
        (Closed("x"), True, TurnEnd.FAILED),
        (fault("host_failed", "x"), True, TurnEnd.FAILED),
    ],
)
def test_what_an_error_means(error: PolonaiseError, connected: bool, end: TurnEnd) -> None:
    assert turn_end_of(error, connected=connected) is end


def active(candidacy: Candidacy, now_s: float) -> None:
    candidacy.connected()
    candidacy.acquired()
    candidacy.started(7, now_s)


@pytest.mark.parametrize(
    ("end", "pause_s"),
    [(TurnEnd.LEASE_LOST, 0.0), (TurnEnd.REPLACED, 5.0), (TurnEnd.MISTAKEN, None)],
    ids=["not, as it waits for the lease", "as long as a lease", "for ever: the process ends"],
)
def test_how_long_a_process_pauses_after_a_turn(end: TurnEnd, pause_s: float | None) -> None:
    candidacy = Candidacy(5.0)
    active(candidacy, 0.0)
    assert candidacy.epoch == 7
    assert candidacy.over(end, "gone", 1.0) == pause_s
    assert (candidacy.epoch, candidacy.ready) == (None, False)


def test_pauses_grow_with_each_failure_up_to_a_bound() -> None:
    candidacy = Candidacy(1.0)
    pauses = []
    for _ in range(9):
        active(candidacy, 0.0)
        pauses.append(candidacy.over(TurnEnd.FAILED, "no", 1.0))
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_process_that_has_delivered_for_long_begins_with_the_first_pause() -> None:
    candidacy = Candidacy(1.0)
    for _ in range(3):
        candidacy.over(TurnEnd.FAILED, "no", 0.0)
    active(candidacy, 10.0)
    assert candidacy.over(TurnEnd.FAILED, "no", 69.9) == 4.0
    active(candidacy, 70.0)
    assert candidacy.over(TurnEnd.FAILED, "no", 130.0) == 0.5


def test_why_the_last_turn_ended_is_told_until_another_process_has_delivered_for_long() -> None:
    candidacy = Candidacy(1.0)
    active(candidacy, 0.0)
    candidacy.over(TurnEnd.FAILED, "no route", 1.0)
    candidacy.next_turn()
    candidacy.connected()
    candidacy.others_deliver("one", 10.0)
    candidacy.others_deliver("one", 69.0)
    assert candidacy.reason == "no route"
    candidacy.others_deliver("", 69.5)
    candidacy.others_deliver("two", 70.0)
    candidacy.others_deliver("two", 129.0)
    assert candidacy.reason == "no route", "each may come to the same transaction, and end"
    candidacy.others_deliver("two", 130.0)
    assert candidacy.reason == ""


def test_one_that_delivers_again_after_a_turn_of_this_process_has_to_deliver_for_long_again() -> None:
    candidacy = Candidacy(1.0)
    candidacy.connected()
    candidacy.others_deliver("one", 0.0)
    candidacy.acquired()
    candidacy.started(1, 10.0)
    candidacy.over(TurnEnd.FAILED, "no route", 80.0)
    candidacy.next_turn()
    candidacy.connected()
    candidacy.others_deliver("one", 81.0)
    assert candidacy.reason == "no route"
    candidacy.others_deliver("one", 141.0)
    assert candidacy.reason == ""


def test_a_standby_that_the_log_does_not_answer_is_not_ready() -> None:
    candidacy = Candidacy(1.0)
    candidacy.connected()
    candidacy.others_deliver("one", 0.0)
    candidacy.log_is_silent("no answer")
    assert not candidacy.ready
    assert (candidacy.other, candidacy.log_trouble) == ("", "no answer")
    candidacy.others_deliver("one", 1.0)
    assert candidacy.ready
    assert (candidacy.other, candidacy.log_trouble) == ("one", "")


def test_what_a_standby_was_told_is_forgotten_when_it_stands_by_no_longer() -> None:
    for leave in (Candidacy.acquired, lambda one: one.over(TurnEnd.FAILED, "refused", 1.0)):
        for tell in (
            lambda one: one.log_is_silent("no answer"),
            lambda one: one.others_deliver("one", 0.0),
        ):
            candidacy = Candidacy(1.0)
            candidacy.connected()
            tell(candidacy)
            leave(candidacy)
            assert (candidacy.other, candidacy.log_trouble) == ("", "")
            # An answer that was under way comes too late to be taken back.
            tell(candidacy)
            assert (candidacy.other, candidacy.log_trouble) == ("", "")


def test_the_lease_is_held_until_it_is_let_go_of() -> None:
    candidacy = Candidacy(1.0)
    candidacy.connected()
    assert not candidacy.has_lease
    candidacy.acquired()
    candidacy.started(1, 0.0)
    assert candidacy.has_lease
    candidacy.lets_go()
    assert not candidacy.has_lease


def test_a_standby_is_ready_and_one_that_pauses_is_not() -> None:
    candidacy = Candidacy(1.0)
    seen = {candidacy.state: candidacy.ready}
    for step in (candidacy.connected, candidacy.acquired, lambda: candidacy.started(1, 0.0), candidacy.handing_over):
        step()
        seen[candidacy.state] = candidacy.ready
    candidacy.over(TurnEnd.FAILED, "no", 0.0)
    seen[candidacy.state] = candidacy.ready
    assert [state for state, ready in seen.items() if ready] == [
        CandidateState.STANDBY, CandidateState.STARTING, CandidateState.ACTIVE,
    ]  # fmt: skip
    assert set(seen) == set(CandidateState)
    candidacy.next_turn()
    assert candidacy.state is CandidateState.CONNECTING
