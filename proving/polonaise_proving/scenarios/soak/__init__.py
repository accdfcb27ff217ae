"""`make soak`: a whole cluster works for a while, loses processes, and must be as small at the end as at the beginning.

Three storage nodes, two servers of which one stands by, and clients that do all that an application may, giving up now
and then. `campaign` starts, kills, stops and samples these `processes`; `judges.flatness` says which figures of which
process have grown, and `judges.histories` compares what clients were told with what is in the log.
"""
