"""Planted bugs: each is one changed line of production code that breaks one promise, to show that it would be noticed.

    python -m polonaise.simulator --plant quorum-of-one

A plant is put in while its module is loaded, so nothing of `polonaise` that it changes may be loaded before. The old
text has to be in the module exactly once: a plant that the code has outgrown is an error, and not a silent pass.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any, Final, NamedTuple


class Plant(NamedTuple):
    """One planted bug."""

    module: str
    old: str
    new: str
    breaks: str
    """The promise that it breaks, and how."""


class PlantDoesNotTake(Exception):
    """The module has changed, or is loaded already."""


class _PlantedLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, plant: Plant) -> None:
        super().__init__(fullname, path)
        self._plant = plant

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        found = source.count(self._plant.old)
        if found != 1:
            raise PlantDoesNotTake(f"{self._plant.old!r} is {found} times in {fullname}, not once")
        return compile(source.replace(self._plant.old, self._plant.new), self.path, "exec")


class _PlantedFinder(importlib.abc.MetaPathFinder):
    def __init__(self, plant: Plant) -> None:
        self._plant = plant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._plant.module:
            return None
        found: Any = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is None or found.origin is None:
            raise PlantDoesNotTake(f"there is no module {fullname}")
        loader = _PlantedLoader(fullname, found.origin, self._plant)
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


def put_in(name: str) -> None:
    """Make the module of this plant load with its bug. Raises `PlantDoesNotTake`."""
    plant = PLANTS.get(name)
    if plant is None:
        raise PlantDoesNotTake(f"no plant {name!r}: there are {', '.join(sorted(PLANTS))}")
    if plant.module in sys.modules:
        raise PlantDoesNotTake(f"{plant.module} is loaded already")
    sys.meta_path.insert(0, _PlantedFinder(plant))


_RECOVERY: Final = "polonaise.server.protocol.recovery"
_REPLICA: Final = "polonaise.storage.protocol.replica"
_OPENING: Final = "polonaise.server.opening"
_OWNER: Final = "polonaise.server.owner"
_WRITING: Final = "polonaise.server.writing"

PLANTS: Final[dict[str, Plant]] = {
    "acknowledge-before-sync": Plant(
        "polonaise.log.tail",
        "await self.file.write(start, buffers, sync=True)",
        "await self.file.write(start, buffers)",
        "P1: acknowledged bytes are lost with the power",
    ),
    "quorum-of-one": Plant(
        _RECOVERY,
        "return len(members) // 2 + 1",
        "return 1",
        "P1: what one replica holds counts as committed",
    ),
    "stale-replica-says-has-not": Plant(
        _RECOVERY,
        "return answer.joined < engagement.session",
        "return answer.joined == -1",
        "P1: an old disk votes as if it were the present one",
    ),
    "wiped-replica-says-has-not": Plant(
        _RECOVERY,
        "return answer.joined < engagement.session",
        "return -1 < answer.joined < engagement.session",
        "P1: an empty disk votes as if nothing had ever been there",
    ),
    "damaged-replica-says-has-not": Plant(
        _RECOVERY,
        "        if held.lost_above is not None:\n            doubted.append(name)\n",
        "",
        "P1: a replica that may have lost votes as if it had not",
    ),
    "skip-the-fence": Plant(
        _REPLICA,
        "            refused = self._refused_store(request)\n",
        "            refused = None\n",
        "P2: an owner that was fenced out goes on writing",
    ),
    "fence-not-on-disk": Plant(
        "polonaise.log.control",
        "await self._control.write_copy(self.partition, target, sector, sync=True)",
        "await self._control.write_copy(self.partition, target, sector, sync=False)",
        "P2, P11: promises are told before they are durable",
    ),
    "loss-mark-forgotten-after-copy": Plant(
        _REPLICA,
        "        return [Append(batches), TellEnd()]",
        "        return [Append(batches), Save(replace(self.promises, lost_above=UNRESOLVED)), TellEnd()]",
        "P1: a damaged replica that was partly repaired votes as if it were whole",
    ),
    "failed-sync-taken-for-a-loss": Plant(
        "polonaise.log.control",
        "await self.save(self.promises.distrusted(last))",
        "await self.save(self.promises.lost(last))",
        "P11: a majority that could not sync a batch waits for ever for what nobody acknowledged",
    ),
    "fence-and-joined-confused": Plant(
        "polonaise.storage.partition",
        "joined=promises.joined,",
        "joined=promises.fence,",
        "P1: a copy that was fenced once looks as if it had taken part",
    ),
    "feed-or-refuse-before-metadata": Plant(
        _OPENING,
        "        await self._engage(value, claimed.version)\n",
        "        self._report.__self__._settle("
        "Opened(value, decided.closing, decided.last_crc, time_us, values, {}))"
        "; await self._engage(value, claimed.version)\n",
        "P6: fates are told before the engagement makes them certain",
    ),
    "append-before-metadata": Plant(
        _OPENING,
        "        await self._engage(value, claimed.version)\n",
        "        self._host.spawn(self._engage(value, claimed.version), 'engage')\n",
        "P1: appends are sent, and committed, in a session that nobody may know of",
    ),
    "feed-before-commit": Plant(
        _WRITING,
        "        message = Store(",
        "        batch and self._on_committed(Flight(0, batch, ())); message = Store(",
        "P4: batches are fed when they are sent",
    ),
    "truncate-too-far": Plant(
        _RECOVERY,
        "        if held.max_synced > closing:\n",
        "        if not sources or held.max_synced < closing:\n",
        "P1: the log is cut to the shortest copy instead of the longest",
    ),
    "lock-table-reset-to-zero": Plant(
        _OWNER,
        "locks=LockTable(opened.closing, self._settings.lock_entries)",
        "locks=LockTable(-1, self._settings.lock_entries)",
        "P5: a new session forgets what was locked before it",
    ),
    "count-a-replica-that-is-not-engaged": Plant(
        _OPENING,
        "value = recovery.engage(claimed.value, clean, decided.closing)",
        "value = recovery.engage(claimed.value, sorted(clean)[: len(claimed.value.members) // 2 + 1], decided.closing)",
        "P1: acknowledgements count of which the coordinator does not know",
    ),
    "settle-a-committed-append-as-failed": Plant(
        _OWNER,
        "if batch.last < opened.closing or (batch.last == opened.closing and batch.crc == opened.last_crc):",
        "if batch.last < opened.closing:",
        "P6: an append in flight that recovery kept is told to have failed",
    ),
    "group-split-over-two-batches": Plant(
        "polonaise.client.protocol.packing",
        "    live = [out for out in waiting if out[0].failure is None]\n",
        "    live = [(*out[:7], True) for out in waiting if out[0].failure is None]\n",
        "P9: a group travels, and is judged, as single transactions",
    ),
    "register-change-lost-at-roll": Plant(
        "polonaise.log.partition",
        "preamble = registers.snapshot(tail.found.registers)",
        "preamble = registers.snapshot(dict(list(tail.found.registers.items())[:-1]))",
        "P2: a new segment begins without the last register",
    ),
    "trim-without-looking-whether-it-is-archived": Plant(
        "polonaise.server.trimming",
        "    await _check_archived(owner, owner.history, request)\n",
        "",
        "P1: what no fragment holds is dropped from every replica",
    ),
    "trim-above-confirmed": Plant(
        _REPLICA,
        "        return [DropBelow(before)]",
        "        return [DropBelow(2**62)]",
        "P1: a replica drops what it does not know to be committed",
    ),
    "trim-before-it-is-noted": Plant(
        "polonaise.log.partition",
        "        await self.slot.begin_trim(Trimmed(following.first, following.previous_crc))\n",
        "",
        "P10: what was dropped looks like damage",
    ),
    "fragments-ahead-not-checked": Plant(
        "polonaise.server.history",
        "    if highest > closing:\n",
        "    if False:\n",
        "P13: a log that has gone back to an earlier day goes on, and gives ids out again",
    ),
    "store-without-its-mark-believed": Plant(
        "polonaise.fragments.history",
        "        if not await self._asked(is_marked(self._store, self._cluster_key)):\n",
        "        if False:\n",
        "P13: a log that has gone back to an earlier day goes on where its store is not mounted",
    ),
    "wiped-replica-not-filled-from-fragments": Plant(
        "polonaise.server.history",
        "    if trimmed is None:\n",
        "    if True:\n",
        "P11: once something is trimmed, a new disk never comes back",
    ),
    "rest-of-a-part-left-out": Plant(
        "polonaise.client.reading",
        "        if self._ahead is not None and self._first <= asked.last:\n",
        "        if False:\n",
        "P3: of a range that is read in parts side by side, what an answer had no room for never comes",
    ),
}
