"""What the cluster must never forget, and who is alive.

- `coordinator.py`: the coordinator as servers and clients use it, and all of its rules. Begin here.
- `values.py`: what it keeps; `lease.py`: who counts as alive.
- `backend.py`: the port to what keeps the bytes, for whoever writes another backend. `file.py` is the one of
  production, a directory of one machine, on the files and locks of `directory.py`; the simulator has its own.
  `tests/conformance/test_coordinator.py` runs on each.

Storage nodes never talk to it.
"""

from __future__ import annotations

from polonaise.coordination.coordinator import Coordinator, Membership

__all__ = ["Coordinator", "Membership"]
