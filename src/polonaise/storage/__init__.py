"""The storage node: it keeps the bytes of many partitions' replicas, and obeys the sessions of their owners.

`protocol/replica.py` has the decisions: which session a replica obeys, and what it may acknowledge. Begin there, then
read `partitionreplica.py`, the shell that carries them out, one message after the other. `node.py` is the process, with
its connections and its directory, where `namefile.py` keeps its name. `presence.py` and `scrubbing.py` look for files
that were removed or have rotted, `refusing.py` answers for a node that can't be started or has lost its directory.
`files.py` and `offline.py` read a node's files without the node.

A storage node is passive: it knows neither other storage nodes nor the coordinator, and decides nothing about commits.
How bytes lie in files is the matter of `log/`. The order of a replica's actions is its promise: keep decisions in
`protocol/`, and explore them with `make model` after a change. This room never imports `client` or `server`.
"""
