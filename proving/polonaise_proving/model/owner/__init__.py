"""The owner of a partition, explored exhaustively: the production's machine, and clients that believe what it says.

`world` is one state: the machine, what its replicas hold, and what each client was told, kept by the client library's
own `Outstanding`. `explore` walks every order of events within `Bounds`: two clients append, one of them stale, their
frames too many for their window; a session ends and the next one finds any part of what was in flight; a mount takes
the place of another; one client flushes, the other asks for the mark.

Not in the model: time, credit, history that has to be read, bodies. Replicas sync in order; that fewer than a quorum
have synced something is the same to clients as that none has.
"""
