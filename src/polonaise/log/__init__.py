"""One partition's log on one disk: batches, segments, indexes, the control file, and what is known after a crash.

- `partitionlog.py`: the open log; append, read, cut, trim. Begin here.
- `batch.py`: the bytes that every other part passes on; `registers.py` and `producers.py`: what is kept in them.
- `segment.py`, `index.py`: the files as bytes; `tail.py` writes the last one, `segmentreader.py` reads all of them.
- `recovery.py`: what the files say after a crash: torn tail, or damage.
- `control.py`, `promises.py`: what the replica has promised, and up to where it had synced.
- `digest.py`, `segmentscrub.py`, `serializability.py`: checks of a log.

A change of bytes changes `docs/formats.md` and its tests as well. The order of writes and syncs is the promise: try a
change of it in the simulator (`make simulate`). But for a torn tail, `storage/protocol` decides what is cut, and when.
"""
