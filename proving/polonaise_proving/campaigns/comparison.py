"""What processes were told, compared with what is in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from polonaise_proving.campaigns import journal
from polonaise_proving.campaigns.journal import JournalLine


@dataclass
class FateComparison:
    """How many operations were compared, and a text for each mistake."""

    asked: int = 0
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    """Operations never answered, because the process was killed or gave up first: the log may have them or not."""
    transactions: int = 0
    wrong: list[str] = field(default_factory=list)


def operation_of(data: bytes) -> str:
    """Return the name of the operation that appended this body: its first word."""
    return data.partition(b" ")[0].decode()


def compare(
    logs: Mapping[int, Mapping[int, bytes]], lines: Iterable[JournalLine], partition_of: Callable[[str], int]
) -> FateComparison:
    """Compare `logs`, the bodies by partition and id, with the lines of all processes."""
    comparison = FateComparison(transactions=sum(map(len, logs.values())))
    times = Counter(operation_of(data) for log in logs.values() for data in log.values() if data)
    asked: set[str] = set()
    acknowledged: dict[str, int] = {}
    failed: set[str] = set()
    for line in lines:
        operation = line.operation
        if line.kind == journal.ASK:
            asked.add(operation)
        elif line.kind == journal.ACK:
            if acknowledged.setdefault(operation, line.id) != line.id:
                comparison.wrong.append(f"{operation} was acknowledged as {acknowledged[operation]} and as {line.id}")
        elif line.kind == journal.FAIL:
            failed.add(operation)
        elif line.kind == journal.WRONG:
            comparison.wrong.append(operation)
    for operation, id in acknowledged.items():
        body = logs[partition_of(operation)].get(id)
        if body is None or operation_of(body) != operation:
            comparison.wrong.append(f"{operation} was acknowledged as {id}, and is not there")
    comparison.wrong += [
        f"{operation} was reported failed, and is in the log" for operation in failed if times[operation]
    ]
    comparison.wrong += [f"{operation} is in the log {count} times" for operation, count in times.items() if count > 1]
    comparison.wrong += [f"{operation} is in the log, and nobody asked for it" for operation in times.keys() - asked]
    comparison.asked, comparison.acknowledged, comparison.failed = len(asked), len(acknowledged), len(failed)
    comparison.unknown = len(asked - acknowledged.keys() - failed)
    return comparison
