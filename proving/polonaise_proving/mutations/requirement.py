"""Mutations of what makes commits wait for the copies and zones that are required of them."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

REQUIREMENT_MUTATIONS: Final[dict[str, Mutation]] = {
    "requirement-ignored-at-commit": Mutation(
        "polonaise.server.protocol.commit",
        "            self._needed = max(self._needed, required.copies)\n",
        "",
        "P1: a commit that needs more copies than a quorum is told of with a quorum",
        seed=13,
    ),
    "required-zones-ignored-at-commit": Mutation(
        "polonaise.server.protocol.commit",
        "        if self._required is not None and self._required.zones:\n",
        "        if self._required is not None and self._required.zones > 99:\n",
        "P1: a commit that needs copies in two zones is told of with all of them in one",
        seed=796,
    ),
    "copies-proved-by-a-commit": Mutation(
        "polonaise.server.protocol.session",
        "        elif pending.id <= (proved := session.proved(pending.needs)):\n",
        "        elif pending.id <= (proved := committed):\n",
        "P1: an append that needs more copies than a quorum is told of as having them once it is committed",
        seed=8,
    ),
    "copies-proved-by-what-was-sent": Mutation(
        "polonaise.server.protocol.session",
        "        reached = {name: self.reached(name) for name in self.engaged}\n",
        "        reached = dict.fromkeys(self.engaged, self.sent)\n",
        "P1: an append is told of as on copies that were sent it, and have not synced it",
        seed=8,
    ),
    "copies-not-refused": Mutation(
        "polonaise.server.protocol.order",
        "            if own and not self._can_have_all(own):\n",
        "            if self._can_have is None:\n",
        "P1: an append that needs more copies than can be had is written all the same",
        seed=2,
    ),
    "copies-never-asked-for": Mutation(
        "polonaise.client.appends",
        "        if not self.proved:\n            yield from",
        "        if self.needs is None:\n            yield from",
        "P1: an append that needs copies succeeds without them, because its client asks nobody",
        seed=8,
    ),
    "topic-requirement-ignored": Mutation(
        "polonaise.coordination.values",
        "demand.with_other(self.required)))",
        "demand._replace(copies=0, zones=0).with_other(self.required)))",
        "P1: what is required of a topic has a number, and commits to the topic are told of without it",
        test="tests/server/test_required_copies.py::test_appends_to_the_topic_are_refused_while_others_go_on",
    ),
}
