"""The decisions of one connection as plain synchronous objects: no socket, no clock, no log, no asyncio.

Times come as arguments, and what is to be done is returned: `link/connection.py` does it. Nothing counts before
`greeting` has judged the peer's hello.
"""
