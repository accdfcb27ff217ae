"""Whole clusters in one thread from one seed: the machine on which the unchanged node code is put through every fault.

`World` is where a schedule starts. `loop` has virtual time and knows whose every callback is; `network`, `transport`
and `disk` fail as the real ones do; `process` is one life of a node, which a crash ends at any await. Nothing imports
this package.
"""

from polonaise.simulator.configuration import (
    ClockConfiguration,
    Configuration,
    DiskConfiguration,
    NetworkConfiguration,
)
from polonaise.simulator.faultcounts import FAULTS, FaultCounts
from polonaise.simulator.loop import Deadlock, Killed, ScheduleFailed, StepsExceeded
from polonaise.simulator.process import Process
from polonaise.simulator.world import Machine, ProcessFailed, World

__all__ = [
    "FAULTS",
    "ClockConfiguration",
    "Configuration",
    "Deadlock",
    "DiskConfiguration",
    "FaultCounts",
    "Killed",
    "Machine",
    "NetworkConfiguration",
    "Process",
    "ProcessFailed",
    "ScheduleFailed",
    "StepsExceeded",
    "World",
]
