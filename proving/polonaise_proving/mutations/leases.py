"""Mutations of what keeps two holders of one lease apart."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

LEASE_MUTATIONS: Final[dict[str, Mutation]] = {
    "new-owner-grants-leases-at-once": Mutation(
        "polonaise.server.protocol.leasetable",
        "        if early_s > 0 and not asked.renews:\n",
        "        if early_s > 99 and not asked.renews:\n",
        "leases: a new owner grants what one that it does not know of holds",
        seed=207,
    ),
    "late-renewal-takes-the-lease": Mutation(
        "polonaise.server.protocol.leasetable",
        "        if granted is not None and granted.holder != holder:\n",
        "        if granted is not None and granted.holder != holder and not asked.renews:\n",
        "leases: a renewal that was long on its way takes the lease from the one who was granted it since",
        test="tests/server/protocol/test_lease_table.py::test_a_renewal_that_comes_late_takes_the_lease_from_nobody",
    ),
    "lease-runs-out-too-early": Mutation(
        "polonaise.server.protocol.leasetable",
        "        if granted is not None and granted.until_s <= now_s:\n            self._drop",
        "        if granted is not None and granted.until_s <= now_s + 2:\n            self._drop",
        "leases: an owner grants a lease to another one while its holder still counts on it",
        test="tests/server/protocol/test_lease_table.py::test_nor_in_many_more_courses",
    ),
    "every-owner-counts-as-the-first": Mutation(
        "polonaise.server.protocol.recovery",
        "    return not value.engagements and all(",
        "    return bool(answers) or all(",
        "leases: an owner after another one believes that nobody can hold a lease",
        test="tests/server/protocol/test_session_start.py"
        "::test_a_session_is_not_the_first_if_a_replica_has_joined_one_that_the_coordinator_has_lost",
    ),
    "deposed-owner-grants-leases": Mutation(
        "polonaise.server.protocol.owner",
        "        self._ask(PendingLeases(until_s, request, connection, checked_leases(asked)), now)\n",
        "        pending = PendingLeases(until_s, request, connection, checked_leases(asked))\n"
        "        if self.session:\n"
        "            self._out.add(*self._answers.give(pending, -1, now[0]).effects)\n"
        "        else:\n"
        "            self._ask(pending, now)\n",
        "leases: an owner that was replaced and does not know it renews what its successor grants",
        test="tests/server/protocol/test_owner_answers.py::test_an_owner_that_its_replicas_obey_no_more_grants_nothing",
    ),
    "holder-that-does-not-stop": Mutation(
        "polonaise.client.lease",
        "                self._tenure.renewed(began_s, self.duration_s)\n                trouble = ",
        "                self._tenure.renewed(began_s, 5 * self.duration_s)\n                trouble = ",
        "leases: a holder counts itself one for longer than the owner does",
        seed=1617,
    ),
}
