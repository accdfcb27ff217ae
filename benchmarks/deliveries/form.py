"""What a transaction and an entry look like, and which targets a transaction concerns. Needs no Polonaise."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

HEAD = struct.Struct("<qIHH")
"""The head of a transaction: when it was committed, its number, its number of keys, and the bytes of each value.

Behind it stands one byte for each key, the number of its target, and then the values.
"""
STAMPS = struct.Struct("<qqI")
"""The head of an entry: when the transaction was committed, when it was dispatched, and its number."""
CHOICES = 1_000
"""The number of choices of targets; they come in turn."""
LATE = "late"
"""The target that a transaction without keys is for."""
LATE_BYTES = 100
"""The bytes of a transaction without keys."""


@dataclass(frozen=True)
class Workload:
    """Transactions of some keys over some targets: as many different ones as there are keys, if there are so many."""

    targets: int
    keys: int = 10
    value_bytes: int = 1_024

    @property
    def names(self) -> list[str]:
        return [name_of(number) for number in range(self.targets)]

    @property
    def kilobytes(self) -> int:
        """The size of a transaction."""
        return self.keys * self.value_bytes // 1_024

    @property
    def deliveries(self) -> int:
        """The number of targets that a transaction goes to."""
        return min(self.keys, self.targets)

    def transactions(self) -> Transactions:
        return Transactions(self)

    def plain(self) -> dict[str, int]:
        """Return it as JSON can carry it; `Workload(**plain)` makes it again."""
        return asdict(self)


class Transactions:
    """Makes the transactions of a workload: the same ones each time, but for their times."""

    def __init__(self, workload: Workload) -> None:
        chance = random.Random(workload.targets * 1_000 + workload.keys)
        places = range(workload.targets)
        self._workload = workload
        self._choices = [
            bytes(chance.sample(places, workload.keys))
            if workload.keys <= workload.targets
            else bytes(key % workload.targets for key in range(workload.keys))
            for _ in range(CHOICES)
        ]
        self._values = chance.randbytes(workload.keys * workload.value_bytes)

    def targets_of(self, number: int) -> bytes:
        """Return the number of the target of each key of this transaction."""
        return self._choices[number % CHOICES]

    def transaction(self, number: int) -> bytes:
        """Return a transaction that is committed now."""
        workload = self._workload
        head = HEAD.pack(time.monotonic_ns(), number, workload.keys, workload.value_bytes)
        return b"".join((head, self.targets_of(number), self._values))

    def expected(self, first: int, count: int) -> dict[str, int]:
        """Return how many entries each target gets of so many transactions."""
        entries = dict.fromkeys(self._workload.names, 0)
        for number in range(first, first + count):
            for target in set(self.targets_of(number)):
                entries[name_of(target)] += 1
        return entries


class HasData(Protocol):
    """A transaction of the log."""

    @property
    def data(self) -> bytes: ...


def late_transaction(number: int) -> bytes:
    """Return a transaction for the target `LATE` alone."""
    return HEAD.pack(time.monotonic_ns(), number, 0, 0).ljust(LATE_BYTES, b".")


def route(tx: HasData) -> Mapping[str, bytes]:
    """Return each target's entry of a transaction: the times so far, and the values of its keys."""
    return dict(entries_of(tx.data))


def entries_of(data: bytes) -> Sequence[tuple[str, bytes]]:
    """Return the entries of a transaction that is dispatched now, by target."""
    dispatched_ns = time.monotonic_ns()
    committed_ns, number, keys, value_bytes = HEAD.unpack_from(data)
    if not keys:
        return [(LATE, data)]
    stamps = STAMPS.pack(committed_ns, dispatched_ns, number)
    values: dict[int, list[bytes]] = {}
    start = HEAD.size + keys
    for target in data[HEAD.size : start]:
        stop = start + value_bytes
        values.setdefault(target, [stamps]).append(data[start:stop])
        start = stop
    return [(name_of(target), b"".join(parts)) for target, parts in values.items()]


def name_of(number: int) -> str:
    """Return the name of a target."""
    return f"target-{number}"


class Notes:
    """What one target notes of the entries that it receives: their number and, unless told otherwise, their times."""

    def __init__(self, *, with_times: bool = True) -> None:
        self.count = 0
        self.first_ns = 0
        self.last_ns = 0
        self._with_times = with_times
        self._times: list[tuple[int, int, int, int]] = []

    def received(self, payloads: Sequence[bytes | None], now_ns: int) -> None:
        """Note entries that have arrived together."""
        self.first_ns = self.first_ns or now_ns
        self.last_ns = now_ns
        self.count += len(payloads)
        if self._with_times:
            self._times += [(*STAMPS.unpack_from(payload), now_ns) for payload in payloads if payload is not None]

    def told(self) -> dict[str, Any]:
        """Return all, as JSON can carry it; the times are told once."""
        times, self._times = self._times, []
        return {"count": self.count, "first_ns": self.first_ns, "last_ns": self.last_ns, "times": times}
