"""`make torture-delivery`: targets, players and the nodes of the log are killed and stopped at random moments.

`campaign` does that, while a writer appends. At the end `judges.deliveries` compares what each target has applied, in
its order, with the route of the log.
"""
