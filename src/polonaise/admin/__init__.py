"""What an operator can do, as functions that return values; `polonaise.cli` is their face.

`logs` works on a log that a client is connected to, `segments` on files, whether a node runs on them or not. Nothing
here prints, and nothing here ends the process.
"""
