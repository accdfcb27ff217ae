"""The decisions of exactly-once delivery: what is read, queued and sent. Plain objects without clock or I/O.

Begin with `activeplayer`: events in, effects out (`effects`). It keeps a `mainstream` for each partition, a
`targetstream` for each target, and of each pair of the two its state (`targetpartition`): while the target is served,
that is its queue (`targetqueue`). `reception` is the other side: what a target does with what it is sent. `entries`
says what travels, and what a fence is; `settings` has the bounds. `deliveryhealth` and `deliverylag` (with
`mainhistory`) tell how targets are. `candidacy` is about processes: which of them delivers, and when.

Nothing here may import asyncio, read a clock or do I/O. `make model` explores all of it exhaustively, with streams that
break and players that are replaced; after a change here, run it.
"""
