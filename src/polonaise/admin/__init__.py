"""What an operator can do, as functions that return values; `polonaise.cli` is their command line.

Begin with `logs`: appends, reads and health of a log that a client is connected to; `cluster` looks at all nodes of a
running cluster, and `opening` opens its coordinator, through which nothing is changed while nodes don't believe it.
`archive`, `trimming` and `restore` are about fragments, `segments` and `comparison` about the files of replicas.

Nothing here prints or ends the process; results are values, troubles are in them, and only faults are raised. The order
of the steps in `restore` and `newdirectory` is a promise: a log that is not whole must not look like one.
"""
