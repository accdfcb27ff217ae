"""Records: what is noted of a run, for judges to look at.

Of a schedule in the simulated machine: `observations` has what clients asked, were told and saw; `diskaudit` reads what
lies on disks, without the code of the storage node, and `fragmentaudit` what fragments hold; `targetmemory` what a
target has applied; `trace` has all events, and `faultcounts` the faults that took effect. `failures` says what fails a
schedule. Of a smoke test: `smoke/`.

Nothing here knows who does the work, or on which stage.
"""
