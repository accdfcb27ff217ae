"""Fragments: sealed history as immutable Parquet files in an object store.

- `objects.py`: fragments written, listed, verified and written again in a store. Begin here.
- `format.py`: batches to a fragment's bytes and back, exactly; `arrow.py`, `columns.py`, `groups.py`: parts of it.
- `store.py`: the port to object stores; `ranges.py`: a part of an object as a file; `mark.py`: whose store it is.
- `history.py`: batches out of fragments for servers.
- `protocol/`: the decisions that need no store: names, coverage, what to archive, what to scrub.

This is the only room that imports obstore. In the library, pyarrow is imported here and in `spark` and `pipelines`.
`pip install 'polonaise[fragments]'` brings both. A fragment's bytes are for ever, and their digest is part of its name:
a change of `format.py` or of a library's compression makes other objects of the same batches, and `docs/formats.md`
describes them to other readers.
"""
