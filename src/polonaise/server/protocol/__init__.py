"""The decisions of a partition's owner: locks, order, commit, session start. Plain objects without clock or I/O.

Begin with `owner`: events in, effects out. `recovery` decides how a session starts, and stands by itself. `turns`
is about the many partitions of a server.

Nothing here may import asyncio, read a clock or do I/O: times come with events (`Moment`), and what is to be done is
returned. After a change of `owner`, `effects`, `recovery` or `commit` run `make model`, which explores them
exhaustively, and `make simulate`.
"""
