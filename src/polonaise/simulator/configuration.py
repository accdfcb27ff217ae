"""The settings of a simulated world: how slow its links and disks are, and how often something fails by itself.

The chances are for faults that strike anywhere; scenarios inflict the directed ones (crashes, partitions, damage)
themselves. With the defaults nothing fails by itself. All times are in virtual seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NetworkConfiguration:
    """How links and connections behave."""

    latency_s: float = 0.0002
    """The least time that a byte needs from one machine to another."""
    jitter_s: float = 0.0003
    """The most that is added to `latency_s`, drawn evenly from 0 on."""
    loopback_s: float = 0.00002
    """The least time that a byte needs within one machine; up to as much again is added."""
    delay_chance: float = 0.0
    """The chance of a chunk to be delayed by up to `delay_s`. What is behind it on the same connection waits, too."""
    delay_s: float = 0.3
    split_chance: float = 0.05
    """The chance of a write to arrive in two pieces."""
    merge_chance: float = 0.5
    """The chance of a read to get everything that lies ready in one piece."""
    window_bytes: int = 256 * 1024
    """Bytes that may be on their way or unread in one direction of a connection; more waits at the sender."""
    reset_chance: float = 0.0
    """The chance of a write to have its connection reset."""
    flip_chance: float = 0.0
    """The chance of a chunk to arrive with one bit wrong."""
    partition_reset_chance: float = 0.3
    """The chance of a connection to be ended by a partition that held something of it back: when the partition heals,
    or before by a time-out of one end."""
    connect_tries: int = 6
    """How many times in all a connect without an answer is tried; the pauses between are 1, 2, 4, … seconds."""


@dataclass(frozen=True, slots=True)
class DiskConfiguration:
    """How a disk behaves."""

    operation_s: float = 0.00005
    """The least time that a call needs; up to as much again is added."""
    sync_s: float = 0.0005
    """The least time that a sync needs; up to twice as much again is added."""
    spike_chance: float = 0.0
    """The chance of a call to take up to `spike_s` longer."""
    spike_s: float = 0.5


@dataclass(frozen=True, slots=True)
class ClockConfiguration:
    """How wrong the wall clocks of machines are."""

    offset_s_max: float = 0.5
    """The most by which a wall clock is ahead or behind at the start."""
    drift_max: float = 0.0001
    """The most that a wall clock gains or loses in each second."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of one world."""

    network: NetworkConfiguration = field(default_factory=NetworkConfiguration)
    disk: DiskConfiguration = field(default_factory=DiskConfiguration)
    clock: ClockConfiguration = field(default_factory=ClockConfiguration)
    steps_max: int = 2_000_000
    """The number of handles that a schedule may run before it counts as endless."""
    record: bool = False
    """Whether the trace is kept as readable lines, too."""
