"""Mutations of what is told of a cluster and of a group: health that speaks too well."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

TELLING_MUTATIONS: Final[dict[str, Mutation]] = {
    "found-loss-untold": Mutation(
        "polonaise.storage.protocol.replica",
        "        return None if connection is None else TellLoss(connection, error)\n",
        "        return None\n",
        "P13: the owner of an idle partition counts a copy that is lost, and says that another one may be stopped",
        seed=1,
    ),
    "unknown-lag-told-as-none": Mutation(
        "polonaise.client.workerpartition",
        "        if self.committed is None or not self.progress.epoch or self._log_end is not None:\n"
        "            return None\n",
        "        if self.committed is None or not self.progress.epoch or self._log_end is not None:\n"
        "            return 0\n",
        "P13: a worker whose partition does not answer says that it lacks nothing",
        test="tests/client/test_client_groups_of_workers.py"
        "::test_a_partition_that_does_not_answer_is_told_and_its_lag_is_not_known",
    ),
    "given-up-partitions-untold": Mutation(
        "polonaise.node.condition",
        '    found += _given_up(health.get("given_up_why", dict.fromkeys(health.get("given_up", ()), "")))\n',
        "",
        "P13: the status does not say that a server can't serve partitions, and has given them up",
        test="tests/server/test_coordinator_away.py::test_partitions_that_a_server_has_given_up_are_told_of_it",
    ),
    "given-up-told-for-ever": Mutation(
        "polonaise.server.unservable",
        " for each in partitions if each not in self._elsewhere}\n",
        " for each in partitions}\n",
        "P13: a server says that it can't serve partitions, long after another one serves them",
        test="tests/server/test_left_out.py::test_what_another_server_serves_again_is_not_told_as_given_up",
    ),
    "missing-servers-dropped": Mutation(
        "polonaise.admin.cluster",
        "        return expected | {owner.server: owner.address for owner in self.owners.values()} | self.registered\n",
        "        return {owner.server: owner.address for owner in self.owners.values()} | self.registered\n",
        "P13: a server that has ended is not in the status any more, although it is to be there",
        test="tests/admin/test_cluster_status.py::test_a_server_that_is_gone_is_missed_until_it_is_removed",
    ),
    "untold-copies-counted-as-none": Mutation(
        "polonaise.admin.cluster",
        '        if health is None or health.get("members") is None:\n            return None\n',
        '        if health is None or health.get("members") is None:\n            continue\n',
        "P13: copies of which nobody tells are counted as none",
        test="tests/admin/test_cluster_status.py"
        "::test_copies_are_not_counted_while_an_owner_does_not_tell_where_they_are",
    ),
}
