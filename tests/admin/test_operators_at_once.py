"""Several operators change copies at the same time: each ends soon, and what another one has done is done.

Time is virtual; how long everything takes is drawn by the seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.admin.copymoves import CopyMoves
from polonaise.admin.memberedits import MemberEdits
from polonaise.coordination.values import Assignment, ClusterDescription, Engagement, PartitionValue, Versioned
from polonaise.errors import BadOption, CopyNeeded
from polonaise_proving.stages.simulated.loop import VirtualLoop

STEP_S = 15.0


@pytest.fixture(autouse=True)
def no_node_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_: object) -> str:
        return "none runs"

    monkeypatch.setattr("polonaise.admin.copymoves.ask_health", silent)


SEEDS = range(20)


class Cluster:
    """A coordinator with partitions on A, B and C, and owners that make what is asked for a while later."""

    trouble = ""

    def __init__(self, seed: int, partitions: int = 4, nodes: str = "ABCDE") -> None:
        self.random = random.Random(seed)
        self.described = Versioned(0, ClusterDescription(bytes(16), partitions, tuple(nodes), copies=3))
        engaged = {name: Engagement(7) for name in "ABC"}
        self.values = {p: Versioned(0, PartitionValue(1, 7, tuple("ABC"), None, engaged)) for p in range(partitions)}
        self.stuck = False
        """Whether a new copy gets in sync never."""
        self.lines: list[str] = []

    async def _time_passes(self, longest_s: float = 0.05) -> None:
        await asyncio.sleep(self.random.uniform(0.0, longest_s))

    async def ask_first(self) -> None:
        """Its nodes believe it."""

    async def description(self) -> Versioned[ClusterDescription]:
        await self._time_passes()
        return self.described

    async def set_description(self, value: ClusterDescription, version: int) -> Versioned[ClusterDescription] | None:
        await self._time_passes()
        if version != self.described.version:
            return None
        self.described = Versioned(version + 1, value)
        return self.described

    async def partition(self, partition: int) -> Versioned[PartitionValue]:
        await self._time_passes()
        return self.values[partition]

    async def set_partition(
        self, partition: int, value: PartitionValue, version: int
    ) -> Versioned[PartitionValue] | None:
        await self._time_passes()
        if version != self.values[partition].version:
            return None
        self.values[partition] = Versioned(version + 1, value)
        return self.values[partition]

    async def assignment(self) -> Versioned[Assignment]:
        return Versioned(0, Assignment({}))

    async def own(self, partition: int) -> None:
        """Make each change of a partition that is asked for, and have new copies in sync later."""
        while True:
            await self._time_passes(2.0)
            version, value = self.values[partition].version, self.values[partition].value
            if value.next is not None:
                value = replace(value, members=value.next, next=None)
            elif not self.stuck:
                value = replace(value, engagements={name: Engagement(7) for name in value.members})
            self.values[partition] = Versioned(version + 1, value)

    def moves(self) -> CopyMoves:
        clock = SimpleNamespace(monotonic_s=lambda: asyncio.get_running_loop().time())
        host: Any = SimpleNamespace(clock=clock)
        edits = MemberEdits(self, 1.0)  # type: ignore[arg-type]
        return CopyMoves(host, edits, step_s=STEP_S, timeout_s=1.0, report=lambda _, line: self.lines.append(line))

    def members(self) -> list[set[str]]:
        return [{*value.value.members} for value in self.values.values()]

    def run(self, *operators: Coroutine[Any, Any, Any]) -> tuple[Sequence[Any], float]:
        """Let operators work at the same time; return what each has returned or raised, and how long all took."""

        async def later(operator: Coroutine[Any, Any, Any]) -> Any:
            await self._time_passes(3.0)
            return await operator

        async def scenario() -> tuple[Sequence[Any], float]:
            began_s = asyncio.get_running_loop().time()
            owners = [asyncio.ensure_future(self.own(partition)) for partition in self.values]
            outcomes = await asyncio.gather(*map(later, operators), return_exceptions=True)
            took_s = asyncio.get_running_loop().time() - began_s
            for owner in owners:
                owner.cancel()
            assert (
                not await self.moves().balance()
                or self.stuck
                or not any(isinstance(outcome, int) for outcome in outcomes)
            ), "after a balance nothing is left to move"
            return outcomes, took_s

        loop = VirtualLoop(10**6, lambda life, error: None)
        return loop.run_until_complete(scenario())


def told(_: object) -> None:
    pass


@pytest.mark.parametrize("seed", SEEDS)
def test_balances_at_once_all_succeed(seed: int) -> None:
    cluster = Cluster(seed)
    outcomes, took_s = cluster.run(*(cluster.moves().spread(told) for _ in range(3)))
    assert [each for each in outcomes if not isinstance(each, int)] == []
    assert [len(members) for members in cluster.members()] == [3] * 4
    assert took_s < 4 * STEP_S


@pytest.mark.parametrize("seed", SEEDS)
def test_balances_beside_a_drain_and_a_replacement_all_end(seed: int) -> None:
    cluster = Cluster(seed)
    operators = (
        cluster.moves().spread(told),
        cluster.moves().drain("A"),
        cluster.moves().replace(0, "B", "D"),
        cluster.moves().spread(told),
    )
    (first, drained, replaced, second), took_s = cluster.run(*operators)
    assert isinstance(first, int), first
    assert isinstance(drained, int), drained
    assert isinstance(second, int), second
    # Where to a copy went that another operator has moved first, is told.
    assert replaced is None or isinstance(replaced, BadOption), replaced
    assert all(len(members) == 3 and "A" not in members for members in cluster.members())
    assert took_s < 6 * STEP_S


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("targets", ["DD", "DE"])
def test_of_two_replacements_of_one_copy_none_hangs_and_none_is_left_out_silently(seed: int, targets: str) -> None:
    cluster = Cluster(seed, partitions=1)
    outcomes, took_s = cluster.run(*(cluster.moves().replace(0, "B", target) for target in targets))
    (members,) = cluster.members()
    assert "B" not in members
    for target, outcome in zip(targets, outcomes, strict=True):
        if outcome is None:
            assert target in members
        else:
            assert isinstance(outcome, BadOption), outcome
            assert target not in members or len(members) > 3
    assert None in outcomes
    assert took_s < STEP_S + 3.0


@pytest.mark.parametrize("seed", SEEDS)
def test_two_drains_and_a_balance_end(seed: int) -> None:
    cluster = Cluster(seed)
    outcomes, took_s = cluster.run(cluster.moves().drain("A"), cluster.moves().drain("B"), cluster.moves().spread(told))
    assert [each for each in outcomes if not isinstance(each, int)] == []
    assert cluster.members() == [{*"CDE"}] * 4
    assert took_s < 6 * STEP_S


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_that_two_operators_add_or_remove_is_added_or_removed_for_both(seed: int) -> None:
    for command, members in (("add", set("ABCD")), ("remove", set("BCD"))):
        cluster = Cluster(seed, partitions=1)
        if command == "remove":
            version, value = cluster.values[0].version, cluster.values[0].value
            engaged = {name: Engagement(7) for name in "ABCD"}
            cluster.values[0] = Versioned(version, replace(value, members=tuple("ABCD"), engagements=engaged))
        node = "D" if command == "add" else "A"
        outcomes, took_s = cluster.run(*(getattr(cluster.moves(), command)(0, node) for _ in range(2)))
        assert None in outcomes
        # The second one may come when it is done already: that is told as ever.
        assert all(each is None or each.code in ("bad_option", "unknown_storage_node") for each in outcomes)
        assert cluster.members() == [members]
        assert took_s < STEP_S


def test_a_copy_that_gets_in_sync_never_ends_a_balance_with_advice_that_it_can_follow() -> None:
    cluster = Cluster(1, partitions=2)
    cluster.stuck = True
    (outcome,), took_s = cluster.run(cluster.moves().spread(told))
    assert isinstance(outcome, CopyNeeded)
    assert "--force" not in str(outcome)
    assert took_s < 4 * STEP_S
