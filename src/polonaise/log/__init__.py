"""One partition's log on one disk: batches, segments, indexes, the control file, and what is known after a crash.

Begin with `partitionlog.py`, the open log. `batch.py` has the bytes that every other part passes on; `segment.py` the
files as bytes, with their indexes; `recovery.py` what the files say after a crash; `control.py` what the replica has
promised. A change of bytes changes `docs/formats.md` and its tests as well. The order of writes and
syncs is the promise: try a change of it in the simulator (`make simulate`).
"""
