"""The smoke test: a whole cluster at work while its parts are killed, stopped, cut off, wiped and moved.

Three ZooKeeper servers, three storage nodes, three servers, two clients with SQL views and an archiver, each on a host
of its own where the machine allows it. Everything that a client asked, was told and was fed is written down; at the end
that is held against the log, the replicas, the archive and the views. Begin with `run.py`.

- `protocol/`: decisions and checks without a clock, files or processes. `schedule.py` draws the faults from a seed,
  `checks.py` compares a recorded history with the promises.
- `hosts.py`: network namespaces on a bridge, or this machine's loopback with relays; `leftovers.py`: what a killed run
  has left behind.
- `town.py`: the processes of one run, and what is done to each; `injection.py`: each kind of fault.
- `client.py`: the program of one client process; `journal.py`: what it writes down; `ledger.py`: its SQL view.
- `evidence.py`: collects the history once all is over; `report.py`: the report.

A further kind of fault is an entry of `protocol/faults.py` and a function in `injection.py`.
"""
