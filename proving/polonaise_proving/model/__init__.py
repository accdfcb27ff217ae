"""Session start and writing, explored exhaustively over the production's decision functions (`make model`).

`decisions` brings in the functions under test: those of `server.protocol` and `storage.protocol`, or the same with a
mutation. `asked` and `storage` put the model's questions to them. `states` says what a state is, `bounds` how far to
go, `attempts` and `cluster` which steps there are; `search` walks them all, and says what must hold in every state, and
what may be forgotten. `owner` and `player` explore two other machines in the same way.

Not in the model: blobs, registers, proofs by barriers, the shells' timing. An owner that dies is one that takes no
further step; a result that stays unknown, a message that is lost, likewise. Acknowledgements count at once: a commit
that the owner learns later, or never, is promised less.
"""
