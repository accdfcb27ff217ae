"""What an operator can do, as functions that return values; `polonaise.cli` is their face.

`logs` and `archive` work on a log that a client is connected to, `segments` on files, whether a node runs on them or
not; `restore` makes a log from its fragments. Nothing here prints, and nothing here ends the process.
"""
