"""Frames and messages as bytes: everything that client, server, storage node, player and target say to each other.

Begin with `messages`, which declares the messages and says what they mean; those about topics, copies, leases and
deliveries to targets have modules of their own. `codec` turns declared fields into frames, and cuts a byte stream into
frames again. `appends`, `fetches` and `topics` have the columns of larger messages. There is no I/O
here.

Bytes that are none of these raise `ProtocolError`, and the side that meets them closes that one connection: lengths are
checked before anything is allocated. A field, a number or a layout is a promise to other versions: what exists stays as
it is, and `docs/formats.md` and the fuzz tests change together with it.
"""
