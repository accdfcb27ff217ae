"""The form of a mutation, for the lists of them."""

from __future__ import annotations

from typing import NamedTuple


class MutationDoesNotApply(Exception):
    """The mutation can't be put in.

    There is no mutation of that name; or its module does not exist, is loaded already, or does not hold the old text
    exactly once.
    """


class SeedFindsItNoMore(UserWarning):
    """A mutation's seed has another course now. Many of them at once: a fault or a draw was added where it may not be.

    `scenarios/schedule.py` says where it may, at `LATER_FEATURES`.
    """


class Mutation(NamedTuple):
    """One changed place in one module of production, and what finds it."""

    module: str
    old: str
    """The text of the module that is replaced."""
    new: str
    breaks: str
    """The promises of `docs/architecture.md` that the mutation breaks (P1, P2, …), and how."""
    seed: int | None = None
    """A seed of the simulator that finds it, and is tried first; without one, or a test, all are tried from 0 on."""
    later: int = 0
    """How many of the schedule's later features that seed has: as many as there were when it was found."""
    test: str | None = None
    """The test, by its name in pytest, that finds what no schedule does, or hardly ever.

    Schedules have no topics, databases or Unix sockets, too few nodes for a majority of copies to be given up, and
    nobody who looks at a cluster's status; holders hardly ever stay with a deposed owner for longer than a lease lasts.
    """
    model: str = ""
    """What explores the changed decision, and finds it: `owner`, `player`, `patience`, or bounds of the model of a
    session's start. Without a seed nothing else finds it."""

    @property
    def is_for_schedules(self) -> bool:
        """Whether a seed finds it."""
        return self.seed is not None or (self.test is None and not self.model)

    def applied(self, source: str) -> str:
        """Return the text of the module with the mutation. Raises `MutationDoesNotApply`."""
        if (count := source.count(self.old)) != 1:
            raise MutationDoesNotApply(f"{self.old!r} occurs {count} times in {self.module}, not once")
        return source.replace(self.old, self.new)
