"""Mutations of what decides which server owns a partition."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

_FOLLOWING: Final = "polonaise.server.assignmentfollowing"

OWNERSHIP_MUTATIONS: Final[dict[str, Mutation]] = {
    "owner-that-outlives-its-session": Mutation(
        "polonaise.coordination.lease",
        "began_s + holds_s * (1 - _MARGIN)",
        "began_s + 10 * holds_s",
        "P13: a server that is cut off from the coordinator goes on owning when its session can have ended",
        seed=120,
    ),
    "generation-ignored": Mutation(
        "polonaise.server.protocol.recovery",
        "    if value.generation > generation:\n        return None\n",
        "",
        "P13: an owner that was deposed claims the partition back from its successor",
        seed=4,
    ),
    "assignment-that-drops-a-partition": Mutation(
        "polonaise.server.assignment",
        "            loads.give(partition, loads.least_loaded(loads.preferring(partition) or loads.takers))\n",
        "            if partition not in current.owners:\n"
        "                loads.give(partition, loads.least_loaded(loads.preferring(partition) or loads.takers))\n",
        "P11: what a dead server owned is given to nobody",
        seed=2,
    ),
    "owner-that-keeps-what-it-can-not-serve": Mutation(
        "polonaise.server.protocol.givingup",
        "        return self._lost | given_up\n",
        "        return frozenset()\n",
        "P11: a server that is cut off from the storage nodes alone keeps its partitions for ever",
        seed=15,
    ),
    "flapping-owner-keeps-what-it-can-not-serve": Mutation(
        "polonaise.server.protocol.givingup",
        "        self.counted_s = min(self.grace_s, max(0.0, counted_s))\n",
        "        self.counted_s = min(self.grace_s, counted_s) if struggle.fails else 0.0\n",
        "P11: a server whose sessions fail again and again keeps its partitions, as each failure is short",
        seed=28,
    ),
    "always-late-is-always-stopped": Mutation(
        "polonaise.server.protocol.givingup",
        "        stopped = self._late and not was_late\n",
        "        stopped = self._late\n",
        "P11: a server that is so slow that it always looks late keeps for ever what it can't serve",
        test="tests/server/protocol/test_giving_up.py"
        "::test_a_server_whose_looks_are_always_late_gives_up_what_it_can_not_serve",
    ),
    "stop-counts-against-what-is-served": Mutation(
        "polonaise.server.protocol.givingup",
        "        stopped = self._late and not was_late\n",
        "        stopped = False\n",
        "P11: a server that was stopped itself gives up partitions that it could serve",
        test="tests/server/protocol/test_giving_up.py"
        "::test_the_faults_that_a_server_finds_when_it_goes_on_after_it_was_stopped_are_its_own",
    ),
    "second-stop-counts": Mutation(
        "polonaise.server.protocol.givingup",
        "        was_late, self._late = self._late, step_s >= _STEP_S_MAX\n",
        "        was_late, self._late = self._late, self._late or step_s >= _STEP_S_MAX\n",
        "P11: only the first stop of a server's life is taken for one",
        test="tests/server/protocol/test_giving_up.py::test_a_server_that_was_stopped_twice_was_stopped_both_times",
    ),
    "unable-servers-pass-partitions-on": Mutation(
        "polonaise.server.assignment",
        " if not (candidates[each].unable or candidates[each].doubtful)]\n",
        "]\n",
        "P11: where nobody can serve a partition, it is passed from server to server",
        seed=56,
    ),
    # No manager is elected: every server computes the same assignment. What two managers would do wrong, two servers do
    # that write without a look at what the other has written.
    "two-servers-assign-at-once": Mutation(
        _FOLLOWING,
        "            return await self._coordinator.set_assignment(assignment, current.version)\n",
        "            latest = await self._coordinator.assignment()\n"
        "            return await self._coordinator.set_assignment(assignment, latest.version)\n",
        "P11: an assignment is replaced by one that was computed before it, and a generation has two owners",
        seed=4,
    ),
}
