"""The smoke test: a whole cluster at work while its parts are killed, stopped, cut off, wiped, moved and set wrong.

Three ZooKeeper servers, three storage nodes, three servers, two clients with SQL views and an archiver, each on a host
of its own where the machine allows it. Everything that a client asked, was told and was fed is written down; at the end
that is held against the log, the replicas, the archive and the views. Begin with `run`; `report` says what came of it.

Its other parts are in the rooms beside: its hosts and processes in `stages/hosts`, its client in `work/bankclient.py`,
its faults in `faults/dealing.py` and `faults/hostfaults.py`, what is written down in `record`, and what compares that
with the promises in `judges/histories.py`.

A further kind of fault is a member of `FaultKind` and an entry of `KINDS`, both in `record/faultkinds.py`, a row of the
table in `docs/testing.md`, and a new digest in `tests/smoke/test_smoke_schedule.py`; what else there is to do says
`tests/smoke/test_smoke_kinds.py`. Links are cut in `stages/hosts/hosts.py`.
"""
