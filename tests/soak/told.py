"""What clients were told, compared with what is in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from . import journal
from .journal import Line


@dataclass
class Comparison:
    """What was compared, and everything that is wrong."""

    asked: int = 0
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    """Given up before an answer came: they may be in the log or not."""
    transactions: int = 0
    wrong: list[str] = field(default_factory=list)


def body(operation: str, padding: int = 0) -> bytes:
    """A transaction's body: whose it is, and bytes of no meaning."""
    return f"{operation} ".encode() + bytes(padding)


def operation_of(data: bytes) -> str:
    return data.partition(b" ")[0].decode()


def partition_of(operation: str) -> int:
    return int(operation.split("/")[1])


def compare(logs: Mapping[int, Mapping[int, bytes]], lines: Iterable[Line]) -> Comparison:
    """`logs`: by partition, the bodies by id."""
    comparison = Comparison(transactions=sum(map(len, logs.values())))
    times = Counter(operation_of(data) for log in logs.values() for data in log.values() if data)
    asked: set[str] = set()
    acknowledged: dict[str, int] = {}
    failed: set[str] = set()
    for kind, operation, id in lines:
        if kind == journal.ASK:
            asked.add(operation)
        elif kind == journal.ACK:
            if acknowledged.setdefault(operation, id) != id:
                comparison.wrong.append(f"{operation} was acknowledged as {acknowledged[operation]} and as {id}")
        elif kind == journal.FAIL:
            failed.add(operation)
        elif kind == journal.WRONG:
            comparison.wrong.append(operation)
    for operation, id in acknowledged.items():
        held = logs[partition_of(operation)].get(id)
        if held is None or operation_of(held) != operation:
            comparison.wrong.append(f"{operation} was acknowledged as {id}, and is not there")
    comparison.wrong += [
        f"{operation} was reported failed, and is in the log" for operation in failed if times[operation]
    ]
    comparison.wrong += [f"{operation} is in the log {count} times" for operation, count in times.items() if count > 1]
    comparison.wrong += [f"{operation} is in the log, and nobody asked for it" for operation in times.keys() - asked]
    comparison.asked, comparison.acknowledged, comparison.failed = len(asked), len(acknowledged), len(failed)
    comparison.unknown = len(asked - acknowledged.keys() - failed)
    return comparison
