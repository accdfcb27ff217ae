"""The check of P8: each target has applied the route of the log, each entry once and in order, at every moment.

What a target has applied is read from its disk, as it would be left if the power went, at each of its answers and at
the end: nothing that it believes of itself counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from zlib import crc32

from polonaise.player.protocol.entries import NO_FENCE, Fence, RoutedEntry, TargetName
from polonaise.terms import NO_TRANSACTION, PartitionId, Transaction, TransactionId
from polonaise_proving.judges.rows import mistakes
from polonaise_proving.record.diskaudit import AuditedDisk, FinalLog
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.observations import History
from polonaise_proving.record.targetmemory import MEMORY_FILE, FenceTaken, TargetMemory, decode

PROMISE: Final = "P8 exactly-once delivery"
_PAYLOAD_BYTES: Final = 16


def route(transaction: Transaction, targets: Sequence[TargetName]) -> dict[TargetName, bytes]:
    """Return what each target gets of a transaction: most go to one of them, some to two, and some to none."""
    number = crc32(transaction.data)
    if (number >> 8) % 6 == 0:
        return {}
    first = number % len(targets)
    routed = {targets[first]: transaction.data[:_PAYLOAD_BYTES]}
    if (number >> 16) % 4 == 0:
        routed[targets[(first + 1) % len(targets)]] = b"%d" % number
    return routed


@dataclass(slots=True)
class TargetRecord:
    """What one target's disk was seen to hold."""

    name: TargetName
    disk: AuditedDisk
    raw: bytes = b""
    memory: TargetMemory = field(default_factory=TargetMemory)
    effects: dict[PartitionId, list[RoutedEntry]] = field(default_factory=dict)
    put_back: int = 0
    """How often the disk was put back to an earlier state."""


class JudgedPlayer(Protocol):
    """A player, as far as it is judged: by what it says of itself."""

    def health(self) -> dict[str, Any]: ...


class PlayersProcess(Protocol):
    """The process in which a player runs."""

    @property
    def paused(self) -> bool: ...

    @property
    def dead(self) -> bool: ...


@dataclass(slots=True)
class PlayerLife:
    """One player of one process, from its start to its end."""

    player: JudgedPlayer
    process: PlayersProcess
    calm_since_s: float
    """The virtual time since when it runs without a pause."""


class DeliveryCheck:
    """Looks at the targets' disks and the players' health."""

    def __init__(self, history: History, partitions: int, disks: Mapping[TargetName, AuditedDisk]) -> None:
        self._history = history
        self._partitions = range(partitions)
        self.targets = {name: TargetRecord(name, disk) for name, disk in disks.items()}
        self._names = list(disks)
        self.lives: dict[str, PlayerLife] = {}
        """By name of a node: the player that it runs, if it runs one."""
        self._lacking: dict[tuple[TargetName, PartitionId], tuple[TransactionId, float]] = {}
        """By target and partition: the first id that it lacks, and since when."""
        self.told = 0
        """How often health had to say that something was wrong, and did."""

    def routed(self, who: str, transaction: Transaction) -> dict[TargetName, bytes]:
        """Be the route function of a player, which sees what was committed."""
        self._history.saw(who, transaction)
        return route(transaction, self._names)

    def violated(self, expected: str, seen: str) -> None:
        self._history.violated(PROMISE, expected, seen)

    # ------------------------------------------------------------------ at each answer

    def look(self, name: TargetName) -> TargetRecord:
        """Read what is new on a target's disk, check it, and return all that was read."""
        record = self.targets[name]
        disk = record.disk
        raw = bytes(disk.file(MEMORY_FILE).durable) if MEMORY_FILE in disk.paths() else b""
        if raw == record.raw:
            return record
        known = record.memory.length
        if raw[:known] != record.raw[:known]:
            self.violated(f"what {name} has applied to stay as it is", "other bytes on its disk")
        record.raw = raw
        for step, end in decode(raw, known):
            if isinstance(step, FenceTaken):
                if step.fence <= record.memory.fence:
                    self.violated(f"{name} to take a fence above {record.memory.fence}", f"{step.fence}")
            else:
                effects = record.effects.setdefault(step.partition, [])
                for entry in step.effects:
                    self._check_next(name, step.partition, effects, entry)
                    effects.append(entry)
            record.memory.take([(step, end)])
        return record

    def put_back(self, name: TargetName) -> None:
        """Note that a target's disk was put back to an earlier state, or emptied: what it holds counts from now on."""
        record = self.targets[name]
        self.targets[name] = TargetRecord(name, record.disk, put_back=record.put_back + 1)

    def _check_next(
        self, name: TargetName, partition: PartitionId, effects: Sequence[RoutedEntry], entry: RoutedEntry
    ) -> None:
        last = effects[-1].id if effects else NO_TRANSACTION
        if entry.id <= last:
            self.violated(f"{name} to apply ids of partition {partition} above {last}, once each", f"{entry.id}")
        seen = self._history.seen[partition]
        missing = [id for id in range(last + 1, entry.id) if id in seen and name in route(seen[id], self._names)]
        if missing:
            self.violated(f"{name} to apply {missing[0]} of partition {partition} next", f"{entry.id}")
        if entry.id not in seen or route(seen[entry.id], self._names).get(name) != entry.payload:
            expected = f"what the log has at {entry.id} of partition {partition} for {name}"
            self.violated(expected, f"{entry.payload!r} applied")

    def answered(
        self, name: TargetName, applied: Mapping[PartitionId, TransactionId], accepted: Fence = NO_FENCE
    ) -> None:
        """Check that what a target has just answered is on its disk: what it has applied, and the fence it accepts."""
        memory = self.look(name).memory
        if memory.fence < accepted:
            self.violated(f"{name} to keep {accepted}, as it has answered", f"{memory.fence} on its disk")
        for partition, last in applied.items():
            if memory.last(partition) < last:
                expected = f"{name} to have applied {last} of partition {partition}, as it has answered"
                self.violated(expected, f"{memory.last(partition)} on its disk")

    def applies(self, name: TargetName, fence: Fence) -> None:
        """Check that a target is about to apply a batch under the fence that is on its disk."""
        durable = self.look(name).memory.fence
        if fence != durable:
            self.violated(f"{name} to apply nothing but under {durable}", f"a batch under {fence}")

    # ------------------------------------------------------------------ health

    def lacks(self, name: TargetName, partition: PartitionId) -> TransactionId | None:
        """Return the first known id of the partition that the target has yet to get; None if it has all."""
        record = self.look(name)
        seen = self._history.seen[partition]
        for id in range(record.memory.last(partition) + 1, self._history.told[partition] + 1):
            if id in seen and name in route(seen[id], self._names):
                return id
        return None

    def look_at_health(self, now_s: float, allowed_s: float) -> None:
        """Check that no player is well while a target has lacked the same for longer than `allowed_s`."""
        for life in self.lives.values():
            if life.process.paused:
                life.calm_since_s = now_s
        for name in self._names:
            for partition in self._partitions:
                lacking = self.lacks(name, partition)
                if lacking is None:
                    self._lacking.pop((name, partition), None)
                    continue
                first, since_s = self._lacking.get((name, partition), (-1, 0.0))
                if first != lacking:
                    since_s = now_s
                self._lacking[name, partition] = lacking, since_s
                for who, life in self.lives.items():
                    if now_s - max(since_s, life.calm_since_s) > allowed_s and not life.process.dead:
                        self._check_told(who, life.player, name, partition, lacking)

    def _check_told(
        self, who: str, player: JudgedPlayer, name: TargetName, partition: PartitionId, lacking: TransactionId
    ) -> None:
        health = player.health()
        target, log = health["targets"].get(name, {}), health["partitions"].get(str(partition), {})
        hindered = target.get("state") != "up" or any(
            str(partition) in target.get(kind, {}) for kind in ("hindered", "slow")
        )
        if health["well"] or not (hindered or health["ended"] or log.get("trouble")):
            expected = f"the health of {who} to say what hinders {name}, which lacks {lacking} of partition {partition}"
            self.violated(expected, f"{health}")
        else:
            self.told += 1

    # ------------------------------------------------------------------ the verdict

    def arrived(self) -> bool:
        """Whether each target has all that is its own, and a player is well and says so."""
        if any(self.lacks(name, partition) is not None for name in self._names for partition in self._partitions):
            return False
        return any(
            health["well"] and all(lag == 0 for target in health["targets"].values() for lag in target["lag"].values())
            for health in (life.player.health() for life in self.lives.values())
        )

    def described(self) -> str:
        """Describe what targets lack and what players say, for reports."""
        lacking = {
            f"{name}/{partition}": self.lacks(name, partition) for name in self._names for partition in self._partitions
        }
        healths = [f"{who}: {life.player.health()}" for who, life in self.lives.items()]
        return "\n  ".join([f"told {self._history.told}, lacking {lacking}", *healths])

    def check(self, log: FinalLog) -> Iterator[Violation]:
        """Check what each target has applied of a partition against the log."""
        for name in self._names:
            record = self.look(name)
            last = record.memory.last(log.partition)
            transactions = [each for each in log.transactions[: last + 1] if not each.own]
            routes = [(each.id, route(each, self._names)) for each in transactions]
            expected = [RoutedEntry(id, payloads[name]) for id, payloads in routes if name in payloads]
            applied = record.effects.get(log.partition, [])
            for mistake in mistakes(f"target {name}", {log.partition: expected}, {log.partition: applied}):
                yield Violation(PROMISE, f"the route of the log up to {last}", mistake)
            if last >= len(log):
                seen = f"{name} has applied {last} of partition {log.partition}"
                yield Violation(PROMISE, f"nothing above {len(log) - 1}, where the log ends", seen)
