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
    ),
    "unknown-lag-told-as-none": Mutation(
        "polonaise.client.workerpartition",
        "        if self.committed is None or not self.progress.epoch or self._log_end is not None:\n"
        "            return None\n",
        "        if self.committed is None or not self.progress.epoch or self._log_end is not None:\n"
        "            return 0\n",
        "P13: a worker whose partition does not answer says that it lacks nothing",
    ),
    "given-up-partitions-untold": Mutation(
        "polonaise.node.condition",
        '    found += _given_up(health.get("given_up_why", dict.fromkeys(health.get("given_up", ()), "")))\n',
        "",
        "P13: the status does not say that a server can't serve partitions, and has given them up",
    ),
    "given-up-told-for-ever": Mutation(
        "polonaise.server.givenup",
        " for each in partitions if each not in self._elsewhere}\n",
        " for each in partitions}\n",
        "P13: a server says that it can't serve partitions, long after another one serves them",
    ),
    "missing-servers-dropped": Mutation(
        "polonaise.admin.cluster",
        "        return expected | {owner.server: owner.address for owner in self.owners.values()} | self.registered\n",
        "        return {owner.server: owner.address for owner in self.owners.values()} | self.registered\n",
        "P13: a server that has ended is not in the status any more, although it is to be there",
    ),
    "untold-copies-counted-as-none": Mutation(
        "polonaise.admin.cluster",
        '        if health is None or health.get("members") is None:\n            return None\n',
        '        if health is None or health.get("members") is None:\n            continue\n',
        "P13: copies of which nobody tells are counted as none",
    ),
}
