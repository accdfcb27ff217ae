"""Views that take runs: what has queued up comes at once, in order, and one that can't be taken is found alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from polonaise.errors import DeadlineExceeded, ViewFailed, ViewUnavailable, ViewUnfit
from polonaise.terms import BodyForm, Transaction
from rigs.clients import World
from rigs.waiting import wait_until


class Runs:
    """A view that takes runs, keeps what it was given, and fails where it is told to."""

    def __init__(self, mark: int = -1) -> None:
        self.mark = mark
        self.runs: list[list[int]] = []
        self.bodies: list[bytes] = []
        self.failures: list[tuple[int, int, str]] = []
        self.poison: set[int] = set()
        self.troubles: list[Exception] = []
        self.gate: asyncio.Event | None = None
        self.closed = 0

    def high_water_mark(self, partition: int) -> int:
        return self.mark

    def apply(self, tx: Transaction) -> None:
        raise AssertionError("a view that takes runs is never given single transactions")

    async def apply_run(self, run: Sequence[Transaction]) -> int:
        if self.gate is not None:
            await self.gate.wait()
        self.runs.append([tx.id for tx in run])
        assert self.runs[-1] == list(range(self.mark + 1, self.mark + 1 + len(run)))
        if self.troubles:
            raise self.troubles.pop(0)
        if self.poison.intersection(self.runs[-1]):
            raise RuntimeError("no stomach")
        self.bodies += [tx.data for tx in run]
        self.mark = run[-1].id
        return self.mark

    def failed(self, partition: int, id: int, error: Exception) -> None:
        self.failures.append((partition, id, str(error)))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def view() -> Runs:
    return Runs()


def numbered(count: int, width: int = 1) -> list[bytes]:
    return [b"%d" % number * width for number in range(count)]


async def test_what_queued_up_comes_in_runs_within_the_bounds(world: World, view: Runs) -> None:
    world.log.fill(*numbered(10))
    world.log.fill(*numbered(5), each=True)
    view.gate = asyncio.Event()
    client = await world.ready_client(view=view, settings={"run_count_max": 4})
    view.gate.set()
    await client.wait_applied(14)
    assert view.runs == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14]]
    assert view.bodies == world.log.bodies()


async def test_a_run_is_bounded_in_bytes_and_holds_one_at_least(world: World, view: Runs) -> None:
    world.log.fill(b"x" * 100, b"x" * 30, b"x" * 30, b"x" * 30, each=True)
    view.gate = asyncio.Event()
    client = await world.ready_client(view=view, settings={"run_bytes_max": 64})
    view.gate.set()
    await client.wait_applied(3)
    assert view.runs == [[0], [1, 2], [3]]


async def test_while_the_view_keeps_up_each_comes_alone(world: World, view: Runs) -> None:
    client = await world.client(view=view)
    for body in numbered(4):
        await (await client.append(body)).applied()
    assert view.runs == [[0], [1], [2], [3]]


async def test_credit_comes_back_as_runs_are_applied(world: World, view: Runs) -> None:
    world.log.fill(*[b"x" * 300] * 60, each=True)
    client = await world.client(view=view, settings={"credit_bytes": 4_000, "run_bytes_max": 1_000})
    await client.wait_applied(59, timeout=2)
    assert max(map(len, view.runs)) <= 3
    assert len(view.bodies) == 60


async def test_only_the_poison_one_of_a_run_stays_and_it_is_named(world: World, view: Runs) -> None:
    world.log.fill(*numbered(6))
    world.log.fill(*numbered(3))
    view.poison = {3}
    client = await world.client(view=view)
    await wait_until(lambda: len(view.failures) >= 2)
    assert view.mark == 2
    assert set(view.failures) == {(0, 3, "no stomach")}
    assert isinstance(client.trouble(0), ViewFailed)
    assert "transaction 3 of partition 0" in str(client.trouble(0))
    with pytest.raises(DeadlineExceeded, match="transaction 3"):
        await client.wait_applied(3, timeout=0.01)
    view.poison.clear()
    await client.wait_applied(8)
    assert client.trouble(0) is None
    assert view.bodies == world.log.bodies()


@pytest.mark.parametrize("answer", [None, "3", -7])
@pytest.mark.parametrize("plain", [False, True])
async def test_a_run_answered_with_no_mark_has_failed(world: World, answer: object, plain: bool) -> None:
    """Of a coroutine function it was taken as a mark, which ended the whole client."""

    class Forgetful(Runs):
        def apply_run(self, run: Sequence[Transaction]):
            if plain:
                return answer
            return self._later()

        async def _later(self):
            return answer

    world.log.fill(b"0")
    view = Forgetful()
    client = await world.client(view=view)
    await wait_until(lambda: view.failures)
    assert "apply_run" in view.failures[0][2]
    assert repr(answer) in view.failures[0][2]
    assert isinstance(client.trouble(0), ViewFailed)
    assert client.failure is None


async def test_after_a_failed_run_is_passed_runs_are_long_again(world: World, view: Runs) -> None:
    world.log.fill(*numbered(3))
    view.troubles = [RuntimeError("once")]
    client = await world.client(view=view)
    await client.wait_applied(2)
    world.log.fill(*numbered(4))
    world.server.feed_all()
    await client.wait_applied(6)
    assert view.runs == [[0, 1, 2], [0], [1], [2], [3, 4, 5, 6]]
    assert not view.failures


async def test_a_store_that_went_back_is_given_runs_although_one_failed_before(world: World, view: Runs) -> None:
    world.log.fill(*numbered(12))
    view.poison = {9}
    client = await world.client(view=view)
    await wait_until(lambda: view.failures)
    assert view.runs[1:11] == [[number] for number in range(10)]
    view.poison.clear()
    view.mark = -1  # as from a backup
    await wait_until(lambda: view.mark == 11)
    assert view.runs[-1] == list(range(12))
    await wait_until(lambda: client.trouble(0) is None)


async def test_a_store_that_goes_back_with_each_failure_is_told_which_transaction_it_was(world: World) -> None:
    class Forgetful(Runs):
        async def apply_run(self, run: Sequence[Transaction]) -> int:
            try:
                return await super().apply_run(run)
            except RuntimeError:
                self.mark = -1
                raise

    world.log.fill(*numbered(6))
    view = Forgetful(mark=0)
    view.poison = {3}
    await world.client(view=view)
    await wait_until(lambda: view.failures)
    assert view.failures[0] == (0, 3, "no stomach")


async def test_a_store_that_is_away_is_waited_for_and_no_transaction_is_blamed(world: World, view: Runs) -> None:
    world.log.fill(*numbered(3))
    seen: list[object] = []
    view.troubles = [ViewUnavailable("the database is down") for _ in range(4)]
    client = await world.client(view=view)
    await wait_until(lambda: seen.append(client.trouble(0)) or view.mark == 2)
    assert view.runs == [[0, 1, 2]] * 5
    assert not view.failures
    assert any(isinstance(trouble, ViewUnavailable) for trouble in seen)
    await wait_until(lambda: client.trouble(0) is None)


async def test_a_mark_that_cannot_be_had_is_waited_for_too(world: World) -> None:
    class Down(Runs):
        def high_water_mark(self, partition: int) -> int:
            if self.troubles:
                raise self.troubles.pop(0)
            return self.mark

    view = Down()
    view.troubles = [ViewUnavailable("the database is down") for _ in range(3)]
    client = await world.client(view=view)
    await wait_until(lambda: isinstance(client.trouble(0), ViewUnavailable))
    await client.ready()
    assert client.trouble(0) is None


@pytest.mark.parametrize("where", ["high_water_mark", "apply_run"])
async def test_an_unfit_store_stops_the_partition_and_everybody_is_told(world: World, where: str) -> None:
    class Unfit(Runs):
        def high_water_mark(self, partition: int) -> int:
            if where == "high_water_mark":
                raise ViewUnfit("no such column")
            return -1

    view = Unfit()
    view.troubles = [ViewUnfit("no such column")]
    world.log.fill(b"0")
    client = await world.client(view=view)
    with pytest.raises(ViewUnfit, match="no such column"):
        await client.wait_applied(0)
    with pytest.raises(ViewUnfit):
        await client.run(lambda tx: tx.append(b"x"))
    assert not view.failures


async def test_what_another_process_has_applied_is_skipped(world: World) -> None:
    class Shared(Runs):
        async def apply_run(self, run: Sequence[Transaction]) -> int:
            if run[0].id == 0:
                self.mark = 6
                return 6
            return await super().apply_run(run)

    world.log.fill(*numbered(5))
    world.log.fill(*numbered(5))
    view = Shared()
    client = await world.client(view=view, settings={"run_count_max": 3})
    await client.wait_applied(9)
    assert view.runs == [[7, 8, 9]]


async def test_a_view_that_takes_nothing_again_and_again_is_told(world: World) -> None:
    class Idle(Runs):
        is_idle = True

        async def apply_run(self, run: Sequence[Transaction]) -> int:
            return self.mark if self.is_idle else await super().apply_run(run)

    world.log.fill(*numbered(2))
    view = Idle()
    client = await world.client(view=view)
    await wait_until(lambda: isinstance(client.trouble(0), ViewFailed))
    assert "takes nothing of the transactions from 0 on of partition 0, and stays at -1" in str(client.trouble(0))
    view.is_idle = False
    await client.wait_applied(1)
    assert client.trouble(0) is None


async def test_a_run_that_was_taken_in_part_goes_on_behind_it(world: World) -> None:
    class Halves(Runs):
        async def apply_run(self, run: Sequence[Transaction]) -> int:
            return await super().apply_run(run[: (len(run) + 1) // 2])

    world.log.fill(*numbered(8))
    view = Halves()
    client = await world.client(view=view)
    await client.wait_applied(7)
    assert view.runs == [[0, 1, 2, 3], [4, 5], [6], [7]]


async def test_a_store_that_went_back_is_fed_from_there_again(world: World) -> None:
    class Restored(Runs):
        async def apply_run(self, run: Sequence[Transaction]) -> int:
            if run[0].id == 4 and self.mark == 3:
                self.mark = 1
                del self.bodies[2:]
                return 1
            return await super().apply_run(run)

    world.log.fill(*numbered(4))
    view = Restored()
    client = await world.client(view=view)
    await client.wait_applied(3)
    world.log.fill(*numbered(3))
    world.server.feed_all()
    await wait_until(lambda: view.mark == 6)
    assert view.bodies == world.log.bodies()
    assert world.server.heard.mounts[-1].client_high_water_mark == 1


async def test_lazy_bodies_come_with_their_run(world: World, view: Runs) -> None:
    world.log.fill(*numbered(12), each=True)
    client = await world.client(view=view, bodies=BodyForm.LAZY)
    await client.wait_applied(11)
    assert view.bodies == world.log.bodies()


async def test_a_view_is_told_once_that_its_client_has_ended(world: World, view: Runs) -> None:
    client = await world.ready_client(view=view)
    assert not view.closed
    await client.close()
    await client.close()
    assert view.closed == 1
