"""Mutations of servers: who owns what, what owners commit and tell, and what an operator's reset of the head does."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

_FOLLOWING: Final = "polonaise.server.assignmentfollowing"
_OWNER: Final = "polonaise.server.protocol.owner"
_CLOCK: Final = "polonaise.server.protocol.commitclock"
_DECISIONS: Final = "polonaise.server.protocol.headreset"

OWNERSHIP_MUTATIONS: Final[dict[str, Mutation]] = {
    # What decides which server owns a partition
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
        model="first sessions",
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
    # How sessions end, and of what is told and kept from one to the next
    "forming-batch-told-lost": Mutation(
        _OWNER,
        "        self._inbox.put_back(never_sent)\n",
        "        for entry in never_sent:\n"
        "            if hasattr(entry, 'appends'):\n"
        "                reason = FailureReason.SESSION_ENDED\n"
        "                self._out.add(*self.feeds.refuse(entry.mount, entry.appends, self.committed, reason))\n",
        "P11: appends fail because their session has ended as planned before it had sent them",
        seed=86,
        model="owner",
    ),
    "late-replica-told-of-what-is-not-committed": Mutation(
        "polonaise.server.catchup",
        "                read = await self._read(last + 1, committed)\n",
        "                read = await self._read(last + 1, self._session.sent)\n",
        "P4: a late replica is told as committed what is only sent",
        test="tests/server/test_late_replicas.py"
        "::test_a_late_replica_is_copied_what_is_committed_while_more_is_on_its_way",
    ),
    "slow-for-all-is-late": Mutation(
        "polonaise.server.protocol.session",
        "            patience_s *= _ALL_SLOW\n",
        "            pass\n",
        "P11: where all disks are slow, each session ends before anything is committed",
        test="tests/server/protocol/test_owner_sessions.py"
        "::test_while_no_quorum_syncs_the_session_waits_and_clients_are_told",
    ),
    "deadline-that-never-grows": Mutation(
        "polonaise.patience",
        "        self.seconds = max(self.seconds, min(2 * waited_s, self._most_s))\n",
        "        pass\n",
        "P11: where all disks are slow, no session starts",
        seed=178,
    ),
    "request-deadline-that-never-grows": Mutation(
        "polonaise.client.requests",
        "            patience.exceeded(deadline_s, clock.monotonic_s())\n",
        "",
        "P11: where disks are slow, a client asks for the same bodies again and again, and its view stays for good",
        test="tests/client/test_reading_goes_on.py::test_a_request_that_took_too_long_is_given_longer_the_next_time",
    ),
    "slow-replicas-are-left-out": Mutation(
        "polonaise.server.protocol.recovery",
        "    return max(least_s, _PACES * pace)\n",
        "    return least_s\n",
        "P11: where all disks are slow, each session leaves a replica out, and ends soon to let it back in",
        test="tests/server/test_starts.py::test_a_replica_that_joins_a_little_later_than_a_quorum_is_not_left_out",
    ),
    "answer-outlives-its-replica": Mutation(
        "polonaise.server.sessionstart",
        "                await self._shared.links[name].until_closed(connection)\n",
        "                return\n",
        "P11, P13: a replica that came up with an empty directory first is never asked again, and stays listed",
        seed=15,
    ),
    "register-bytes-leak": Mutation(
        "polonaise.server.protocol.order",
        "                total -= len(key) + len(before)\n",
        "                pass\n",
        "P11: registers that change are full one day, though they hold little",
        test="tests/server/protocol/test_order_registers.py"
        "::test_registers_that_change_for_ever_take_the_room_of_their_present_values_only",
    ),
    "reset-cuts-at-own-marks": Mutation(
        "polonaise.server.protocol.headreset",
        "else min(clean, certain)\n",
        "else clean\n",
        "P2: a copy keeps what its owner had confirmed, of a log that the source of a reset may not share",
        test="tests/server/protocol/test_head_reset.py"
        "::test_copies_are_cut_where_the_source_of_a_reset_surely_shares_their_log_and_not_at_their_own_marks",
    ),
    "cut-within-a-batch-refused": Mutation(
        "polonaise.log.partitionlog",
        "            if count is None:\n                return",
        "            if count is None:\n                raise OutOfOrder(f'the log can not be cut at {last}')\n"
        "                return",
        "P11: a copy with a mark of an earlier version, within a batch, is never engaged again",
        test="tests/server/test_trims_within_batches.py"
        "::test_a_copy_with_a_mark_within_a_batch_from_an_earlier_version_is_engaged_again[0]",
    ),
    "confirmed-batch-cut": Mutation(
        "polonaise.log.partitionlog",
        "        return batch.last if batch.first <= self.slot.promises.confirmed else batch.first - 1\n",
        "        return batch.first - 1\n",
        "P1: a copy that is cut at a mark within a batch loses ids that it knows to be committed",
        test="tests/storage/test_storage_node.py"
        "::test_a_copy_that_is_confirmed_within_a_batch_keeps_all_of_that_batch_when_it_is_cut[3-5-False]",
    ),
    "source-shares-what-a-reset-has-given-up": Mutation(
        "polonaise.server.protocol.headreset",
        "    shared = min(corrected(value, source).confirmed, reset.to)\n",
        "    shared = min(source.confirmed, reset.to)\n",
        "P11: a copy is not cut where the source of a reset holds what an earlier one has given up, and stops the log",
        test="tests/server/protocol/test_head_reset.py"
        "::test_a_source_that_was_not_cut_for_an_earlier_reset_shares_no_more_than_that_has_left",
    ),
    "source-of-a-reset-forgets-nothing": Mutation(
        "polonaise.server.sessionstart",
        "            expect(await self._ask(name, LowerMarks(self._session, self._certain, since)), Done)\n",
        "            pass\n",
        "P1: the source of a reset that is withdrawn knows what an earlier one has given up, against what others prove",
        test="tests/server/test_reset_head.py"
        "::test_the_source_of_a_reset_that_is_withdrawn_knows_no_more_than_an_earlier_reset_has_left[1-False]",
    ),
    "confirmed-batch-not-recovered": Mutation(
        "polonaise.admin.storagerecovery",
        "                if batch.first > bounds.confirmed:\n",
        "                if batch.last > bounds.confirmed:\n",
        "P11: no storage directory can be made of one with a mark of an earlier version, within a batch",
        test="tests/admin/test_segments.py::test_a_batch_of_which_an_id_is_confirmed_is_copied_whole",
    ),
    "known-outlives-a-reset": Mutation(
        "polonaise.server.protocol.headreset",
        "    return NOTHING_KNOWN if any(known.committed > reset.certain for reset in missed) else known\n",
        "    return known\n",
        "P11: an owner that has not heard of its engagement holds a reset of the head for lost transactions, and stops",
        test="tests/server/protocol/test_head_reset.py"
        "::test_an_owner_that_has_not_heard_of_its_engagement_knows_no_more_of_what_that_has_given_up",
    ),
    "stale-renewal-hides-the-end": Mutation(
        "polonaise.server.servermembership",
        "        # First: if the registration had run out before this renewal, others may own the partitions since.\n"
        "        self.check()\n",
        "",
        "P13: a server goes on owning what others may have taken over while it was stopped",
        test="tests/server/test_server_membership.py"
        "::test_a_renewal_that_began_in_time_and_is_heard_of_too_late_does_not_hide_that_the_ownership_has_ended",
    ),
    "register-of-a-later-mark": Mutation(
        "polonaise.server.protocol.committedregisters",
        '            return RegisterIs(value is not None, committed, value or b"")\n',
        '            return RegisterIs(value is not None, committed + 1, value or b"")\n',
        "P2: a register is told with the mark of another moment",
        test="tests/server/protocol/test_owner_answers.py"
        "::test_a_register_is_told_as_it_is_at_the_mark_that_is_told_with_it_whatever_is_ordered_by_then",
    ),
    "trimmed-log-not-seen": Mutation(
        "polonaise.server.archivedhistory",
        "            trimmed = refused\n            held_from[source] = refused.first\n",
        "            error = refused\n",
        "P11: what the replicas have trimmed is not read from the fragments, and a copy is never made whole",
        test="tests/server/test_late_replicas.py"
        "::test_that_one_source_has_trimmed_the_log_is_seen_whatever_another_one_answers",
    ),
    # What makes commits wait for the copies and zones that are required of them
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
    # What keeps commit times near the true time
    "jumped-clock-believed": Mutation(
        _CLOCK,
        "        lasts = self._jumped_us is None or now.monotonic_s - self._jumped_s >= self._settle_s\n",
        "        lasts = True\n",
        "P3: a clock that jumps ahead stamps commits before another clock has confirmed it",
        seed=34,
    ),
    "earlier-measures-not-heard": Mutation(
        _CLOCK,
        "        if 2 * self._agreeing(told, self._wall_us) > len(told):\n",
        "        if False:\n",
        "P11: a server whose clock was wrong only when it began starts no session until it has asked others once more",
        test="tests/server/protocol/test_commit_clock.py"
        "::test_a_clock_that_was_wrong_only_at_its_first_look_is_right_as_soon_as_storage_nodes_have_said_so[58.0]",
    ),
    "believed-time-not-compared": Mutation(
        _CLOCK,
        "        return _Verdict.OFF if 2 * self._agreeing(told, trusted_us) < len(told) else _Verdict.UNKNOWN\n",
        "        return _Verdict.UNKNOWN\n",
        "P3: a server that began with a wrong clock, which has jumped since, orders by the time of its beginning",
        seed=130000254,
    ),
    "clock-bound-not-checked": Mutation(
        _CLOCK,
        "return _Verdict.OFF if 2 * self._agreeing(since, self._wall_us) < len(since) else _Verdict.WITHIN\n",
        "return _Verdict.WITHIN\n",
        "P3: an owner whose clock is off from all others goes by it",
        seed=34,
    ),
    "session-starts-by-a-wrong-clock": Mutation(
        "polonaise.server.sessionstart",
        "        self._shared.clock.check()\n",
        "",
        "P3: a server that was started with a wrong clock begins to order by it",
        seed=156,
    ),
    "jump-seen-a-tick-late": Mutation(
        _CLOCK,
        "        return -_FOLLOWED_US < now.wall_us - int(now.monotonic_s * 1e6) - trusted_us < _FOLLOWED_US\n",
        "        return True\n",
        "P3: a clock that was right once is not looked at again when a batch is ordered",
        seed=34,
    ),
    # What keeps two holders of one lease apart
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
    # Resets of the head: what is cut, believed and recorded after an operator's decision
    "given-up-tail-believed": Mutation(
        _DECISIONS,
        "    return min([confirmed, *(reset.certain for reset in carried_out(value) if reset.session > joined)])\n",
        "    return confirmed\n",
        "P4, P11: the marks of a replica that comes back are believed above the reset",
        seed=20,
    ),
    "cut-for-a-reset-not-noted": Mutation(
        "polonaise.storage.protocol.replica",
        "            joined=max(promises.joined, since),\n",
        "",
        "P11: a replica that was cut for a reset is cut anew by each session, and never engaged",
        seed=20,
    ),
    "reset-not-recorded": Mutation(
        _OWNER,
        "        if reset is not None:\n",
        "        if reset is not None and reset.is_pending:\n",
        "P13: ids are given to other transactions, and the log does not say so",
        seed=20,
    ),
    "reset-recorded-by-its-own-session-only": Mutation(
        _OWNER,
        "        if reset is not None:\n",
        "        if reset is not None and reset.session == self.session.id:\n",
        "P13: a reset is not recorded if the owner dies before the record is committed",
        seed=154,
    ),
    "second-reset-forgets-the-first": Mutation(
        _DECISIONS,
        "    earlier = [each for each in carried_out(value) if each.session < reset.session and each.to >= reset.to]\n",
        "    earlier: list[HeadReset] = []\n",
        "P13: a reset that gives up the record of an earlier one does not tell of that",
        seed=160,
    ),
    "missed-reset-shown-as-proof": Mutation(
        "polonaise.admin.headresets",
        '    confirmed = still_confirmed(value, answer["joined"], answer["confirmed"])\n',
        '    confirmed = answer["confirmed"]\n',
        "P13: an operator is shown as proved what an earlier reset has given up, and it is taken for the log unasked",
        test="tests/server/test_reset_head.py"
        "::test_a_copy_that_missed_an_earlier_reset_proves_nothing_of_what_that_has_given_up",
    ),
    "reset-within-a-batch-written-down": Mutation(
        "polonaise.admin.headresets",
        "    if isinstance(found, BatchFound) and found.first <= reset.to < found.last:\n",
        "    if isinstance(found, BatchFound) and found.last < reset.to:\n",
        "P11: a reset that is never carried out is written down, and its operator waits for nothing",
        test="tests/server/test_reset_head.py"
        "::test_an_id_within_a_batch_is_refused_with_its_neighbours_and_nothing_is_changed",
    ),
    "reset-below-fragments-carried-out": Mutation(
        "polonaise.server.sessionstart",
        "        if history is not None and (self._first or self._carrying is not None):\n",
        "        if history is not None and self._first:\n",
        "P1: transactions get ids that fragments have, and those of the log are never archived",
        seed=87,
    ),
    "others-not-looked-at-before-a-reset-cuts": Mutation(
        "polonaise.server.sessionstart",
        "            await self._check_fillable(claimed.value, decided)\n",
        "",
        "P11: a copy is cut for a reset that can't be carried out, and its operator can decide nothing else any more",
        test="tests/server/test_resets_beside_an_archive.py"
        "::test_a_copy_is_not_cut_for_a_reset_before_the_others_can_be_filled",
    ),
    "reset-below-fragments-written-down": Mutation(
        "polonaise.admin.headresets",
        "        if state.archived > reset.to\n",
        "        if not decided\n",
        "P11: an operator is asked for a reset that waits until fragments are cut, and is not told so before",
        test="tests/server/test_resets_beside_an_archive.py"
        "::test_a_reset_below_what_the_store_holds_is_refused_before_it_is_written_down",
    ),
    "only-copy-in-the-store-untold": Mutation(
        "polonaise.admin.headresets",
        "        if self.archived <= self.held:\n",
        "        if self.archived >= self.held:\n",
        "P11: an operator gives up committed ids that the store has, and is not told that it has them",
        test="tests/server/test_resets_beside_an_archive.py"
        "::test_ids_that_only_the_store_has_are_told_with_what_keeps_them",
    ),
    "end-of-a-deadline-hides-why-a-reset-waits": Mutation(
        "polonaise.admin.headresets",
        "until_s - host.clock.monotonic_s() < _LOOK_S:\n",
        "until_s - host.clock.monotonic_s() < -_LOOK_S:\n",
        "P11: what keeps a reset is told to be an owner that had no time to answer",
        test="tests/server/test_resets_beside_an_archive.py"
        "::test_the_last_question_that_the_deadline_cuts_short_does_not_hide_what_keeps_a_reset",
    ),
    "only-copy-moved-aside-with-what-is-given-up": Mutation(
        "polonaise.fragments.cutting",
        "        if name.first > last:\n",
        "        if name.last > last:\n",
        "P1, P11: ids below a reset are in no fragment any more, and storage nodes have trimmed them",
        test="tests/fragments/test_contradicting_fragments.py::test_fragments_end_at_the_id_and_what_they_held_above_is_kept_aside[one]",
    ),
    "cut-below-a-trim-keeps-what-is-above": Mutation(
        "polonaise.log.partitionlog",
        "        if self._tail is None or last < segments[0].first - 1:\n",
        "        last = max(last, segments[0].first - 1) if segments else last\n        if self._tail is None:\n",
        "P4, P11: a copy that has trimmed what a missed reset has left of it is not cut there",
        test="tests/log/test_trimming.py::test_a_cut_below_the_trim_leaves_a_log_that_begins_anew",
    ),
    "reset-carried-out-twice": Mutation(
        _DECISIONS,
        "    return replace(value, engagements=engagements, resets=(*done, reset))\n",
        "    return replace(value, engagements=engagements, resets=(*done, reset, carried))\n",
        "P13: a decision that was carried out stays pending, and is carried out again",
        seed=20,
    ),
    "client-ahead-of-a-reset-goes-on": Mutation(
        "polonaise.client.mounting",
        "                self.stop(ahead_of_log(self._partition, self.received, message.high_water_mark))\n",
        "                self.rewind(message.high_water_mark)\n",
        "P6: a client that is ahead of the log is not told so, and goes on from where that log ends",
        seed=150,
    ),
    # What is told of a cluster and of a group: health that speaks too well
    "appends-that-are-put-back-not-counted": Mutation(
        "polonaise.server.protocol.inbox",
        "                self.bytes += entry.bytes\n                entry.mount.inbox_bytes += entry.bytes\n",
        "                pass\n",
        "P12: with each session that ends before it has sent all, an inbox takes more than its bound",
        test="tests/server/protocol/test_owner_feeds.py"
        "::test_appends_that_are_put_back_count_again_until_they_are_judged",
    ),
    "one-id-given-up-unseen": Mutation(
        "polonaise.server.protocol.headreset",
        "    if most > reset.known:\n",
        "    if most > reset.known + 1:\n",
        "P13: a reset gives up a committed id that its operator was not shown",
        test="tests/server/protocol/test_head_reset.py"
        "::test_a_reset_gives_up_not_a_single_id_that_its_operator_was_not_shown[held]",
    ),
    "known-from-before-the-session": Mutation(
        "polonaise.server.protocol.readiness",
        "        self._answers, self.known = {}, NO_TRANSACTION\n",
        "        self._answers = {}\n",
        "P13: an operator who resets a head is told as known what an earlier session's start has given up",
        test="tests/server/protocol/test_owner_readiness.py"
        "::test_what_replicas_said_before_a_session_is_forgotten_with_its_start",
    ),
    "what-an-operator-mended-refuses-requests": Mutation(
        "polonaise.server.protocol.readiness",
        "        self.blocked = error if operator else None\n",
        "        self.blocked = error if operator else self.blocked\n",
        "P13: requests are refused with an error of earlier, and not told what the partition waits for by now",
        test="tests/server/protocol/test_owner_readiness.py"
        "::test_requests_wait_again_once_a_start_fails_for_what_may_pass",
    ),
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
        "polonaise.node.reasons",
        "server=_given_up, disables=True,",
        'server=lambda it: "", disables=True,',
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
