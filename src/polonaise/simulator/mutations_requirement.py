"""Mutations of what makes commits wait for the copies and zones that are required of them."""

from __future__ import annotations

from typing import Final

from polonaise.simulator.mutation import Mutation

REQUIREMENT_MUTATIONS: Final[dict[str, Mutation]] = {
    "requirement-ignored-at-commit": Mutation(
        "polonaise.server.protocol.commit",
        "            self._needed = max(self._needed, required.copies)\n",
        "",
        "P1: a commit that needs more copies than a quorum is told of with a quorum",
    ),
    "required-zones-ignored-at-commit": Mutation(
        "polonaise.server.protocol.commit",
        "        if self._required is not None and self._required.zones:\n",
        "        if self._required is not None and self._required.zones > 99:\n",
        "P1: a commit that needs copies in two zones is told of with all of them in one",
    ),
    "topic-requirement-ignored": Mutation(
        "polonaise.coordination.values",
        "demand.with_other(self.required)))",
        "demand._replace(copies=0, zones=0).with_other(self.required)))",
        "P1: what is required of a topic has a number, and commits to the topic are told of without it",
    ),
}
