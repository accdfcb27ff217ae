"""The decisions of one connection as plain synchronous objects: no socket, no clock, no log, no asyncio.

`greeting` judges the peer's hello; nothing else counts before it. `losses` and `peerclock` measure the way to the peer
and its clock. `peertext` makes fit for logs what a peer says.

Times come as arguments, and what is to be done is returned: `link/connection.py` does it.
"""
