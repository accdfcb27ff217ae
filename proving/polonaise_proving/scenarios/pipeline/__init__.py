"""`make torture-pipeline`: real Spark drivers, workers, servers and storage nodes are killed, stopped and cut off.

`driver` is a process with a Spark of its own that does what it is told; `faulty` has the product's source and sink
under another name, which go wrong where `faults` says, and sinks that are wrong, so that the checks can be seen to find
it. `ground` is a real cluster with rows to read; `drivers` starts drivers and ends them, whatever happens. `scenarios`
hit one moment each, `campaign` random ones; `judges.rows` compares what came out with what was there.
"""
