"""Mutations of fragments, and of what Spark reads beside the log and writes to it."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

HISTORY_MUTATIONS: Final[dict[str, Mutation]] = {
    "trim-ends-with-the-first-replica": Mutation(
        "polonaise.server.trimming",
        "all(answer.done for answer in answers.values())",
        "any(answer.done for answer in answers.values())",
        "P13: an operator is told that a trim has dropped all, which others than the quickest replica still hold",
        test="tests/server/test_trims_within_batches.py"
        "::test_a_trim_has_not_ended_while_one_replica_has_something_left_to_drop",
    ),
    "fragment-at-the-beginning-of-the-log-not-opened": Mutation(
        "polonaise.server.trimming",
        "[name for name in covering if name.last >= min(held, default=0)]",
        "[name for name in covering if name.first >= min(held, default=0)]",
        "P1: a trim drops what storage nodes alone hold of a fragment that can't be opened and begins below their log",
        test="tests/fragments/test_trimmed_log.py"
        "::test_the_fragment_within_which_storage_nodes_begin_is_relied_upon_too",
    ),
    "store-of-another-log-read-on": Mutation(
        "polonaise.spark.queryhistory",
        "        if expected is not None and key is not None and key != expected:\n",
        "        if False:\n",
        "P2: a query goes on with the store of another log, and mixes the rows of both",
        test="tests/spark/test_stores_swapped.py::test_a_stream_does_not_go_on_with_the_store_of_another_log",
    ),
    "key-of-a-store-outlives-its-listing": Mutation(
        "polonaise.spark.queryhistory",
        '            vars(self).pop("cluster_key", None)',
        "            pass",
        "P2: an offset of one log has the ids of another, whose store came while the query waited",
        test="tests/spark/test_stores_swapped.py::test_the_key_of_a_store_is_of_the_same_moment_as_its_ends",
    ),
    "files-of-another-cluster-read": Mutation(
        "polonaise.spark.segmentfiles",
        "        if key is not None and header.cluster_key != key:\n",
        "        if False:\n",
        "P2: a task reads the files of another cluster, which came in place of those that were planned",
        test="tests/spark/test_one_replica.py::test_a_task_reads_no_other_cluster_s_files_than_those_that_were_planned",
    ),
    "mark-looked-at-once": Mutation(
        "polonaise.fragments.objects",
        "    if not await is_marked(store, making.cluster_key):\n",
        "    if False:\n",
        "P1: fragments are put into the store of another log, or beneath one that is not mounted any more",
        test="tests/fragments/test_archive.py::test_a_store_that_is_swapped_under_an_archiver_gets_nothing[True]",
    ),
    "names-of-fragments-relied-upon": Mutation(
        "polonaise.fragments.history",
        "                await self._open(name, sizes.get(name, 0))\n",
        "                pass\n",
        "P1: history is dropped although the server's own store has nothing but the names of its fragments",
        test="tests/fragments/test_history.py::test_fragments_that_are_to_be_relied_upon_are_opened_each",
    ),
    "cut-fragment-opens": Mutation(
        "polonaise.fragments.objects",
        "        if size < needed + metadata.serialized_size:\n",
        "        if size < 0:\n",
        "P1: history is dropped although the server's own store has only the ends of its fragments",
        test="tests/fragments/test_history.py::test_fragments_that_are_to_be_relied_upon_are_opened_each",
    ),
    "overlapping-fragments-not-compared": Mutation(
        "polonaise.fragments.agreement",
        "            if agree(own[name], own[other]):\n",
        "            if agree(own[name], own[other]) or other.last >= name.first:\n",
        "P2: fragments of a life of the log that was given up count as well, for a trim and for a restore",
        test="tests/fragments/test_contradicting_fragments.py"
        "::test_a_restore_is_refused_where_fragments_overlap_and_differ",
    ),
    "other-life-of-the-log-read": Mutation(
        "polonaise.fragments.history",
        "            if not doubt:\n",
        "            if doubt or not doubt:\n",
        "P2: what was trimmed is read from a fragment of a life of the log that was given up",
        test="tests/fragments/test_contradicting_fragments.py::test_a_reader_follows_the_life_that_the_log_goes_on_from",
    ),
    "walk-over-fragments-not-begun-anew": Mutation(
        "polonaise.fragments.history",
        "        if walked is None or walked.top < first:\n",
        "        if walked is None:\n",
        "P11: what a replica has dropped since is not read again from a store that holds another life's fragments, too",
        test="tests/fragments/test_contradicting_fragments.py"
        "::test_a_reader_follows_on_when_the_log_holds_less_than_before",
    ),
    "doubt-about-damaged-fragments-ignored": Mutation(
        "polonaise.fragments.history",
        "                if other.first <= name.last and name.first <= other.last:\n",
        "                if False:\n",
        "P2: a fragment of a life that was given up is read while the one that would contradict it is damaged",
        test="tests/fragments/test_contradicting_fragments.py"
        "::test_a_fragment_is_not_believed_where_the_one_that_would_contradict_it_is_damaged",
    ),
    "search-by-time-believes-what-is-not-of-the-log": Mutation(
        "polonaise.fragments.history",
        "self._agreed_up_to(opened, pieces[middle].span.last, refused, follows)",
        "self._agreed_up_to(opened, pieces[middle].span.first, refused, follows)",
        "P2: a read by time passes over what another life's fragment hides",
        test="tests/fragments/test_contradicting_fragments.py"
        "::test_a_search_by_time_passes_over_nothing_that_only_another_life_s_fragment_holds",
    ),
    "lives-not-compared-by-queries": Mutation(
        "polonaise.spark.onelog",
        "        if wrong := contradictions(facts):\n",
        "        if wrong := contradictions(facts)[:0]:\n",
        "P2: a query reads rows of a life of the log that was given up, by the names of its fragments",
        test="tests/spark/test_two_lives_in_a_store.py::test_a_store_with_a_life_that_was_given_up_is_refused",
    ),
    "fragments-of-another-life-read-beside-a-log": Mutation(
        "polonaise.spark.queryhistory",
        "                self._continuation(self.log, partition).check_read(pieces)\n",
        "                pass\n",
        "P2: a query reads archived transactions of another life of the log, which was put back",
        test="tests/spark/test_fragments_of_another_life.py"
        "::test_a_log_and_fragments_of_another_life_of_it_are_not_read_together",
    ),
    "log-read-on-from-another-life-of-it": Mutation(
        "polonaise.spark.queryhistory",
        "            self._continuation(log, partition).check_below(span.first)\n",
        "            pass\n",
        "P2: a stream that has read archived transactions goes on in another life of the log, which was put back",
        test="tests/spark/test_fragments_of_another_life.py"
        "::test_a_stream_that_has_read_of_the_other_life_does_not_go_on_in_the_log",
    ),
    "log-that-was-trimmed-not-compared-with-fragments": Mutation(
        "polonaise.spark.onelog",
        "            self._check(above[held])\n",
        "            pass\n",
        "P2: a query reads archived transactions of another life of a log that was trimmed",
        test="tests/spark/test_fragments_of_another_life.py::test_a_trimmed_log_is_compared_with_what_lies_above",
    ),
    "replica-read-on-from-fragments-of-another-life": Mutation(
        "polonaise.spark.onelog",
        "            if ends is not None and BatchEnd(name.last, footer.last_crc) not in ends:\n",
        "            if False:\n",
        "P2: fragments are read together with a replica of another life of the log",
        test="tests/spark/test_fragments_of_another_life.py"
        "::test_one_replica_and_fragments_of_another_life_of_it_are_not_read_together",
    ),
    "what-is-read-not-compared-with-its-neighbours": Mutation(
        "polonaise.spark.onelog",
        "(*self._overlapping, *meeting)",
        "self._overlapping",
        "P2: a query reads a fragment of a life of the log that was given up in place of one that is missing",
        test="tests/spark/test_two_lives_in_a_store.py"
        "::test_a_fragment_of_the_other_life_in_place_of_a_missing_one_is_refused",
    ),
    "damaged-fragments-not-compared-by-queries": Mutation(
        "polonaise.spark.onelog",
        "                    found.bad[name] = error\n",
        "                    del error\n",
        "P2: a query reads a life that was given up while the fragment that would contradict it is damaged",
        test="tests/spark/test_two_lives_in_a_store.py"
        "::test_a_damaged_fragment_leaves_open_which_life_one_that_overlaps_it_is_of",
    ),
    "offset-told-before-lives-are-compared": Mutation(
        "polonaise.spark.streamreader",
        "                history.check_read(partition, Span(starts[partition], end - 1))\n",
        "                pass\n",
        "P2: a stream's checkpoint goes up to ids of a life of the log that was given up",
        test="tests/spark/test_two_lives_in_a_store.py"
        "::test_a_fragment_of_the_other_life_in_place_of_a_missing_one_is_refused",
    ),
    "empty-fragment-is-a-store-away": Mutation(
        "polonaise.fragments.store",
        "            if not length:\n",
        "            if length < 0:\n",
        "P13: a fragment that was emptied is taken for a store that is away, and is never told as damaged",
        test="tests/fragments/test_history.py::test_a_fragment_that_was_cut_is_damaged_until_it_is_put_back[0]",
    ),
    "mistake-in-old-history-ends-the-server": Mutation(
        "polonaise.fragments.history",
        '            raise StoreUnavailable(f"{why}; the server\'s log has more: report that") from error\n',
        "            raise\n",
        "P11: a read of old history that meets a mistake of ours ends one owner after the other",
        test="tests/fragments/test_history.py"
        "::test_a_mistake_in_a_read_fails_that_read_and_is_told_until_the_id_was_read",
    ),
    "fragment-that-a-read-can-t-use-untold": Mutation(
        "polonaise.fragments.history",
        "        if not isinstance(error, NotFound):\n            self._doubted.setdefault",
        "        if isinstance(error, NotFound):\n            self._doubted.setdefault",
        "P13: a server that has just refused a damaged fragment to a reader says that all is well",
        test="tests/server/test_reading_history.py"
        "::test_a_damaged_fragment_that_a_reader_met_is_told_at_once_and_until_it_is_put_back[0]",
    ),
    "size-of-a-damaged-fragment-kept": Mutation(
        "polonaise.fragments.history",
        "            self._listings.pop(name.partition, None)\n\n",
        "            pass\n\n",
        "P13: a fragment that was put back is read with the size of the damaged one, and refused for ever",
        test="tests/fragments/test_history.py::test_a_fragment_that_was_cut_is_damaged_until_it_is_put_back[0]",
    ),
    "order-of-batches-not-looked-at": Mutation(
        "polonaise.spark.protocol.sinkprogress",
        "    if not by_partition:\n        return ()\n",
        "    if by_partition is not None:\n        return ()\n",
        "P8: a named batch that is run again after a later one is written a second time",
        test="tests/spark/test_order_of_batches.py"
        "::test_whose_write_returned_has_its_rows_in_the_log_each_once[{0: 1, 1: 1}]",
    ),
}
