"""The player: it delivers the log's transactions to targets, each once and in order.

`protocol/` has the decisions, without clock or I/O; begin there, with `activeplayer.py`. `player.py` carries them out:
it reads the log, has `routing.py` say which target gets what, and keeps a stream to each target, so far within its own
process (`directstream.py`). The targets' side: `deliverytarget.py` says what a target has to do, `sqldelivery.py` does
it in a SQL database, and `targetsession.py` serves one stream.

What is delivered, read or sent again is decided in `protocol/` alone.
"""
