"""The coordinator: what the cluster must never forget, and which processes are alive.

- `coordinator.py`: the coordinator as servers and clients use it, with all of its rules. Begin here.
- `values.py`: the values that it keeps, with what commits need beside a quorum; `seen.py`: which are believed;
  `lease.py`: which members count as alive; `rebuilding.py`: how lost ones are made again.
- `backend.py`: the port to what keeps the bytes, for a new backend to implement. `file.py` is the backend of one
  machine, a directory, on the files and locks of `directory.py`; `zookeeper.py` that of several machines, in a session
  of `zookeepersession.py`; the simulator has its own. `tests/conformance/test_coordinator.py` runs on each.
- `topics.py`: the partitions of a topic; `memberchanges.py`: the rules for where copies of partitions may go.

A rule belongs into `coordinator.py`, never into a backend. Storage nodes never talk to the coordinator.
"""

from __future__ import annotations

from polonaise.coordination.coordinator import Coordinator, Membership

__all__ = ["Coordinator", "Membership"]
