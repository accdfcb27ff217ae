"""The smoke test: a whole cluster at work while its parts are killed, stopped, cut off, wiped and moved.

Three ZooKeeper servers, three storage nodes, three servers, two clients with SQL views and an archiver, each on a host
of its own where the machine allows it. Everything that a client asked, was told and was fed is written down; at the end
that is held against the log, the replicas, the archive and the views. Begin with `run.py`.

- `protocol/`: decisions and checks without a clock, files or processes. `schedule.py` draws the faults from a seed,
  `checks.py` compares a recorded history with the promises.
- `hosts.py`: network namespaces on a bridge, or this machine's loopback; `leftovers.py`: what a killed run has left.
- `town.py`: all processes of one run; `parts.py`: each of them; `injection.py`: how each kind of fault is inflicted.
- `client.py`: the program of one client process; `journal.py`: what it writes down; `ledger.py`: its SQL view.
- `evidence.py`: collects the history once all is over; `state.py`: how far a run has come; `report.py`: the report.

A further kind of fault is an entry of `protocol/faults.py` and two functions in `injection.py`.
"""
