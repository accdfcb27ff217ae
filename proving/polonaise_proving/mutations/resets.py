"""Mutations of resets of the head: what is cut, believed and recorded after an operator's decision."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

_DECISIONS: Final = "polonaise.server.protocol.headreset"
_OWNER: Final = "polonaise.server.protocol.owner"

RESET_MUTATIONS: Final[dict[str, Mutation]] = {
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
        seed=29,
    ),
}
