"""The server: it owns partitions, orders and commits appends, and feeds what is committed. On disk it keeps nothing.

`protocol/` has the decisions, without clock or I/O; begin there, with `owner.py`. Around it, `node.py` is the process
and its parts: `assignmentfollowing.py` follows the assignment (its rule is `assignment.py`), by which the server owns
partitions (`ownedpartitions.py`), while `servermembership.py` keeps it registered and `unservable.py` tells the others
what it can't serve; `clientconnections.py` takes connections, and `serverhealth.py` reads how all of this is.
`servedpartition.py` is one partition's shell, which brings its owner clients' messages, and carries out what the owner
decides; what all of them share is in `sharedparts.py`. `sessionstart.py` carries out the start of a session,
`catchup.py` brings late replicas up to date (both in turns: `turns.py`), and `storagelinks.py` keeps the connections to
storage nodes. Reads of history are `partitionreader.py` and `archivedhistory.py`; requests about the cluster are
answered by `clusteranswers.py`. What operators change is followed by `memberwatch.py` (members), `requirements.py`
(copies and zones that commits need) and `storagelinks.py` (addresses).

A rule about what is committed, told or decided belongs into `protocol/`; the files here may wait, retry and report.
This room never imports `client` or `storage`.
"""
