"""Composes coordinator, storage nodes, server and client into processes that can be run; `polonaise.connect`.

Begin with `connecting`, from an address to a log. For `embedded:PATH`, `attachment` is one process's part in the log,
`hostelection` decides which process hosts it, and `embedded` makes it in its directory and runs its nodes. For other
addresses, `addresses` finds the coordinator or the servers. `processes` runs a storage node or a server as a process of
its own; `playerprocess` runs one of a player: `playerplan` says what it is to do and imports what that names, and
`playernode` takes turns with the other processes. `local` starts a small cluster as child processes.

`connect` is public, and so is the layout of an embedded log's directory: it belongs to FORMAT in `embedded`. All else
may be changed.
"""
