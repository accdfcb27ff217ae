"""Mutations of what nodes notice of what others end or take away, and of what is told then."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

_EXPECTED: Final = "polonaise.server.expectedservers"
_REAL: Final = "polonaise.host.real"
_SAFE_STOP: Final = "polonaise.admin.safestop"
_SOCKETS: Final = "polonaise.host.sockets"

OUTSIDE_MUTATIONS: Final[dict[str, Mutation]] = {
    "small-files-of-a-log-not-written-again": Mutation(
        "polonaise.node.embedded",
        "            for name in sorted(before & amiss) if there else ():\n",
        "            for name in ():\n",
        "P11: an embedded log goes on without the file that says that it is one, and nobody can open it any more",
        test="tests/embedded/test_embedded_presence.py"
        "::test_a_small_file_that_is_removed_or_changed_is_written_again_by_the_host",
    ),
    "log-without-its-marker-taken-for-none": Mutation(
        "polonaise.node.addresses",
        "    return MARKER not in names and COORDINATOR in names and SOCKETS in names\n",
        "    return False\n",
        "P11: who opens an embedded log that lacks only its marker is told that there is no log",
        test="tests/bad_input/test_bad_embedded_logs.py::test_a_log_that_lacks_only_its_marker_says_how_to_put_it_back",
    ),
    "read-by-time-goes-on-behind-the-archive": Mutation(
        "polonaise.server.partitionreader",
        "            request.first = max(first, min(reached + 1, held_from or reached + 1))\n",
        "            request.first = max(first, reached + 1)\n",
        "P2: a read by time passes over what replicas hold and fragments have of another life",
        test="tests/server/test_reading_history.py"
        "::test_a_time_that_the_fragments_do_not_reach_is_sought_in_all_that_replicas_hold",
    ),
    "store-that-is-not-mounted-declared": Mutation(
        "polonaise.admin.archive",
        "        if not lacking:\n",
        "        if not lacking or lacking:\n",
        "P13: a directory that is not mounted becomes the store, and nobody misses what was trimmed any more",
        test="tests/fragments/test_trimmed_log.py::test_a_store_that_lacks_what_was_trimmed_is_not_declared",
    ),
    "one-partition-ends-the-archiving-of-all": Mutation(
        "polonaise.cli.archive",
        "            if all_fail or error.code in _OF_ALL:\n",
        "            if all_fail or error.code:\n",
        "P11: nothing is archived behind a partition that lacks a fragment, and nobody says so",
        test="tests/cli/test_archive_commands.py::test_what_fails_for_one_partition_is_told_and_the_others_are_archived",
    ),
    "own-standstill-told-as-silence-of-the-peer": Mutation(
        "polonaise.link.protocol.traffic",
        "now_s - self.heard_s - late_s > self._settings.silence_s_max:\n",
        "now_s - self.heard_s > self._settings.silence_s_max:\n",
        "P11: a node that answers is told to have been silent by one that was itself stopped",
        test="tests/link/protocol/test_inbox.py"
        "::test_what_this_process_did_not_hear_while_it_stood_still_is_no_silence_of_the_peer",
    ),
    "connecting-does-not-count": Mutation(
        "polonaise.cli.openlog",
        "asyncio.timeout_at(None if limit is None else limit.until_s)\n",
        "asyncio.timeout_at(None)\n",
        "P11: a command waits for a silent coordinator for longer than its --timeout",
        test="tests/cli/test_log_commands.py"
        "::test_who_says_nothing_is_waited_for_no_longer_than_the_timeout[log append-polonaise]",
    ),
    "missing-ids-looked-for-as-seldom-as-others": Mutation(
        "polonaise.server.fragmentwatches",
        "                async with asyncio.timeout(self._missing_look_s if gone else self._look_s):\n",
        "                async with asyncio.timeout(self._look_s):\n",
        "P13: fragments that were brought back are told as missing for minutes",
        test="tests/server/test_store_away.py::test_what_was_missing_and_is_back_is_seen_soon_however_seldom_looks_are",
    ),
    "ids-that-a-read-misses-untold": Mutation(
        "polonaise.server.fragmentwatches",
        "            self.lag = before._replace(gone={**before.gone, partition: why})\n",
        "            self.lag = before\n",
        "P13: a server that has just told a reader that no fragment holds an id says that all is well",
        test="tests/server/test_reading_history.py"
        "::test_ids_that_a_reader_missed_are_told_at_once_and_until_they_are_back",
    ),
    "digest-clears-a-contradiction": Mutation(
        "polonaise.server.fragmentwatches",
        "        refused = self._scrub.refused_id(step.name)\n",
        "        refused = None\n",
        "P13: a fragment that others contradict is told as whole, because it has the digest in its name",
        test="tests/server/test_reading_history.py"
        "::test_fragments_that_contradict_each_other_are_told_until_the_read_that_was_refused_succeeds",
    ),
    "fragment-that-was-put-back-told-as-damaged": Mutation(
        "polonaise.server.fragmentwatches",
        "            if scrub.is_damaged(name):\n                step = await self._sized(name)\n",
        "",
        "P13: a fragment that was cut and put back is told as damaged until the next round of the scrub",
        test="tests/server/test_reading_history.py"
        "::test_a_fragment_that_was_cut_and_put_back_is_told_no_more_though_nobody_reads_it",
    ),
    "refusal-for-want-of-room-untold": Mutation(
        "polonaise.node.reasons",
        "    if refused := node.no_room:\n",
        '    if refused := "":\n',
        "P13: a storage node whose quota is used up refuses what it is to store, and says that it is well",
        test="tests/storage/test_disks_told.py::test_a_quota_that_is_used_up_is_told",
    ),
    "want-of-room-told-for-ever": Mutation(
        "polonaise.storage.measures",
        'return self._last if self._clock.monotonic_s() - self._last_s < _TOLD_S else ""',
        "return self._last",
        "P13: a storage node is degraded by a refusal of long ago, though there is room",
        test="tests/storage/test_disks_told.py::test_a_quota_that_is_used_up_is_told",
    ),
    "look-at-a-view-ends-the-client": Mutation(
        "polonaise.client.view",
        "        except BaseException as raised:  # noqa: BLE001 - the view's own, whatever",
        "        except PolonaiseError as raised:  #",
        "P13: an error in a look at the view ends the client for good, in place of being its partitions' trouble",
        test="tests/client/test_client_views.py"
        "::test_whatever_a_look_at_the_view_raises_is_its_trouble_and_not_the_clients_end[raised0]",
    ),
    "connection-that-met-itself-used": Mutation(
        _SOCKETS,
        "    if is_itself:\n",
        "    if False:\n",
        "P13: who dials a port at which nobody listens is told that a peer of the wrong kind is there: its own hello",
        test="tests/host/test_connection_mistakes.py"
        "::test_a_connection_that_meets_itself_finds_nobody[on_asyncio-plain]",
    ),
    "name-looked-up-in-the-loop-s-threads": Mutation(
        _SOCKETS,
        "in await names.addresses(address):\n        try:",
        "in await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):\n"
        "        try:",
        "P11: a program whose name service is silent does not end, and other names wait behind one",
        test="tests/host/test_names.py::test_a_silent_name_service_holds_up_neither_other_work_nor_the_end[asyncio]",
    ),
    "lookup-that-hangs-joined-for-ever": Mutation(
        "polonaise.host.names",
        "if lookup is None or time.monotonic() - lookup.begun_s > lookup.patience_s:",
        "if lookup is None:",
        "P11: a name of which one lookup hangs is never looked up again",
        test="tests/host/test_names.py::test_a_lookup_that_hangs_is_not_joined_for_ever",
    ),
    "silent-name-service-told-as-a-silent-peer": Mutation(
        "polonaise.link.connection",
        'why = f": {told}" if (told := broken_off(error)) else ""',
        'why = ""',
        "P13: a peer is said not to answer that nobody has asked, as its name was not found in time",
        test="tests/host/test_names.py::test_who_waits_in_vain_is_told_that_the_name_was_looked_up",
    ),
    "answers-of-a-name-service-heard-late": Mutation(
        "polonaise.coordination.zookeepersession",
        "        while not self._answers.empty():",
        "        while False:",
        "P11: after a silence a ZooKeeper that has moved is looked for where it was, try after try",
        test="tests/host/test_names.py"
        "::test_a_zookeeper_whose_name_was_silent_for_long_is_found_where_it_was_said_to_be_last",
    ),
    "stranger-at-an-owners-address-not-waited-out": Mutation(
        "polonaise.client.links",
        "            if now_s - first_s >= patience_s:\n",
        "            if True:\n",
        "P11: a partition stops for good because another process was given the address of an owner that is gone",
        test="tests/client/test_client_connect.py"
        "::test_who_stands_at_an_owners_address_for_a_while_is_waited_out[a client]",
    ),
    "stranger-waited-out-for-ever": Mutation(
        "polonaise.client.links",
        "            if now_s - first_s >= patience_s:\n",
        "            if False:\n",
        "P13: a client whose names lead to another cluster's servers waits, and is never told",
        test="tests/client/test_client_connect.py::test_a_server_of_another_cluster_is_never_written_to",
    ),
    "removed-socket-not-made-again": Mutation(
        _SOCKETS,
        "            if identity(path) == self._identity:\n",
        "            if self._identity:\n",
        "P11: nobody can connect to a node whose Unix socket a cleaner has removed, and nobody is told",
        test="tests/host/test_socket_directory.py::test_a_socket_that_was_removed_is_made_again_as_it_was",
    ),
    "socket-made-again-with-other-rights": Mutation(
        _SOCKETS,
        "            os.chmod(path, self._mode)\n",
        "            pass\n",
        "P11: those who could connect to a Unix socket can't any more once it was made again",
        test="tests/host/test_socket_directory.py::test_a_socket_that_is_made_again_has_the_rights_that_it_was_given",
    ),
    "last-server-safe-to-stop": Mutation(
        _SAFE_STOP,
        " and not each.trouble and each.registered]\n",
        " and not each.trouble]\n",
        "P13: a server may be stopped, it is said, of which nobody knows that another one could take over",
        test="tests/admin/test_safe_to_stop.py::test_nothing_is_said_to_go_on_that_is_not_known_to",
    ),
    "needed-storage-node-safe-to-stop": Mutation(
        _SAFE_STOP,
        " if name in needed[each.partition]]\n",
        " if each.condition is not None and name in each.condition.out]\n",
        "P13: a storage node may be stopped, it is said, without which partitions take no appends",
        test="tests/admin/test_safe_to_stop.py::test_what_stops_without_a_node_is_said_before_it_is_stopped",
    ),
    "server-that-could-not-serve-takes-over": Mutation(
        _SAFE_STOP,
        "    if server.unable:\n",
        "    if server.unable and server.registered is False:\n",
        "P13: a server may be stopped, it is said, although the only other one says that it can't serve",
        test="tests/admin/test_safe_to_stop.py::test_a_server_that_could_not_serve_is_nobody_who_takes_over",
    ),
    "given-up-partition-counts-for-all": Mutation(
        _SAFE_STOP,
        "    if partition.partition in server.given_up or not closed.issuperset(server.given_up):\n",
        "    if server.given_up:\n",
        "P13: no server may be stopped, it is said, where one partition waits for an operator",
        test="tests/admin/test_safe_to_stop.py::test_what_nobody_can_serve_keeps_no_server_from_taking_over_the_rest",
    ),
    "ailing-server-takes-over": Mutation(
        _SAFE_STOP,
        "        elif why and all(other.given_up for other in others):\n",
        "        elif why and not others:\n",
        "P13: a server may be stopped, it is said, although what it owns may go to one that can't serve it",
        test="tests/admin/test_safe_to_stop.py::test_what_nobody_can_serve_keeps_no_server_from_taking_over_the_rest",
    ),
    "server-that-reaches-no-quorum-takes-over": Mutation(
        _SAFE_STOP,
        "    if _stops(status, partition, server.reached - ",
        "    if _stops(status, partition, {each.name for each in status.storage} - ",
        "P13: a server may be stopped, it is said, although the only other one does not reach enough storage nodes",
        test="tests/admin/test_safe_to_stop.py::test_a_server_that_could_not_serve_is_nobody_who_takes_over",
    ),
    "full-storage-node-counts-as-able": Mutation(
        "polonaise.node.reasons",
        "storage=_full_disk, disables=True,",
        "storage=_full_disk,",
        "P13: a storage node may be stopped, it is said, although the others that would be left include a full one",
        test="tests/admin/test_safe_to_stop.py"
        "::test_a_storage_node_that_says_that_it_cant_write_counts_as_one_that_is_lost",
    ),
    "silence-blamed-on-a-timer-that-is-late": Mutation(
        "polonaise.link.protocol.traffic",
        "        if late_s < self._settings.heartbeat_s or now_s - self",
        "        if now_s - self",
        "P13: a peer is silent, and this process says that it has itself stood still, for no time at all",
        test="tests/link/protocol/test_inbox.py"
        "::test_a_look_that_is_a_little_late_is_not_taken_for_the_reason_of_a_silence",
    ),
    "disk-that-hangs-untold": Mutation(
        "polonaise.storage.node",
        "disk_waits_s=self._host.disk.under_way_s,",
        "disk_waits_s=0.0,",
        "P13: a storage node whose disk hangs says that it is well, and its copies are said to be brought up to date",
        test="tests/storage/test_disks_told.py::test_a_disk_that_hangs_is_told_until_it_has_done_what_it_was_asked_for",
    ),
    "copy-on-a-hanging-disk-is-being-brought-up-to-date": Mutation(
        "polonaise.node.condition",
        '        name: hanging_disk(told.nodes[name])\n        or node["error"]\n',
        '        name: node["error"]\n',
        "P13: a copy is late because its node's disk hangs, and is said to be brought up to date, or not to answer",
        test="tests/admin/test_cluster_status.py"
        "::test_a_storage_node_whose_disk_hangs_is_not_well_and_its_late_copies_say_so",
    ),
    "clients-wait-for-a-coordinator-that-is-known-to-be-away": Mutation(
        "polonaise.server.clusteranswers",
        "return min(most_s, _KNOWN_TROUBLE_S) if self._trouble or self._coordinator.trouble else most_s",
        "return most_s",
        "P13: servers that know why there are no ids keep clients waiting for longer than these wait, and say nothing",
        test="tests/server/test_cluster_answers.py"
        "::test_a_coordinator_that_is_known_to_be_away_is_waited_for_shorter_than_clients_wait_and_that_is_told"
        "[connection-True]",
    ),
    "reason-lost-with-the-deadline": Mutation(
        "polonaise.node.connecting",
        "                    cancelled.add_note(told)\n",
        "                    pass\n",
        "P13: servers have said why a log can't be opened, and the deadline says that nobody answered",
        test="tests/client/test_client_connect.py"
        "::test_a_log_that_gives_no_answer_in_time_says_why_as_far_as_that_is_known",
    ),
    "what-keeps-a-partition-not-asked": Mutation(
        "polonaise.admin.logs",
        "            if condition.waits_for:\n",
        "            if False:\n",
        "P13: the owner knows which disks hold a partition up, and the command line says that it waits for its owner",
        test="tests/admin/test_safe_to_stop.py"
        "::test_disks_that_hang_are_told_to_who_waits_for_the_partition_within_its_time",
    ),
    "lost-copy-counts-as-able": Mutation(
        _SAFE_STOP,
        '[*each.unable, each.unusable.get(str(partition), "")]',
        "[*each.unable]",
        "P13: a storage node may be stopped, it is said, although another one tells that its copy can't be used",
        test="tests/admin/test_safe_to_stop.py"
        "::test_a_storage_node_that_says_that_it_cant_write_counts_as_one_that_is_lost",
    ),
    "removed-server-not-noted-again": Mutation(
        _EXPECTED,
        "if self._name and (not noted or (server in living and (not known or known.server not in living))):",
        "if self._name and not noted:",
        "P13: a server that was removed while it hung, and goes on, is not missed when it ends",
        test="tests/admin/test_cluster_status.py::test_a_server_with_a_name_notes_itself_and_tells_whom_it_misses",
    ),
    "ended-namesake-keeps-the-name": Mutation(
        _EXPECTED,
        " or known.server not in living",
        "",
        "P13: a server is to be removed, it is said, that serves, because another one of its name has ended",
        test="tests/admin/test_cluster_status.py::test_a_server_with_a_name_notes_itself_and_tells_whom_it_misses",
    ),
    "server-misses-itself": Mutation(
        _EXPECTED,
        " if each.server != server}\n        for",
        "}\n        for",
        "P13: a server that has left the others for its clock says that it is not registered, and is to be started",
        test="tests/admin/test_cluster_status.py::test_a_server_that_has_left_the_members_does_not_miss_itself",
    ),
    "names-in-the-order-of-members": Mutation(
        "polonaise.node.condition",
        "    names = sorted(names)\n",
        "",
        "P13: a trouble that many partitions share is told once for each order in which they have their members",
        test="tests/admin/test_cluster_status.py"
        "::test_partitions_with_copies_on_the_same_nodes_say_the_same_in_whatever_order_they_have_them",
    ),
    "waiting-tells-the-number-of-a-session": Mutation(
        "polonaise.server.sessionstart",
        'f"its next session waits for {outcome',
        'f"session {self._session} waits for {outcome',
        "P13: a trouble that many partitions share is told once for each number that their sessions have",
        test="tests/admin/test_cluster_status.py"
        "::test_partitions_that_wait_for_the_same_are_told_together_in_whatever_session_each_is",
    ),
    "namesakes-untold": Mutation(
        _EXPECTED,
        "        other = namesake is not None and namesake.server != server and self._name not in missing\n",
        "        other = False\n",
        "P13: two servers with one name are expected as one, and nobody is told",
        test="tests/admin/test_cluster_status.py::test_a_server_with_a_name_notes_itself_and_tells_whom_it_misses",
    ),
    "unasked-server-of-the-coordinator-is-down": Mutation(
        _EXPECTED,
        " if not isinstance(why, NotAsked)}\n",
        "}\n",
        "P13: ZooKeeper is to be started again, it is said, while a server's own certificate can't be used",
        test="tests/monitoring/test_alerts_fire.py"
        "::test_servers_of_the_coordinator_that_this_process_can_not_ask_are_not_down",
    ),
    "trouble-of-a-connection-ends-the-node": Mutation(
        _REAL,
        '    if "transport" not in context and "protocol" not in context:\n',
        "    if True:\n",
        "P11: a question to ZooKeeper that is given up while its TLS handshake ends takes the whole server with it",
        test="tests/host/test_connection_mistakes.py"
        "::test_a_caller_who_leaves_while_a_handshake_ends_costs_the_node_nothing[on_uvloop]",
    ),
    "mistakes-in-connections-passed-over": Mutation(
        _REAL,
        '    return all(module.partition(".")[0] in _LOOPS for module in modules)\n',
        "    return True\n",
        "P11: a node goes on after a mistake of its own, in a state that nobody knows",
        test="tests/host/test_connection_mistakes.py"
        "::test_trouble_that_the_loops_own_code_raises_ends_the_connection_that_it_belongs_to[on_uvloop]",
    ),
    "server-that-is-cut-off-untold": Mutation(
        "polonaise.node.reasons",
        "    if len(unreached) == len(nodes) > 1:\n",
        "    if len(unreached) > len(nodes):\n",
        "P13: a server that reaches no storage node blames them, and says that it is well itself",
        test="tests/server/test_server_health.py::test_a_server_that_reaches_no_storage_node_is_told_of_itself",
    ),
    "left-out-replica-not-in-metrics": Mutation(
        "polonaise.node.monitoring.servermetrics",
        "    if any((ready and name not in engaged) or not connected.get(name, True) for name in members):\n"
        "        found.add(Reason.REPLICA_LEFT_OUT)\n",
        "",
        "P13: health names a reason for which a node is degraded, and the metrics that alerts rest on do not",
        test="tests/monitoring/test_alerts_fire.py::test_a_storage_node_that_is_gone",
    ),
    "replaced-tail-believed": Mutation(
        "polonaise.log.partitionlog",
        "        if await self._disk.identity(path) != self._tail.identity:\n",
        "        if await self._disk.identity(path) is None:\n",
        "P8: a storage node acknowledges what it writes to a file that another file has replaced",
        test="tests/storage/test_storage_presence.py::test_a_copy_in_the_place_of_files_is_not_believed_to_be_them",
    ),
    "removed-segment-not-missed": Mutation(
        "polonaise.log.partitionlog",
        "            if number is None or (\n",
        "            if number is not None and (\n",
        "P10: a copy counts for hours although a file of it is gone, until the scrub comes to it",
        test="tests/storage/test_storage_presence.py"
        "::test_a_closed_segment_that_is_removed_or_replaced_is_missed_within_seconds[running-removed]",
    ),
    "replaced-segment-believed": Mutation(
        "polonaise.log.segmentreader",
        "                return header == segment.header and await file.size() == segment.end\n",
        "                return header.first == segment.first or await file.size() == segment.end\n",
        "P10: a copy counts for hours although another file has the place of one of its segments",
        test="tests/storage/test_storage_presence.py"
        "::test_a_closed_segment_that_is_removed_or_replaced_is_missed_within_seconds[running-cut short]",
    ),
    "sessions-end-uncounted": Mutation(
        "polonaise.server.protocol.readiness",
        "        self._changes.note()\n        self.reached |= reached\n",
        "        self.reached |= reached\n",
        "P13: that sessions end by faults is not looked at, and nobody is warned",
        test="tests/server/protocol/test_owner_readiness.py"
        "::test_as_long_as_the_count_of_changes_stands_still_a_partition_fares_as_before",
    ),
    "one-look-proves-lost-data": Mutation(
        "polonaise.coordination.zookeeperdata",
        "                if now_s - since_s >= _CONFIRM_S:\n                    return True\n",
        "                return True\n",
        "P11: a leader of ZooKeeper that lags for a moment is taken for one that has lost data",
        test="tests/coordination/test_silent_zookeeper.py"
        "::test_the_only_server_or_a_leader_that_is_behind_proves_lost_data_within_a_second",
    ),
    "lost-data-never-proved": Mutation(
        "polonaise.coordination.zookeeperdata",
        "            since_s = self._behind.setdefault(server, now_s)\n",
        "            since_s = self._behind[server] = now_s\n",
        "P13: nobody is told that ZooKeeper has lost data, and servers wait for it until their session has ended",
        test="tests/coordination/test_silent_zookeeper.py"
        "::test_the_only_server_or_a_leader_that_is_behind_proves_lost_data_within_a_second",
    ),
    "notes-of-servers-unchecked": Mutation(
        "polonaise.storage.node",
        "                told = checked(json.loads(document), self._settings.partitions_max)\n",
        "                told = json.loads(document)\n",
        "P12: a storage node keeps whatever it is told of the coordinator's values, and can't read it when it must",
        test="tests/storage/test_operators.py::test_values_of_another_form_are_not_noted_and_those_of_before_stay",
    ),
    "groups-of-an-owner-that-knows-none-yet-believed": Mutation(
        "polonaise.client.workergroup",
        "                if own.answer is LeaseAnswer.TOO_EARLY:\n",
        "                if False:\n",
        "P13: a second group on one view takes it from the first one as soon as an owner is killed",
        test="tests/server/test_leases_over_owners.py"
        "::test_a_group_is_known_to_be_there_when_an_owner_was_killed_whose_successor_it_has_not_asked_yet",
    ),
    "position-ahead-of-the-log-taken": Mutation(
        "polonaise.client.workerpartition",
        "        self._log_end = end if position > end else None\n",
        "        self._log_end = None\n",
        "P7: a worker that begins ahead of the log leaves out what the log gets next, and says that it is well",
        test="tests/views/test_worker_view.py::test_a_worker_that_begins_ahead_of_a_log_that_grows_handles_nothing",
    ),
    "run-above-the-mark-given-for-ever": Mutation(
        "polonaise.client.workerprogress",
        "                if self.position < before:\n",
        "                if self.position < -1:\n",
        "P7: a worker whose database has stepped back gives it the same run again and again, and says that it is well",
        test="tests/views/test_worker_view.py"
        "::test_a_view_that_moves_its_mark_nowhere_is_told_and_not_given_the_same_at_once"
        "[0-applied up to 1, and the view says 0]",
    ),
    "idle-worker-s-database-not-looked-at": Mutation(
        "polonaise.client.workergroup",
        "        return await view.stepped_back({work.partition: work.progress.position for work in works})\n",
        "        return await view.stepped_back({work.partition: -1 for work in works})\n",
        "P7: a worker that has nothing to apply never notices that its database was put back, and says that it is well",
        test="tests/views/test_worker_view.py"
        "::test_a_database_that_was_put_back_or_emptied_under_an_idle_worker_is_brought_up_to_date"
        "[sqlite-who took it over]",
    ),
    "outgrown-position-taken": Mutation(
        "polonaise.client.workerpartition",
        "        end = self.committed if known is None else min(known, self.committed)\n",
        "        end = self.committed\n",
        "P7: a worker that was ahead of the log goes on once the log has grown, and leaves out what is below",
        test="tests/client/test_client_groups_of_workers.py"
        "::test_a_log_that_ends_below_the_position_of_a_worker_that_runs_is_told_and_nothing_is_passed_over",
    ),
    "mark-ahead-of-the-log-believed": Mutation(
        "polonaise.client.partitions",
        "                if mark > end:\n",
        "                if mark > end + (1 << 62):\n",
        "P7: a view whose database comes to be ahead of the log is told to have applied what it never was given",
        test="tests/views/test_sql_faults.py"
        "::test_a_database_that_comes_to_be_ahead_of_the_log_is_refused_with_the_next_transaction[sqlite]",
    ),
    "store-looked-at-once": Mutation(
        "polonaise.server.fragmentwatches",
        "            self.trouble = trouble\n",
        "            self.trouble = self.trouble or trouble\n",
        "P11: a server whose fragment store was away once is never given partitions again",
        test="tests/server/test_store_away.py"
        "::test_a_server_that_starts_without_its_store_is_given_nothing_until_it_is_back[away]",
    ),
    "store-away-and-given-partitions": Mutation(
        "polonaise.server.unservable",
        "        unable = given_up | self._not_to_be_started\n",
        "        unable = given_up\n",
        "P11: a server that can't reach its fragment store takes over partitions, and can't start them",
        test="tests/server/test_store_away.py"
        "::test_a_server_that_starts_without_its_store_is_given_nothing_until_it_is_back[away]",
    ),
}
