"""Composes coordinator, storage and server into nodes that can be run.

`storage` and `server` are one process each on this machine; `local` starts a whole small cluster as child processes.
"""
