"""Fragments: sealed history as immutable Parquet files in an object store.

Begin with `objects.py`: fragments written, listed, verified and written again in a store. `format.py` turns batches
into a fragment's bytes and back, exactly; `store.py` is the port to object stores; `history.py` gives servers batches
out of fragments; `protocol/` has the decisions that need no store.

This is the only room that imports obstore; `pip install 'polonaise[fragments]'` brings it and pyarrow. A fragment's
bytes are for ever, and their digest is part of its name: a change of `format.py` or of a library's compression makes
other objects of the same batches, and `docs/formats.md` describes them to other readers.
"""
