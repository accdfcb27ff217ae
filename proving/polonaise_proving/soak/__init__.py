"""`make soak`: a whole cluster works for a while, loses processes, and must be as small at the end as at the beginning.

`node` and `client` are the processes: three storage nodes, two servers of which one stands by, and clients that do all
that an application may, giving up now and then. `campaign` starts, kills, stops and samples them (`sampling`);
`flatness` says which figures of which process have grown; `told` compares what clients were told (`journal`) with
what is in the log. `leaks` are processes that grow on purpose, for the test of the judgement.
"""
