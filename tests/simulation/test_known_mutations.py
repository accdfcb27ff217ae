"""A test that cannot fail is a defect: every mutation is found, and the code without any is not accused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest

from polonaise_proving.mutations.known import MUTATIONS
from rigs.lacking import lacking
from rigs.programs import run_python

BUDGET = 500
"""Seeds, from 0, within which each mutation has to be found."""

FOUND_BY = {
    "found-loss-untold": 1,
    "owner-that-keeps-what-it-can-not-serve": 15,
    "flapping-owner-keeps-what-it-can-not-serve": 28,
    "unable-servers-pass-partitions-on": 56,
    "forming-batch-told-lost": 86,
    "copy-removed-while-it-is-needed": 22,
    "new-quorum-counts-alone": 26,
    "requirement-ignored-at-commit": 13,
    "required-zones-ignored-at-commit": 796,
    "copies-proved-by-a-commit": 8,
    "copies-proved-by-what-was-sent": 8,
    "copies-not-refused": 2,
    "copies-never-asked-for": 8,
    "added-copy-counts-before-it-is-clean": 5,
    "acknowledge-before-sync": 0,
    "throttle-that-never-lets-go": 1,
    "needed-copy-throttled": 28,
    "quorum-of-one": 1,
    "stale-replica-says-has-not": 175,
    "wiped-replica-says-has-not": 2,
    "damaged-replica-says-has-not": 11,
    "skip-the-fence": 9,
    "fence-not-on-disk": 4,
    "loss-mark-forgotten-after-copy": 80,
    "failed-sync-taken-for-a-loss": 4,
    "fence-and-joined-confused": 2,
    "feed-or-refuse-before-metadata": 69,
    "append-before-metadata": 31,
    "feed-before-commit": 0,
    "truncate-too-far": 1,
    "lock-table-reset-to-zero": 1,
    "count-a-replica-that-is-not-engaged": 0,
    "settle-a-committed-append-as-failed": 0,
    "feed-before-refusals": 2,
    "group-split-over-two-batches": 1,
    "register-change-lost-at-roll": 1,
    "zeros-stay-in-a-sealed-segment": 2,
    "zeros-come-back-to-a-sealed-segment": 5,
    "listing-of-an-older-moment": 2,
    "rest-of-a-listing-left-out": 0,
    "trouble-told-to-nobody": 5,
    "refused-directory-refused-without-a-reason": 13,
    "trim-without-looking-whether-it-is-archived": 47,
    "farewell-before-it-is-committed": 43,
    "trim-confirms-within-a-batch": 48,
    "trim-above-confirmed": 19,
    "trim-before-it-is-noted": 13,
    "fragments-ahead-not-checked": 11,
    "store-without-its-mark-believed": 66,
    "wiped-replica-not-filled-from-fragments": 13,
    "rest-of-a-part-left-out": 0,
    "full-segment-stays-open": 1,
    "scrub-that-does-not-look": 1,
    "scrub-that-passes-over-preambles": 117,
    "scrub-that-ends-with-its-first-finding": 62,
    "damaged-fragment-left-as-it-is": 11,
    "damage-after-a-cut-is-not-recorded": 12,
    "group-judged-by-its-newest-mark": 11,
    "fenced-producer-goes-on": 2,
    "fence-of-a-producer-goes-back": 3,
    "fence-of-a-replica-goes-back": 9,
    "join-without-a-look-at-the-end": 9,
    "stores-on-a-second-connection": 9,
    "goes-on-after-a-failed-store": 9,
    "owner-forgets-what-it-saw-committed": 67,
    "lease-that-never-runs-out": 19,
    "lease-that-runs-out-unseen": 44,
    "lease-that-nobody-renews": 19,
    "client-that-ignores-its-window": 12,
    "stale-assignment-believed": 50,
    "assignment-told-as-it-was-first": 54,
    "one-id-for-all-clients": 9,
    "storage-name-not-checked": 6,
    "mount-ready-before-it-is-proved": 3,
    "client-that-sends-settled-appends-again": 11,
    "client-that-sends-older-appends-last": 2,
    "owner-that-outlives-its-session": 120,
    "generation-ignored": 4,
    "assignment-that-drops-a-partition": 2,
    "two-servers-assign-at-once": 4,
    "given-up-tail-believed": 20,
    "cut-for-a-reset-not-noted": 20,
    "reset-not-recorded": 20,
    "reset-carried-out-twice": 20,
    "second-reset-forgets-the-first": 160,
    "reset-recorded-by-its-own-session-only": 154,
    "reset-below-fragments-carried-out": 87,
    "client-ahead-of-a-reset-goes-on": 29,
    "new-owner-grants-leases-at-once": 207,
    "holder-that-does-not-stop": 1617,
    "fence-not-checked-by-the-target": 38,
    "any-fence-accepted": 38,
    "previous-not-compared": 38,
    "behind-a-refusal-applied": 17,
    "fence-kept-after-the-answer": 17,
    "effect-before-the-id": 17,
    "applied-before-the-sync": 17,
    "recovery-begins-one-too-late": 17,
    "read-numbers-begin-anew-with-a-target": 464,
    "recovery-ends-one-too-early": 17,
    "overflow-forgets-what-it-drops": 17,
    "epoch-not-raised": 17,
    "written-not-told": 17,
    "hanging-stream-not-closed": 280,
    "hindered-and-well": 206,
    "connection-left-open": 17,
    "acknowledged-once": 17,
    "lane-not-woken": 58,
    "tasks-not-waited-for": 17,
    "jumped-clock-believed": 34,
    "believed-time-not-compared": 130000254,
    "promises-that-failed-believed": 27001349,
    "clock-bound-not-checked": 34,
    "session-starts-by-a-wrong-clock": 156,
    "jump-seen-a-tick-late": 34,
    "deadline-that-never-grows": 178,
    "answer-outlives-its-replica": 15,
}
"""The first seed that finds each, when this was written: tried first, because most of the time it still does."""

FOUND_BY_TESTS = {
    "earlier-measures-not-heard": (
        "tests/server/protocol/test_commit_clock.py"
        "::test_a_clock_that_was_wrong_only_at_its_first_look_is_right_as_soon_as_storage_nodes_have_said_so[58.0]"
    ),
    "mark-that-is-null-not-named": (
        "tests/views/test_sql_view.py::test_a_mark_that_is_null_is_named_by_its_table[sqlite]"
    ),
    "mark-of-another-log-moved": (
        "tests/views/test_sql_view.py::test_marks_that_become_those_of_another_log_take_nothing_more[sqlite-another]"
    ),
    "marks-of-a-pipeline-moved-whatever-log-they-are-of": (
        "tests/views/test_marked_tables.py::test_a_table_that_becomes_that_of_another_log_takes_nothing_more[sqlite]"
    ),
    "source-of-a-target-looked-at-as-it-begins-alone": (
        "tests/player/test_sql_delivery.py::test_a_database_of_another_source_is_refused_under_way[sqlite-target]"
    ),
    "lines-written-where-they-should-come": (
        "tests/player/test_json_lines.py"
        "::test_a_file_that_is_changed_within_a_step_gets_no_hole_and_the_step_does_not_count[with_step-shorter]"
    ),
    "end-of-lines-looked-at-before-a-step-alone": (
        "tests/player/test_json_lines.py"
        "::test_a_file_that_is_changed_within_a_step_gets_no_hole_and_the_step_does_not_count[with_step-longer]"
    ),
    "last-lines-not-compared": (
        "tests/player/test_json_lines.py::test_a_file_that_is_changed_while_it_is_in_use_takes_nothing_more[batch-other]"
    ),
    "end-of-lines-not-looked-at-for-a-stream": (
        "tests/player/test_json_lines.py::test_a_file_that_is_changed_while_it_is_in_use_takes_nothing_more[stream-longer]"
    ),
    "cut-under-a-torn-step-not-looked-for": (
        "tests/player/test_json_lines.py"
        "::test_a_file_that_is_cut_while_the_lines_of_a_torn_step_are_written_again_is_refused"
    ),
    "lines-of-others-cut": (
        "tests/player/test_json_lines_crashes.py::test_what_is_no_part_of_the_step_that_was_noted_is_somebody_elses"
    ),
    "lines-of-others-taken-for-a-torn-step": (
        "tests/player/test_json_lines_crashes.py::test_what_is_no_part_of_the_step_that_was_noted_is_somebody_elses"
    ),
    "lines-counted-as-they-read": (
        "tests/player/test_json_lines_crashes.py"
        "::test_a_target_that_dies_at_any_call_keeps_its_word[killed, then power loss]"
    ),
    "what-a-standby-is-told-outlives-it": (
        "tests/player/test_candidacy.py::test_what_a_standby_was_told_is_forgotten_when_it_stands_by_no_longer"
    ),
    "standby-without-answers-is-ready": (
        "tests/player/test_candidacy.py::test_a_standby_that_the_log_does_not_answer_is_not_ready"
    ),
    "lag-counts-from-the-last-acknowledgement": (
        "tests/player/test_target_partition.py::test_a_target_lacks_what_follows_the_entry_before_the_one_that_waits"
    ),
    "first-entry-refused-and-nothing-known": (
        "tests/player/test_hindered_targets.py"
        "::test_a_target_that_refuses_its_first_entry_has_applied_nothing_and_lacks_it"
    ),
    "always-late-is-always-stopped": (
        "tests/server/protocol/test_giving_up.py"
        "::test_a_server_whose_looks_are_always_late_gives_up_what_it_can_not_serve"
    ),
    "stop-counts-against-what-is-served": (
        "tests/server/protocol/test_giving_up.py"
        "::test_the_faults_that_a_server_finds_when_it_goes_on_after_it_was_stopped_are_its_own"
    ),
    "second-stop-counts": (
        "tests/server/protocol/test_giving_up.py::test_a_server_that_was_stopped_twice_was_stopped_both_times"
    ),
    "others-not-looked-at-before-a-reset-cuts": (
        "tests/server/test_resets_beside_an_archive.py"
        "::test_a_copy_is_not_cut_for_a_reset_before_the_others_can_be_filled"
    ),
    "reset-below-fragments-written-down": (
        "tests/server/test_resets_beside_an_archive.py"
        "::test_a_reset_below_what_the_store_holds_is_refused_before_it_is_written_down"
    ),
    "own-standstill-told-as-silence-of-the-peer": (
        "tests/link/protocol/test_inbox.py"
        "::test_what_this_process_did_not_hear_while_it_stood_still_is_no_silence_of_the_peer"
    ),
    "connecting-does-not-count": (
        "tests/cli/test_log_commands.py"
        "::test_who_says_nothing_is_waited_for_no_longer_than_the_timeout[log append-polonaise]"
    ),
    "only-copy-in-the-store-untold": (
        "tests/server/test_resets_beside_an_archive.py::test_ids_that_only_the_store_has_are_told_with_what_keeps_them"
    ),
    "end-of-a-deadline-hides-why-a-reset-waits": (
        "tests/server/test_resets_beside_an_archive.py"
        "::test_the_last_question_that_the_deadline_cuts_short_does_not_hide_what_keeps_a_reset"
    ),
    "cut-below-a-trim-keeps-what-is-above": (
        "tests/log/test_trimming.py::test_a_cut_below_the_trim_leaves_a_log_that_begins_anew"
    ),
    "only-copy-moved-aside-with-what-is-given-up": (
        "tests/fragments/test_cutting.py::test_fragments_end_at_the_id_and_what_they_held_above_is_kept_aside[one]"
    ),
    "cut-within-a-batch-refused": (
        "tests/server/test_trims_within_batches.py"
        "::test_a_copy_with_a_mark_within_a_batch_from_an_earlier_version_is_engaged_again[0]"
    ),
    "confirmed-batch-cut": (
        "tests/storage/test_storage_node.py"
        "::test_a_copy_that_is_confirmed_within_a_batch_keeps_all_of_that_batch_when_it_is_cut[3-5-False]"
    ),
    "source-shares-what-a-reset-has-given-up": (
        "tests/server/protocol/test_head_reset.py"
        "::test_a_source_that_was_not_cut_for_an_earlier_reset_shares_no_more_than_that_has_left"
    ),
    "missed-reset-shown-as-proof": (
        "tests/server/test_reset_head.py"
        "::test_a_copy_that_missed_an_earlier_reset_proves_nothing_of_what_that_has_given_up"
    ),
    "source-of-a-reset-forgets-nothing": (
        "tests/server/test_reset_head.py"
        "::test_the_source_of_a_reset_that_is_withdrawn_knows_no_more_than_an_earlier_reset_has_left[1-False]"
    ),
    "confirmed-batch-not-recovered": (
        "tests/admin/test_storage_recovery.py::test_a_batch_of_which_an_id_is_confirmed_is_copied_whole"
    ),
    "memory-of-lines-not-looked-for": (
        "tests/player/test_json_lines.py"
        "::test_a_memory_that_is_removed_or_emptied_while_in_use_is_written_again[no memory]"
    ),
    "small-files-of-a-log-not-written-again": (
        "tests/embedded/test_embedded_presence.py::test_a_small_file_that_is_removed_or_changed_is_written_again_by_the_host"
    ),
    "log-without-its-marker-taken-for-none": (
        "tests/bad_input/test_bad_embedded_logs.py::test_a_log_that_lacks_only_its_marker_says_how_to_put_it_back"
    ),
    "store-of-another-log-read-on": (
        "tests/spark/test_stores_swapped.py::test_a_stream_does_not_go_on_with_the_store_of_another_log"
    ),
    "key-of-a-store-outlives-its-listing": (
        "tests/spark/test_stores_swapped.py::test_the_key_of_a_store_is_of_the_same_moment_as_its_ends"
    ),
    "files-of-another-cluster-read": (
        "tests/spark/test_one_replica.py::test_a_task_reads_no_other_cluster_s_files_than_those_that_were_planned"
    ),
    "mark-looked-at-once": (
        "tests/fragments/test_archive.py::test_a_store_that_is_swapped_under_an_archiver_gets_nothing[True]"
    ),
    "names-of-fragments-relied-upon": (
        "tests/fragments/test_history.py::test_fragments_that_are_to_be_relied_upon_are_opened_each"
    ),
    "cut-fragment-opens": (
        "tests/fragments/test_history.py::test_fragments_that_are_to_be_relied_upon_are_opened_each"
    ),
    "overlapping-fragments-not-compared": (
        "tests/fragments/test_contradicting_fragments.py::test_a_restore_is_refused_where_fragments_overlap_and_differ"
    ),
    "other-life-of-the-log-read": (
        "tests/fragments/test_contradicting_fragments.py::test_a_reader_follows_the_life_that_the_log_goes_on_from"
    ),
    "walk-over-fragments-not-begun-anew": (
        "tests/fragments/test_contradicting_fragments.py::test_a_reader_follows_on_when_the_log_holds_less_than_before"
    ),
    "doubt-about-damaged-fragments-ignored": (
        "tests/fragments/test_contradicting_fragments.py"
        "::test_a_fragment_is_not_believed_where_the_one_that_would_contradict_it_is_damaged"
    ),
    "search-by-time-believes-what-is-not-of-the-log": (
        "tests/fragments/test_contradicting_fragments.py"
        "::test_a_search_by_time_passes_over_nothing_that_only_another_life_s_fragment_holds"
    ),
    "read-by-time-goes-on-behind-the-archive": (
        "tests/server/test_reading_history.py"
        "::test_a_time_that_the_fragments_do_not_reach_is_sought_in_all_that_replicas_hold"
    ),
    "lives-not-compared-by-queries": (
        "tests/spark/test_two_lives_in_a_store.py::test_a_store_with_a_life_that_was_given_up_is_refused"
    ),
    "fragments-of-another-life-read-beside-a-log": (
        "tests/spark/test_fragments_of_another_life.py"
        "::test_a_log_and_fragments_of_another_life_of_it_are_not_read_together"
    ),
    "log-read-on-from-another-life-of-it": (
        "tests/spark/test_fragments_of_another_life.py"
        "::test_a_stream_that_has_read_of_the_other_life_does_not_go_on_in_the_log"
    ),
    "log-that-was-trimmed-not-compared-with-fragments": (
        "tests/spark/test_fragments_of_another_life.py::test_a_trimmed_log_is_compared_with_what_lies_above"
    ),
    "replica-read-on-from-fragments-of-another-life": (
        "tests/spark/test_fragments_of_another_life.py"
        "::test_one_replica_and_fragments_of_another_life_of_it_are_not_read_together"
    ),
    "what-is-read-not-compared-with-its-neighbours": (
        "tests/spark/test_two_lives_in_a_store.py"
        "::test_a_fragment_of_the_other_life_in_place_of_a_missing_one_is_refused"
    ),
    "damaged-fragments-not-compared-by-queries": (
        "tests/spark/test_two_lives_in_a_store.py"
        "::test_a_damaged_fragment_leaves_open_which_life_one_that_overlaps_it_is_of"
    ),
    "offset-told-before-lives-are-compared": (
        "tests/spark/test_two_lives_in_a_store.py"
        "::test_a_fragment_of_the_other_life_in_place_of_a_missing_one_is_refused"
    ),
    "store-that-is-not-mounted-declared": (
        "tests/fragments/test_trimmed_log.py::test_a_store_that_lacks_what_was_trimmed_is_not_declared"
    ),
    "one-partition-ends-the-archiving-of-all": (
        "tests/cli/test_archive_commands.py::test_what_fails_for_one_partition_is_told_and_the_others_are_archived"
    ),
    "missing-ids-looked-for-as-seldom-as-others": (
        "tests/server/test_archive_watch.py::test_what_was_missing_and_is_back_is_seen_soon_however_seldom_looks_are"
    ),
    "empty-fragment-is-a-store-away": (
        "tests/fragments/test_history.py::test_a_fragment_that_was_cut_is_damaged_until_it_is_put_back[0]"
    ),
    "mistake-in-old-history-ends-the-server": (
        "tests/fragments/test_history.py::test_a_mistake_in_a_read_fails_that_read_and_is_told_until_the_id_was_read"
    ),
    "fragment-that-a-read-can-t-use-untold": (
        "tests/server/test_what_reads_find.py"
        "::test_a_damaged_fragment_that_a_reader_met_is_told_at_once_and_until_it_is_put_back[0]"
    ),
    "ids-that-a-read-misses-untold": (
        "tests/server/test_what_reads_find.py::test_ids_that_a_reader_missed_are_told_at_once_and_until_they_are_back"
    ),
    "digest-clears-a-contradiction": (
        "tests/server/test_what_reads_find.py"
        "::test_fragments_that_contradict_each_other_are_told_until_the_read_that_was_refused_succeeds"
    ),
    "fragment-that-was-put-back-told-as-damaged": (
        "tests/server/test_what_reads_find.py"
        "::test_a_fragment_that_was_cut_and_put_back_is_told_no_more_though_nobody_reads_it"
    ),
    "size-of-a-damaged-fragment-kept": (
        "tests/fragments/test_history.py::test_a_fragment_that_was_cut_is_damaged_until_it_is_put_back[0]"
    ),
    "file-of-lines-made-anew-under-way": (
        "tests/player/test_json_lines.py::test_files_that_are_both_moved_away_while_in_use_are_waited_for_and_not_made"
    ),
    "pipeline-begins-anew-beside-its-rows": (
        "tests/views/test_tables_found.py::test_marks_that_are_lost_under_way_do_not_make_the_table_new[sqlite-lost1]"
    ),
    "pipeline-s-partitions-not-remembered": (
        "tests/views/test_tables_found.py"
        "::test_marks_that_an_earlier_version_wrote_are_missed_once_they_were_met[sqlite]"
    ),
    "pipeline-s-partition-begins-anew": (
        "tests/views/test_tables_found.py"
        "::test_the_mark_of_one_partition_that_is_lost_does_not_make_the_partition_new[sqlite]"
    ),
    "tables-of-a-target-made-under-way": (
        "tests/player/test_sql_delivery.py"
        "::test_tables_that_are_renamed_under_way_are_waited_for_and_not_made[sqlite-gone0]"
    ),
    "entry-refused-for-a-table-that-is-gone": (
        "tests/player/test_sql_delivery.py"
        "::test_a_table_that_is_gone_is_told_whatever_the_application_makes_of_the_error[sqlite]"
    ),
    "target-begins-anew-beside-its-rows": (
        "tests/player/test_sql_delivery.py"
        "::test_a_memory_that_is_emptied_under_way_is_refused_while_rows_are_there[sqlite]"
    ),
    "first-id-written-where-all-are-lost": (
        "tests/player/test_sql_delivery.py"
        "::test_ids_that_are_emptied_under_way_are_missed_by_the_first_entry_of_another_partition[sqlite]"
    ),
    "ids-not-counted": (
        "tests/player/test_sql_delivery.py"
        "::test_ids_that_an_earlier_version_wrote_are_missed_from_the_first_stream_on"
        "[sqlite-UPDATE {} SET high_water_mark = -1]"
    ),
    "first-id-not-counted": (
        "tests/player/test_sql_delivery.py::test_the_id_of_one_partition_that_is_lost_under_way_is_missed[sqlite]"
    ),
    "value-without-which-nobody-gets-in-not-told": (
        "tests/server/test_missing_values.py"
        "::test_whichever_value_is_lost_is_told_and_what_is_owned_goes_on[missing-unique-id]"
    ),
    "reason-kept-from-a-stranger-told-nowhere": (
        "tests/server/test_missing_values.py"
        "::test_unique_ids_that_can_be_read_and_not_given_out_are_told_until_they_can_be"
    ),
    "lost-list-of-servers-not-told": (
        "tests/server/test_missing_values.py"
        "::test_whichever_value_is_lost_is_told_and_what_is_owned_goes_on[missing-expected-servers]"
    ),
    "cluster-made-unasked": (
        "tests/server/test_older_coordinator.py"
        "::test_a_coordinator_that_lost_its_data_takes_no_append_and_nothing_is_made_in_it"
    ),
    "held-data-not-seen": (
        "tests/server/test_older_coordinator.py"
        "::test_a_coordinator_that_lost_its_data_takes_no_append_and_nothing_is_made_in_it"
    ),
    "joined-session-given-out-again": (
        "tests/server/test_older_coordinator.py"
        "::test_a_replica_that_joined_the_very_session_that_is_claimed_proves_an_older_state"
    ),
    "outdated-not-marked": (
        "tests/server/test_older_coordinator.py"
        "::test_an_older_state_of_the_coordinator_alone_takes_no_append_however_often_servers_start"
    ),
    "mark-of-the-outdated-ignored": (
        "tests/server/test_older_coordinator.py"
        "::test_an_older_state_of_the_coordinator_alone_takes_no_append_however_often_servers_start"
    ),
    "operators-change-what-is-not-believed": (
        "tests/cli/test_changes_of_older_coordinators.py"
        "::test_nothing_is_changed_in_a_coordinator_of_an_older_state[topic create]"
    ),
    "mark-of-the-outdated-not-looked-at": (
        "tests/cli/test_changes_of_older_coordinators.py"
        "::test_nothing_is_changed_where_a_value_is_marked_as_older_though_no_node_answers[topic create]"
    ),
    "change-without-asking": (
        "tests/cli/test_changes_of_older_coordinators.py"
        "::test_nothing_is_changed_in_a_coordinator_of_an_older_state[topic create]"
    ),
    "listing-without-a-warning": (
        "tests/cli/test_changes_of_older_coordinators.py"
        "::test_what_is_listed_of_a_coordinator_that_servers_do_not_believe_has_a_warning_beside_it[topic list]"
    ),
    "removal-told-while-doubted": (
        "tests/admin/test_cluster_status.py"
        "::test_nobody_is_told_to_take_a_server_out_of_a_coordinator_that_is_not_believed"
    ),
    "later-notes-not-looked-at": (
        "tests/cli/test_changes_of_older_coordinators.py"
        "::test_notes_that_are_not_later_and_nodes_that_tell_nothing_raise_no_doubt"
    ),
    "later-promises-not-looked-at": (
        "tests/cli/test_changes_of_older_coordinators.py"
        "::test_a_copy_that_promised_a_later_session_tells_while_no_server_answers[storage remove]"
    ),
    "later-version-cures-what-went-back": (
        "tests/coordination/test_coordinator_rules.py"
        "::test_a_description_that_went_back_is_not_believed_by_a_later_version_but_as_it_was"
    ),
    "own-id-that-was-read-already-doubted": (
        "tests/coordination/test_coordinator_rules.py"
        "::test_an_id_whose_answer_was_overtaken_by_a_look_at_the_counter_is_no_older_state"
    ),
    "counters-of-two-histories-alike": (
        "tests/coordination/test_coordinator_rules.py"
        "::test_a_counter_that_others_counted_up_in_the_older_state_is_not_taken_for_the_one_that_was_known"
    ),
    "known-while-another-value-is-doubted": (
        "tests/coordination/test_coordinator_rules.py"
        "::test_nothing_that_is_read_while_another_value_is_doubted_counts_as_known"
    ),
    "proof-of-an-older-state-forgotten": (
        "tests/coordination/test_coordinator_rules.py"
        "::test_what_replicas_prove_keeps_the_assignment_until_its_session_is_there_and_other_partitions_go_on"
    ),
    "known-before-the-proof": (
        "tests/coordination/test_coordinator_rules.py"
        "::test_what_replicas_prove_keeps_the_assignment_until_its_session_is_there_and_other_partitions_go_on"
    ),
    "not-registered-in-a-copy-that-is-doubted": (
        "tests/coordination/test_file_coordinator.py"
        "::test_a_renewal_registers_in_a_copy_of_the_directory_before_anybody_looks_who_lives"
    ),
    "read-of-the-older-state-returned": (
        "tests/coordination/test_coordinator_rules.py"
        "::test_what_was_read_just_before_the_latest_state_is_back_is_read_again"
    ),
    "all-dead-in-a-copy-of-the-directory": (
        "tests/coordination/test_file_coordinator.py"
        "::test_nobody_is_taken_for_dead_because_a_copy_of_the_directory_was_put_in_its_place"
    ),
    "older-counter-counted-up": (
        "tests/coordination/test_coordinator_rules.py"
        "::test_a_counter_of_ids_that_went_back_is_neither_counted_up_nor_believed_until_it_is_back"
    ),
    "rest-of-an-older-coordinator-believed": (
        "tests/coordination/test_coordinator_rules.py"
        "::test_while_one_value_is_older_than_it_was_no_other_is_believed_or_changed[unique-id]"
    ),
    "older-coordinator-changed": (
        "tests/coordination/test_coordinator_rules.py"
        "::test_while_one_value_is_older_than_it_was_no_other_is_believed_or_changed[unique-id]"
    ),
    "changed-before-others-have-looked": (
        "tests/coordination/test_coordinator_rules.py"
        "::test_the_first_to_be_sure_again_changes_nothing_before_the_others_have_seen_what_is_back"
    ),
    "sequences-of-every-client-from-one": (
        "tests/client/test_ids_given_twice.py"
        "::test_an_append_that_waits_is_not_committed_by_the_same_number_of_another_client"
    ),
    "holder-known-by-its-id": (
        "tests/client/test_ids_given_twice.py::test_a_lease_that_one_of_them_holds_the_other_one_does_not_hold"
    ),
    "topic-may-go": (
        "tests/coordination/test_coordinator_rules.py"
        "::test_a_description_without_a_topic_that_was_there_is_of_an_older_copy_that_was_changed"
    ),
    "contradicting-note-preferred": (
        "tests/coordination/test_rebuilding.py::test_of_two_descriptions_that_contradict_an_operator_chooses"
    ),
    "description-without-a-member-taken": (
        "tests/coordination/test_rebuilding.py"
        "::test_a_description_without_a_storage_node_that_has_a_copy_is_refused[True-None]"
    ),
    "contradicted-note-forgotten": (
        "tests/coordination/test_rebuilding.py::test_a_note_keeps_a_description_that_the_latest_one_contradicts"
    ),
    "refused-description-noted": (
        "tests/server/test_older_coordinator.py::test_servers_that_refuse_an_older_state_have_nothing_of_it_noted"
    ),
    "backup-of-another-cluster-taken": (
        "tests/coordination/test_rebuilding.py"
        "::test_the_backup_of_another_cluster_is_refused_whichever_description_is_newer"
    ),
    "coordinator-beside-the-one-in-use": (
        "tests/coordination/test_rebuilding.py::test_a_cluster_to_whose_storage_nodes_servers_are_connected_is_in_use"
    ),
    "unseen-registration-renewed": (
        "tests/coordination/test_file_coordinator.py"
        "::test_a_member_registers_anew_in_a_copy_that_was_made_without_the_folder_of_members"
    ),
    "late-replica-told-of-what-is-not-committed": (
        "tests/server/test_copies_of_commits.py"
        "::test_a_late_replica_is_copied_what_is_committed_while_more_is_on_its_way"
    ),
    "slow-for-all-is-late": (
        "tests/server/protocol/test_owner_sessions.py"
        "::test_while_no_quorum_syncs_the_session_waits_and_clients_are_told"
    ),
    "request-deadline-that-never-grows": (
        "tests/client/test_client_patience.py::test_a_request_that_took_too_long_is_given_longer_the_next_time"
    ),
    "slow-replicas-are-left-out": (
        "tests/server/test_slow_starts.py::test_a_replica_that_joins_a_little_later_than_a_quorum_is_not_left_out"
    ),
    "register-bytes-leak": (
        "tests/server/protocol/test_order_registers.py"
        "::test_registers_that_change_for_ever_take_the_room_of_their_present_values_only"
    ),
    "reset-within-a-batch-written-down": (
        "tests/server/test_reset_head.py"
        "::test_an_id_within_a_batch_is_refused_with_its_neighbours_and_nothing_is_changed"
    ),
    "reset-cuts-at-own-marks": (
        "tests/server/protocol/test_head_reset.py"
        "::test_copies_are_cut_where_the_source_of_a_reset_surely_shares_their_log_and_not_at_their_own_marks"
    ),
    "known-outlives-a-reset": (
        "tests/server/protocol/test_head_reset.py"
        "::test_an_owner_that_has_not_heard_of_its_engagement_knows_no_more_of_what_that_has_given_up"
    ),
    "stale-renewal-hides-the-end": (
        "tests/server/test_server_membership.py"
        "::test_a_renewal_that_began_in_time_and_is_heard_of_too_late_does_not_hide_that_the_ownership_has_ended"
    ),
    "register-of-a-later-mark": (
        "tests/server/protocol/test_owner_registers.py"
        "::test_a_register_is_told_as_it_is_at_the_mark_that_is_told_with_it_whatever_is_ordered_by_then"
    ),
    "trimmed-log-not-seen": (
        "tests/server/test_copies_of_trimmed_logs.py"
        "::test_that_one_source_has_trimmed_the_log_is_seen_whatever_another_one_answers"
    ),
    "emptied-copy-forgets-its-fence": (
        "tests/storage/test_replica.py::test_an_emptied_copy_refuses_the_owner_of_a_session_in_which_it_was_a_member"
    ),
    "needed-copy-emptied": "tests/coordination/test_member_changes.py::test_a_copy_that_may_be_needed_is_not_emptied",
    "every-owner-counts-as-the-first": (
        "tests/server/protocol/test_session_start.py"
        "::test_a_session_is_not_the_first_if_a_replica_has_joined_one_that_the_coordinator_has_lost"
    ),
    "deposed-owner-grants-leases": (
        "tests/server/protocol/test_owner_leases.py::test_an_owner_that_its_replicas_obey_no_more_grants_nothing"
    ),
    "log-put-back-goes-on": (
        "tests/player/test_log_put_back.py"
        "::test_a_log_that_ends_below_what_it_had_is_delivered_no_more_however_far_it_grows"
    ),
    "kept-epochs-not-looked-at": (
        "tests/player/test_player.py"
        "::test_a_player_whose_log_is_behind_what_a_target_keeps_is_refused_however_often_it_begins"
    ),
    "followed-from-another-batch": (
        "tests/player/test_log_reading.py"
        "::test_a_main_stream_does_not_go_on_from_another_log_after_a_time_without_answers"
    ),
    "damaged-on-the-way-stops-the-partition": ("tests/player/test_player.py::test_what_is_damaged_is_read_again"),
    "topic-requirement-ignored": (
        "tests/server/test_required_of_a_topic.py::test_appends_to_the_topic_are_refused_while_others_go_on"
    ),
    "unknown-lag-told-as-none": (
        "tests/client/test_client_groups_of_workers.py"
        "::test_a_partition_that_does_not_answer_is_told_and_its_lag_is_not_known"
    ),
    "given-up-partitions-untold": (
        "tests/server/test_coordinator_away.py::test_partitions_that_a_server_has_given_up_are_told_of_it"
    ),
    "given-up-told-for-ever": (
        "tests/server/test_given_up_partitions.py::test_what_another_server_serves_again_is_not_told_as_given_up"
    ),
    "missing-servers-dropped": (
        "tests/admin/test_cluster_status.py::test_a_server_that_is_gone_is_missed_until_it_is_removed"
    ),
    "untold-copies-counted-as-none": (
        "tests/admin/test_cluster_status.py::test_copies_are_not_counted_while_an_owner_does_not_tell_where_they_are"
    ),
    "commit-that-nobody-saw-not-marked": (
        "tests/views/test_whole_transactions.py"
        "::test_what_apply_commits_unseen_stops_the_partition_for_every_process[postgresql-False]"
    ),
    "torn-mark-believed": (
        "tests/views/test_whole_transactions.py"
        "::test_what_apply_commits_unseen_stops_the_partition_for_every_process[postgresql-False]"
    ),
    "given-marks-not-remembered": (
        "tests/views/test_claimed_tables.py"
        "::test_marks_that_are_lost_after_all_was_emptied_under_way_are_refused[sqlite]"
    ),
    "lost-marks-begin-anew": (
        "tests/views/test_sql_view.py::test_marks_that_were_lost_while_rows_are_there_are_refused[sqlite]"
    ),
    "unknown-types-taken": (
        "tests/views/test_tables_found.py"
        "::test_a_column_is_taken_if_it_loses_nothing_and_else_named_with_both_types[postgresql]"
    ),
    "keys-compared-otherwise-taken": (
        "tests/views/test_tables_found.py"
        "::test_a_table_is_taken_only_if_rows_of_the_same_key_and_no_others_become_one_there[sqlite]"
    ),
    "marks-of-another-shape-taken": (
        "tests/views/test_tables_beside.py"
        "::test_a_table_of_marks_or_epochs_that_is_of_another_shape_is_named_with_what_is_wrong[sqlite]"
    ),
    "refused-first-row-taken-for-another-run-s": (
        "tests/views/test_tables_beside.py"
        "::test_a_pipeline_s_first_row_that_a_constraint_refuses_ends_the_run[sqlite-sums_marks-high_water_mark]"
    ),
    "refusal-for-want-of-room-untold": "tests/storage/test_full_disk_told.py::test_a_quota_that_is_used_up_is_told",
    "silence-blamed-on-a-timer-that-is-late": (
        "tests/link/protocol/test_inbox.py::test_a_look_that_is_a_little_late_is_not_taken_for_the_reason_of_a_silence"
    ),
    "disk-that-hangs-untold": (
        "tests/storage/test_hanging_disk_told.py"
        "::test_a_disk_that_hangs_is_told_until_it_has_done_what_it_was_asked_for"
    ),
    "copy-on-a-hanging-disk-is-being-brought-up-to-date": (
        "tests/admin/test_cluster_status.py"
        "::test_a_storage_node_whose_disk_hangs_is_not_well_and_its_late_copies_say_so"
    ),
    "clients-wait-for-a-coordinator-that-is-known-to-be-away": (
        "tests/server/test_cluster_answers.py"
        "::test_a_coordinator_that_is_known_to_be_away_is_waited_for_shorter_than_clients_wait_and_that_is_told"
        "[connection-True]"
    ),
    "reason-lost-with-the-deadline": (
        "tests/client/test_client_connect.py::test_a_log_that_gives_no_answer_in_time_says_why_as_far_as_that_is_known"
    ),
    "what-keeps-a-partition-not-asked": (
        "tests/admin/test_what_keeps_partitions.py"
        "::test_disks_that_hang_are_told_to_who_waits_for_the_partition_within_its_time"
    ),
    "want-of-room-told-for-ever": "tests/storage/test_full_disk_told.py::test_a_quota_that_is_used_up_is_told",
    "every-lost-connection-was-idle": (
        "tests/views/test_driven_away.py::test_a_run_that_loses_its_connection_is_made_smaller_at_once[sqlite-False]"
    ),
    "driver-s-own-errors-passed-on": (
        "tests/views/test_every_step_fails.py"
        "::test_a_connection_that_is_lost_at_any_step_is_a_database_that_is_away[postgresql]"
    ),
    "refused-own-statement-blamed-on-the-application": (
        "tests/views/test_every_step_fails.py"
        "::test_what_the_database_refuses_the_view_is_no_failure_of_the_application[sqlite]"
    ),
    "look-at-a-view-ends-the-client": (
        "tests/client/test_client_views.py"
        "::test_whatever_a_look_at_the_view_raises_is_its_trouble_and_not_the_clients_end[raised0]"
    ),
    "caught-deadlock-raised-at-the-end-alone": (
        "tests/views/test_undone_statements.py::test_after_a_statement_that_took_too_long_no_other_is_sent[sqlite]"
    ),
    "row-of-another-partition-told-as-a-fault": (
        "tests/views/test_retrying.py"
        "::test_one_alone_is_tried_again_when_another_transaction_has_written_a_row_of_its_key"
    ),
    "own-read-only-blamed-on-the-database": (
        "tests/views/test_read_only.py"
        "::test_what_makes_its_own_transaction_read_only_is_told_and_the_database_is_not_blamed[sqlite-True]"
    ),
    "state-that-stepped-back-is-read": (
        "tests/views/test_sql_faults.py::test_no_context_decides_on_a_database_that_has_stepped_back[sqlite]"
    ),
    "file-that-was-replaced-is-used-on": (
        "tests/views/test_sqlite_file.py::test_a_link_to_the_file_that_is_turned_to_another_one_counts_as_replaced"
    ),
    "file-that-is-gone-is-made-anew": (
        "tests/views/test_sqlite_file.py::test_nothing_is_applied_or_read_while_the_file_is_gone[an address]"
    ),
    "journal-that-is-gone-is-used-on": (
        "tests/views/test_sqlite_file.py"
        "::test_a_database_whose_journal_was_taken_away_is_used_no_more_by_this_process[an address-True]"
    ),
    "journal-that-is-gone-is-written-back": (
        "tests/views/test_sqlite_file.py"
        "::test_a_database_whose_journal_was_taken_away_is_used_no_more_by_this_process[an address-True]"
    ),
    "marks-of-another-view-taken": (
        "tests/views/test_whose_marks.py::test_a_view_with_the_marks_of_another_one_is_refused[sqlite]"
    ),
    "table-of-a-view-made-anew": (
        "tests/views/test_claimed_tables.py::test_a_table_that_is_gone_alone_is_not_made_anew[sqlite]"
    ),
    "begins-anew-for-one-partition-alone": (
        "tests/views/test_claimed_tables.py"
        "::test_partitions_that_find_rows_of_others_after_all_was_emptied_begin_anew_too[sqlite-all]"
    ),
    "begins-anew-beside-its-rows": (
        "tests/views/test_sql_view.py"
        "::test_own_tables_that_are_emptied_under_a_view_are_missed_while_rows_are_there[sqlite]"
    ),
    "table-of-a-target-made-anew": (
        "tests/player/test_sql_delivery.py::test_one_of_the_targets_tables_that_is_gone_alone_is_not_made_anew[sqlite]"
    ),
    "table-of-letters-made-anew": (
        "tests/views/test_tables_found.py"
        "::test_a_table_of_what_was_left_out_that_is_gone_is_not_made_anew_in_silence[sqlite-undecodable]"
    ),
    "letters-of-delta-made-anew": (
        "tests/pipelines/test_undecodable.py::test_letters_that_are_gone_alone_are_not_begun_anew_in_silence[delta]"
    ),
    "pipeline-s-table-made-anew": (
        "tests/views/test_tables_found.py::test_a_table_that_is_gone_is_not_made_anew_beside_its_marks[sqlite]"
    ),
    "table-of-keys-made-anew": (
        "tests/views/test_claimed_tables.py::test_nothing_is_done_again_because_the_table_of_the_keys_is_gone[sqlite]"
    ),
    "keys-left-out-by-another-process": (
        "tests/views/test_claimed_tables.py::test_a_process_that_would_lose_keys_is_refused[sqlite-Bank]"
    ),
    "keys-lost-while-a-version-is-rolled-out": (
        "tests/views/test_claimed_tables.py::test_a_process_that_began_before_there_were_keys_applies_none[sqlite]"
    ),
    "table-made-beside-its-marks": (
        "tests/views/test_sql_view.py::test_tables_are_looked_at_again_after_the_database_was_away"
    ),
    "marks-made-beside-their-rows": (
        "tests/views/test_sql_view.py::test_marks_that_were_put_aside_are_missed_by_all_and_made_by_none[sqlite]"
    ),
    "store-looked-at-once": (
        "tests/server/test_store_away.py"
        "::test_a_server_that_starts_without_its_store_is_given_nothing_until_it_is_back[away]"
    ),
    "store-away-and-given-partitions": (
        "tests/server/test_store_away.py::test_a_server_that_starts_without_its_store_is_given_nothing_until_it_is_back[away]"
    ),
    "replaced-tail-believed": (
        "tests/storage/test_storage_presence.py::test_a_copy_in_the_place_of_files_is_not_believed_to_be_them"
    ),
    "removed-segment-not-missed": (
        "tests/storage/test_storage_presence.py"
        "::test_a_closed_segment_that_is_removed_or_replaced_is_missed_within_seconds[running-removed]"
    ),
    "replaced-segment-believed": (
        "tests/storage/test_storage_presence.py"
        "::test_a_closed_segment_that_is_removed_or_replaced_is_missed_within_seconds[running-cut short]"
    ),
    "sessions-end-uncounted": (
        "tests/server/protocol/test_owner_readiness.py"
        "::test_as_long_as_the_count_of_changes_stands_still_a_partition_fares_as_before"
    ),
    "one-look-proves-lost-data": (
        "tests/coordination/test_zookeeper_data.py"
        "::test_the_only_server_or_a_leader_that_is_behind_proves_lost_data_within_a_second"
    ),
    "lost-data-never-proved": (
        "tests/coordination/test_zookeeper_data.py"
        "::test_the_only_server_or_a_leader_that_is_behind_proves_lost_data_within_a_second"
    ),
    "notes-of-servers-unchecked": (
        "tests/storage/test_numbers_of_servers.py::test_values_of_another_form_are_not_noted_and_those_of_before_stay"
    ),
    "unasked-server-of-the-coordinator-is-down": (
        "tests/monitoring/test_alerts_fire.py"
        "::test_servers_of_the_coordinator_that_this_process_can_not_ask_are_not_down"
    ),
    "trouble-of-a-connection-ends-the-node": (
        "tests/host/test_connection_mistakes.py"
        "::test_a_caller_who_leaves_while_a_handshake_ends_costs_the_node_nothing[on_uvloop]"
    ),
    "mistakes-in-connections-passed-over": (
        "tests/host/test_connection_mistakes.py"
        "::test_trouble_that_the_loops_own_code_raises_ends_the_connection_that_it_belongs_to[on_uvloop]"
    ),
    "removed-socket-not-made-again": (
        "tests/host/test_removed_sockets.py::test_a_socket_that_was_removed_is_made_again_as_it_was"
    ),
    "socket-made-again-with-other-rights": (
        "tests/host/test_removed_sockets.py::test_a_socket_that_is_made_again_has_the_rights_that_it_was_given"
    ),
    "last-server-safe-to-stop": (
        "tests/admin/test_safe_to_stop.py::test_nothing_is_said_to_go_on_that_is_not_known_to"
    ),
    "needed-storage-node-safe-to-stop": (
        "tests/admin/test_safe_to_stop.py::test_what_stops_without_a_node_is_said_before_it_is_stopped"
    ),
    "server-that-could-not-serve-takes-over": (
        "tests/admin/test_safe_to_stop.py::test_a_server_that_could_not_serve_is_nobody_who_takes_over"
    ),
    "given-up-partition-counts-for-all": (
        "tests/admin/test_safe_to_stop.py::test_what_nobody_can_serve_keeps_no_server_from_taking_over_the_rest"
    ),
    "ailing-server-takes-over": (
        "tests/admin/test_safe_to_stop.py::test_what_nobody_can_serve_keeps_no_server_from_taking_over_the_rest"
    ),
    "server-that-reaches-no-quorum-takes-over": (
        "tests/admin/test_safe_to_stop.py::test_a_server_that_could_not_serve_is_nobody_who_takes_over"
    ),
    "full-storage-node-counts-as-able": (
        "tests/admin/test_safe_to_stop.py::test_a_storage_node_that_says_that_it_cant_write_counts_as_one_that_is_lost"
    ),
    "lost-copy-counts-as-able": (
        "tests/admin/test_safe_to_stop.py::test_a_storage_node_that_says_that_it_cant_write_counts_as_one_that_is_lost"
    ),
    "server-misses-itself": (
        "tests/admin/test_cluster_status.py::test_a_server_that_has_left_the_members_does_not_miss_itself"
    ),
    "waiting-tells-the-number-of-a-session": (
        "tests/admin/test_cluster_status.py"
        "::test_partitions_that_wait_for_the_same_are_told_together_in_whatever_session_each_is"
    ),
    "names-in-the-order-of-members": (
        "tests/admin/test_cluster_status.py"
        "::test_partitions_with_copies_on_the_same_nodes_say_the_same_in_whatever_order_they_have_them"
    ),
    "removed-server-not-noted-again": (
        "tests/admin/test_cluster_status.py::test_a_server_with_a_name_notes_itself_and_tells_whom_it_misses"
    ),
    "ended-namesake-keeps-the-name": (
        "tests/admin/test_cluster_status.py::test_a_server_with_a_name_notes_itself_and_tells_whom_it_misses"
    ),
    "namesakes-untold": (
        "tests/admin/test_cluster_status.py::test_a_server_with_a_name_notes_itself_and_tells_whom_it_misses"
    ),
    "server-that-is-cut-off-untold": (
        "tests/server/test_network_health.py::test_a_server_that_reaches_no_storage_node_is_told_of_itself"
    ),
    "position-ahead-of-the-log-taken": (
        "tests/views/test_worker_view.py::test_a_worker_that_begins_ahead_of_a_log_that_grows_handles_nothing"
    ),
    "run-above-the-mark-given-for-ever": (
        "tests/views/test_worker_view.py"
        "::test_a_view_that_moves_its_mark_nowhere_is_told_and_not_given_the_same_at_once"
        "[0-applied up to 1, and the view says 0]"
    ),
    "idle-worker-s-database-not-looked-at": (
        "tests/views/test_worker_view.py"
        "::test_a_database_that_was_put_back_or_emptied_under_an_idle_worker_is_brought_up_to_date"
        "[sqlite-who took it over]"
    ),
    "epochs-made-beside-those-put-aside": (
        "tests/views/test_worker_view.py"
        "::test_a_table_of_epochs_that_was_put_aside_is_missed_and_not_made_and_no_transaction_is_blamed[sqlite]"
    ),
    "second-group-on-one-view-taken": (
        "tests/views/test_worker_view.py::test_of_two_groups_that_begin_at_once_on_one_view_one_is_refused[sqlite]"
    ),
    "groups-of-an-owner-that-knows-none-yet-believed": (
        "tests/server/test_workers_over_faults.py"
        "::test_a_group_is_known_to_be_there_when_an_owner_was_killed_whose_successor_it_has_not_asked_yet"
    ),
    "marks-met-by-workers-not-remembered": (
        "tests/views/test_worker_view.py"
        "::test_marks_of_an_earlier_version_are_remembered_when_a_worker_takes_over[sqlite]"
    ),
    "marks-of-another-view-told-to-be-dropped": (
        "tests/views/test_whose_marks.py::test_a_view_that_is_given_another_ones_marks_is_not_told_to_drop_them[sqlite]"
    ),
    "mark-ahead-of-the-log-believed": (
        "tests/views/test_sql_faults.py"
        "::test_a_database_that_comes_to_be_ahead_of_the_log_is_refused_with_the_next_transaction[sqlite]"
    ),
    "outgrown-position-taken": (
        "tests/client/test_client_groups_of_workers.py"
        "::test_a_log_that_ends_below_the_position_of_a_worker_that_runs_is_told_and_nothing_is_passed_over"
    ),
    "left-out-replica-not-in-metrics": "tests/monitoring/test_alerts_fire.py::test_a_storage_node_that_is_gone",
}
"""Mutations of what no schedule does, or not often enough to be caught by it; each with the test that finds it.

The clusters of schedules have no topics. Nor have they so many nodes that a majority of a partition's copies is given
up and emptied while a deposed owner still counts on them. Holders hardly ever stay with a deposed owner for longer than
a lease lasts while others ask its successor. A bit is seldom flipped in what a player reads. They have no databases and
no Unix sockets, and nobody looks at a cluster's status.
"""


def search(mutation: str, first: int, seeds: int) -> int | None:
    """A seed that finds the mutation."""
    which = ("--first", "--mutation", mutation, "--start", first, "--seeds", seeds)
    done = run_python("-m", "polonaise_proving.simulator", *which, within_s=None)
    assert "Traceback" not in done.stderr, done.stderr
    found = re.search(r"FAILED seeds: (\d+)", done.stdout)
    assert (done.returncode == 1) == (found is not None)
    return int(found[1]) if found else None


def drawn(mutations: Iterable[str]) -> list[Any]:
    """A case for each, which always runs if its module has changed lately."""
    return [pytest.param(each, marks=pytest.mark.exhaustive(MUTATIONS[each].module)) for each in mutations]


@pytest.mark.slow
@pytest.mark.parametrize("mutation", drawn(name for name in MUTATIONS if name not in FOUND_BY_TESTS))
def test_a_mutation_is_found(mutation: str) -> None:
    known = FOUND_BY.get(mutation)
    seed = search(mutation, known, 1) if known is not None else None
    if seed is None:
        seed = search(mutation, 0, BUDGET)
    assert seed is not None, f"{BUDGET} seeds do not find {mutation}, which {MUTATIONS[mutation].breaks}"


@pytest.mark.slow
@pytest.mark.parametrize("mutation", drawn(FOUND_BY_TESTS))
def test_a_mutation_is_found_by_a_test(mutation: str) -> None:
    """That the test passes without the mutation shows where it is run itself."""
    name = FOUND_BY_TESTS[mutation]
    source = (
        f"import sys, pytest; from polonaise_proving.mutations import known; known.put_in({mutation!r}); "
        "sys.exit(pytest.main(['-qrfEs', '-p', 'no:cacheprovider', sys.argv[1]]))"
    )
    done = run_python("-c", source, name, within_s=None)
    if done.returncode == 0 and "SKIPPED" in done.stdout:
        lacking(f"what {name} needs is not on this machine")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAILED {name}" in done.stdout, done.stdout + done.stderr


def test_the_tests_that_find_mutations_stand_where_they_are_named() -> None:
    """A test that was moved would be missed only by the long runs."""
    names = sorted(set(FOUND_BY_TESTS.values()))
    done = run_python("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *names, within_s=None)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_mutation_that_the_code_has_outgrown_is_an_error() -> None:
    source = (
        "from polonaise_proving.mutations import known; "
        "known.MUTATIONS['x'] = known.Mutation('polonaise.log.tail', 'no such line', '', ''); "
        "known.put_in('x'); import polonaise.log.tail"
    )
    done = run_python("-c", source)
    assert done.returncode != 0
    assert "MutationDoesNotApply" in done.stderr


def test_every_mutation_applies() -> None:
    source = (
        "from polonaise_proving.mutations import known; import importlib, sys\n"
        "for name, mutation in known.MUTATIONS.items():\n"
        "    sys.modules.pop(mutation.module, None)\n"
        "    known.put_in(name); importlib.import_module(mutation.module)\n"
        "    sys.meta_path.pop(0); del sys.modules[mutation.module]\n"
    )
    done = run_python("-c", source, within_s=None)
    assert done.returncode == 0, done.stderr
