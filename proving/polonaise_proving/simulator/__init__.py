"""The simulator: runs whole clusters in one thread, with every fault that a seed draws, and checks the promises.

The nodes run the code of production; only their machines are simulated. Begin with `schedule`: one run of one seed.

- The machines: `world` has them all, `environment` what they share; `loop` is virtual time, `process` one life of a
  node, which a crash ends at any await; `network`, `transport`, `disk` and `coordinator` fail as the real ones do.
- The cluster and its trouble: `cluster`, `nemesis`, `diskfaults`, `trials`, `disaster`, `headresetting`; its work:
  `workload`. Its operators, in few seeds: `archivist`, `storagemoving`, `memberschanging`, `requirementchanges`,
  `resetoperators`.
- The verdict: `observations` has what clients asked and were told, `diskaudit` reads the disks, `checkers` compares the
  two promise by promise; `ownershipcheck` looks at who owns what. `mutations` are bugs put in on purpose that must be
  found.

A new step of the work, a new fault or a new checker is one function beside the others. But one more draw from a
generator that is in use changes what every seed means, also the seeds that tests keep: draw from a generator of your
own, `World.random(name)`. `loop` must stay deterministic. Nothing in the library imports this package.
"""

from polonaise_proving.simulator.configuration import (
    ClockConfiguration,
    Configuration,
    DiskConfiguration,
    NetworkConfiguration,
)
from polonaise_proving.simulator.environment import ProcessFailed
from polonaise_proving.simulator.loop import Deadlock, StepsExceeded
from polonaise_proving.simulator.process import Process
from polonaise_proving.simulator.world import Machine, World

__all__ = [
    "ClockConfiguration",
    "Configuration",
    "Deadlock",
    "DiskConfiguration",
    "Machine",
    "NetworkConfiguration",
    "Process",
    "ProcessFailed",
    "StepsExceeded",
    "World",
]
