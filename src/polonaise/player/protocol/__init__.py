"""The decisions of exactly-once delivery: what is read, queued and sent. Plain objects without clock or I/O.

Begin with `activeplayer`: events in, effects out (`effects`). It keeps a `mainstream` for each partition, a
`targetstream` for each target, and of each pair of the two its state (`targetpartition`) with its queue
(`targetqueue`). `reception` is the other side: what a target does with what it is sent. `candidacy` is about processes:
which of them delivers, and when.

`make model` explores all of it, with streams that break and players that are replaced: run it after a change here.
"""
