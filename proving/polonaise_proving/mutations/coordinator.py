"""Mutations of what is refused at a coordinator that has lost its data, or was put back to an older state."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

COORDINATOR_MUTATIONS: Final[dict[str, Mutation]] = {
    "value-without-which-nobody-gets-in-not-told": Mutation(
        "polonaise.server.valuenotes",
        "                self._trouble.failed(what, error, server=self._cluster.server)\n",
        "                pass\n",
        "P13: a lost counter of unique ids is told by nothing, while every new client is refused",
    ),
    "reason-kept-from-a-stranger-told-nowhere": Mutation(
        "polonaise.server.clusteranswers",
        "            self._failing.failed(UNIQUE_IDS, error, server=self.server)\n",
        "",
        "P13: why no unique id was given out is told neither to the client nor by the server's health",
    ),
    "lost-list-of-servers-not-told": Mutation(
        "polonaise.server.expectedservers",
        "                self._trouble.failed(_EXPECTED, error, server=server)\n",
        "                pass\n",
        "P13: a lost list of the servers that are to be there is told by nothing",
    ),
    "cluster-made-unasked": Mutation(
        "polonaise.node.processes",
        "        raise await why_none(host, coordinator, nodes) from None\n    if partitions is not None",
        "        description = await cluster_at(coordinator, nodes, partitions or 1, None)\n"
        "    if partitions is not None",
        "P13: a server makes a new cluster where the coordinator has lost the data of the one that there is",
    ),
    "held-data-not-seen": Mutation(
        "polonaise.node.lostcoordinator",
        "        return lost(coordinator, holding)\n",
        "        pass\n",
        "P13: a coordinator that lost its data is told as one that never had any",
    ),
    "joined-session-given-out-again": Mutation(
        "polonaise.server.protocol.recovery",
        "        if answer.joined >= value.session:\n",
        "        if answer.joined > value.session:\n",
        "P13: a coordinator that is older by a single session gives that session out a second time",
    ),
    "outdated-not-marked": Mutation(
        "polonaise.server.sessionstart",
        "marked = replace(current.value, outdated=session)\n",
        "marked = current.value\n",
        "P13: an older copy of the coordinator is refused until enough attempts have raised its session numbers",
    ),
    "mark-of-the-outdated-ignored": Mutation(
        "polonaise.server.sessionstart",
        "            if current.value.outdated != NO_SESSION:\n",
        "            if current.value.outdated > current.value.session:\n",
        "P13: that a session was given out twice is forgotten with the next attempt to start one",
    ),
    "operators-change-what-is-not-believed": Mutation(
        "polonaise.admin.opening",
        "        if status.coordinator_disbelief:\n",
        "        if False:\n",
        "P13: an operator's change goes through on an older copy of the coordinator, and gives ids out a second time",
    ),
    "mark-of-the-outdated-not-looked-at": Mutation(
        "polonaise.admin.cluster",
        "            doubt = await outdated_at(self._coordinator, unproved, min(self._timeout_s, _MARKS_S))\n",
        "            pass\n",
        "P13: with all nodes stopped, an older copy of the coordinator is changed although its values are marked",
    ),
    "change-without-asking": Mutation(
        "polonaise.coordination.coordinator",
        "        await self.may_change()\n        await self._backend.add(entries)\n",
        "        await self._backend.add(entries)\n",
        "P13: partitions of a topic are made in an older copy of the coordinator before anybody is asked",
    ),
    "listing-without-a-warning": Mutation(
        "polonaise.cli.opencluster",
        "        status = await self.observer.look()\n        self.warn_of(",
        "        status = await self.observer.look()\n        str(",
        "P13: topics are listed of an older coordinator, and nothing says that servers don't believe it",
    ),
    "removal-told-while-doubted": Mutation(
        "polonaise.admin.cluster",
        "    if isinstance(answer, _AnotherServer) and not doubt:\n",
        "    if isinstance(answer, _AnotherServer):\n",
        "P13: an operator is told to take a server out that only an older coordinator takes for one that has ended",
    ),
    "later-notes-not-looked-at": Mutation(
        "polonaise.admin.askedservers",
        'isinstance(told := each.get("noted"), int) and told > version\n',
        'isinstance(told := each.get("noted"), int) and False\n',
        "P13: with all servers stopped, an older copy of the coordinator is changed although storage nodes know later",
    ),
    "later-promises-not-looked-at": Mutation(
        "polonaise.admin.askedservers",
        "told.fence > sessions.get(each, told.fence)",
        "told.fence > sessions.get(each, told.fence) + 2**63",
        "P13: with all servers stopped, an older coordinator takes a storage node out whose copy is needed and answers",
    ),
    "later-version-cures-what-went-back": Mutation(
        "polonaise.coordination.seen",
        " or key in self._doubted or not value",
        " or not value",
        "P13: servers believe an older copy of the coordinator once enough changes were made in it",
    ),
    "own-id-that-was-read-already-doubted": Mutation(
        "polonaise.coordination.seen",
        " or entry == known.entry or entry.version <",
        " or entry.version <",
        "P11: a server that reads the counter of ids while it is given one doubts a healthy coordinator, for good",
    ),
    "counters-of-two-histories-alike": Mutation(
        "polonaise.coordination.coordinator",
        "UniqueIds(self._clock.wall_us())\n",
        "UniqueIds()\n",
        "P13: a server takes an older counter of ids, counted up by others, for what it knew, and doubts the latest",
    ),
    "known-while-another-value-is-doubted": Mutation(
        "polonaise.coordination.seen",
        "        if not self._doubted and (self._proved or self.version(key)",
        "        if (self._proved or self.version(key)",
        "P13: a server remembers what it reads in an older coordinator, and then doubts the latest state for good",
    ),
    "proof-of-an-older-state-forgotten": Mutation(
        "polonaise.coordination.seen",
        "        self._proved[key] = max(session, self._proved.get(key, session))\n",
        "",
        "P11: a server whose replicas have proved an older state moves partitions there, which no later state knows",
    ),
    "known-before-the-proof": Mutation(
        "polonaise.coordination.seen",
        "        return not self._proved or key in self._doubted\n",
        "        return True\n",
        "P11: a server holds what it wrote in an older state, before replicas proved that, against the latest one",
    ),
    "not-registered-in-a-copy-that-is-doubted": Mutation(
        "polonaise.coordination.file",
        "            if await self._is_replaced(posixpath.dirname(name)):\n",
        "            if False:\n",
        "P11: in a copy of the coordinator's directory a server that believes it takes those that don't for dead",
    ),
    "read-of-the-older-state-returned": Mutation(
        "polonaise.coordination.coordinator",
        "                return found\n            await self._check_belief()\n",
        "                return found\n            await self._check_belief()\n            return found\n",
        "P13: a server believes what it read of an older coordinator just before the latest state is back",
    ),
    "all-dead-in-a-copy-of-the-directory": Mutation(
        "polonaise.coordination.file",
        "        await self._is_replaced(folder)\n",
        "",
        "P13: a server takes over from all others in a copy of the coordinator's directory, which holds no locks",
    ),
    "older-counter-counted-up": Mutation(
        "polonaise.coordination.coordinator",
        "value.encode(), None, least=seen)\n",
        "value.encode(), None)\n",
        "P13: a server counts ids of an older coordinator up until they are those that it has seen, and believes it",
    ),
    "rest-of-an-older-coordinator-believed": Mutation(
        "polonaise.coordination.coordinator",
        "            if not self._seen.doubted:\n",
        "            if True:\n",
        "P13: a server that has seen one value go back acts by the other ones of the older coordinator",
    ),
    "older-coordinator-changed": Mutation(
        "polonaise.coordination.coordinator",
        "        await self._check_belief()\n        if calm_s",
        "        if calm_s",
        "P13: a server that has seen one value go back changes other ones of the older coordinator",
    ),
    "changed-before-others-have-looked": Mutation(
        "polonaise.coordination.seen",
        "            self._calm_until_s = now_s + self._calm_s\n",
        "            pass\n",
        "P11: the first server that finds the latest state back changes it, and all others doubt it for good",
    ),
    "sequences-of-every-client-from-one": Mutation(
        "polonaise.client.connected",
        "        self._numbered_above = self._host.clock.wall_us()\n",
        "",
        "P6: an append is told as committed for that of another client, which an older coordinator gave the same id",
    ),
    "holder-known-by-its-id": Mutation(
        "polonaise.client.log",
        "(self._numbered_above + self._leases) % 2**32",
        "self._leases",
        "P13: two clients to which an older coordinator gave one id hold one lease at the same time",
    ),
    "topic-may-go": Mutation(
        "polonaise.coordination.values",
        "        return kept and (self.key",
        "        return (self.key",
        "P13: a description that gives a topic's ids to another one is taken for a later one of the same history",
    ),
    "contradicting-note-preferred": Mutation(
        "polonaise.coordination.rebuilding",
        "        if not newest.may_be_after(older, before, version):\n",
        "        if False:\n",
        "P13: a lost coordinator gets a storage node's note of an older copy that was changed, and a topic is gone",
    ),
    "description-without-a-member-taken": Mutation(
        "polonaise.coordination.rebuilding",
        "    if lack := lacking(newest, backup, answers):\n",
        "    if (lack := lacking(newest, backup, answers)) and False:\n",
        "P13: a lost coordinator gets a description without a storage node that has a copy, or without a topic in use",
    ),
    "contradicted-note-forgotten": Mutation(
        "polonaise.storage.clusternote",
        '        **({"contradicting": contradicting} if contradicting else {}),\n',
        "",
        "P13: a storage node forgets the true description once it is told one of an older copy that was changed",
    ),
    "refused-description-noted": Mutation(
        "polonaise.server.valuenotes",
        "        believed = bool(values) and not older and",
        "        believed = True or",
        "P13: servers that refuse an older copy of the coordinator have its description noted over the true one",
    ),
    "backup-of-another-cluster-taken": Mutation(
        "polonaise.coordination.rebuilding",
        "    if keys.keys() - {backup.description.key}:\n",
        "    if not keys.keys():\n",
        "P13: a lost coordinator gets the values of another cluster, whose partitions have the same numbers",
    ),
    "coordinator-beside-the-one-in-use": Mutation(
        "polonaise.coordination.rebuilding",
        "    if not confirmed:\n        _check_unused(description, expected or ExpectedServers(), answers, running)\n",
        "",
        "P13: a second coordinator is made beside that of a cluster whose servers run, and takes their partitions away",
    ),
    "unseen-registration-renewed": Mutation(
        "polonaise.coordination.file",
        "            if not await self._disk.exists(self.place(name)):\n",
        "            if name not in self._own:\n",
        "P13: a server owns by a registration that nobody sees, in a directory that was replaced",
    ),
}
