"""The simulated target keeps what it answers, whenever its process dies, and the check of delivery finds mistakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from polonaise.errors import PolonaiseError, ViewUnavailable
from polonaise.host import Host
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, Judge
from polonaise.player.protocol.entries import DeliveryBatch, Fence, RoutedEntry
from polonaise.player.protocol.reception import Reception, Verdict
from polonaise.terms import Transaction
from polonaise_proving.judges.deliverycheck import DeliveryCheck, route
from polonaise_proving.record.observations import History
from polonaise_proving.record.targetmemory import (
    MEMORY_FILE,
    FenceTaken,
    Record,
    StepTaken,
    TargetMemory,
    decode,
    encode,
)
from polonaise_proving.scenarios.delivering import WatchedTarget
from polonaise_proving.stages.simulated import World
from polonaise_proving.stages.simulated.process import Process
from polonaise_proving.work.simulatedtarget import SimulatedTarget, TargetTrouble

SOURCE = DeliverySource(bytes(16), "deliverer", "target-0")
NAME = "target-0"
NAMES = [NAME, "target-1"]


def transaction(id: int, data: bytes) -> Transaction:
    return Transaction(
        partition=0, id=id, data=data, client_id=1, generation=1, sequence=id, header=0, commit_time_us=1
    )


def bodies_for(name: str, count: int) -> list[bytes]:
    """Bodies of which the target gets something."""
    bodies = (b"%d" % number for number in range(1_000))
    return [body for body in bodies if name in route(transaction(0, body), NAMES)][:count]


@pytest.fixture
def history() -> History:
    """A log of eight transactions, all of which target-0 gets."""
    history = History(1)
    for id, body in enumerate(bodies_for(NAME, 8)):
        history.saw("a reader", transaction(id, body))
    return history


@pytest.fixture
def world() -> World:
    return World(1)


@pytest.fixture
def check(world: World, history: History) -> DeliveryCheck:
    return DeliveryCheck(history, 1, {name: world.machine(name).disk for name in NAMES})


def entry(history: History, id: int) -> RoutedEntry:
    return RoutedEntry(id, route(history.seen[0][id], NAMES)[NAME])


def found(world: World, check: DeliveryCheck, history: History, *records: Record) -> list[str]:
    """What the check says of a target that has these records on its disk."""

    async def write(host: Host) -> None:
        file = await host.disk.open(MEMORY_FILE, create=True)
        await file.write(await file.size(), [b"".join(map(encode, records))], sync=True)
        await file.close()

    async def scenario() -> None:
        await world.machine(NAME).start(write).ended()
        check.look(NAME)

    world.run(scenario())
    return [f"{each.expected}; {each.seen}" for each in history.violations]


TAKEN = FenceTaken(Fence(1, 1))


def test_what_is_applied_once_and_in_order_is_right(world: World, check: DeliveryCheck, history: History) -> None:
    steps = [StepTaken(0, 1, [entry(history, 0), entry(history, 1)]), StepTaken(0, 2, [entry(history, 2)])]
    assert found(world, check, history, TAKEN, *steps, FenceTaken(Fence(2, 1))) == []
    assert check.lacks(NAME, 0) == 3


@pytest.mark.parametrize(
    ("ids", "says"),
    [((0, 0), "above 0, once each"), ((0, 2), "to apply 1 of partition 0 next"), ((0, 1, 0), "above 1, once each")],
)
def test_what_comes_twice_or_is_missing_is_found(
    world: World, check: DeliveryCheck, history: History, ids: tuple[int, ...], says: str
) -> None:
    steps = [StepTaken(0, id, [entry(history, id)]) for id in ids]
    assert says in found(world, check, history, TAKEN, *steps)[0]


def test_other_bytes_are_found(world: World, check: DeliveryCheck, history: History) -> None:
    wrong = StepTaken(0, 0, [RoutedEntry(0, b"other")])
    assert "what the log has at 0" in found(world, check, history, TAKEN, wrong)[0]


def test_a_fence_that_goes_back_is_found(world: World, check: DeliveryCheck, history: History) -> None:
    assert "above" in found(world, check, history, TAKEN, FenceTaken(Fence(1, 1)))[0]


def test_a_record_that_was_broken_off_has_not_happened() -> None:
    whole, torn = encode(TAKEN), encode(StepTaken(0, 3, [RoutedEntry(3, b"three")]))
    for length in range(len(torn)):
        memory = TargetMemory()
        memory.take(decode(whole + torn[:length]))
        assert (memory.fence, memory.last(0), memory.length) == (Fence(1, 1), -1, len(whole))


class Lies:
    """A target that keeps nothing of what it answers."""

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        return Acceptance(True, offered, {})

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        return AppliedBatch(Verdict.APPLY, batch.last, Fence(1, 1))

    async def close(self) -> None:
        """Nothing is open."""


async def test_answers_that_are_not_on_the_disk_are_found(check: DeliveryCheck, history: History) -> None:
    target = WatchedTarget(Lies(), check, NAME)
    await target.accept(Fence(1, 1), SOURCE)
    await target.apply(DeliveryBatch(0, -1, [entry(history, 0)]), Reception(Fence(1, 1)).judge)
    assert [each.seen for each in history.violations] == ["epoch 0, term 0 on its disk", "-1 on its disk"]


# ---------------------------------------------------------------------- the target, and deaths of its process


async def delivered(host: Host, trouble: TargetTrouble, check: DeliveryCheck, history: History, term: int) -> None:
    """Be a process of the target, and deliver to it what it lacks, entry by entry."""
    target = WatchedTarget(SimulatedTarget(host, trouble), check, NAME)
    fence = Fence(1, term)
    acceptance = await target.accept(fence, SOURCE)
    assert acceptance.accepted
    last, judge = acceptance.applied.get(0, -1), Reception(fence).judge
    for id in range(last + 1, 8):
        applied = await target.apply(DeliveryBatch(0, id - 1, [entry(history, id)]), judge)
        assert applied.verdict is Verdict.APPLY
        assert applied.last == id
    await target.close()


@pytest.mark.parametrize("power", [False, True])
def test_a_death_before_any_call_loses_nothing_and_doubles_nothing(power: bool) -> None:
    """At each call to the machine in turn; what was acknowledged before that stays, and the next life goes on."""
    for call in range(1, 60):
        world, history = World(call), History(1)
        for id, body in enumerate(bodies_for(NAME, 8)):
            history.saw("a reader", transaction(id, body))
        machine = world.machine(NAME)
        check = DeliveryCheck(history, 1, {name: world.machine(name).disk for name in NAMES})
        trouble = TargetTrouble(Random(call))

        async def scenario() -> Process:
            for term in (1, 2):
                process = machine.start(lambda host, term=term: delivered(host, trouble, check, history, term))  # noqa: B023
                process.crash_on_call = call if term == 1 else None  # noqa: B023
                await process.ended()
                if power:
                    machine.power_loss()  # noqa: B023
            return process

        last = world.run(scenario())
        assert last.failure is None
        assert [f"{each.expected}; {each.seen}" for each in history.violations] == []
        assert [each.id for each in check.look(NAME).effects[0]] == list(range(8))


def in_the_target(world: World, trouble: TargetTrouble, work: Callable[[SimulatedTarget], object]) -> None:
    async def main(host: Host) -> None:
        target = SimulatedTarget(host, trouble)
        await work(target)  # type: ignore[misc]
        await target.close()

    async def scenario() -> None:
        process = world.machine(NAME).start(main)
        await process.ended()
        assert process.left_open == []

    world.run(scenario())


def test_a_step_is_made_whole_though_its_caller_gives_up(world: World, check: DeliveryCheck, history: History) -> None:
    async def work(target: SimulatedTarget) -> None:
        await target.accept(Fence(1, 1), SOURCE)
        judge = Reception(Fence(1, 1)).judge
        waits = asyncio.create_task(target.apply(DeliveryBatch(0, -1, [entry(history, 0)]), judge))
        await asyncio.sleep(0.0001)
        waits.cancel()
        assert (await target.apply(DeliveryBatch(0, 0, [entry(history, 1)]), judge)).last == 1

    in_the_target(world, TargetTrouble(Random(1)), work)
    assert [each.id for each in check.look(NAME).effects[0]] == [0, 1]


def test_a_step_whose_sync_failed_is_not_answered_and_not_made_twice(
    world: World, check: DeliveryCheck, history: History
) -> None:
    async def work(target: SimulatedTarget) -> None:
        await target.accept(Fence(1, 1), SOURCE)
        world.machine(NAME).disk.fail_syncs(1)
        batch, judge = DeliveryBatch(0, -1, [entry(history, 0)]), Reception(Fence(1, 1)).judge
        with pytest.raises(ViewUnavailable):
            await target.apply(batch, judge)
        # Written all the same: the next stream is told so.
        assert (await target.accept(Fence(1, 2), SOURCE)).applied == {0: 0}

    in_the_target(world, TargetTrouble(Random(1)), work)
    world.machine(NAME).power_loss()
    assert [each.id for each in check.look(NAME).effects[0]] == [0]


def test_trouble_on_purpose_refuses_fails_and_hangs(world: World, history: History) -> None:
    trouble = TargetTrouble(Random(1))

    async def work(target: SimulatedTarget) -> None:
        await target.accept(Fence(1, 1), SOURCE)
        batch, judge = DeliveryBatch(0, -1, [entry(history, 0), entry(history, 1)]), Reception(Fence(1, 1)).judge
        trouble.refuse_chance = 1.0
        refused = await target.apply(batch, judge)
        assert refused.refusal
        assert refused.last < 1
        trouble.refuse_chance, trouble.fail_chance = 0.0, 1.0
        with pytest.raises(PolonaiseError, match="on purpose"):
            await target.apply(batch, judge)
        trouble.fail_chance, trouble.hang_chance, trouble.hang_s = 0.0, 1.0, 1_000.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await target.apply(batch, judge)

    in_the_target(world, trouble, work)
