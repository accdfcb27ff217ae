"""Records: what is noted of a run, for judges to look at.

What judges read of each partition is a `partitionrecord`. Of real processes: `history` has all of one partition, which
`evidence` collects: from the `journal` that each client writes, from files, and from the `bankledger`, a view of the
`bank`; `serializability` finds, by the log's own evidence, what was built on stale state. `sampling` has what processes
hold. Of a schedule in the simulated machine: a `schedulerecord`; `observations` has what clients asked, were told and
saw; `diskaudit` reads what lies on disks, without the code of the storage node, and `fragmentaudit` what fragments
hold; `targetmemory` what a target has applied; `trace` has all events, and `faultcounts` the faults that took effect.
`failures` says what fails a run, `faultkinds` what can go wrong with a node, and a `keptreport` is one by which an
interrupted run goes on.

Nothing here knows who does the work, or on which stage.
"""
