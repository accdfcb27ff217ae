"""What every transport promises: the same tests for streams within the process, and to a target at an address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from polonaise.errors import InvariantViolated, ViewUnavailable
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, Judge
from polonaise.player.endpoint import DeliveryEndpoint
from polonaise.player.protocol.entries import NO_FENCE, DeliveryBatch, Fence, RoutedEntry
from polonaise.player.protocol.reception import Verdict
from rigs.deliverystreams import (
    SOURCE,
    TRANSPORTS,
    Direct,
    Heard,
    MemoryTarget,
    Remote,
    batch,
    batches_after,
    check_applied,
    no_more_tasks_than,
    opened,
    opening,
    script,
)
from rigs.waiting import nothing_happens_for, wait_until


@pytest.fixture(params=TRANSPORTS.values(), ids=TRANSPORTS.keys())
def transport(request: pytest.FixtureRequest) -> Direct | Remote:
    made: Direct | Remote = request.param
    return made


@pytest.fixture
async def target() -> MemoryTarget:
    return MemoryTarget()


@pytest.fixture
async def endpoint(transport: Direct | Remote, target: MemoryTarget) -> AsyncIterator[DeliveryEndpoint]:
    async with transport.reaching(target) as made:
        yield made


# ---------------------------------------------------------------------- opening


async def test_an_accepted_stream_tells_what_was_applied(target: MemoryTarget, endpoint: DeliveryEndpoint) -> None:
    target.ids = {0: 17, 5: -1, 2**31 - 1: 2**63 - 1}
    async with opened(endpoint, Fence(3, 9)) as stream:
        assert stream.heard.told == [("connected", {0: 17, 5: -1, 2**31 - 1: 2**63 - 1})]
        assert target.kept == Fence(3, 9)
        assert target.source == SOURCE


@pytest.mark.parametrize("lower", [Fence(2, 5), Fence(2, 4), Fence(1, 9)])
async def test_a_fence_that_is_not_above_is_told_the_one_that_is_kept(
    target: MemoryTarget, endpoint: DeliveryEndpoint, lower: Fence
) -> None:
    target.kept = Fence(2, 5)
    async with opening(endpoint, lower) as stream:
        await stream.heard.until("fenced", Fence(2, 5))
        await stream.task
        assert len(stream.heard.told) == 1


async def test_a_higher_fence_takes_over_from_a_stream_that_runs(
    target: MemoryTarget, endpoint: DeliveryEndpoint
) -> None:
    async with opened(endpoint, Fence(1, 7)) as older:
        older.send(batch(-1, b"a"))
        await older.heard.until("acknowledged", 0, 0)
        target.waits[1] = asyncio.Event()
        older.send(batch(-1, b"slow", partition=1))
        await wait_until(lambda: target.at_work, "a batch of the older stream is being applied")
        async with opened(endpoint, Fence(2, 1)) as newer:
            assert newer.heard.told == [("connected", {0: 0})]
            # It learns of it without a batch of its own.
            await older.heard.until("fenced", Fence(2, 1))
            older.send(batch(0, b"old"))
            target.waits[1].set()
            newer.send(batch(0, b"new"), batch(-1, b"new", partition=1))
            await newer.heard.until("acknowledged", 0, 1)
            await newer.heard.until("acknowledged", 1, 0)
            await older.task
    assert target.of(0) == [(0, b"a"), (1, b"new")]
    assert target.of(1) == [(0, b"new")]


async def test_a_target_that_another_process_serves_meanwhile_fences_the_next_batch(
    target: MemoryTarget, endpoint: DeliveryEndpoint
) -> None:
    async with opened(endpoint) as stream:
        target.kept = Fence(2, 1)
        stream.send(batch(-1, b"a"))
        await stream.heard.until("fenced", Fence(2, 1))
        await stream.task
    assert target.applied == []


async def test_a_target_of_another_log_says_so(target: MemoryTarget, endpoint: DeliveryEndpoint) -> None:
    async with opened(endpoint):
        pass
    for other in (SOURCE._replace(log_key=b"x" * 16), SOURCE._replace(player="other")):
        async with opening(endpoint, Fence(5, 1), source=other) as stream:
            await stream.heard.until("disconnected")
            assert "this target is of" in stream.heard.reason
            await stream.task
    assert target.kept == Fence(1, 1)


async def test_a_target_that_does_not_accept_in_time_is_disconnected(
    target: MemoryTarget, endpoint: DeliveryEndpoint
) -> None:
    target.accepts.clear()
    async with opening(endpoint, open_s_max=0.2) as stream:
        await stream.heard.until("disconnected")
        assert "did not answer within 0.2 s" in stream.heard.reason
        await stream.task
    target.accepts.set()
    async with opened(endpoint, Fence(1, 2)):
        pass


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_a_stream_that_is_given_up_while_it_opens_leaves_nothing(
    transport: Direct | Remote, target: MemoryTarget, how: str
) -> None:
    async with transport.reaching(target) as endpoint:
        before = asyncio.all_tasks()
        target.accepts.clear()
        for turns in (*range(12), 1_000):
            heard = Heard()
            stream = endpoint.stream(Fence(1, 1 + turns), heard)
            task = asyncio.ensure_future(stream.serve(SOURCE, 20.0))
            for _ in range(turns):
                await asyncio.sleep(0)
            stream.close()
            if how == "cancelled":
                task.cancel()
            await asyncio.wait((task,))
            assert heard.told == []
        await no_more_tasks_than(before)
        target.accepts.set()
        async with opened(endpoint, Fence(2, 1)):
            pass


# ---------------------------------------------------------------------- batches


@pytest.mark.parametrize("seed", range(3))
async def test_entries_arrive_once_and_in_order_and_are_acknowledged(
    target: MemoryTarget, endpoint: DeliveryEndpoint, seed: int
) -> None:
    random = Random(seed)
    entries = script(random)
    async with opened(endpoint) as stream:
        sent = batches_after(entries, {}, random)
        while sent:
            told = stream.heard.count("written")
            count = random.randrange(1, 5)
            stream.send(*sent[:count])
            sent = sent[count:]
            await wait_until(lambda told=told: stream.heard.count("written") > told, "more may be sent")
        for partition, each in entries.items():
            await stream.heard.until("acknowledged", partition, each[-1].id)
        assert stream.heard.count("disconnected") == 0
    check_applied(target, entries)


async def test_the_check_of_what_was_applied_finds_what_is_doubled_missing_or_out_of_order(
    target: MemoryTarget,
) -> None:
    entries = {0: [RoutedEntry(0, b"a"), RoutedEntry(1, b"b")]}
    right = [(0, 0, b"a"), (0, 1, b"b")]
    for wrong in ([right[0], *right], right[:1], right[::-1], [*right, (0, 2, b"c")]):
        target.applied = list(wrong)
        with pytest.raises(AssertionError):
            check_applied(target, entries)
    target.applied = list(right)
    check_applied(target, entries)


async def test_a_large_payload_dummies_and_empty_payloads_arrive_as_they_are(
    target: MemoryTarget, endpoint: DeliveryEndpoint
) -> None:
    large = Random(1).randbytes(9 * 1024 * 1024)
    async with opened(endpoint) as stream:
        stream.send(batch(-1, None), batch(0, large), batch(1, b"", None, b"x"))
        await stream.heard.until("acknowledged", 0, 4)
    assert target.of(0) == [(0, None), (1, large), (2, b""), (3, None), (4, b"x")]


async def test_a_slow_partition_holds_up_no_other(target: MemoryTarget, endpoint: DeliveryEndpoint) -> None:
    target.waits[0] = asyncio.Event()
    async with opened(endpoint) as stream:
        stream.send(batch(-1, b"slow"), batch(0, b"behind"))
        for id in range(20):
            stream.send(batch(id - 1, b"quick", partition=1))
        await stream.heard.until("acknowledged", 1, 19)
        assert target.of(0) == []
        assert target.calls == 21, "the second batch of the slow partition waits for the first"
        target.waits[0].set()
        await stream.heard.until("acknowledged", 0, 1)
    assert target.of(0) == [(0, b"slow"), (1, b"behind")]


async def test_a_refused_entry_is_told_and_what_follows_waits_for_it_to_come_again(
    target: MemoryTarget, endpoint: DeliveryEndpoint
) -> None:
    target.refuses = {b"bad"}
    async with opened(endpoint) as stream:
        stream.send(batch(-1, b"a", b"bad", b"c"), batch(2, b"d"), batch(-1, b"other", partition=1))
        await stream.heard.until("refused", 0, 0, "b'bad' is refused")
        await stream.heard.until("acknowledged", 1, 0)
        await wait_until(lambda: target.calls == 3, "what follows has come, too")
        assert target.of(0) == [(0, b"a")]
        target.refuses.clear()
        stream.send(batch(0, b"bad", b"c", b"d"))
        await stream.heard.until("acknowledged", 0, 3)
        assert stream.heard.count("refused") == 1
    assert target.of(0) == [(0, b"a"), (1, b"bad"), (2, b"c"), (3, b"d")]


async def test_a_refusal_is_told_short_and_without_secrets(transport: Direct | Remote) -> None:
    class Tells(MemoryTarget):
        async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
            reason = "postgresql://me:secret@host/db" + "x" * 100_000
            return AppliedBatch(Verdict.APPLY, batch.previous, NO_FENCE, reason)

    async with transport.reaching(Tells()) as endpoint, opened(endpoint) as stream:
        stream.send(batch(-1, b"a"))
        await wait_until(lambda: stream.heard.count("refused"), "the refusal is told")
        (reason,) = (each[3] for each in stream.heard.told if each[0] == "refused")
        assert reason.startswith("postgresql://me:")
        assert "secret" not in reason
        assert len(reason) < 1_000


@pytest.mark.parametrize("previous", [0, 5], ids=["applied already", "an entry is missing"])
async def test_a_batch_out_of_place_ends_the_stream(
    target: MemoryTarget, endpoint: DeliveryEndpoint, previous: int
) -> None:
    async with opened(endpoint) as stream:
        stream.send(batch(-1, b"a", b"b"))
        await stream.heard.until("acknowledged", 0, 1)
        stream.send(batch(previous, b"x"), batch(-1, b"other", partition=1))
        await stream.heard.until("disconnected")
        assert f"partition 0: it has applied 1, and was sent what follows {previous}" in stream.heard.reason
        await stream.task
    assert target.of(0) == [(0, b"a"), (1, b"b")]


# ---------------------------------------------------------------------- what targets do wrong


class Odd(MemoryTarget):
    """Raises or returns something odd, in the method that is named."""

    def __init__(self, where: str, what: Any) -> None:
        super().__init__()
        self.where, self.what = where, what

    def _oddly(self) -> Any:
        if isinstance(self.what, BaseException):
            raise self.what
        return self.what

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        return self._oddly() if self.where == "accept" else await super().accept(offered, source)

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        return self._oddly() if self.where == "apply" else await super().apply(batch, judge)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


_SAYS = "not what DeliveryTarget says"
_RAISED: list[tuple[Any, str]] = [
    (KeyError("x"), "the target failed: KeyError('x')"),
    (TimeoutError("my own"), "the target failed: TimeoutError('my own')"),
    (ViewUnavailable("no database"), "the target failed: [view_unavailable] no database"),
    (asyncio.CancelledError(), "the target cancelled its own call"),
    (Unprintable(), "the target failed: Unprintable without a text"),
    (ValueError("postgresql://me:secret@host/db" + "x" * 9_000), "the target failed: ValueError("),
    (None, "the target returned None"),
    ("y" * 9_000, _SAYS),
]


@pytest.mark.parametrize(
    ("where", "what", "why"),
    [
        *(("accept", *each) for each in _RAISED),
        ("accept", Acceptance(True, Fence(1, 1), None), _SAYS),  # type: ignore[arg-type]
        ("accept", Acceptance(True, Fence(1, 1), {0: -5}), _SAYS),
        ("accept", Acceptance(True, Fence(1, 1), {0: 2**63}), _SAYS),
        ("accept", Acceptance(True, Fence(1, 1), {"0": 5}), _SAYS),  # type: ignore[dict-item]
        ("accept", Acceptance(True, Fence(9, 9), {}), _SAYS),
        ("accept", Acceptance(False, Fence("1", 1), {}), _SAYS),  # type: ignore[arg-type]
        ("accept", Acceptance(False, None, {}), _SAYS),  # type: ignore[arg-type]
        *(("apply", *each) for each in _RAISED),
        ("apply", AppliedBatch(Verdict.APPLY, 7, NO_FENCE), _SAYS),
        ("apply", AppliedBatch(Verdict.APPLY, -1, NO_FENCE), _SAYS),
        ("apply", AppliedBatch(Verdict.APPLY, 0, NO_FENCE, "refused, but applied"), _SAYS),
        ("apply", AppliedBatch(Verdict.FENCED, 0, None), _SAYS),  # type: ignore[arg-type]
        ("apply", AppliedBatch("APPLY", 0, NO_FENCE), _SAYS),  # type: ignore[arg-type]
    ],
)
async def test_whatever_a_target_does_wrong_ends_this_stream_alone(
    transport: Direct | Remote, where: str, what: Any, why: str
) -> None:
    target = Odd(where, what)
    async with transport.reaching(target) as endpoint:
        before = asyncio.all_tasks()
        async with opening(endpoint) as stream:
            if where == "apply":
                await stream.heard.until("connected", {})
                stream.send(batch(-1, b"a"), batch(-1, b"a", partition=1), batch(0, b"b"))
            await stream.heard.until("disconnected")
            assert why in stream.heard.reason
            assert "secret" not in stream.heard.reason
            assert len(stream.heard.reason) < 1_000
            await stream.task
            assert stream.heard.count("disconnected") == 1
        await no_more_tasks_than(before)
        target.where = ""
        async with opened(endpoint, Fence(1, 2)) as stream:
            stream.send(batch(-1, b"a"))
            await stream.heard.until("acknowledged", 0, 0)


# ---------------------------------------------------------------------- the end


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_nothing_more_is_told_or_applied_once_a_stream_has_ended(
    transport: Direct | Remote, target: MemoryTarget, how: str
) -> None:
    async with transport.reaching(target) as endpoint:
        before = asyncio.all_tasks()
        async with opened(endpoint) as stream:
            for partition in range(3):
                target.waits[partition] = asyncio.Event()
                stream.send(batch(-1, b"a", partition=partition), batch(0, b"b", partition=partition))
            await wait_until(lambda: target.at_work == 3, "each partition is being applied")
            if how == "closed":
                stream.stream.close()
                stream.send(batch(1, b"c"))
            else:
                stream.task.cancel()
            told = len(stream.heard.told)
            await wait_until(lambda: not target.at_work, "what was being applied is cancelled")
            for gate in target.waits.values():
                gate.set()
            await nothing_happens_for(0.05)
            await asyncio.wait((stream.task,))
            assert stream.heard.told[told:] in ([], [("written",)])
        await no_more_tasks_than(before)
    assert target.applied == []
    assert target.calls == 3


async def test_a_target_that_goes_on_although_it_was_cancelled_is_not_told_of(
    transport: Direct | Remote,
) -> None:
    class Stubborn(MemoryTarget):
        async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
            done = asyncio.ensure_future(super().apply(batch, judge))
            while not done.done():
                try:
                    await asyncio.shield(done)
                except asyncio.CancelledError:
                    continue
            return done.result()

    target = Stubborn()
    target.waits[0] = asyncio.Event()
    async with transport.reaching(target) as endpoint:
        before = asyncio.all_tasks()
        async with opened(endpoint) as stream:
            stream.send(batch(-1, b"a"), batch(0, b"b"))
            await wait_until(lambda: target.at_work, "it is being applied")
            stream.stream.close()
            await nothing_happens_for(0.02)
            target.waits[0].set()
            await stream.task
            assert stream.heard.count("acknowledged") == 0
        await no_more_tasks_than(before)
        assert target.of(0) == [(0, b"a")]
        async with opened(endpoint, Fence(1, 2)) as stream:
            assert stream.heard.told == [("connected", {0: 0})]


async def test_partitions_beyond_the_bound_keep_no_task_of_their_own(
    target: MemoryTarget, endpoint: DeliveryEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polonaise.player.targetsession._LANES_MAX", 2)
    partitions = range(6)

    def at_work() -> int:
        return sum("apply partition" in task.get_name() for task in asyncio.all_tasks())

    async with opened(endpoint) as stream:
        for id in range(3):
            for partition in partitions:
                stream.send(batch(id - 1, b"%d" % id, partition=partition))
            for partition in partitions:
                await stream.heard.until("acknowledged", partition, id)
            await wait_until(lambda: at_work() == 2, "two keep theirs")
    await wait_until(lambda: at_work() == 0, "they end with the stream")
    assert all(target.of(partition) == [(id, b"%d" % id) for id in range(3)] for partition in partitions)


async def test_a_stream_may_be_closed_by_what_it_tells(target: MemoryTarget, endpoint: DeliveryEndpoint) -> None:
    class Closes(Heard):
        def acknowledged(self, partition: int, through: int) -> None:
            super().acknowledged(partition, through)
            stream.stream.close()

    async with opened(endpoint, heard=Closes()) as stream:
        stream.send(batch(-1, b"a"), *(batch(id, b"b") for id in range(50)))
        await wait_until(lambda: stream.heard.count("acknowledged"))  # one may stand for several
        await stream.task
        assert stream.heard.count("acknowledged") == 1
        assert stream.heard.count("disconnected") == 0


async def test_a_mistake_in_what_is_told_of_a_full_stream_is_raised_by_its_task(
    target: MemoryTarget, endpoint: DeliveryEndpoint
) -> None:
    class Wrong(Heard):
        def written(self) -> None:
            raise LookupError("a mistake")

    target.waits[0] = asyncio.Event()
    async with opened(endpoint, heard=Wrong()) as stream:
        # The generator ends at the first `send` that has returned False.
        assert not all(stream.stream.send([batch(id - 1, bytes(2**20))]) for id in range(100))
        target.waits[0].set()
        with pytest.raises(LookupError, match="a mistake"):
            await asyncio.wait_for(stream.task, 20)


@pytest.mark.parametrize("told", ["connected", "acknowledged", "refused", "fenced", "disconnected"])
async def test_a_mistake_in_what_a_stream_tells_is_raised_by_its_task(
    target: MemoryTarget, endpoint: DeliveryEndpoint, told: str
) -> None:
    class Wrong(Heard):
        def _is_wrong(self, *_: Any) -> None:
            raise LookupError(f"a mistake in {told}")

    heard = Wrong()
    setattr(heard, told, heard._is_wrong)
    if told == "fenced":
        target.kept = Fence(9, 9)
    async with opening(endpoint, heard=heard) as stream:
        if told in ("acknowledged", "refused", "disconnected"):
            await stream.heard.until("connected", {})
            target.refuses = {b"bad"}
            stream.send(batch(-1 if told != "disconnected" else 5, b"bad" if told == "refused" else b"a"))
        with pytest.raises(LookupError, match=f"a mistake in {told}"):
            await asyncio.wait_for(stream.task, 20)


async def test_a_mistake_of_our_own_in_a_target_is_no_fault_of_the_stream(transport: Direct | Remote) -> None:
    target = Odd("apply", InvariantViolated("a planted one"))
    async with transport.reaching(target) as endpoint, opened(endpoint) as stream:
        stream.send(batch(-1, b"a"))
        if transport.is_remote:
            # The server stops, which `ended` tells there.
            await stream.heard.until("disconnected")
        else:
            with pytest.raises(InvariantViolated, match="a planted one"):
                await stream.task


@pytest.mark.parametrize("seed", range(4))
async def test_streams_that_are_given_up_at_any_moment_lose_and_double_nothing(
    target: MemoryTarget, endpoint: DeliveryEndpoint, seed: int
) -> None:
    random = Random(seed)
    entries = script(random, entries=40)
    for term in range(1, 40):
        async with opened(endpoint, Fence(1, term)) as stream:
            stream.send(*batches_after(entries, stream.heard.applied, random))
            for _ in range(random.randrange(40)):
                await asyncio.sleep(0)
            if random.random() < 0.5:
                stream.task.cancel()
    async with opened(endpoint, Fence(1, 40)) as stream:
        stream.send(*batches_after(entries, stream.heard.applied, random))
        await wait_until(
            lambda: all(stream.heard.applied.get(each) == entries[each][-1].id for each in entries), "everything"
        )
    check_applied(target, entries)
