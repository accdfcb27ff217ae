"""What an operator can do, as functions that return values; `polonaise.cli` is their command line.

Begin with `logs`: appends, reads and health of a log that a client is connected to. `archive` writes its fragments and
verifies stores, `trimming` drops from the storage nodes what is archived, and `bench` measures. `segments` examines the
files of one replica, whether its node runs or not, and `comparison` those of several. `restore` makes a log again from
its fragments, in a `newdirectory`, on new `replicas`; `storagerecovery` a storage directory from another node's.

`cluster` looks at all nodes of a running cluster, which `node.condition` judges, as it does for `logs`;
`partitiondescription` adds what is kept of one partition's replicas. `opening` opens the coordinator, and refuses
changes while nodes don't believe it; `asking` has what else the commands of operators share. `topics`, `requiring` and
`headresets` change what the coordinator keeps. `storagenodes` adds and removes storage nodes, `storagemoves` changes
their addresses, `copymoves` moves the copies of partitions between them, by the `memberedits` of single values, and
`storagecleaning` frees the room of copies that were given up. `localcluster` runs a whole cluster on this machine, as
its `localplan` says, with the servers of `zookeeper`. `configuration` reads settings, `settingkeys` has them;
`certificates` makes certificates for development.

Nothing here prints or ends the process; results are values, troubles are in them, and only faults are raised. The order
of the steps in `restore`, `replicas` and `newdirectory` is a promise: a log that is not whole must not look like one.
"""
