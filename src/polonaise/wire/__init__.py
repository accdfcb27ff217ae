"""Frames and messages as bytes: what client, server and storage say to each other. No I/O.

`frame` cuts a byte stream into frames, `codec` turns declared fields into bytes and back, `messages` declares every
message. A node that meets bytes which are none of these raises `ProtocolError` and closes that one connection.
"""
