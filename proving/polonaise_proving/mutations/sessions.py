"""Mutations of how sessions end, and of what is told and kept from one to the next."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

_OWNER: Final = "polonaise.server.protocol.owner"

SESSION_MUTATIONS: Final[dict[str, Mutation]] = {
    "forming-batch-told-lost": Mutation(
        _OWNER,
        "        self._inbox.put_back(never_sent)\n",
        "        for entry in never_sent:\n"
        "            if hasattr(entry, 'appends'):\n"
        "                reason = FailureReason.SESSION_ENDED\n"
        "                self._out.add(*self.feeds.refuse(entry.mount, entry.appends, self.committed, reason))\n",
        "P11: appends fail because their session has ended as planned before it had sent them",
        seed=86,
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
}
