"""What the LogPlayer paper says of its own measurements (docs/references.md), in ms, as its section 6 states it.

Its figures are drawings without numbers; these are from the text. On 8 processors at 2.0 GHz and 16 GB, in C++ with
gRPC; log, player and targets on one machine, the other two replicas on others.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stated:
    """Mean and 99th percentile that the paper states for one case; as upper bounds where `below`."""

    what: str
    section: str
    mean: float
    p99: float
    below: bool = False

    def told(self, value: float) -> str:
        return f"< {value:g}" if self.below else f"{value:g}"


PLAYER_BY_TARGETS = Stated("LogPlayer delay, 2 to 20 targets, 10 KB", "6.3", 0.32, 0.78, below=True)
PLAYER_BY_SIZE = Stated("LogPlayer delay, 20 targets, 1 to 10 KB", "6.4", 0.31, 0.67, below=True)
APPLY = Stated("apply delay, 10 targets, 10 KB", "6.5", 7.16, 12.47)
APPLY_KAFKA_TRANSACTIONS = Stated("apply delay, 10 targets, 10 KB, Kafka with transactions", "6.5", 45.0, 61.0)
APPLY_KAFKA_TWO_LEVELS = Stated(
    "apply delay of 1,000 transactions of 10 keys, Kafka with a log topic and a player", "6.5", 11_260.0, 21_720.0
)
STATED = (PLAYER_BY_TARGETS, PLAYER_BY_SIZE, APPLY, APPLY_KAFKA_TRANSACTIONS, APPLY_KAFKA_TWO_LEVELS)
KAFKA_PLAIN_P99_SHARE = 0.55
"""Section 6.5: with 20 targets and 10 KB, the paper's p99 of the apply delay as a share of that of Kafka without
transactions ("45% faster")."""
SIZE_GROWTH = 1.12
"""Section 6.4: the apply delay with 10 KB, as a multiple of that with 1 KB, at 20 targets."""
