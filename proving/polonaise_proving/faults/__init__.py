"""Faults: what goes wrong in a scenario, or is changed by operators while clients work.

- At any moment of a schedule, mixed by `nemesis`: crashes, cuts, slow links, faults of disks; `clockfaults` of its own.
- By `operators`, in few seeds, and by an owner that does what no server does: `doubleowner`.
- Late, when all is well: `disaster`, and `headresetting` with the operators of that.

On real processes: `dealing` says which faults of `record.faultkinds` come when in a smoke test, and `hostfaults` how
each is inflicted and ended. Other campaigns choose a victim and a moment, and need no more than the port of a process.
"""
