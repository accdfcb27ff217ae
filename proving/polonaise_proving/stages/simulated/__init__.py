"""The simulated machine: whole clusters in one thread, with virtual time, in which everything follows from a seed.

The nodes run the code of production; only their machines are simulated.

- `world` has all machines, `environment` what they share: time, randomness, the trace, and how slow links and disks
  are, and how often they fail by themselves.
- `loop` is virtual time; `process` is one life of a node, which a crash ends at any await.
- `network` and `transport`, `disk`, `diskimages` and `disk_port`, `coordinator` and `object_store` fail as real ones.
- `cluster` puts them together: storage nodes, servers, applications. `observer` looks at a cluster, and waits for the
  state that promises demand of it.

One more draw from a generator that is in use changes what every seed means, also the seeds that tests keep: draw from a
generator of your own, `World.random(name)`. `loop` must stay deterministic.
"""

from polonaise_proving.stages.simulated.environment import (
    ClockConfiguration,
    Configuration,
    DiskConfiguration,
    NetworkConfiguration,
    ProcessFailed,
)
from polonaise_proving.stages.simulated.loop import Deadlock, StepsExceeded
from polonaise_proving.stages.simulated.process import Process
from polonaise_proving.stages.simulated.world import Machine, World

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
