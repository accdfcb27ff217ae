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
        test="tests/server/test_missing_values.py"
        "::test_whichever_value_is_lost_is_told_and_what_is_owned_goes_on[missing-unique-id]",
    ),
    "reason-kept-from-a-stranger-told-nowhere": Mutation(
        "polonaise.server.clusteranswers",
        "            self._failing.failed(UNIQUE_IDS, error, server=self.server)\n",
        "",
        "P13: why no unique id was given out is told neither to the client nor by the server's health",
        test="tests/server/test_missing_values.py"
        "::test_unique_ids_that_can_be_read_and_not_given_out_are_told_until_they_can_be",
    ),
    "lost-list-of-servers-not-told": Mutation(
        "polonaise.server.expectedservers",
        "                self._trouble.failed(_EXPECTED, error, server=server)\n",
        "                pass\n",
        "P13: a lost list of the servers that are to be there is told by nothing",
        test="tests/server/test_missing_values.py"
        "::test_whichever_value_is_lost_is_told_and_what_is_owned_goes_on[missing-expected-servers]",
    ),
    "cluster-made-unasked": Mutation(
        "polonaise.node.processes",
        "        raise await why_none(host, coordinator, nodes) from None\n    if partitions is not None",
        "        description = await cluster_at(coordinator, nodes, partitions or 1, None)\n"
        "    if partitions is not None",
        "P13: a server makes a new cluster where the coordinator has lost the data of the one that there is",
        test="tests/server/test_older_coordinator.py"
        "::test_a_coordinator_that_lost_its_data_takes_no_append_and_nothing_is_made_in_it",
    ),
    "held-data-not-seen": Mutation(
        "polonaise.node.processes",
        "        return lost(coordinator, holding)\n",
        "        pass\n",
        "P13: a coordinator that lost its data is told as one that never had any",
        test="tests/server/test_older_coordinator.py"
        "::test_a_coordinator_that_lost_its_data_takes_no_append_and_nothing_is_made_in_it",
    ),
    "joined-session-given-out-again": Mutation(
        "polonaise.server.protocol.recovery",
        "        if answer.joined >= value.session:\n",
        "        if answer.joined > value.session:\n",
        "P13: a coordinator that is older by a single session gives that session out a second time",
        test="tests/server/test_older_coordinator.py"
        "::test_a_replica_that_joined_the_very_session_that_is_claimed_proves_an_older_state",
    ),
    "outdated-not-marked": Mutation(
        "polonaise.server.sessionstart",
        "marked = replace(current.value, outdated=session)\n",
        "marked = current.value\n",
        "P13: an older copy of the coordinator is refused until enough attempts have raised its session numbers",
        test="tests/server/test_older_coordinator.py"
        "::test_an_older_state_of_the_coordinator_alone_takes_no_append_however_often_servers_start",
    ),
    "mark-of-the-outdated-ignored": Mutation(
        "polonaise.server.sessionstart",
        "            if current.value.outdated != NO_SESSION:\n",
        "            if current.value.outdated > current.value.session:\n",
        "P13: that a session was given out twice is forgotten with the next attempt to start one",
        test="tests/server/test_older_coordinator.py"
        "::test_an_older_state_of_the_coordinator_alone_takes_no_append_however_often_servers_start",
    ),
    "operators-change-what-is-not-believed": Mutation(
        "polonaise.admin.opening",
        "        status.belief.refuse(",
        "        _ = (",
        "P13: an operator's change goes through on an older copy of the coordinator, and gives ids out a second time",
        test="tests/cli/test_changes_of_older_coordinators.py"
        "::test_nothing_is_changed_in_a_coordinator_of_an_older_state[topic create]",
    ),
    "mark-of-the-outdated-not-looked-at": Mutation(
        "polonaise.admin.cluster",
        "            doubt = await outdated_at(self._coordinator, unproved, min(self._timeout_s, _MARKS_S))\n",
        "            pass\n",
        "P13: with all nodes stopped, an older copy of the coordinator is changed although its values are marked",
        test="tests/cli/test_changes_of_older_coordinators.py"
        "::test_nothing_is_changed_where_a_value_is_marked_as_older_though_no_node_answers[topic create]",
    ),
    "change-without-asking": Mutation(
        "polonaise.coordination.coordinator",
        "        await self.may_change()\n        await self._backend.add(entries)\n",
        "        await self._backend.add(entries)\n",
        "P13: partitions of a topic are made in an older copy of the coordinator before anybody is asked",
        test="tests/cli/test_changes_of_older_coordinators.py"
        "::test_nothing_is_changed_in_a_coordinator_of_an_older_state[topic create]",
    ),
    "listing-without-a-warning": Mutation(
        "polonaise.cli.opencluster",
        "        status = await self.observer.look()\n        self.warn_of(",
        "        status = await self.observer.look()\n        str(",
        "P13: topics are listed of an older coordinator, and nothing says that servers don't believe it",
        test="tests/cli/test_changes_of_older_coordinators.py"
        "::test_what_is_listed_of_a_coordinator_that_servers_do_not_believe_has_a_warning_beside_it[topic list]",
    ),
    "removal-told-while-doubted": Mutation(
        "polonaise.admin.cluster",
        "        if isinstance(answer, _AnotherServer) and not status.doubted:\n",
        "        if isinstance(answer, _AnotherServer):\n",
        "P13: an operator is told to take a server out that only an older coordinator takes for one that has ended",
        test="tests/admin/test_cluster_status.py"
        "::test_nobody_is_told_to_take_a_server_out_of_a_coordinator_that_is_not_believed",
    ),
    "later-notes-not-looked-at": Mutation(
        "polonaise.admin.belief",
        'isinstance(told := each.get("noted"), int) and told > version\n',
        'isinstance(told := each.get("noted"), int) and False\n',
        "P13: with all servers stopped, an older copy of the coordinator is changed although storage nodes know later",
        test="tests/cli/test_changes_of_older_coordinators.py"
        "::test_notes_that_are_not_later_and_nodes_that_tell_nothing_raise_no_doubt",
    ),
    "later-promises-not-looked-at": Mutation(
        "polonaise.admin.belief",
        "told.fence > sessions.get(each, told.fence)",
        "told.fence > sessions.get(each, told.fence) + 2**63",
        "P13: with all servers stopped, an older coordinator takes a storage node out whose copy is needed and answers",
        test="tests/cli/test_changes_of_older_coordinators.py"
        "::test_a_copy_that_promised_a_later_session_tells_while_no_server_answers[storage remove]",
    ),
    "later-version-cures-what-went-back": Mutation(
        "polonaise.coordination.seen",
        " or key in self._doubted or not value",
        " or not value",
        "P13: servers believe an older copy of the coordinator once enough changes were made in it",
        test="tests/coordination/test_coordinator_rules.py"
        "::test_a_description_that_went_back_is_not_believed_by_a_later_version_but_as_it_was",
    ),
    "own-id-that-was-read-already-doubted": Mutation(
        "polonaise.coordination.seen",
        " or entry == known.entry or entry.version <",
        " or entry.version <",
        "P11: a server that reads the counter of ids while it is given one doubts a healthy coordinator, for good",
        test="tests/coordination/test_coordinator_rules.py"
        "::test_an_id_whose_answer_was_overtaken_by_a_look_at_the_counter_is_no_older_state",
    ),
    "counters-of-two-histories-alike": Mutation(
        "polonaise.coordination.coordinator",
        "UniqueIds(self._clock.wall_us())\n",
        "UniqueIds()\n",
        "P13: a server takes an older counter of ids, counted up by others, for what it knew, and doubts the latest",
        test="tests/coordination/test_coordinator_rules.py"
        "::test_a_counter_that_others_counted_up_in_the_older_state_is_not_taken_for_the_one_that_was_known",
    ),
    "known-while-another-value-is-doubted": Mutation(
        "polonaise.coordination.seen",
        "        if not self._doubted and (self._proved or self.version(key)",
        "        if (self._proved or self.version(key)",
        "P13: a server remembers what it reads in an older coordinator, and then doubts the latest state for good",
        test="tests/coordination/test_coordinator_rules.py"
        "::test_nothing_that_is_read_while_another_value_is_doubted_counts_as_known",
    ),
    "proof-of-an-older-state-forgotten": Mutation(
        "polonaise.coordination.seen",
        "        self._proved[key] = max(session, self._proved.get(key, session))\n",
        "        pass\n",
        "P11: a server whose replicas have proved an older state moves partitions there, which no later state knows",
        test="tests/coordination/test_coordinator_rules.py"
        "::test_what_replicas_prove_keeps_the_assignment_until_its_session_is_there_and_other_partitions_go_on",
    ),
    "known-before-the-proof": Mutation(
        "polonaise.coordination.seen",
        "        return not self._proved or key in self._doubted\n",
        "        return True\n",
        "P11: a server holds what it wrote in an older state, before replicas proved that, against the latest one",
        test="tests/coordination/test_coordinator_rules.py"
        "::test_what_replicas_prove_keeps_the_assignment_until_its_session_is_there_and_other_partitions_go_on",
    ),
    "not-registered-in-a-copy-that-is-doubted": Mutation(
        "polonaise.coordination.file",
        "            if await self._is_replaced(posixpath.dirname(name)):\n",
        "            if False:\n",
        "P11: in a copy of the coordinator's directory a server that believes it takes those that don't for dead",
        test="tests/coordination/test_file_coordinator.py"
        "::test_a_renewal_registers_in_a_copy_of_the_directory_before_anybody_looks_who_lives",
    ),
    "read-of-the-older-state-returned": Mutation(
        "polonaise.coordination.coordinator",
        "                return found\n            await self._check_belief()\n",
        "                return found\n            await self._check_belief()\n            return found\n",
        "P13: a server believes what it read of an older coordinator just before the latest state is back",
        test="tests/coordination/test_coordinator_rules.py"
        "::test_what_was_read_just_before_the_latest_state_is_back_is_read_again",
    ),
    "all-dead-in-a-copy-of-the-directory": Mutation(
        "polonaise.coordination.file",
        "        await self._is_replaced(folder)\n",
        "",
        "P13: a server takes over from all others in a copy of the coordinator's directory, which holds no locks",
        test="tests/coordination/test_file_coordinator.py"
        "::test_nobody_is_taken_for_dead_because_a_copy_of_the_directory_was_put_in_its_place",
    ),
    "older-counter-counted-up": Mutation(
        "polonaise.coordination.coordinator",
        "value.encode(), None, least=seen)\n",
        "value.encode(), None)\n",
        "P13: a server counts ids of an older coordinator up until they are those that it has seen, and believes it",
        test="tests/coordination/test_coordinator_rules.py"
        "::test_a_counter_of_ids_that_went_back_is_neither_counted_up_nor_believed_until_it_is_back",
    ),
    "rest-of-an-older-coordinator-believed": Mutation(
        "polonaise.coordination.coordinator",
        "            if not self._seen.doubted:\n",
        "            if True:\n",
        "P13: a server that has seen one value go back acts by the other ones of the older coordinator",
        test="tests/coordination/test_coordinator_rules.py"
        "::test_while_one_value_is_older_than_it_was_no_other_is_believed_or_changed[unique-id]",
    ),
    "older-coordinator-changed": Mutation(
        "polonaise.coordination.coordinator",
        "        await self._check_belief()\n        if calm_s",
        "        if calm_s",
        "P13: a server that has seen one value go back changes other ones of the older coordinator",
        test="tests/coordination/test_coordinator_rules.py"
        "::test_while_one_value_is_older_than_it_was_no_other_is_believed_or_changed[unique-id]",
    ),
    "changed-before-others-have-looked": Mutation(
        "polonaise.coordination.seen",
        "            self._calm_until_s = now_s + self._calm_s\n",
        "            pass\n",
        "P11: the first server that finds the latest state back changes it, and all others doubt it for good",
        test="tests/coordination/test_coordinator_rules.py"
        "::test_the_first_to_be_sure_again_changes_nothing_before_the_others_have_seen_what_is_back",
    ),
    "sequences-of-every-client-from-one": Mutation(
        "polonaise.client.clientparts",
        "        self.numbered_above = self._host.clock.wall_us()\n",
        "",
        "P6: an append is told as committed for that of another client, which an older coordinator gave the same id",
        test="tests/client/test_ids_given_twice.py"
        "::test_an_append_that_waits_is_not_committed_by_the_same_number_of_another_client",
    ),
    "holder-known-by-its-id": Mutation(
        "polonaise.client.clientparts",
        "(self.numbered_above + self._leases) % 2**32",
        "self._leases",
        "P13: two clients to which an older coordinator gave one id hold one lease at the same time",
        test="tests/client/test_ids_given_twice.py::test_a_lease_that_one_of_them_holds_the_other_one_does_not_hold",
    ),
    "topic-may-go": Mutation(
        "polonaise.terms",
        "self.topics.get(name, ())[: len(ids)] == ids",
        "self.topics.get(name, ids)[: len(ids)] == ids",
        "P13: a description that gives a topic's ids to another one is taken for a later one of the same history",
        test="tests/coordination/test_coordinator_rules.py"
        "::test_a_description_without_a_topic_that_was_there_is_of_an_older_copy_that_was_changed",
    ),
    "contradicting-note-preferred": Mutation(
        "polonaise.coordination.rebuilding",
        "        if not newest.may_be_after(older, before, version):\n",
        "        if False:\n",
        "P13: a lost coordinator gets a storage node's note of an older copy that was changed, and a topic is gone",
        test="tests/coordination/test_rebuilding.py::test_of_two_descriptions_that_contradict_an_operator_chooses",
    ),
    "description-without-a-member-taken": Mutation(
        "polonaise.coordination.rebuilding",
        "    if lack := lacking(newest, backup, answers):\n",
        "    if (lack := lacking(newest, backup, answers)) and False:\n",
        "P13: a lost coordinator gets a description without a storage node that has a copy, or without a topic in use",
        test="tests/coordination/test_rebuilding.py"
        "::test_a_description_without_a_storage_node_that_has_a_copy_is_refused[True-None]",
    ),
    "contradicted-note-forgotten": Mutation(
        "polonaise.storage.clusternote",
        '        **({"contradicting": contradicting} if contradicting else {}),\n',
        "",
        "P13: a storage node forgets the true description once it is told one of an older copy that was changed",
        test="tests/coordination/test_rebuilding.py::test_a_note_keeps_a_description_that_the_latest_one_contradicts",
    ),
    "refused-description-noted": Mutation(
        "polonaise.server.valuenotes",
        "        believed = bool(values) and not older and",
        "        believed = True or",
        "P13: servers that refuse an older copy of the coordinator have its description noted over the true one",
        test="tests/server/test_older_coordinator.py::test_servers_that_refuse_an_older_state_have_nothing_of_it_noted",
    ),
    "backup-of-another-cluster-taken": Mutation(
        "polonaise.coordination.rebuilding",
        "    if keys.keys() - {backup.description.key}:\n",
        "    if not keys.keys():\n",
        "P13: a lost coordinator gets the values of another cluster, whose partitions have the same numbers",
        test="tests/coordination/test_rebuilding.py"
        "::test_the_backup_of_another_cluster_is_refused_whichever_description_is_newer",
    ),
    "coordinator-beside-the-one-in-use": Mutation(
        "polonaise.coordination.rebuilding",
        "    if not confirmed:\n        _check_unused(description, expected or ExpectedServers(), answers, running)\n",
        "",
        "P13: a second coordinator is made beside that of a cluster whose servers run, and takes their partitions away",
        test="tests/coordination/test_rebuilding.py"
        "::test_a_cluster_to_whose_storage_nodes_servers_are_connected_is_in_use",
    ),
    "unseen-registration-renewed": Mutation(
        "polonaise.coordination.file",
        "            if not await self._disk.exists(self.place(name)):\n",
        "            if name not in self._own:\n",
        "P13: a server owns by a registration that nobody sees, in a directory that was replaced",
        test="tests/coordination/test_file_coordinator.py"
        "::test_a_member_registers_anew_in_a_copy_that_was_made_without_the_folder_of_members",
    ),
}
