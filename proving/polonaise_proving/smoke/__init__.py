"""The smoke test: a whole cluster at work while its parts are killed, stopped, cut off, wiped, moved and set wrong.

Three ZooKeeper servers, three storage nodes, three servers, two clients with SQL views and an archiver, each on a host
of its own where the machine allows it. Everything that a client asked, was told and was fed is written down; at the end
that is held against the log, the replicas, the archive and the views. Begin with `run.py`.

- `protocol/`: decisions and checks without a clock, files or processes. `schedule.py` draws the faults from a seed,
  `checks.py` compares a recorded history with the promises, `told.py` what the cluster's status says with the faults.
- `hosts.py`: network namespaces on a bridge, or this machine's loopback; `leftovers.py`: what a killed run has left;
  `losses.py`: a host that loses packets.
- `town.py`: all processes of one run; `parts.py`: each of them; `injection.py`: how each kind of fault is inflicted;
  `clocked.py`: runs a node by a wall clock that the run sets.
- `client.py`: the program of one client process; `journal.py`: what it writes down; `ledger.py`: its SQL view.
- `evidence.py`: collects the history once all is over; `state.py`: how far a run has come; `report.py`: the report.

A further kind of fault is an entry of `protocol/faults.py`, two functions in `injection.py`, and what the status has to
say of it in `protocol/told.py`.
"""
