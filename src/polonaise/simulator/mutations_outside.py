"""Mutations of what is noticed when others end or take away what nodes and views rely on, and of what is told then."""

from __future__ import annotations

from typing import Final

from polonaise.simulator.mutation import Mutation

_EXPECTED: Final = "polonaise.server.expectedservers"
_SAFE_STOP: Final = "polonaise.admin.safestop"
_SOCKETS: Final = "polonaise.host.sockets"

OUTSIDE_MUTATIONS: Final[dict[str, Mutation]] = {
    "memory-of-lines-not-looked-for": Mutation(
        "polonaise.player.linesfile",
        "        return found is not None and await self._steps.size() == self._steps_end\n",
        "        return True\n",
        "P7: a target in a file goes on into a memory that was removed, and knows nothing of it after its next start",
    ),
    "small-files-of-a-log-not-written-again": Mutation(
        "polonaise.node.keptfiles",
        "            for name in sorted(before & amiss) if there else ():\n",
        "            for name in ():\n",
        "P11: an embedded log goes on without the file that says that it is one, and nobody can open it any more",
    ),
    "log-without-its-marker-taken-for-none": Mutation(
        "polonaise.node.addresses",
        "    return MARKER not in names and COORDINATOR in names and SOCKETS in names\n",
        "    return False\n",
        "P11: who opens an embedded log that lacks only its marker is told that there is no log",
    ),
    "names-of-fragments-relied-upon": Mutation(
        "polonaise.fragments.history",
        "                await self._open(name, sizes.get(name, 0))\n",
        "                pass\n",
        "P1: history is dropped although the server's own store has nothing but the names of its fragments",
    ),
    "cut-fragment-opens": Mutation(
        "polonaise.fragments.openfragment",
        "        if size < needed + metadata.serialized_size:\n",
        "        if size < 0:\n",
        "P1: history is dropped although the server's own store has only the ends of its fragments",
    ),
    "overlapping-fragments-not-compared": Mutation(
        "polonaise.fragments.agreement",
        "            if other is facts or facts.crc_at(other.name.last) == other.footer.last_crc:\n",
        "            if other is facts or other.name.last >= first:\n",
        "P2: fragments of a life of the log that was given up count as well, for a trim and for a restore",
    ),
    "other-life-of-the-log-read": Mutation(
        "polonaise.fragments.history",
        "            if other is None:\n",
        "            if other is not None or other is None:\n",
        "P2: what was trimmed is read from a fragment of a life of the log that was given up",
    ),
    "empty-fragment-is-a-store-away": Mutation(
        "polonaise.fragments.store",
        "            if not length:\n",
        "            if length < 0:\n",
        "P13: a fragment that was emptied is taken for a store that is away, and is never told as damaged",
    ),
    "mistake-in-old-history-ends-the-server": Mutation(
        "polonaise.fragments.history",
        '            raise StoreUnavailable(f"{why}; the server\'s log has more: report that") from error\n',
        "            raise\n",
        "P11: a read of old history that meets a mistake of ours ends one owner after the other",
    ),
    "size-of-a-damaged-fragment-kept": Mutation(
        "polonaise.fragments.history",
        "            self._listings.pop(name.partition, None)\n\n",
        "            pass\n\n",
        "P13: a fragment that was put back is read with the size of the damaged one, and refused for ever",
    ),
    "commit-that-nobody-saw-not-marked": Mutation(
        "polonaise.views.sql",
        "            if self._marks.begin(db, partition, before, after):\n"
        "                writer.last_step = lambda: self._marks.finish(db, partition, after)\n",
        "            if self._marks.move(db, partition, before, after):\n",
        "P7: what application code committed of a run counts as the whole run, and the rest is never applied",
    ),
    "torn-mark-believed": Mutation(
        "polonaise.views.marks",
        "        if mark <= _TORN:\n",
        "        if mark < _TORN - (1 << 62):\n",
        "P7: a mark of which a part was committed is taken for one by other processes",
    ),
    "given-marks-not-remembered": Mutation(
        "polonaise.views.sql",
        "            self._lost.remember(db, partition)\n",
        "",
        "P7: a view whose marks were lost begins as new, and applies everything a second time",
    ),
    "lost-marks-begin-anew": Mutation(
        "polonaise.views.lostmarks",
        "        if self._tables and not held:\n",
        "        if self._tables:\n",
        "P7: a view whose marks were lost begins as new although its tables hold what was applied",
    ),
    "unknown-types-taken": Mutation(
        "polonaise.views.columntypes",
        '        there = (_TEXTS if needed == "string" else _BINARIES).get(name, 0)\n',
        '        there = (_TEXTS if needed == "string" else _BINARIES).get(name, inf)\n',
        "P7: a view writes texts to columns that cut them or make others of them",
    ),
    "keys-compared-otherwise-taken": Mutation(
        "polonaise.views.fitness",
        "        if names == whole == wanted:\n",
        "        if names == wanted:\n",
        "P7: rows of different keys become one in a table that was there, by a key that passes over case",
    ),
    "marks-of-another-shape-taken": Mutation(
        "polonaise.views.fitness",
        "        check_own_types(db, table)\n        wrong = _wrong_key(db, table, own=True)\n",
        '        wrong = ""\n',
        "P7: a table with two marks of one partition, or with too narrow ones, is taken for that of the marks",
    ),
    "refused-first-row-taken-for-another-run-s": Mutation(
        "polonaise.views.marks",
        '    if found is None:\n        raise row_lost(table, f"partition {partition}", why)\n',
        "",
        "P13: a mark that the database refuses is taken for one that another process was quicker to write",
    ),
    "refusal-for-want-of-room-untold": Mutation(
        "polonaise.node.condition",
        '    if refused := health.get("no_room", ""):\n',
        '    if refused := health.get("room", ""):\n',
        "P13: a storage node whose quota is used up refuses what it is to store, and says that it is well",
    ),
    "want-of-room-told-for-ever": Mutation(
        "polonaise.storage.noroom",
        'return self._last if self._clock.monotonic_s() - self._last_s < _TOLD_S else ""',
        "return self._last",
        "P13: a storage node is degraded by a refusal of long ago, though there is room",
    ),
    "every-lost-connection-was-idle": Mutation(
        "polonaise.views.retrying",
        "is_stale = held is not None and connection is held and not held.usable",
        "is_stale = connection is not None and not connection.usable",
        "P13: a run that drives the database away is repeated whole, again and again, and nobody is told why",
    ),
    "own-read-only-blamed-on-the-database": Mutation(
        "polonaise.views.databaseerrors",
        "        if isinstance(link, MadeReadOnly):\n",
        "        if isinstance(link, MadeReadOnly) and not link.text:\n",
        "P13: a transaction that makes itself read-only waits for its database for ever, and is told to nobody",
    ),
    "removed-socket-not-made-again": Mutation(
        _SOCKETS,
        "            if identity(path) == self._identity:\n",
        "            if self._identity:\n",
        "P11: nobody can connect to a node whose Unix socket a cleaner has removed, and nobody is told",
    ),
    "socket-made-again-with-other-rights": Mutation(
        _SOCKETS,
        "            os.chmod(path, self._mode)\n",
        "            pass\n",
        "P11: those who could connect to a Unix socket can't any more once it was made again",
    ),
    "last-server-safe-to-stop": Mutation(
        _SAFE_STOP,
        " and not each.trouble and each.registered]\n",
        " and not each.trouble]\n",
        "P13: a server may be stopped, it is said, of which nobody knows that another one could take over",
    ),
    "needed-storage-node-safe-to-stop": Mutation(
        _SAFE_STOP,
        " if name in needed[each.partition]]\n",
        " if each.condition is not None and name in each.condition.out]\n",
        "P13: a storage node may be stopped, it is said, without which partitions take no appends",
    ),
    "server-that-could-not-serve-takes-over": Mutation(
        _SAFE_STOP,
        "    if server.unable:\n",
        "    if server.unable and server.registered is False:\n",
        "P13: a server may be stopped, it is said, although the only other one says that it can't serve",
    ),
    "given-up-partition-counts-for-all": Mutation(
        _SAFE_STOP,
        "    if partition.partition in server.given_up or not closed.issuperset(server.given_up):\n",
        "    if server.given_up:\n",
        "P13: no server may be stopped, it is said, where one partition waits for an operator",
    ),
    "ailing-server-takes-over": Mutation(
        _SAFE_STOP,
        "        elif why and all(other.given_up for other in others):\n",
        "        elif why and not others:\n",
        "P13: a server may be stopped, it is said, although what it owns may go to one that can't serve it",
    ),
    "server-that-reaches-no-quorum-takes-over": Mutation(
        _SAFE_STOP,
        "    if _stops(status, partition, server.reached - ",
        "    if _stops(status, partition, {each.name for each in status.storage} - ",
        "P13: a server may be stopped, it is said, although the only other one does not reach enough storage nodes",
    ),
    "full-storage-node-counts-as-able": Mutation(
        "polonaise.node.reasons",
        "frozenset({Reason.DIRECTORY_GONE, Reason.DISK_FULL, Reason.UNREACHABLE})",
        "frozenset({Reason.DIRECTORY_GONE, Reason.UNREACHABLE})",
        "P13: a storage node may be stopped, it is said, although the others that would be left include a full one",
    ),
    "lost-copy-counts-as-able": Mutation(
        _SAFE_STOP,
        '[*each.unable, each.unusable.get(str(partition), "")]',
        "[*each.unable]",
        "P13: a storage node may be stopped, it is said, although another one tells that its copy can't be used",
    ),
    "removed-server-not-noted-again": Mutation(
        _EXPECTED,
        "if self._name and (not noted or (server in living and (not known or known.server not in living))):",
        "if self._name and not noted:",
        "P13: a server that was removed while it hung, and goes on, is not missed when it ends",
    ),
    "ended-namesake-keeps-the-name": Mutation(
        _EXPECTED,
        " or known.server not in living",
        "",
        "P13: a server is to be removed, it is said, that serves, because another one of its name has ended",
    ),
    "namesakes-untold": Mutation(
        _EXPECTED,
        "        other = namesake is not None and namesake.server != server and self._name not in missing\n",
        "        other = False\n",
        "P13: two servers with one name are expected as one, and nobody is told",
    ),
    "server-that-is-cut-off-untold": Mutation(
        "polonaise.node.condition",
        "    if len(unreached) == len(nodes) > 1:\n",
        "    if len(unreached) > len(nodes):\n",
        "P13: a server that reaches no storage node blames them, and says that it is well itself",
    ),
    "left-out-replica-not-in-metrics": Mutation(
        "polonaise.node.monitoring.seenpartition",
        "    if any((ready and name not in engaged) or not connected.get(name, True) for name in members):\n"
        "        found.add(Reason.REPLICA_LEFT_OUT)\n",
        "",
        "P13: health names a reason for which a node is degraded, and the metrics that alerts rest on do not",
    ),
    "replaced-tail-believed": Mutation(
        "polonaise.log.partitionlog",
        "        if await self._disk.identity(path) != self._tail.identity:\n",
        "        if await self._disk.identity(path) is None:\n",
        "P8: a storage node acknowledges what it writes to a file that another file has replaced",
    ),
    "removed-segment-not-missed": Mutation(
        "polonaise.log.partitionlog",
        "            if number is None or (\n",
        "            if number is not None and (\n",
        "P10: a copy counts for hours although a file of it is gone, until the scrub comes to it",
    ),
    "replaced-segment-believed": Mutation(
        "polonaise.log.segmentreader",
        "                return header == segment.header and await file.size() == segment.end\n",
        "                return header.first == segment.first or await file.size() == segment.end\n",
        "P10: a copy counts for hours although another file has the place of one of its segments",
    ),
    "sessions-end-uncounted": Mutation(
        "polonaise.server.protocol.readiness",
        "        self._changes.note()\n        self.reached |= reached\n",
        "        self.reached |= reached\n",
        "P13: that sessions end by faults is not looked at, and nobody is warned",
    ),
    "one-look-proves-lost-data": Mutation(
        "polonaise.coordination.zookeeperdata",
        "                if now_s - since_s >= _CONFIRM_S:\n                    return True\n",
        "                return True\n",
        "P11: a leader of ZooKeeper that lags for a moment is taken for one that has lost data",
    ),
    "lost-data-never-proved": Mutation(
        "polonaise.coordination.zookeeperdata",
        "            since_s = self._behind.setdefault(server, now_s)\n",
        "            since_s = self._behind[server] = now_s\n",
        "P13: nobody is told that ZooKeeper has lost data, and servers wait for it until their session has ended",
    ),
    "notes-of-servers-unchecked": Mutation(
        "polonaise.storage.node",
        "                told = checked(json.loads(document), self._settings.partitions_max)\n",
        "                told = json.loads(document)\n",
        "P12: a storage node keeps whatever it is told of the coordinator's values, and can't read it when it must",
    ),
    "state-that-stepped-back-is-read": Mutation(
        "polonaise.views.reached",
        "        if below:\n",
        "        if below and not found:\n",
        "P2: a context decides on a database that has less than its locks are judged at",
    ),
    "file-that-was-replaced-is-used-on": Mutation(
        "polonaise.views.sqlitefile",
        "        if opened.place and _identity(self._given or opened.place) != opened.identity:\n",
        "        if not opened.identity:\n",
        "P7: what a view applies goes into a file that is in no directory any more",
    ),
    "file-that-is-gone-is-made-anew": Mutation(
        "polonaise.views.sqlitefile",
        "        if self._place and _identity(self._place) is _NONE:\n",
        "        if self._place and not self._given:\n",
        "P7: a view makes an empty database in the place of one that was moved away for a moment",
    ),
    "tables-of-a-target-made-under-way": Mutation(
        "polonaise.player.sqldelivery",
        "        if self._create and not self._answered:\n",
        "        if self._create:\n",
        "P7: a target makes empty tables in the place of those that somebody has put aside",
    ),
    "target-begins-anew-beside-its-rows": Mutation(
        "polonaise.player.sqldelivery",
        "            if is_first and self._answered and (held or not self._tables()):\n",
        "            if False:\n",
        "P7: a target whose ids and fence were emptied under way gets everything a second time",
    ),
    "first-id-written-where-all-are-lost": Mutation(
        "polonaise.player.sqldelivery",
        "        self._ids_kept(db)\n",
        "",
        "P7: the id of one partition hides that those of others are lost, whose entries come a second time",
    ),
    "ids-not-counted": Mutation(
        "polonaise.player.sqldelivery",
        "(counted is not None and counted > highest)",
        "False",
        "P7: a partition whose id was lost beside those of others begins anew, and gets everything a second time",
    ),
    "first-id-not-counted": Mutation(
        "polonaise.player.sqldelivery",
        "            counted = ids.c.high_water_mark + 1\n",
        "            counted = ids.c.high_water_mark\n",
        "P7: the loss of an id that was written since the stream began is not noticed",
    ),
    "file-of-lines-made-anew-under-way": Mutation(
        "polonaise.player.linesfile",
        "            if again or (memory is not None and memory.counted.size):\n",
        "            if memory is not None and memory.counted.size:\n",
        "P7: a target whose file and memory were moved away for a moment writes everything into a new one",
    ),
    "pipeline-s-partitions-not-remembered": Mutation(
        "polonaise.views.tables",
        "            self._kept.remember(db, unknown - known)\n",
        "",
        "P7: a partition whose mark was lost beside those of others is added to a pipeline's table once more",
    ),
    "pipeline-s-partition-begins-anew": Mutation(
        "polonaise.views.tables",
        "            if new & known:\n",
        "            if False:\n",
        "P7: a partition whose mark is lost while a pipeline follows the log is added to its table once more",
    ),
    "pipeline-begins-anew-beside-its-rows": Mutation(
        "polonaise.views.tables",
        "            self.check_marks_kept()\n",
        "            pass\n",
        "P7: rows of a pipeline's view whose marks were lost under way are added to its table a second time",
    ),
    "journal-that-is-gone-is-used-on": Mutation(
        "polonaise.views.sqlitefile",
        "        if not opened.has_lost_journals():\n",
        "        if opened.place:\n",
        "P7: what a view applies goes into a journal that was taken away, and nobody is told",
    ),
    "journal-that-is-gone-is-written-back": Mutation(
        "polonaise.views.sqlitefile",
        "        return not self._is_kept\n",
        "        return True\n",
        "P7: a database that was restored is damaged by those who had it open",
    ),
    "marks-of-another-view-taken": Mutation(
        "polonaise.views.lostmarks",
        "                    if kept and not mine & kept:\n                        self._check_dropped(db, kept)\n",
        "                    if kept and not mine & kept:\n",
        "P7: a view takes another one's marks for its own, and leaves out what that one has applied",
    ),
    "table-made-beside-its-marks": Mutation(
        "polonaise.views.sql",
        "        create = self._create and not self._reached.told\n",
        "        create = self._create\n",
        "P7: a view that runs makes an empty table in the place of one that somebody has put aside",
    ),
    "marks-made-beside-their-rows": Mutation(
        "polonaise.views.sql",
        "                self._lost.check_marks_kept(db)\n",
        "",
        "P13: an empty table of marks is in the way of whoever puts the right one back",
    ),
    "position-ahead-of-the-log-taken": Mutation(
        "polonaise.client.workerpartition",
        "        self._log_end = end if position > end else None\n",
        "        self._log_end = None\n",
        "P7: a worker whose database is ahead of the log leaves out what the log has, and says that it is well",
    ),
    "run-above-the-mark-given-for-ever": Mutation(
        "polonaise.client.workerprogress",
        "                if self.position < before:\n",
        "                if self.position < -1:\n",
        "P7: a worker whose database has stepped back gives it the same run again and again, and says that it is well",
    ),
    "idle-worker-s-database-not-looked-at": Mutation(
        "polonaise.client.workergroup",
        "        return await view.stepped_back({work.partition: work.progress.position for work in works})\n",
        "        return await view.stepped_back({work.partition: -1 for work in works})\n",
        "P7: a worker that has nothing to apply never notices that its database was put back, and says that it is well",
    ),
    "outgrown-position-taken": Mutation(
        "polonaise.client.workerpartition",
        "        end = self.committed if known is None else min(known, self.committed)\n",
        "        end = self.committed\n",
        "P7: a worker that was ahead of the log goes on once the log has grown, and leaves out what is below",
    ),
    "mark-ahead-of-the-log-believed": Mutation(
        "polonaise.client.applying",
        "                if mark > end:\n",
        "                if mark > end + (1 << 62):\n",
        "P7: a view whose database comes to be ahead of the log is told to have applied what it never was given",
    ),
    "store-looked-at-once": Mutation(
        "polonaise.server.storewatch",
        "            self.trouble = trouble\n",
        "            self.trouble = self.trouble or trouble\n",
        "P11: a server whose fragment store was away once is never given partitions again",
    ),
    "store-away-and-given-partitions": Mutation(
        "polonaise.server.node",
        "        unable = given_up | self._not_to_be_started\n",
        "        unable = given_up\n",
        "P11: a server that can't reach its fragment store takes over partitions, and can't start them",
    ),
}
