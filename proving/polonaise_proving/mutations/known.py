"""Mutations: changed lines of production code, each of which breaks a promise that a checker must find broken.

    python -m polonaise_proving.simulator --mutation quorum-of-one

A mutation is put in while its module is loaded, so that module must not be loaded before. The old text has to be in
the module exactly once: a mutation that no longer fits the code is an error, and not a run that finds nothing.
"""

from __future__ import annotations

import difflib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from types import CodeType, ModuleType
from typing import Any, Final

from polonaise_proving.mutations.coordinator import COORDINATOR_MUTATIONS
from polonaise_proving.mutations.delivery import DELIVERY_MUTATIONS
from polonaise_proving.mutations.history import HISTORY_MUTATIONS
from polonaise_proving.mutations.modelled import MODEL_MUTATIONS
from polonaise_proving.mutations.mutation import Mutation, MutationDoesNotApply
from polonaise_proving.mutations.outside import OUTSIDE_MUTATIONS
from polonaise_proving.mutations.ownership import OWNERSHIP_MUTATIONS
from polonaise_proving.mutations.targets import TARGET_MUTATIONS
from polonaise_proving.mutations.views import VIEW_MUTATIONS

LISTS_MUTATIONS: Final = "`python -m polonaise_proving.simulator --list-mutations`"
"""The command that names all mutations."""


class _MutatedLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutation: Mutation) -> None:
        super().__init__(fullname, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._mutation.applied(self.get_data(self.path).decode()), self.path, "exec")


class _MutatedFinder(importlib.abc.MetaPathFinder):
    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutation.module:
            return None
        spec: Any = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            raise MutationDoesNotApply(f"there is no module {fullname}")
        loader = _MutatedLoader(fullname, spec.origin, self._mutation)
        return importlib.util.spec_from_file_location(fullname, spec.origin, loader=loader)


def close_to(name: str, names: Iterable[str]) -> str:
    """Return which of the names are much like one that is unknown, as an addition to the text of an error."""
    close = difflib.get_close_matches(name, names)
    return f"; close to it: {', '.join(close)}" if close else ""


def find(name: str) -> Mutation:
    """Return the mutation of this name. Raises `MutationDoesNotApply` if there is none."""
    mutation = MUTATIONS.get(name)
    if mutation is None:
        raise MutationDoesNotApply(
            f"there is no mutation {name!r}{close_to(name, MUTATIONS)}; {LISTS_MUTATIONS} names all"
        )
    return mutation


def put_in(name: str) -> None:
    """Put in the mutation `name`: its module, when it is loaded, has the changed text.

    Raises `MutationDoesNotApply` if there is no such mutation or its module is loaded already; the import of the
    module raises it if there is no such module, or the old text is not there exactly once.
    """
    mutation = find(name)
    if mutation.module in sys.modules:
        raise MutationDoesNotApply(f"{mutation.module} is loaded already")
    sys.meta_path.insert(0, _MutatedFinder(mutation))


_RECOVERY: Final = "polonaise.server.protocol.recovery"
_REPLICA: Final = "polonaise.storage.protocol.replica"
_SESSION_START: Final = "polonaise.server.sessionstart"
_OWNER: Final = "polonaise.server.protocol.owner"
_ORDER: Final = "polonaise.server.protocol.order"
_LEASE: Final = "polonaise.coordination.lease"
_COPY_TURNS: Final = "polonaise.server.turns"
_CLUSTER_ANSWERS: Final = "polonaise.server.clusteranswers"

MUTATIONS: Final[dict[str, Mutation]] = {
    "acknowledge-before-sync": Mutation(
        "polonaise.log.tail",
        "await self.file.write(start, [*buffers, bytes(zeros)], sync=True)",
        "await self.file.write(start, [*buffers, bytes(zeros)])",
        "P1: bytes are acknowledged before they are synced, and a loss of power takes them",
        seed=0,
    ),
    "throttle-that-never-lets-go": Mutation(
        _COPY_TURNS,
        "await held.enter_async_context(self._all)",
        "await self._all.acquire()",
        "P10: a turn to copy is not given back, and replicas stay late when all turns are gone",
        seed=1,
    ),
    "needed-copy-throttled": Mutation(
        _SESSION_START,
        "            read = await self._read(decided.sources, last + 1, decided.closing, name)\n",
        "            read = await self._read(decided.sources, last + 1, decided.closing, name)\n"
        "            await asyncio.sleep(self._settings.copy_bytes / self._settings.copy_bytes_per_s_min)\n",
        "P11: a session start that has no quorum without a copy waits as if the copy were made in the background",
        seed=28,
    ),
    "quorum-of-one": Mutation(
        _RECOVERY,
        "return len(members) // 2 + 1",
        "return 1",
        "P1: an append that only one replica holds counts as committed",
        seed=1,
    ),
    "stale-replica-says-has-not": Mutation(
        _RECOVERY,
        "return answer.joined < engagement.session",
        "return answer.joined == -1",
        "P1: a replica with an old disk says that an append was never there, and is believed",
        seed=175,
    ),
    "wiped-replica-says-has-not": Mutation(
        _RECOVERY,
        "return answer.joined < engagement.session",
        "return -1 < answer.joined < engagement.session",
        "P1: a replica with an empty disk says that an append was never there, and is believed",
        seed=2,
    ),
    "damaged-replica-says-has-not": Mutation(
        _RECOVERY,
        "        if held.lost_above is not None:\n            doubted.append(name)\n",
        "",
        "P1: a replica that may have lost an append says that it was never there, and is believed",
        seed=11,
        model="rot",
    ),
    "skip-the-fence": Mutation(
        _REPLICA,
        "            refused = self._refused_store(request)\n",
        "            refused = None\n",
        "P2: an owner that was fenced out goes on writing",
        seed=9,
    ),
    "fence-not-on-disk": Mutation(
        "polonaise.log.control",
        "await self._control.write_copy(self.partition, target, sector, sync=True)",
        "await self._control.write_copy(self.partition, target, sector, sync=False)",
        "P2, P11: a replica answers with its promises (fence, joined session) before they are durable",
        seed=4,
    ),
    "loss-mark-forgotten-after-copy": Mutation(
        _REPLICA,
        "        return [StoreBatches(batches), TellEnd()]",
        "        return [StoreBatches(batches), Save(replace(self.promises, lost_above=UNRESOLVED)), TellEnd()]",
        "P1: a damaged replica that was repaired in part counts as a whole one",
        seed=80,
        model="rot repaired",
    ),
    "failed-sync-taken-for-a-loss": Mutation(
        "polonaise.log.control",
        "await self.save(self.promises.distrusted(last))",
        "await self.save(self.promises.lost(last))",
        "P11: after a failed sync on a majority, the partition waits for ever for a batch that nobody acknowledged",
        seed=4,
    ),
    "promises-that-failed-believed": Mutation(
        "polonaise.log.control",
        "spared=(Closed, DiskFull))",
        "spared=(PolonaiseError,))",
        "P11: a partition that is made while the sync of another fails has no promises, and its replica is lost",
        seed=27001349,
    ),
    "promises-of-one-change-earlier-believed": Mutation(
        "polonaise.log.control",
        "    if slot is not None and slot.sequence > sequence:\n",
        "    if slot is not None and slot.sequence > sequence + 1:\n",
        "P2, P13: a replica whose latest promises can't be read goes on from those before, and may obey a fenced owner",
        test="tests/log/test_log_decoders.py"
        "::test_promises_are_refused_once_the_slot_names_a_later_copy_that_cant_be_read[0]",
    ),
    "bytes-above-a-loss-cut": Mutation(
        _REPLICA,
        "        if promises.untrusted and not promises.may_have_lost:\n",
        "        if promises.untrusted:\n",
        "P13: a question cuts what a damaged copy still has, before an operator who lost too many copies could see it",
        test="tests/storage/test_replica.py::test_bytes_above_a_loss_are_not_cut_before_it_is_decided_what_the_log_is",
    ),
    "read-beside-a-cut": Mutation(
        "polonaise.storage.partitionreplica",
        "cut what was read.\n            _check_session(replica, read)\n",
        "cut what was read.\n",
        "P2, P4: a read that was at the disk is answered although a later session has fenced and cut meanwhile",
        test="tests/storage/test_storage_node.py"
        "::test_a_read_that_was_at_the_disk_while_a_newer_session_fenced_and_cut_is_refused",
    ),
    "fence-and-joined-confused": Mutation(
        "polonaise.storage.partitionreplica",
        "joined=promises.joined,",
        "joined=promises.fence,",
        "P1: a replica that was only fenced for a session looks as if it had joined it",
        seed=2,
    ),
    "feed-or-refuse-before-metadata": Mutation(
        _SESSION_START,
        "        await self._engage(value, claimed.version)\n",
        "        self._report.__self__.owner._settle("
        "StartedSession(value, decided.closing, decided.last_crc, time_us, values, {}))"
        "; await self._engage(value, claimed.version)\n",
        "P6: fates of appends are told before the engagement makes them certain",
        seed=69,
    ),
    "append-before-metadata": Mutation(
        _SESSION_START,
        "        await self._engage(value, claimed.version)\n",
        "        self._host.spawn(self._engage(value, claimed.version), 'engage')\n",
        "P1: appends are committed in a session whose engagement the coordinator may never get",
        seed=31,
    ),
    "feed-before-commit": Mutation(
        _OWNER,
        "            self._out.add(Replicate(session.id, sent.number, self.committed, sent.batch))\n",
        "            self._out.add(Replicate(session.id, sent.number, self.committed, sent.batch))\n"
        "            if sent.batch: self._commit(sent.batch)\n",
        "P4: batches are fed when they are sent to the replicas, before they are committed",
        seed=0,
        model="owner",
    ),
    "truncate-too-far": Mutation(
        _RECOVERY,
        "        if held.max_synced > closing:\n",
        "        if not sources or held.max_synced < closing:\n",
        "P1: the log is cut to the shortest copy instead of the longest",
        seed=1,
    ),
    "lock-table-reset-to-zero": Mutation(
        "polonaise.server.protocol.session",
        "locks=LockTable(started.closing, settings.lock_entries)",
        "locks=LockTable(-1, settings.lock_entries)",
        "P5: a new session forgets which locks were raised before it",
        seed=1,
    ),
    "count-a-replica-that-is-not-engaged": Mutation(
        _SESSION_START,
        "value = recovery.engage(claimed.value, clean, decided.closing)",
        "value = recovery.engage(claimed.value, sorted(clean)[: len(claimed.value.members) // 2 + 1], decided.closing)",
        "P1: acknowledgements count of replicas that are not engaged by the coordinator's value",
        seed=0,
    ),
    "settle-a-committed-append-as-failed": Mutation(
        _OWNER,
        "if batch.last < closing or (batch.last == closing and batch.crc == started.last_crc):",
        "if batch.last < closing:",
        "P6: an append under way that recovery kept in the log is told to have failed",
        seed=0,
    ),
    "feed-before-refusals": Mutation(
        "polonaise.server.protocol.effects",
        "        effects = self._sends\n",
        "        effects = self._sends + self._feeds; self._feeds = []\n",
        "P6: an append that met a lock conflict is told to have been lost, and to be appended again",
        seed=2,
        model="owner",
    ),
    "group-split-over-two-batches": Mutation(
        "polonaise.client.protocol.outstanding",
        "    live = [out for out in waiting if out[0].failure is None]\n",
        "    live = [(*out[:7], True) for out in waiting if out[0].failure is None]\n",
        "P9: a group travels, and is judged, as single transactions",
        seed=1,
    ),
    "register-change-lost-at-roll": Mutation(
        "polonaise.log.partitionlog",
        "preamble = registers.snapshot(tail.scanned.registers)",
        "preamble = registers.snapshot(dict(list(tail.scanned.registers.items())[:-1]))",
        "P2: a new segment begins with a snapshot of the registers that lacks the last one",
        seed=1,
    ),
    "zeros-stay-in-a-sealed-segment": Mutation(
        "polonaise.log.tail",
        "        if self._zeros_end > self.end:\n"
        "            await self._cut_zeros()\n"
        "            await self.file.sync()\n",
        "",
        "P10: the zeros that were written ahead stay at the end of a full segment, and look like damage",
        seed=2,
    ),
    "zeros-come-back-to-a-sealed-segment": Mutation(
        "polonaise.log.tail",
        "            await self._cut_zeros()\n            await self.file.sync()\n        await self.checkpoint()\n",
        "            await self._cut_zeros()\n        await self.checkpoint()\n",
        "P10: a loss of power brings back the zeros that were cut from a full segment, and they look like damage",
        seed=5,
    ),
    "listing-of-an-older-moment": Mutation(
        "polonaise.server.protocol.committedregisters",
        "        registers.apply(self.values, section)\n        self._keys = None\n",
        "        registers.apply(self.values, section)\n",
        "P2: a listing lacks the registers that were set since the listing before",
        seed=2,
    ),
    "rest-of-a-listing-left-out": Mutation(
        "polonaise.log.registers",
        "            return RegisterPage(chosen, True)\n",
        "            return RegisterPage(chosen, False)\n",
        "P2: a listing of more registers than fit into one page has only the first page",
        seed=0,
    ),
    "trouble-told-to-nobody": Mutation(
        "polonaise.server.protocol.feeds",
        "        return [self._tell_trouble(mount, committed) for mount in self.mounts.values() if mount.ready]\n",
        "        return []\n",
        "P11: clients whose appends wait do not learn which storage nodes they wait for",
        seed=5,
    ),
    "storage-name-not-checked": Mutation(
        "polonaise.storage.node",
        "        if own != name:\n",
        "        if False:\n",
        "P1: a storage node answers for another one, so that one disk counts as two replicas",
        seed=6,
    ),
    "refused-directory-refused-without-a-reason": Mutation(
        "polonaise.storage.refusing",
        "            self.turn_away(fresh(self._reason))\n",
        "            self.close()\n",
        "P13: a storage directory that can't be opened looks like a node that nobody has started",
        seed=13,
    ),
    "trim-without-looking-whether-it-is-archived": Mutation(
        "polonaise.server.trimming",
        "    await _check_archived(reader, reader.history, session, request)\n",
        "",
        "P1: transactions that no fragment holds are trimmed from every replica",
        seed=47,
    ),
    "trim-confirms-within-a-batch": Mutation(
        "polonaise.server.trimming",
        "            expect(await reader.ask(name, Confirm(session.id, certain)), Done)\n",
        "            expect(await reader.ask(name, Confirm(session.id, before)), Done)\n",
        "P11: a replica knows ids to be committed up to one at which it can't be cut",
        seed=48,
    ),
    "trim-above-confirmed": Mutation(
        _REPLICA,
        "        return [DropBelow(before)]",
        "        return [DropBelow(2**62)]",
        "P1: a trim drops transactions that the replica does not know to be committed",
        seed=19,
    ),
    "farewell-before-it-is-committed": Mutation(
        "polonaise.server.servedpartition",
        "        session, mark = self.owner.session, self.owner.committed\n",
        "        session, mark = self.owner.session, -1\n"
        "        mark = session.order.next_id - 1 if session else mark\n",
        "P1: a server that stops tells a replica that batches are committed which only that replica holds",
        seed=43,
    ),
    "trim-before-it-is-noted": Mutation(
        "polonaise.log.partitionlog",
        "        await self.slot.begin_trim(TrimMark(following.first, following.previous_crc))\n",
        "",
        "P10: trimmed segments look like lost ones when the node opens its files again",
        seed=13,
    ),
    "fragments-ahead-not-checked": Mutation(
        "polonaise.server.archivedhistory",
        "    if highest > closing:\n",
        "    if False:\n",
        "P13: replicas that were all set back to an earlier day go on, and ids are given out again",
        seed=11,
    ),
    "store-without-its-mark-believed": Mutation(
        "polonaise.fragments.markedstore",
        "        if not marked:\n",
        "        if False:\n",
        "P13: replicas that were all set back to an earlier day go on while the fragment store is not mounted",
        seed=66,
    ),
    "wiped-replica-not-filled-from-fragments": Mutation(
        "polonaise.server.archivedhistory",
        "    if trimmed is None:\n",
        "    if True:\n",
        "P11: once something is trimmed, a replica with a new disk is never engaged again",
        seed=13,
    ),
    "rest-of-a-part-left-out": Mutation(
        "polonaise.client.batchreader",
        "        if self._ahead is not None and self._first <= request.last:\n",
        "        if False:\n",
        "P3: a range that is read in several parts at once lacks what did not fit into a part's first answer",
        seed=0,
    ),
    "full-segment-stays-open": Mutation(
        "polonaise.log.partitionlog",
        "        await self._cache.release(tail.opened)\n        return fresh",
        "        return fresh",
        "P11: each roll of the log keeps a file open for ever, until none can be opened",
        seed=1,
    ),
    "scrub-that-does-not-look": Mutation(
        "polonaise.log.partitionlog",
        "        batches = await log.read(first, log.last, bytes_max)\n",
        "        batches = await log.read(log.last, log.last, bytes_max)\n",
        "P10: rot that no reader meets stays, until the other replicas have rotted, too",
        seed=1,
    ),
    "scrub-that-passes-over-preambles": Mutation(
        "polonaise.log.segmentreader",
        "                await read_preamble(opened.file, header)\n",
        "                await opened.file.read(HEADER_BYTES, header.preamble_bytes)\n",
        "P10: rot in the registers at the beginning of a segment is not found until the node opens its files again",
        seed=117,
    ),
    "scrub-that-ends-with-its-first-finding": Mutation(
        "polonaise.storage.protocol.scrubschedule",
        "        self.scrubbed = replace(self.scrubbed, found=self.scrubbed.found + 1, damages=tuple(damages))\n",
        "        self.scrubbed = replace(self.scrubbed, found=self.scrubbed.found + 1, damages=tuple(damages))\n"
        "        self._rounds.free_s = 2.0**62\n",
        "P10: a disk that goes bad again after its repair is not scrubbed any more",
        seed=62,
    ),
    "damage-after-a-cut-is-not-recorded": Mutation(
        "polonaise.log.partitionlog",
        "            cuts = self.slot.cuts\n            try:\n                if after_time_us:\n",
        "            cuts = 0\n            try:\n                if after_time_us:\n",
        "P10: a copy that was repaired once is never repaired again",
        seed=12,
    ),
    "group-judged-by-its-newest-mark": Mutation(
        _ORDER,
        "if estimate > min(marks[position] for position in positions):",
        "if estimate > max(marks[position] for position in positions):",
        "P5: a group is let in although the oldest state that it was built on is stale",
        seed=11,
    ),
    "fenced-producer-goes-on": Mutation(
        _ORDER,
        "        if epoch != known.epoch:\n",
        "        if epoch > known.epoch:\n",
        "P6: after a producer was opened again, the one that was opened earlier can still append",
        seed=2,
    ),
    "fence-of-a-producer-goes-back": Mutation(
        _ORDER,
        "            if epoch <= known.epoch:\n",
        "            if False:\n",
        "P6: an older opening of a producer that arrives late fences the newer one",
        seed=3,
    ),
    "fence-of-a-replica-goes-back": Mutation(
        _REPLICA,
        "        if session < promises.fence or session <= NO_SESSION:\n",
        "        if session <= NO_SESSION:\n",
        "P2: an older session begins again on a replica that was fenced for a later session",
        seed=9,
        model="first sessions",
    ),
    "join-without-a-look-at-the-end": Mutation(
        _REPLICA,
        "        if self.last != prepared or self.last_crc != last_crc:\n",
        "        if False:\n",
        "P1: a copy that lacks the end of the log is engaged, and its acknowledgements count",
        seed=9,
        model="rot",
    ),
    "stores-on-a-second-connection": Mutation(
        _REPLICA,
        "        if self.promises.joined != request.session or self._joined_on is not request.connection:\n",
        "        if self.promises.joined != request.session:\n",
        "P1: an acknowledgement also counts for batches that were lost with an earlier connection",
        seed=9,
    ),
    "goes-on-after-a-failed-store": Mutation(
        _REPLICA,
        "        self.disconnected(connection)\n",
        "        pass\n",
        "P1: an acknowledgement also counts for batches that were refused before",
        seed=9,
    ),
    "owner-forgets-what-it-saw-committed": Mutation(
        "polonaise.server.servedpartition",
        "known=self.owner.known,",
        "known=type(self.owner.known)(-1, 0),",
        "P13: an owner believes replicas that were all set back to an earlier moment of its own session",
        seed=67,
    ),
    "lease-that-never-runs-out": Mutation(
        _LEASE,
        "        return same_s >= LEASE_S\n",
        "        return False\n",
        "P11: nobody replaces a server that is stopped",
        seed=19,
    ),
    "lease-that-runs-out-unseen": Mutation(
        _LEASE,
        "min(now_s - seen.looked_s, RENEW_S)",
        "(now_s - seen.looked_s)",
        "P11: a server that was stopped and goes on takes the others for dead, and takes over what they own",
        seed=44,
    ),
    "lease-that-nobody-renews": Mutation(
        "polonaise.server.servermembership",
        "if self._membership.left or await self._membership.renew():\n",
        "if True:\n",
        "P11: servers that work take each other for dead, again and again",
        seed=19,
    ),
    "client-that-ignores-its-window": Mutation(
        "polonaise.client.protocol.outstanding",
        "        return not self._used or self._used + inbox_bytes(size) <= self._window_bytes\n",
        "        return True\n",
        "P11: appends to a partition that commits nothing are refused for want of room, instead of waiting",
        seed=12,
    ),
    "mount-ready-before-it-is-proved": Mutation(
        _OWNER,
        "        self._ask(PendingMount(until_s, request, mount, mark), now)\n",
        "        self._prove(PendingMount(until_s, request, mount, mark))\n",
        "P6: a client sends again what is still under way from its mount before, and both get into the log",
        seed=3,
    ),
    "client-that-sends-settled-appends-again": Mutation(
        "polonaise.client.appends",
        "            columns = still_pending(frame.columns, self._outstanding.is_pending)\n",
        "            columns = frame.columns\n",
        "P6: what was committed in a frame of an ended mount is in the log twice",
        seed=11,
    ),
    "client-that-sends-older-appends-last": Mutation(
        "polonaise.client.appends",
        "        if not self._send_old(stream):\n            return\n",
        "        self.loop.call_later(0.01, self._send_old, stream)\n",
        "P6: appends of an ended mount are sent again behind younger ones, and fail for no reason",
        seed=2,
    ),
    "damaged-fragment-left-as-it-is": Mutation(
        "polonaise.server.fragmentwatches",
        "            await self._mend(reader, step)\n",
        "            scrub.good(self._clock.wall_us(), name)\n",
        "P10: a fragment that has rotted is not mended, and cannot be any more once the log is trimmed",
        seed=11,
    ),
    "needed-copy-emptied": Mutation(
        "polonaise.coordination.memberchanges",
        "    sound = [each for each in in_sync(value) if value.engagements[each].session == value.session]\n",
        "    sound = in_sync(value)\n",
        "P1: a copy that was given up is emptied while it may be the last one that holds what was committed",
        test="tests/coordination/test_member_changes.py::test_a_copy_that_may_be_needed_is_not_emptied",
    ),
    "emptied-copy-forgets-its-fence": Mutation(
        "polonaise.storage.protocol.replica",
        "Save(Promises(fence=session, ",
        "Save(Promises(fence=NO_SESSION, ",
        "P13: two copies that were given up and emptied are a quorum for an owner that was deposed before",
        test="tests/storage/test_replica.py"
        "::test_an_emptied_copy_refuses_the_owner_of_a_session_in_which_it_was_a_member",
    ),
    "copy-removed-while-it-is-needed": Mutation(
        "polonaise.coordination.memberchanges",
        "if len(sound) < copies and not force:",
        "if len(sound) < 1:",
        "P1: a copy is given up while too few others are in sync",
        seed=22,
    ),
    "new-quorum-counts-alone": Mutation(
        "polonaise.server.protocol.recovery",
        "    needed = len(doubted) - quorum(value.members) + 1\n",
        "    needed = len(doubted) - quorum(value.next or value.members) + 1\n",
        "P1: while a copy is being added, the log's end is decided without a majority of those that committed",
        seed=26,
        model="replacement",
    ),
    "added-copy-counts-before-it-is-clean": Mutation(
        "polonaise.server.protocol.recovery",
        "_is_quorum(value.next, clean) and all(name in clean for name in added)",
        "_is_quorum(value.next, clean)",
        "P1: a copy counts as a member that has not been caught up with",
        seed=5,
        model="replacement",
    ),
    "stale-assignment-believed": Mutation(
        "polonaise.client.routes",
        "        if read.version <= self._assignment.version:\n            return\n",
        "",
        "P11: a client follows an older assignment than it knows, to servers that own the partition no more",
        seed=50,
    ),
    "assignment-told-as-it-was-first": Mutation(
        _CLUSTER_ANSWERS,
        "self._assignment, self._encoded = read, None",
        "self._assignment = read",
        "P11: a server tells clients for ever the assignment that it was first asked for",
        seed=54,
    ),
    "one-id-for-all-clients": Mutation(
        _CLUSTER_ANSWERS,
        "ids.append(await self._coordinator.unique_id())",
        "ids.append(self.server)",
        "P6: clients have one id, and each takes the other's appends for its own",
        seed=9,
    ),
    **COORDINATOR_MUTATIONS,
    **DELIVERY_MUTATIONS,
    **HISTORY_MUTATIONS,
    **MODEL_MUTATIONS,
    **OUTSIDE_MUTATIONS,
    **OWNERSHIP_MUTATIONS,
    **TARGET_MUTATIONS,
    **VIEW_MUTATIONS,
}
