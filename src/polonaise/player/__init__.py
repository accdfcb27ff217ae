"""The player: it delivers the log's transactions to targets, each once and in order. No process runs it so far.

`protocol/` has the decisions, without clock or I/O; begin there, with `activeplayer.py`. The other side is here:
`deliverytarget.py` says what a target has to do, `sqldelivery.py` does it in a SQL database, and `targetsession.py`
serves one stream.
"""
