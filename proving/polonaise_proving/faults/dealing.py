"""Draws the faults of a smoke test from a seed: the same seed, length and kinds give the same schedule."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, TypeVar

from polonaise.errors import invariant
from polonaise_proving.judges.told import is_to_be_told
from polonaise_proving.record.faultkinds import (
    KINDS,
    PLANNED_KINDS,
    Fault,
    FaultKind,
    NodeGroup,
    nodes_of,
)

T = TypeVar("T")

STEP_TRANSACTIONS: Final = 2_500
"""The number of transactions to be acknowledged for which a run has one step; it has `STEPS_MIN` at least."""
STEPS_MIN: Final = 3
_PAIRED_PERCENT: Final = 90
"""The share of steps with two faults, of those that do not begin with a planned change: that comes alone."""
_HOLDS_S: Final = (0.3, 1.0, 2.0, 3.5, 8.0)
"""Seconds that a fault lasts: shorter and longer than the deadlines of requests, and longer than a lease."""
TOLD_HOLD_S: Final = 2.0
"""A fault that lasts at least this long has to be told by the cluster's status, and lasts until it is told, or until
`told.TOLD_S` have passed. Shorter ones may be over before anybody can see them."""


_DEALS: Final = 2
"""How often a deck is looked through for one card: as it is left, and with a whole one added."""


class FaultStep(NamedTuple):
    """One or two faults, which begin together and last equally long."""

    number: int
    at: int
    """The step begins once this many transactions are acknowledged."""
    hold_s: float
    """How long the faults last, in seconds; whatever the step needs to heal comes on top."""
    faults: tuple[Fault, ...]

    @property
    def is_planned(self) -> bool:
        """Whether nothing happens but planned changes: no append may fail because of them."""
        return all(fault.kind in PLANNED_KINDS for fault in self.faults)

    def __str__(self) -> str:
        return f"at {self.at}, {self.hold_s:g} s: {', '.join(map(str, self.faults))}"


def schedule_of(seed: int, transactions: int, kinds: Collection[FaultKind]) -> tuple[FaultStep, ...]:
    """Return the steps of a run, in order.

    Faults are dealt like cards: each kind on each group comes once before any comes twice, but for the second fault of
    a step when all cards that are left touch the group of its first one. So a long run has them all. No step has two
    faults that touch one group: a majority of the ZooKeeper servers, storage nodes and servers is always left. No kind
    goes through a run without a fault that lasts long enough to be told.
    """
    dice = _Dice(f"{seed}/{transactions}/{','.join(sorted(kinds))}")
    deck = _Deck(dice, kinds)
    count = max(STEPS_MIN, transactions // STEP_TRANSACTIONS)
    steps = []
    lasted = set[FaultKind]()
    for number in range(count):
        first = deck.deal(frozenset())
        invariant(first is not None, "there is a kind of fault to draw")
        assert first is not None
        taken = [first]
        if dice.below(100) < _PAIRED_PERCENT and first.kind not in PLANNED_KINDS:
            second = deck.deal(first.groups, PLANNED_KINDS)
            taken += [] if second is None else [second]
        told = {fault.kind for fault in taken if is_to_be_told(fault)}
        is_lasting = bool({kind for kind in told if KINDS[kind].is_long} or told - lasted)
        hold_s = dice.choice([each for each in _HOLDS_S if each >= TOLD_HOLD_S] if is_lasting else _HOLDS_S)
        lasted |= told if hold_s >= TOLD_HOLD_S else set()
        at = transactions * (number + 1) // (count + 1)
        steps.append(FaultStep(number, at, hold_s, tuple(taken)))
    return tuple(steps)


def digest_of(steps: Sequence[FaultStep]) -> str:
    """Return a digest of a schedule, in hexadecimal, by which two runs are known to have the same one."""
    return hashlib.sha256("\n".join(map(str, steps)).encode()).hexdigest()[:16]


class _Dice:
    """Numbers that follow from a text, and are the same ones in every version of Python."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._drawn = 0

    def below(self, count: int) -> int:
        """Return a number from 0 on that is below `count`."""
        self._drawn += 1
        return int.from_bytes(hashlib.sha256(f"{self._text}/{self._drawn}".encode()).digest()) % count

    def choice(self, choices: Sequence[T]) -> T:
        """Return one of these."""
        return choices[self.below(len(choices))]


class _Deck:
    """All pairs of a kind and a group, shuffled; another deck follows when none of its cards may be dealt."""

    def __init__(self, dice: _Dice, kinds: Collection[FaultKind]) -> None:
        self._dice = dice
        self._pairs = [(kind, group) for kind in FaultKind if kind in kinds for group in KINDS[kind].targets]
        self._cards: list[tuple[FaultKind, NodeGroup]] = []

    def deal(self, busy: frozenset[NodeGroup], but: frozenset[FaultKind] = frozenset()) -> Fault | None:
        """Return the next fault that touches none of these groups, and is of none of the kinds `but`.

        Return None if the deck has none of that sort, as one of a single kind.
        """
        for _ in range(_DEALS):
            for position, (kind, group) in enumerate(self._cards):
                fault = self._fault(kind, group)
                if kind not in but and not fault.groups & busy:
                    del self._cards[position]
                    return fault
            more = list(self._pairs)
            while more:
                self._cards.append(more.pop(self._dice.below(len(more))))
        return None

    def _fault(self, kind: FaultKind, group: NodeGroup) -> Fault:
        node = self._dice.choice(nodes_of(group))
        other = self._dice.choice(nodes_of(NodeGroup.STORAGE)) if kind is FaultKind.CUT_PAIR else ""
        return Fault(kind, node, other)
