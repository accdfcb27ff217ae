"""`make torture-delivery`: targets, players and the nodes of the log are killed and stopped at random moments.

`campaign.py` does that, with `writer.py` at work; `shard.py` is a process with a target, and `routing.py` the route
function. At the end `verdict.py` compares what each target has applied, in its order, with the route of the log.
"""
