"""The player: it delivers the log's transactions to targets, each once and in order. Only its decisions exist so far.

`protocol/` has them, without clock or I/O; begin there, with `activeplayer.py`.
"""
