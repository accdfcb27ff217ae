"""The storage node: it keeps the bytes of many partitions' replicas, and obeys the sessions of their owners.

Begin with `protocol/replica.py`: which session a replica obeys, and what it may acknowledge. `partitionreplica.py`
carries these decisions out, one message after the other; `node.py` is the process, with its connections and directory.
`files.py` and `offline.py` read a node's files without the node.

A storage node knows neither other storage nodes nor the coordinator, and decides nothing about commits. The order of a
replica's actions is its promise: keep decisions in `protocol/`, and explore them with `make model` after a change.
"""
