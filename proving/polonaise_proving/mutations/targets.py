"""Mutations of targets in files and databases, and of the players that deliver to them."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

TARGET_MUTATIONS: Final[dict[str, Mutation]] = {
    "id-of-a-target-kept-too-low": Mutation(
        "polonaise.player.sqldelivery",
        "self._ids.begin(db, partition, last, batch.last)\n",
        "self._ids.begin(db, partition, last, batch.last - 1)\n",
        "P8: a target believes that it lacks the last entry that it has applied, and gets that a second time",
        test="tests/player/test_sql_delivery.py"
        "::test_entries_are_applied_with_their_ids_and_told_to_the_next_stream[sqlite]",
    ),
    "memory-of-lines-not-looked-for": Mutation(
        "polonaise.player.linesfile",
        "        return found is not None and await steps.file.read(begin, len(tail) + 1) == tail\n",
        "        return True\n",
        "P7: a target in a file goes on into a memory that was removed, and knows nothing of it after its next start",
        test="tests/player/test_json_lines.py"
        "::test_a_memory_that_is_removed_or_emptied_while_in_use_is_written_again[no memory]",
    ),
    "source-of-a-target-looked-at-as-it-begins-alone": Mutation(
        "polonaise.player.sqldelivery",
        "            fence = self._fence.read(db, alone=False, source=self._source)\n",
        "            fence = self._fence.read(db, alone=False, source=None)\n",
        "P7: a target goes on in the database of another one that was put in place of its own",
        test="tests/player/test_sql_delivery.py::test_a_database_of_another_source_is_refused_under_way[sqlite-target]",
    ),
    "lines-written-where-they-should-come": Mutation(
        "polonaise.player.linesfile",
        "            file = await disk.open(path, append=True)\n",
        "            file = await disk.open(path)\n",
        "P7: a target in a file leaves a hole where lines were that another program cut within a step",
        test="tests/player/test_json_lines.py"
        "::test_a_file_that_is_changed_within_a_step_gets_no_hole_and_the_step_does_not_count[with_step-shorter]",
    ),
    "end-of-lines-looked-at-before-a-step-alone": Mutation(
        "polonaise.player.linesfile",
        "        if (size := await self._file.size()) != memory.counted.size:\n",
        "        if (size := 0):\n",
        "P7: a target in a file acknowledges lines behind a cut that another program made within their step",
        test="tests/player/test_json_lines.py"
        "::test_a_file_that_is_changed_within_a_step_gets_no_hole_and_the_step_does_not_count[with_step-longer]",
    ),
    "last-lines-not-compared": Mutation(
        "polonaise.player.linesfile",
        "    if crc32(last) != last_crc:\n",
        "    if False:\n",
        "P7: a target in a file goes on behind lines that another program has written over",
        test="tests/player/test_json_lines.py"
        "::test_a_file_that_is_changed_while_it_is_in_use_takes_nothing_more[batch-other]",
    ),
    "end-of-lines-not-looked-at-for-a-stream": Mutation(
        "polonaise.player.linesfile",
        "        await _check_end(self._file, self._path, memory.counted)\n",
        "",
        "P7: a target in a file accepts a stream, and is told to be well, where its lines have been cut",
        test="tests/player/test_json_lines.py"
        "::test_a_file_that_is_changed_while_it_is_in_use_takes_nothing_more[stream-longer]",
    ),
    "cut-under-a-torn-step-not-looked-for": Mutation(
        "polonaise.player.linesfile",
        "                await _check_last(file, path, memory.counted)\n",
        "",
        "P7: a target in a file goes on behind a hole that it made as it wrote the lines of a torn step again",
        test="tests/player/test_json_lines.py"
        "::test_a_file_that_is_cut_while_the_lines_of_a_torn_step_are_written_again_is_refused",
    ),
    "lines-of-others-cut": Mutation(
        "polonaise.player.linesfile",
        "    if memory.noted_first and size > through:\n",
        "    if False:\n",
        "P7: a target in a file cuts what another program has written behind its lines",
        test="tests/player/test_json_lines_crashes.py"
        "::test_what_is_no_part_of_the_step_that_was_noted_is_somebody_elses",
    ),
    "lines-of-others-taken-for-a-torn-step": Mutation(
        "polonaise.player.linesfile",
        "        if not noted.may_have_left(lines):\n",
        "        if False:\n",
        "P7: a target in a file cuts what another program has written where a step of its own was to come",
        test="tests/player/test_json_lines_crashes.py"
        "::test_what_is_no_part_of_the_step_that_was_noted_is_somebody_elses",
    ),
    "lines-counted-as-they-read": Mutation(
        "polonaise.player.linesfile",
        "                    await in_place.write(counted, [lines], sync=True)\n",
        "                    pass\n",
        "P7: a target in a file has applied lines that were never synced, and a loss of power takes them",
        test="tests/player/test_json_lines_crashes.py"
        "::test_a_target_that_dies_at_any_call_keeps_its_word[killed, then power loss]",
    ),
    "lines-not-synced": Mutation(
        "polonaise.player.linesfile",
        "            await self._file.write(counted.size, [lines], sync=True)\n",
        "            await self._file.write(counted.size, [lines])\n",
        "P8: entries are acknowledged before their lines are durable, and a loss of power takes them",
        test="tests/player/test_json_lines_crashes.py::test_a_target_that_dies_at_any_call_keeps_its_word[power loss]",
    ),
    "lines-counted-before-they-are-written": Mutation(
        "polonaise.player.linesfile",
        "        await steps.file.write(begin, [step], sync=True)\n",
        "        await steps.file.write(begin, [step, memory.with_step_ended().step_ended()], sync=True)\n",
        "P8: a target that dies before it has written lines says that they were there, and is refused for good",
        test="tests/player/test_json_lines_crashes.py::test_a_target_that_dies_at_any_call_keeps_its_word[killed]",
    ),
    "step-of-lines-not-synced": Mutation(
        "polonaise.player.linesfile",
        "        await steps.file.write(begin, [step], sync=True)\n",
        "        await steps.file.write(begin, [step])\n",
        "P8: lines are there after a loss of power, and nothing says whose: the target is refused for good",
        test="tests/player/test_json_lines_crashes.py::test_a_target_that_dies_at_any_call_keeps_its_word[power loss]",
    ),
    "step-noted-behind-its-lines": Mutation(
        "polonaise.player.linesfile",
        "        await steps.file.write(begin, [step], sync=True)\n"
        "        steps.end += len(step)\n"
        "        if lines:\n"
        "            await self._file.write(counted.size, [lines], sync=True)\n",
        "        if lines:\n"
        "            await self._file.write(counted.size, [lines], sync=True)\n"
        "        await steps.file.write(begin, [step], sync=True)\n"
        "        steps.end += len(step)\n",
        "P8: what a crash leaves of lines that were not noted is somebody else's, and the target is refused for good",
        test="tests/player/test_json_lines_crashes.py::test_a_target_that_dies_at_any_call_keeps_its_word[killed]",
    ),
    "fence-of-lines-not-on-disk": Mutation(
        "polonaise.player.linesfile",
        "        memory = memory._replace(fence=fence)\n        await self._write_whole(memory)\n",
        "        memory = memory._replace(fence=fence)\n"
        "        if self.memory is None:\n"
        "            await self._write_whole(memory)\n",
        "P8: a target that has accepted a stream accepts an earlier one once it was started again",
        test="tests/player/test_json_lines_crashes.py::test_a_target_that_dies_at_any_call_keeps_its_word[killed]",
    ),
    "torn-lines-not-cut": Mutation(
        "polonaise.player.linesfile",
        "        await file.truncate(counted)\n        await file.sync()\n",
        "        left = await file.read(counted, size - counted)\n"
        "        memory = memory._replace(counted=memory.counted.followed_by(left))\n",
        "P8: what a crash has left of a step stays, and the step's lines follow it once more",
        test="tests/player/test_json_lines_crashes.py::test_lines_that_are_torn_at_any_byte_are_cut",
    ),
    "what-a-standby-is-told-outlives-it": Mutation(
        "polonaise.player.protocol.candidacy",
        "        self._leave_standby()\n        self.has_lease = True\n",
        "        self.has_lease = True\n",
        "P11: an active player says for its whole turn that the log does not answer",
        test="tests/player/test_player_node.py::test_what_a_standby_was_told_is_forgotten_when_it_stands_by_no_longer",
    ),
    "standby-without-answers-is-ready": Mutation(
        "polonaise.player.protocol.candidacy",
        "            return not self.log_trouble\n",
        "            return True\n",
        "P11: a process of a player that could not take over is told to be ready",
        test="tests/player/test_player_node.py::test_a_standby_that_the_log_does_not_answer_is_not_ready",
    ),
    "lag-counts-from-the-last-acknowledgement": Mutation(
        "polonaise.player.protocol.targetqueue",
        "            return self._in_flight[0].before\n",
        "            return -1\n",
        "P11: a target is told to lack all that was other targets' before the one entry that it lacks",
        test="tests/player/test_target_queue.py::test_a_target_lacks_what_follows_the_entry_before_the_one_that_waits",
    ),
    "first-entry-refused-and-nothing-known": Mutation(
        "polonaise.player.protocol.targetpartition",
        "        self.told = True\n",
        "        self.told = last >= 0\n",
        "P11: the lag of a target that has applied nothing yet is told as unknown",
        test="tests/player/test_hindered_targets.py"
        "::test_a_target_that_refuses_its_first_entry_has_applied_nothing_and_lacks_it",
    ),
    "tables-of-a-target-made-under-way": Mutation(
        "polonaise.views.tablesbeside",
        "begins=not began)\n",
        "begins=True)\n",
        "P7: a target makes empty tables in the place of those that somebody has put aside",
        test="tests/player/test_sql_delivery.py"
        "::test_tables_that_are_renamed_under_way_are_waited_for_and_not_made[sqlite-gone0]",
    ),
    "entry-refused-for-a-table-that-is-gone": Mutation(
        "polonaise.player.sqldelivery",
        "            if writer.usable:\n",
        "            if isinstance(error, DBAPIError) and writer.usable:\n",
        "P7: a target whose table is gone refuses entry after entry for it, and says nowhere what to do",
        test="tests/player/test_sql_delivery.py"
        "::test_a_table_that_is_gone_is_told_whatever_the_application_makes_of_the_error[sqlite]",
    ),
    "target-begins-anew-beside-its-rows": Mutation(
        "polonaise.player.sqldelivery",
        "            if is_first and self._beside.began and (held or not self._beside.tables):\n",
        "            if False:\n",
        "P7: a target whose ids and fence were emptied under way gets everything a second time",
        test="tests/player/test_sql_delivery.py"
        "::test_a_memory_that_is_emptied_under_way_is_refused_while_rows_are_there[sqlite]",
    ),
    "first-id-written-where-all-are-lost": Mutation(
        "polonaise.player.sqldelivery",
        "        self._ids_kept(db)\n",
        "",
        "P7: the id of one partition hides that those of others are lost, whose entries come a second time",
        test="tests/player/test_sql_delivery.py"
        "::test_ids_that_are_emptied_under_way_are_missed_by_the_first_entry_of_another_partition[sqlite]",
    ),
    "ids-not-counted": Mutation(
        "polonaise.player.sqldelivery",
        "(counted is not None and counted > highest)",
        "False",
        "P7: a partition whose id was lost beside those of others begins anew, and gets everything a second time",
        test="tests/player/test_sql_delivery.py"
        "::test_ids_that_an_earlier_version_wrote_are_missed_from_the_first_stream_on"
        "[sqlite-UPDATE {} SET high_water_mark = -1]",
    ),
    "first-id-not-counted": Mutation(
        "polonaise.player.sqldelivery",
        "            counted = ids.c.high_water_mark + 1\n",
        "            counted = ids.c.high_water_mark\n",
        "P7: the loss of an id that was written since the stream began is not noticed",
        test="tests/player/test_sql_delivery.py::test_the_id_of_one_partition_that_is_lost_under_way_is_missed[sqlite]",
    ),
    "file-of-lines-made-anew-under-way": Mutation(
        "polonaise.player.linesfile",
        "            if again or (memory is not None and (memory.counted.size or memory.noted)):\n",
        "            if memory is not None and (memory.counted.size or memory.noted):\n",
        "P7: a target whose file and memory were moved away for a moment writes everything into a new one",
        test="tests/player/test_json_lines.py"
        "::test_files_that_are_both_moved_away_while_in_use_are_waited_for_and_not_made",
    ),
    "table-of-a-target-made-anew": Mutation(
        "polonaise.views.tablesbeside",
        "        self._claimed.check_kept(db, create=create)\n",
        "",
        "P7: a table of a target that was lost alone is made anew, and lacks what was delivered to it",
        test="tests/player/test_sql_delivery.py"
        "::test_one_of_the_targets_tables_that_is_gone_alone_is_not_made_anew[sqlite]",
    ),
}
