"""Sealed history as immutable Parquet files in an object store.

`protocol` holds what needs no store: names, which fragments cover a range, and what is to be archived. `format` turns
batches into a fragment and back, exactly; `arrow` and `columns` turn batches and fragments into the columns that are
asked for. `store` is the port to object stores, `ranges` reads a part of an object as a file, and `objects` writes and
verifies fragments there.

This is the only room that imports pyarrow and obstore; `pip install 'polonaise[fragments]'` brings them.
"""
