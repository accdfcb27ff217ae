"""Exactly-once delivery, explored exhaustively: the production's active player, and targets that keep what they apply.

`world` is one state: the log, players of one name under different epochs, the streams with all that is under way on
them, and what each target keeps durably. `explore` walks every order of events within `Bounds`: transactions are
committed, fed and read; messages arrive or are lost with their stream, those of a stream that the player has given up
as well; targets die between an entry and its acknowledgement, refuse an entry, or are moved to an empty place; a player
is replaced while it lives, and goes on until a target tells it. In every state each target has applied a prefix of what
the route function gives it; and from every state, once faults stop, the latest player brings every target to the end.

Not in the model: time (every pause is over at once), bounds of bytes, entries that can't be routed.
"""
