"""The framed connection that all parts talk over: hello, requests and answers, heartbeats, deadlines, bounded writing.

Client, server and storage node speak through this room, and never import each other. `protocol/` decides, and
`connection.py` carries it out, within the memory that all accepted connections of a node may hold together;
`vouching.py` compares a peer's hello with its certificate. Begin with the docstring of `Connection`, then read
`data_received` and `_receive`.

What the other messages mean must not become known here: then this would be the place where the three parts meet after
all (docs/decisions/0001). The callbacks run within one turn of the loop, so none of them may wait.
"""
