"""The decisions of one connection as plain synchronous objects: no socket, no clock, no log, no asyncio.

`greeting` judges the peer's hello; nothing else counts before it. `inbox` cuts frames, says which are handled now, and
when a peer is taken for dead; `outbox` counts what has not left, and says when that is too much. `losses` and
`peerclock` measure the way to the peer and its clock. `peertext` makes fit for logs what a peer says.

Times come as arguments, and what is to be done is returned: `link/connection.py` does it.
"""
