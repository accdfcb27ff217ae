"""Session start and writing, explored exhaustively over the production's decision functions (`make model`).

`bounds` says how far, `states` what a state is, `storage` what a replica does, `attempts` and `cluster` which steps
there are, `promises` what must hold in every state, `search` walks them all, `decisions` brings in the functions under
test: those of `polonaise.server.protocol`, or the same with a planted bug.
"""
