"""What an operator can do, as functions that return values; `polonaise.cli` is their command line.

Begin with `logs`: appends, reads and health of a log that a client is connected to. `archive` writes its fragments and
verifies stores, `trimming` drops from the storage nodes what is archived. `segments` examines the files of one replica,
whether its node runs or not, and `comparison` those of several. `restore` makes a log again from its fragments, in a
`newdirectory`, on new `replicas`.

`cluster` looks at all nodes of a running one; `conditions` judges what they say, for it and for `logs`. `localcluster`
runs a whole cluster on this machine, as its `localplan` says. `configuration` reads settings, `settingkeys` has them.

Nothing here prints or ends the process; results are values, troubles are in them, and only faults are raised. The order
of the steps in `restore`, `replicas` and `newdirectory` is a promise: a log that is not whole must not look like one.
"""
