"""What a simulated machine is like: how slow its links and disks are, and what goes wrong by itself.

The chances are for faults that strike anywhere; scenarios inflict the directed ones (crashes, partitions, damage)
themselves. With the defaults nothing fails by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NetworkConfiguration:
    latency_s: float = 0.0002
    """The least that a byte needs between two machines."""
    jitter_s: float = 0.0003
    """Added evenly from 0 up to this."""
    loopback_s: float = 0.00002
    """Within one machine; jitter is as much again."""
    delay_chance: float = 0.0
    """Per chunk: a delay of up to `delay_s` on top. What is behind it on the same connection waits too."""
    delay_s: float = 0.3
    split_chance: float = 0.05
    """Per write: the receiver gets it in two pieces."""
    merge_chance: float = 0.5
    """Per read: everything that lies ready comes as one piece."""
    window_bytes: int = 256 * 1024
    """Bytes of one direction of a connection on their way or unread; more has to wait in the sender."""
    reset_chance: float = 0.0
    """Per write: the connection is reset."""
    flip_chance: float = 0.0
    """Per chunk: one bit of it arrives wrong."""
    partition_reset_chance: float = 0.3
    """Per connection: a partition that held something back ends it, at healing or before by a time-out of one side."""
    connect_tries: int = 6
    """Unanswered connects are tried again after 1, 2, 4, … seconds, so many times in all."""


@dataclass(frozen=True, slots=True)
class DiskConfiguration:
    operation_s: float = 0.00005
    """The least that any call needs; jitter is as much again."""
    sync_s: float = 0.0005
    """The least that a sync needs; jitter is twice as much again."""
    spike_chance: float = 0.0
    """Per call: the disk takes up to `spike_s` longer."""
    spike_s: float = 0.5
    sync_failure_chance: float = 0.0
    write_failure_chance: float = 0.0
    read_failure_chance: float = 0.0
    capacity_bytes: int | None = None
    """Of all files together; None for no limit."""


@dataclass(frozen=True, slots=True)
class ClockConfiguration:
    offset_s_max: float = 0.5
    """Wall clocks of machines are off by up to this, either way."""
    drift_max: float = 0.0001
    """And run too fast or too slow by up to this share."""


@dataclass(frozen=True, slots=True)
class Configuration:
    network: NetworkConfiguration = field(default_factory=NetworkConfiguration)
    disk: DiskConfiguration = field(default_factory=DiskConfiguration)
    clock: ClockConfiguration = field(default_factory=ClockConfiguration)
    steps_max: int = 2_000_000
    """Handles that a schedule may run before it counts as endless."""
    record: bool = False
    """Keep the trace as readable lines."""
