"""Sealed history as immutable Parquet files in an object store.

`protocol` holds what needs no store: names, and which fragments cover a range. `format` turns batches into a fragment
and back, exactly. `store` is the port to object stores, `archive` writes what is missing.

This is the only room that imports pyarrow and obstore; `pip install 'polonaise[fragments]'` brings them.
"""
