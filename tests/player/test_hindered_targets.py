"""What an active player does about targets that are away, hang, refuse or answer wrongly, and about their reads."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from polonaise.errors import BadOption, PartitionNotReady, PolonaiseError
from polonaise.log.batch import Batch
from polonaise.player.logreading import LogReading
from polonaise.player.protocol.activeplayer import ActivePlayer
from polonaise.player.protocol.deliveryhealth import targets_health
from polonaise.player.protocol.effects import CloseStream, OpenStream, ReadForTarget
from polonaise.player.protocol.entries import RoutedEntry
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.protocol.targetqueue import RecoveryRead
from polonaise.player.protocol.targetstream import StreamState
from polonaise.player.routing import Route, Router
from polonaise.terms import Transaction
from rigs.activeplayer import Player, hindered, served
from rigs.log import Maker
from rigs.waiting import wait_until


def test_a_target_that_comes_back_is_caught_up_behind_what_it_tells() -> None:
    player = served("a")
    for number in range(3):
        player.fetch(number, "a")
    player.do("disconnected", "a", 1, "reset by peer")
    player.fetch(3, "a")
    player.effects.clear()
    player.tick(1.0)
    assert player.all(OpenStream) == [OpenStream("a", 2)]
    player.connect("a", term=2, applied={0: 0})
    (effect,) = player.all(ReadForTarget)
    assert (effect.read.first, effect.read.last) == (1, 3)
    player.do("recovered", "a", 0, effect.read.number, [RoutedEntry(number, b"") for number in (1, 2, 3)], 3)
    assert player.sent() == [("a", 0, 0, [1, 2, 3])]


def test_pauses_grow_while_streams_fail_and_begin_anew_after_one_that_lasted() -> None:
    player = Player("a", retry_s_min=1.0, retry_s_max=3.0, steady_s=50.0)
    opened = []
    for _ in range(4):
        player.tick()
        while not (found := player.all(OpenStream)):
            player.tick(0.5)
        opened.append(player.now_s - 100.0)
        player.do("disconnected", "a", found[0].term, "refused")
    assert opened == [0.0, 1.0, 3.0, 6.0]
    player.tick(3.0)
    player.connect("a", term=5)
    player.now_s += 60.0
    player.do("disconnected", "a", 5, "reset")
    player.all(OpenStream)
    player.tick(1.0)
    assert player.all(OpenStream) == [OpenStream("a", 6)]


def test_a_target_that_acknowledges_nothing_for_too_long_is_disconnected() -> None:
    player = served("a", "b", progress_s_max=5.0)
    player.tick(100.0)
    assert player.all(CloseStream) == [], "nothing is in flight"
    player.fetch(0, "a", "b")
    player.do("acknowledged", "b", 1, 0, 0)
    player.tick(4.9)
    assert player.all(CloseStream) == []
    player.tick(0.1)
    assert player.all(CloseStream) == [CloseStream("a", 1, "it hangs: it acknowledged nothing of partition 0 for 5 s")]
    assert player.machine.targets["b"].state is StreamState.UP


def test_a_partition_that_is_stuck_is_noticed_while_the_target_applies_others() -> None:
    player = served("a", partitions=2, progress_s_max=5.0)
    player.fetch(0, "a", partition=0)
    player.do("written", "a", 1)
    for number in range(5):
        player.fetch(number, "a", partition=1)
        player.do("written", "a", 1)
        player.tick(1.0)
        if number < 4:
            player.do("acknowledged", "a", 1, 1, number)
    assert player.all(CloseStream) == [CloseStream("a", 1, "it hangs: it acknowledged nothing of partition 0 for 5 s")]
    pairs = player.machine.targets["a"].pairs
    assert pairs[0].batch_entries_max < pairs[1].batch_entries_max, "it gets less of that partition alone"


def test_a_partition_that_a_target_is_slow_with_leaves_room_for_others() -> None:
    player = served("a", partitions=2, partition_window_bytes=100, batch_bytes_max=100)
    for number in range(5):
        player.fetch(number, "a", partition=0, size=60)
        player.do("written", "a", 1)
    player.fetch(0, "a", partition=1)
    assert player.sent() == [("a", 0, -1, [0]), ("a", 0, 0, [1]), ("a", 1, -1, [0])]
    player.do("written", "a", 1)
    player.do("acknowledged", "a", 1, 0, 0)
    assert player.sent() == [("a", 0, 1, [2])]


def test_a_target_that_came_to_nothing_gets_less_at_a_time_until_it_has_applied_something() -> None:
    player = served("a", progress_s_max=5.0, batch_entries_max=8, window_bytes=1)
    for number in range(40):
        player.fetch(number, "a")
    player.sent()
    sizes = []
    for term in range(1, 7):
        player.tick(4.9)
        assert player.all(CloseStream) == []
        player.tick(600.0)
        (closed,) = player.all(CloseStream)
        assert closed.reason.startswith("it hangs: it acknowledged nothing of partition 0 for ")
        player.tick(60.0)
        player.connect("a", term=term + 1, applied={0: 0}, mark=39)
        (effect,) = player.all(ReadForTarget)
        entries = [RoutedEntry(number, b"") for number in range(1, 40)]
        player.do("recovered", "a", 0, effect.read.number, entries, 39)
        sizes.append(len(player.sent()[0][3]))
    assert sizes == [4, 2, 1, 1, 1, 1]
    for last in (1, 3):
        player.do("acknowledged", "a", 7, 0, last)
        player.do("written", "a", 7)
        sizes.append(len(player.sent()[0][3]))
    assert sizes[-2:] == [2, 4]


def test_an_attempt_to_open_a_stream_ends_though_nobody_says_so() -> None:
    player = Player("a", open_s_max=2.0)
    player.tick()
    player.tick(3.9)
    assert player.all(CloseStream) == []
    player.tick(0.1)
    assert player.all(CloseStream) == [CloseStream("a", 1, "it did not accept the stream within 4 s")]
    player.tick(1.0)
    assert player.all(OpenStream) == [OpenStream("a", 1), OpenStream("a", 2)]


def test_a_target_that_is_slow_to_accept_streams_gets_more_time_until_it_is_quick() -> None:
    player = Player("a", open_s_max=2.0, retry_s_max=0.1)
    stream = player.machine.targets["a"]
    given = []
    for term in range(1, 6):
        player.tick(1.0)
        given.append(stream.open_s_max)
        player.now_s += stream.open_s_max
        player.do("disconnected", "a", term, "it did not answer")
    assert given == [2.0, 4.0, 8.0, 12.0, 12.0]
    player.tick(1.0)
    player.now_s += 2.5
    player.connect("a", term=6)
    assert stream.open_s_max == 10.0, "four times what it has taken"
    player.do("disconnected", "a", 6, "reset")
    player.tick(1.0)
    player.connect("a", term=7)
    assert stream.open_s_max == 2.0


def test_a_refused_entry_is_sent_again_after_a_pause_and_other_partitions_go_on() -> None:
    player = served("a", partitions=2, retry_s_min=1.0)
    player.fetch(0, "a")
    player.do("written", "a", 1)
    player.fetch(1, "a")
    player.do("refused", "a", 1, 0, 0, "no such account")
    assert player.machine.targets["a"].pairs[0].trouble_now == "it refuses the entry after id 0: no such account"
    player.effects.clear()
    player.do("written", "a", 1)
    player.fetch(0, "a", partition=1)
    assert player.sent() == [("a", 1, -1, [0])]
    player.do("written", "a", 1)
    player.tick(0.9)
    assert player.all(ReadForTarget) == []
    player.tick(0.1)
    (effect,) = player.all(ReadForTarget)
    player.do("recovered", "a", 0, effect.read.number, [RoutedEntry(1, b"")], 1)
    assert player.sent() == [("a", 0, 0, [1])]


def bring(player: Player, through: int, target: str) -> None:
    """Let the main stream bring transactions up to this one, which alone is for the target."""
    current = player.machine.partitions[0].current
    assert current is not None
    player.do("fetched", 0, 1, current + 1, through, {target: [RoutedEntry(through, b"x")]})


def lag(player: Player, target: str) -> tuple[dict[str, int], dict[str, int | None]]:
    told = targets_health(player.machine)[target]
    return told["applied"], told["lag"]


def test_a_target_that_refuses_its_first_entry_has_applied_nothing_and_lacks_it() -> None:
    player = Player("a")
    player.tick()
    assert lag(player, "a") == ({}, {"0": None}), "it has told nothing yet"
    player.connect("a")
    bring(player, 0, "a")
    player.do("refused", "a", 1, 0, -1, "bad")
    assert lag(player, "a") == ({"0": -1}, {"0": 1})
    player.do("disconnected", "a", 1, "gone")
    assert lag(player, "a") == ({"0": -1}, {"0": 1})


def test_a_target_lags_from_the_entry_on_that_it_lacks_and_not_from_those_of_others() -> None:
    player = served("a", "b")
    bring(player, 99, "b")
    assert lag(player, "a")[1] == {"0": 0}
    bring(player, 100, "a")
    assert lag(player, "a")[1] == {"0": 1}, "it was sent"
    player.do("refused", "a", 1, 0, -1, "bad")
    assert lag(player, "a")[1] == {"0": 1}, "it was refused"
    player.do("disconnected", "a", 1, "gone")
    assert lag(player, "a")[1] == {"0": 1}, "the stream has ended"
    bring(player, 109, "b")
    assert lag(player, "a")[1] == {"0": 10}, "what it would get meanwhile is not looked at"
    assert lag(player, "b")[1] == {"0": 11}, "it has acknowledged nothing"


def test_a_read_that_failed_is_tried_again_and_what_was_read_is_still_sent() -> None:
    player = Player("a", "b", retry_s_min=1.0, join_transactions=0)
    player.tick()
    player.connect("a", applied={0: 9}, mark=9)
    player.connect("b", mark=9)
    (effect,) = player.all(ReadForTarget)
    player.do("recovered", "b", 0, effect.read.number, [RoutedEntry(0, b"")], 0)
    (effect,) = player.all(ReadForTarget)
    assert player.sent() == [("b", 0, -1, [0])]
    player.do("recovery_failed", "b", 0, effect.read.number, "no server answers")
    assert player.machine.targets["b"].pairs[0].trouble_now == "no server answers"
    player.do("acknowledged", "b", 1, 0, 0)
    assert player.all(ReadForTarget) == []
    player.tick(1.0)
    (effect,) = player.all(ReadForTarget)
    assert (effect.read.first, effect.read.last) == (1, 9)
    assert hindered(player, "b") == {"0": "no server answers"}, "as long as it is being tried"
    player.do("recovered", "b", 0, effect.read.number, [RoutedEntry(5, b"")], 9)
    assert hindered(player, "b") == {}


def test_what_hindered_a_target_is_told_until_it_has_applied_something_or_lacks_nothing() -> None:
    player = served("a", partitions=2)
    for partition in range(2):
        player.fetch(0, "a", partition=partition)
    player.do("disconnected", "a", 1, "reset by peer")
    player.tick(1.0)
    player.connect("a", term=2, applied={0: 0})
    assert hindered(player, "a") == {"1": "reset by peer"}
    player.tick(1.0)
    (effect,) = player.all(ReadForTarget)
    player.do("recovered", "a", 1, effect.read.number, [RoutedEntry(0, b"")], 0)
    player.do("acknowledged", "a", 2, 1, 0)
    player.fetch(1, "a", partition=0)
    assert hindered(player, "a") == {}, "not what it was hindered by before it had everything"


def test_why_a_target_can_not_be_reached_is_told_from_the_first_look_on() -> None:
    player = Player("a")
    player.tick()
    player.do("disconnected", "a", 1, "connection refused")
    assert hindered(player, "a") == {"0": "connection refused"}


@pytest.mark.parametrize(
    ("event", "about"),
    [("acknowledged", (0, 7)), ("acknowledged", (1, 0)), ("refused", (0, 0, "why")), ("refused", (1, 0, "why"))],
)
def test_a_target_that_answers_for_what_it_was_not_sent_is_disconnected(event: str, about: tuple[Any, ...]) -> None:
    player = served("a", "b")
    player.fetch(0, "a")
    player.do(event, "a", 1, *about)
    (closed,) = player.all(CloseStream)
    assert "was not sent" in closed.reason
    assert player.machine.targets["b"].state is StreamState.UP


def test_why_a_target_is_away_is_told_by_the_last_attempt_and_a_refusal_stays() -> None:
    player = served("a", partitions=2)
    for partition in range(2):
        player.fetch(0, "a", partition=partition)
        player.do("written", "a", 1)
    player.do("refused", "a", 1, 1, -1, "no such account")
    refusal = "it refuses the entry after id -1: no such account"
    player.do("disconnected", "a", 1, "reset by peer")
    assert hindered(player, "a") == {"0": "reset by peer", "1": refusal}
    for term in (2, 3):
        player.tick(10.0)
        player.do("disconnected", "a", term, f"refused at attempt {term}")
    assert hindered(player, "a") == {"0": "refused at attempt 3", "1": refusal}
    player.tick(10.0)
    player.connect("a", term=4, applied={0: 0})
    (effect,) = player.all(ReadForTarget)
    player.do("recovered", "a", 1, effect.read.number, [RoutedEntry(0, b"")], 0)
    player.do("disconnected", "a", 4, "disk full")
    assert hindered(player, "a") == {"1": "disk full"}, "what was refused was sent again, and something else came of it"


def test_why_the_last_stream_ended_replaces_why_an_earlier_one_did_though_each_was_accepted() -> None:
    player = served("a")
    player.fetch(0, "a")
    for term, reason in enumerate(("disk full", "password expired", "disk full"), 1):
        player.do("disconnected", "a", term, reason)
        assert hindered(player, "a") == {"0": reason}
        player.tick(10.0)
        player.connect("a", term=term + 1)
        assert hindered(player, "a") == {"0": reason}, "until the target has applied something"


class BatchesAtHand:
    """A log whose batches are all there: reading them waits for nothing."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    async def read_batches(self, partition: int, *, after: int, until: int) -> AsyncIterator[Batch]:
        for batch in self._batches:
            yield batch


class Told:
    """Keeps the events that the machine is told."""

    name = "player"

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def happened(self, event: Any, *about: Any) -> None:
        self.events.append((event.__name__, *about))

    def stopped(self, *about: Any) -> None:
        self.events.append(("stopped", *about))


async def read(route: Route, count: int, batches: int = 1) -> list[tuple[Any, ...]]:
    """Read `count` transactions in some batches for target "a"; return what was told."""
    log = BatchesAtHand(Maker().batches(batches, count=count // batches))
    told = Told()
    machine = ActivePlayer(1, [0], PlayerSettings())
    reading = LogReading(log, machine, Router(route, {"a", "b"}, ()), told)  # type: ignore[arg-type]
    await reading.read(ReadForTarget("a", 0, RecoveryRead(1, 0, count - 1)))
    return told.events


@pytest.mark.parametrize("batches", [1, 500])
async def test_a_read_is_routed_in_turns_so_that_others_are_served_meanwhile(batches: int) -> None:
    routed = 0
    seen: list[int] = []

    def route(tx: Transaction) -> dict[str, bytes]:
        nonlocal routed
        routed += 1
        return {"a": tx.data, "b": tx.data}

    async def other() -> None:
        while routed < 1_000:
            seen.append(routed)
            await asyncio.sleep(0)

    (told, _) = await asyncio.gather(read(route, 1_000, batches), other())
    ((event, target, partition, number, entries, through),) = told
    assert (event, target, partition, number, through) == ("recovered", "a", 0, 1, 999)
    assert [entry.id for entry in entries] == list(range(1_000))
    steps = [later - earlier for earlier, later in itertools.pairwise(seen)]
    assert max(steps) <= 50


async def test_what_comes_before_a_transaction_that_can_not_be_routed_is_told() -> None:
    def route(tx: Transaction) -> dict[str, bytes]:
        return {"a" if tx.id < 150 else "nobody": tx.data}

    ((event, *_, entries, through),) = await read(route, 300)
    assert (event, through) == ("recovered", 149)
    assert [entry.id for entry in entries] == list(range(150))


@pytest.mark.parametrize("wrong", [{"nobody": b""}, {"a": "text"}, None], ids=str)
async def test_a_read_whose_first_transaction_can_not_be_routed_has_failed(wrong: Any) -> None:
    ((event, _, _, number, reason),) = await read(lambda _: wrong, 3)
    assert (event, number) == ("recovery_failed", 1)
    assert "transaction 0 can't be routed" in reason


class PutBack:
    """A log of which each reader has other batches, and whose register of the player's epoch was deleted."""

    def __init__(self, *readings: list[Batch], error: PolonaiseError | None = None) -> None:
        self._readings = list(readings)
        self._error = error or PartitionNotReady("nobody answers")

    async def read_batches(self, partition: int, *, after: int, follow: bool) -> AsyncIterator[Batch]:
        for batch in self._readings.pop(0):
            yield batch
        raise self._error

    async def register(self, key: bytes, partition: int, *, timeout: float) -> bytes | None:
        return None

    async def high_water_mark(self, partition: int, *, timeout: float) -> int:
        return 1


def reading_of(log: PutBack, epoch: int = 1) -> tuple[LogReading, ActivePlayer, Told]:
    told, settings = Told(), PlayerSettings(retry_s_min=0.001, retry_s_max=0.001)
    machine = ActivePlayer(epoch, [0], settings)
    router = Router(lambda tx: {"a": tx.data}, {"a"}, ())
    return LogReading(log, machine, router, told), machine, told  # type: ignore[arg-type]


async def test_a_main_stream_does_not_go_on_from_another_log_after_a_time_without_answers() -> None:
    batches, others = Maker().batches(2), Maker(crc=7).batches(2)
    reading, _, told = reading_of(PutBack(batches[:1], [], others[1:]))
    async with asyncio.timeout(5):
        await reading.follow(0, 1, 0)
    assert [event for event, *_ in told.events] == ["fetched", "forked"]


async def test_a_main_stream_that_begins_again_does_not_go_on_from_another_log() -> None:
    batches, others = Maker().batches(2), Maker(crc=7).batches(2)
    reading, _, told = reading_of(PutBack(batches[:1], others[1:], error=BadOption("for good")))
    async with asyncio.timeout(5):
        await reading.follow(0, 1, 0)
        await reading.follow(0, 2, 1)
    assert [event for event, *_ in told.events] == ["fetched", "stopped", "forked"]


async def test_a_log_that_knows_less_of_the_epoch_than_the_player_has_taken_is_told_as_trouble() -> None:
    reading, _, told = reading_of(PutBack(), epoch=3)
    watching = asyncio.ensure_future(reading.watch(b"key"))
    await wait_until(lambda: bool(reading.trouble(0)), "the player has looked at its epoch")
    watching.cancel()
    assert "the epoch of this player's name in the log is none, and this one has taken 3" in reading.trouble(0)
    assert [event for event, *_ in told.events] == ["mark_seen"]
