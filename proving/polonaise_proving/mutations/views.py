"""Mutations of views in databases, of the tables of pipelines, and of what they refuse to go on with."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

VIEW_MUTATIONS: Final[dict[str, Mutation]] = {
    "mark-of-another-log-moved": Mutation(
        "polonaise.views.marks",
        '        statement, of = (self._update_of, {"of": self.cluster}) if self.cluster else (self._update, {})\n',
        "        statement, of = self._update, dict[str, str]()\n",
        "P7: a view goes on in the database of another log that was put in place of its own, and mixes the two",
        test="tests/views/test_sql_view.py"
        "::test_marks_that_become_those_of_another_log_take_nothing_more[sqlite-another]",
    ),
    "hidden-option-told-by-its-driver": Mutation(
        "polonaise.views.database",
        "        return _HIDDEN_OPTION if any(",
        "        return reason if any(",
        "no secret is told: a driver's error names an option that is the rest of a password with an ampersand",
        test="tests/redaction/test_no_part_of_a_drawn_password_is_told.py"
        "::test_no_part_of_a_password_is_told[view-postgresql+psycopg://127.0.0.1:1/db?user=bank&password={}]",
    ),
    "mark-that-another-process-moved-moved-on": Mutation(
        "polonaise.views.marks",
        '        return _changed(db, statement, {"at": partition, "before": before, "after": after, **of}) == 1\n',
        '        return _changed(db, statement, {"at": partition, "before": before, "after": after, **of}) >= 0\n',
        "P7: of several processes that keep one view together, each applies what another one has applied already",
        test="tests/views/test_sql_view.py::test_two_that_apply_the_same_at_once_apply_it_once[sqlite]",
    ),
    "mark-that-is-null-not-named": Mutation(
        "polonaise.views.marks",
        "    if mark is None:\n",
        "    if mark is None and not table.columns:\n",
        "P13: a view whose mark is NULL is told of a mistake in a comparison, and not which row of which table to mend",
        test="tests/views/test_sql_view.py::test_a_mark_that_is_null_is_named_by_its_table[sqlite]",
    ),
    "marks-of-a-pipeline-moved-whatever-log-they-are-of": Mutation(
        "polonaise.views.tables",
        '        self._marks = Marks(marks_table or f"{shape.name}_marks", cluster=cluster)\n',
        '        self._marks = Marks(marks_table or f"{shape.name}_marks")\n',
        "P7: a pipeline goes on in the database of another log that was put in place of its own, and mixes the two",
        test="tests/views/test_marked_tables.py"
        "::test_a_table_that_becomes_that_of_another_log_takes_nothing_more[sqlite]",
    ),
    "commit-that-nobody-saw-not-marked": Mutation(
        "polonaise.views.sql",
        "                if not beside.begin(db, run, epoch):\n"
        "                    return False\n"
        "                writer.last_step = lambda: beside.finish(db, run)\n",
        "                if not beside.marks.move(db, run[0].partition, run[0].id - 1, run[-1].id):\n"
        "                    return False\n",
        "P7: what application code committed of a run counts as the whole run, and the rest is never applied",
        test="tests/views/test_whole_transactions.py"
        "::test_what_apply_commits_unseen_stops_the_partition_for_every_process[postgresql-False]",
    ),
    "torn-mark-believed": Mutation(
        "polonaise.views.marks",
        "        if mark <= _TORN:\n",
        "        if mark < _TORN - (1 << 62):\n",
        "P7: a mark of which a part was committed is taken for one by other processes",
        test="tests/views/test_whole_transactions.py"
        "::test_what_apply_commits_unseen_stops_the_partition_for_every_process[postgresql-False]",
    ),
    "given-marks-not-remembered": Mutation(
        "polonaise.views.tablesbeside",
        "        self._claimed.remember(db, partition)\n",
        "",
        "P7: a view whose marks were lost begins as new, and applies everything a second time",
        test="tests/views/test_claimed_tables.py"
        "::test_marks_that_are_lost_after_all_was_emptied_under_way_are_refused[sqlite]",
    ),
    "lost-marks-begin-anew": Mutation(
        "polonaise.views.lostmarks",
        "        if self._kept and not held:\n",
        "        if self._kept:\n",
        "P7: a view whose marks were lost begins as new although its tables hold what was applied",
        test="tests/views/test_sql_view.py::test_marks_that_were_lost_while_rows_are_there_are_refused[sqlite]",
    ),
    "unknown-types-taken": Mutation(
        "polonaise.views.columntypes",
        '        there = (_TEXTS if needed == "string" else _BINARIES).get(name, 0)\n',
        '        there = (_TEXTS if needed == "string" else _BINARIES).get(name, inf)\n',
        "P7: a view writes texts to columns that cut them or make others of them",
        test="tests/views/test_tables_found.py"
        "::test_a_column_is_taken_if_it_loses_nothing_and_else_named_with_both_types[postgresql]",
    ),
    "keys-compared-otherwise-taken": Mutation(
        "polonaise.views.fitness",
        "        if names == whole == wanted:\n",
        "        if names == wanted:\n",
        "P7: rows of different keys become one in a table that was there, by a key that passes over case",
        test="tests/views/test_tables_found.py"
        "::test_a_table_is_taken_only_if_rows_of_the_same_key_and_no_others_become_one_there[sqlite]",
    ),
    "marks-of-another-shape-taken": Mutation(
        "polonaise.views.fitness",
        "        check_own_types(db, table)\n        wrong = _wrong_key(db, table, own=True)\n",
        '        wrong = ""\n',
        "P7: a table with two marks of one partition, or with too narrow ones, is taken for that of the marks",
        test="tests/views/test_tables_beside.py"
        "::test_a_table_of_marks_or_epochs_that_is_of_another_shape_is_named_with_what_is_wrong[sqlite]",
    ),
    "refused-first-row-taken-for-another-run-s": Mutation(
        "polonaise.views.marks",
        '    if found is None:\n        raise row_lost(table, f"partition {partition}", why)\n',
        "",
        "P13: a mark that the database refuses is taken for one that another process was quicker to write",
        test="tests/views/test_tables_beside.py"
        "::test_a_pipeline_s_first_row_that_a_constraint_refuses_ends_the_run[sqlite-sums_marks-high_water_mark]",
    ),
    "every-lost-connection-was-idle": Mutation(
        "polonaise.views.retrying",
        "is_stale = held is not None and connection is held and not held.usable",
        "is_stale = connection is not None and not connection.usable",
        "P13: a run that drives the database away is repeated whole, again and again, and nobody is told why",
        test="tests/views/test_driven_away.py"
        "::test_a_run_that_loses_its_connection_is_made_smaller_at_once[sqlite-False]",
    ),
    "caught-deadlock-raised-at-the-end-alone": Mutation(
        "polonaise.views.writerconnection",
        "        if self._undone is not None and not (self._ours",
        "        if False and not (self._ours",
        "P11: a run that caught a deadlock goes on to its end, and its partition deadlocks with others all the while",
        test="tests/views/test_undone_statements.py::test_after_a_statement_that_took_too_long_no_other_is_sent[sqlite]",
    ),
    "caught-error-not-kept": Mutation(
        "polonaise.views.writerconnection",
        "        if self._ours or has_failed_before(error):\n",
        "        if True:\n",
        "P7: a statement that the database has undone alone, whose error the application caught, is never done",
        test="tests/views/test_undone_statements.py"
        "::test_a_statement_that_took_too_long_is_done_in_the_end[sqlite-outright]",
    ),
    "caught-error-in-a-savepoint-is-the-application-s-own": Mutation(
        "polonaise.views.writerconnection",
        "trouble is Trouble.READ_ONLY and self.db.in_nested_transaction()\n",
        "self.db.in_nested_transaction()\n",
        "P7: what begin_nested() undid because of others, and the application caught, is never done",
        test="tests/views/test_undone_statements.py"
        "::test_a_statement_that_took_too_long_is_done_in_the_end[sqlite-around begin_nested]",
    ),
    "caught-error-of-the-driver-not-seen": Mutation(
        "polonaise.views.writerconnection",
        "        except database_errors() as error:\n            self.note(error)\n            raise\n",
        "        except database_errors():\n            raise\n",
        "P7: a statement past SQLAlchemy that others have kept from its work is never done",
        test="tests/views/test_undone_statements.py::test_a_lock_timeout_past_sqlalchemy_is_tried_again[postgresql]",
    ),
    "end-of-a-run-not-looked-at": Mutation(
        "polonaise.views.writerconnection",
        "            if guarded:\n                self._check_whole()\n",
        "",
        "P13: a run that failed for an error that the application caught is told with what followed from that error",
        test="tests/views/test_whole_transactions.py"
        "::test_an_error_that_apply_caught_in_postgresql_is_raised_at_the_end",
    ),
    "replaced-worker-not-fenced": Mutation(
        "polonaise.views.marks",
        '        return _changed(db, self._hold, {"at": partition, "mine": epoch}) == 1\n',
        '        return _changed(db, self._hold, {"at": partition, "mine": epoch}) >= 0\n',
        "P7: a worker that was replaced and does not know it goes on applying",
        test="tests/views/test_worker_view.py"
        "::test_a_worker_that_was_replaced_is_fenced_in_the_transaction_that_applies[sqlite]",
    ),
    "rows-without-any-marks-not-told": Mutation(
        "polonaise.views.lostmarks",
        "        return not (holds_rows(db, marks) or (self.there and self._has_any(db)))\n",
        "        return False\n",
        "P13: everything is applied a second time to rows whose marks are all lost, and nobody is told",
        test="tests/views/test_tables_beside.py"
        "::test_rows_without_what_a_views_own_tables_say_are_told[sqlite-DELETE FROM, DELETE FROM]",
    ),
    "row-of-another-partition-told-as-a-fault": Mutation(
        "polonaise.views.retrying",
        "                if len(some) > 1 or taken == _TAKEN or not is_taken(error):\n",
        "                if True:\n",
        "P13: a transaction is told to be at fault for a row that another partition has just written",
        test="tests/views/test_retrying.py"
        "::test_one_alone_is_tried_again_when_another_transaction_has_written_a_row_of_its_key",
    ),
    "driver-s-own-errors-passed-on": Mutation(
        "polonaise.views.databaseerrors",
        "    return (SQLAlchemyError, sqlite3.Error, *_driver_errors())\n",
        "    return (SQLAlchemyError, sqlite3.Error)\n",
        "P13: a connection that is lost while it is set up is blamed on the view's code, or ends the client",
        test="tests/views/test_every_step_fails.py"
        "::test_a_connection_that_is_lost_at_any_step_is_a_database_that_is_away[postgresql]",
    ),
    "refused-own-statement-blamed-on-the-application": Mutation(
        "polonaise.views.sql",
        "            with not_refused(_WHOSE):\n                return _done(",
        "            if True:\n                return _done(",
        "P13: rights that were taken away are told as a failure of the view's code, or end the client",
        test="tests/views/test_every_step_fails.py"
        "::test_what_the_database_refuses_the_view_is_no_failure_of_the_application[sqlite]",
    ),
    "own-read-only-blamed-on-the-database": Mutation(
        "polonaise.views.databaseerrors",
        "        if isinstance(link, MadeReadOnly):\n",
        "        if isinstance(link, MadeReadOnly) and not link.text:\n",
        "P13: a transaction that makes itself read-only waits for its database for ever, and is told to nobody",
        test="tests/views/test_retrying.py"
        "::test_what_makes_its_own_transaction_read_only_is_told_and_the_database_is_not_blamed[sqlite-True]",
    ),
    "state-that-stepped-back-is-read": Mutation(
        "polonaise.views.lostmarks",
        "        if below:\n",
        "        if below and not found:\n",
        "P2: a context decides on a database that has less than its locks are judged at",
        test="tests/views/test_sql_faults.py::test_no_context_decides_on_a_database_that_has_stepped_back[sqlite]",
    ),
    "file-that-was-replaced-is-used-on": Mutation(
        "polonaise.views.sqlitefile",
        "        if opened.place and _identity(self._given or opened.place) != opened.identity:\n",
        "        if not opened.identity:\n",
        "P7: what a view applies goes into a file that is in no directory any more",
        test="tests/views/test_sqlite_file.py::test_a_link_to_the_file_that_is_turned_to_another_one_counts_as_replaced",
    ),
    "file-that-is-gone-is-made-anew": Mutation(
        "polonaise.views.sqlitefile",
        "        if self._place and _identity(self._place) is _NONE:\n",
        "        if self._place and not self._given:\n",
        "P7: a view makes an empty database in the place of one that was moved away for a moment",
        test="tests/views/test_sqlite_file.py::test_nothing_is_applied_or_read_while_the_file_is_gone[an address]",
    ),
    "pipeline-s-partitions-not-remembered": Mutation(
        "polonaise.views.tablesbeside",
        "            self.kept.remember(db, unknown - known)\n",
        "",
        "P7: a partition whose mark was lost beside those of others is added to a pipeline's table once more",
        test="tests/views/test_tables_found.py"
        "::test_marks_that_an_earlier_version_wrote_are_missed_once_they_were_met[sqlite]",
    ),
    "pipeline-s-partition-begins-anew": Mutation(
        "polonaise.views.tablesbeside",
        "            if new & known:\n",
        "            if False:\n",
        "P7: a partition whose mark is lost while a pipeline follows the log is added to its table once more",
        test="tests/views/test_tables_found.py"
        "::test_the_mark_of_one_partition_that_is_lost_does_not_make_the_partition_new[sqlite]",
    ),
    "pipeline-begins-anew-beside-its-rows": Mutation(
        "polonaise.views.tables",
        "            self.check_marks_kept()\n",
        "            pass\n",
        "P7: rows of a pipeline's view whose marks were lost under way are added to its table a second time",
        test="tests/views/test_tables_found.py"
        "::test_marks_that_are_lost_under_way_do_not_make_the_table_new[sqlite-lost1]",
    ),
    "journal-that-is-gone-is-used-on": Mutation(
        "polonaise.views.sqlitefile",
        "        if not opened.has_lost_journals():\n",
        "        if opened.place:\n",
        "P7: what a view applies goes into a journal that was taken away, and nobody is told",
        test="tests/views/test_sqlite_file.py"
        "::test_a_database_whose_journal_was_taken_away_is_used_no_more_by_this_process[an address-True]",
    ),
    "journal-that-is-gone-is-written-back": Mutation(
        "polonaise.views.sqlitefile",
        "        return not self._is_kept\n",
        "        return True\n",
        "P7: a database that was restored is damaged by those who had it open",
        test="tests/views/test_sqlite_file.py"
        "::test_a_database_whose_journal_was_taken_away_is_used_no_more_by_this_process[an address-True]",
    ),
    "marks-of-another-view-taken": Mutation(
        "polonaise.views.claimedtables",
        "        return others if self._tables and not self._tables.keys() & others else set()\n",
        "        return set()\n",
        "P7: a view takes another one's marks for its own, and leaves out what that one has applied",
        test="tests/views/test_whose_marks.py::test_a_view_with_the_marks_of_another_one_is_refused[sqlite]",
    ),
    "marks-of-another-view-told-to-be-dropped": Mutation(
        "polonaise.views.tablesbeside",
        "        self._claimed.check_own(db)\n",
        "",
        "P13: whoever has given a view the marks of another one is told to drop these",
        test="tests/views/test_whose_marks.py"
        "::test_a_view_that_is_given_another_ones_marks_is_not_told_to_drop_them[sqlite]",
    ),
    "table-made-beside-its-marks": Mutation(
        "polonaise.views.tablesbeside",
        "        create = self._create and begins\n",
        "        create = self._create\n",
        "P7: a view that runs makes an empty table in the place of one that somebody has put aside",
        test="tests/views/test_sql_view.py::test_tables_are_looked_at_again_after_the_database_was_away",
    ),
    "epochs-made-beside-those-put-aside": Mutation(
        "polonaise.views.tablesbeside",
        "            if self._create and not had:\n",
        "            if self._create:\n",
        "P13: a worker that runs makes an empty table of epochs, in the way of whoever puts the right one back",
        test="tests/views/test_worker_view.py"
        "::test_a_table_of_epochs_that_was_put_aside_is_missed_and_not_made_and_no_transaction_is_blamed[sqlite]",
    ),
    "second-group-on-one-view-taken": Mutation(
        "polonaise.views.sql",
        "            if found in names:\n",
        "            if not names:\n",
        "P13: two worker groups take the partitions of one database from each other for ever, and both say well",
        test="tests/views/test_worker_view.py::test_of_two_groups_that_begin_at_once_on_one_view_one_is_refused[sqlite]",
    ),
    "marks-met-by-workers-not-remembered": Mutation(
        "polonaise.views.tablesbeside",
        "                self._claimed.met(writer, partition)\n",
        "",
        "P7: a partition of a worker group's view whose mark of an earlier version is lost is applied a second time",
        test="tests/views/test_worker_view.py"
        "::test_marks_of_an_earlier_version_are_remembered_when_a_worker_takes_over[sqlite]",
    ),
    "marks-made-beside-their-rows": Mutation(
        "polonaise.views.tablesbeside",
        "            self._claimed.check_marks_kept(db)\n",
        "",
        "P13: an empty table of marks is in the way of whoever puts the right one back",
        test="tests/views/test_sql_view.py::test_marks_that_were_put_aside_are_missed_by_all_and_made_by_none[sqlite]",
    ),
    "table-of-a-view-made-anew": Mutation(
        "polonaise.views.claimedtables",
        "            if number in claimed:\n",
        "            if number in self._keys and number in claimed:\n",
        "P7: a table of a view that was lost alone is made anew, and lacks what was applied to it",
        test="tests/views/test_claimed_tables.py::test_a_table_that_is_gone_alone_is_not_made_anew[sqlite]",
    ),
    "begins-anew-for-one-partition-alone": Mutation(
        "polonaise.views.lostmarks",
        "        return found is not None and found != known\n",
        "        return False\n",
        "P11: of tables that were emptied together under a view, partitions that are not first stand still for good",
        test="tests/views/test_claimed_tables.py"
        "::test_partitions_that_find_rows_of_others_after_all_was_emptied_begin_anew_too[sqlite-all]",
    ),
    "begins-anew-beside-its-rows": Mutation(
        "polonaise.views.lostmarks",
        "        return found is not None and found != known\n",
        "        return found != known or found is None\n",
        "P7: a partition whose mark was lost under way, with what remembers it, is applied a second time",
        test="tests/views/test_sql_view.py"
        "::test_own_tables_that_are_emptied_under_a_view_are_missed_while_rows_are_there[sqlite]",
    ),
    "table-of-letters-made-anew": Mutation(
        "polonaise.views.tablesbeside",
        "        if self.kept.was_made(db, left_out.number) and not has_table(db, left_out.table):\n",
        "        if False:\n",
        "P7: a table of dead letters that was lost is made anew in silence, without the letters of before",
        test="tests/views/test_tables_found.py"
        "::test_a_table_of_what_was_left_out_that_is_gone_is_not_made_anew_in_silence[sqlite-undecodable]",
    ),
    "letters-of-delta-made-anew": Mutation(
        "polonaise.pipelines.deltatarget",
        "        if table is None and counts and not replaces:\n",
        "        if False:\n",
        "P7: a Delta table of dead letters that was lost is made anew in silence, without the letters of before",
        test="tests/pipelines/test_undecodable.py"
        "::test_letters_that_are_gone_alone_are_not_begun_anew_in_silence[delta]",
    ),
    "pipeline-s-table-made-anew": Mutation(
        "polonaise.views.tablesbeside",
        "        check_rows_kept(db, self._marks, [self._table], [self.kept.table])\n",
        "",
        "P7: a pipeline's table that was lost is made anew beside its marks, and lacks what was added to it",
        test="tests/views/test_tables_found.py::test_a_table_that_is_gone_is_not_made_anew_beside_its_marks[sqlite]",
    ),
    "table-of-keys-made-anew": Mutation(
        "polonaise.views.claimedtables",
        "            if number in claimed:\n",
        "            if number in self._tables and number in claimed:\n",
        "P7: what was done under a key of log.once is done again, because the table of the keys was lost",
        test="tests/views/test_claimed_tables.py"
        "::test_nothing_is_done_again_because_the_table_of_the_keys_is_gone[sqlite]",
    ),
    "keys-left-out-by-another-process": Mutation(
        "polonaise.views.claimedtables",
        " - self._keys.keys()\n",
        " & set()\n",
        "P7: what was done under a key of log.once is done again, because a process of another version applied the key",
        test="tests/views/test_claimed_tables.py::test_a_process_that_would_lose_keys_is_refused[sqlite-Bank]",
    ),
    "keys-lost-while-a-version-is-rolled-out": Mutation(
        "polonaise.views.tablesbeside",
        "        elif any(tx.own and tx.header == OwnKind.ONCE for tx in run):\n",
        "        elif False:\n",
        "P7: what was done under a key of log.once is done again, because a process that began without keys applied it",
        test="tests/views/test_claimed_tables.py::test_a_process_that_began_before_there_were_keys_applies_none[sqlite]",
    ),
}
