"""The client library: runs transaction contexts, learns the fate of every append, keeps views, and reads.

Begin with `log`, the class that an application uses, then `appends`: one append from its call to its receipt. Then
`mounting`, which keeps a partition mounted wherever it moves, and `applying`, which feeds the view. `running` runs
contexts, `turntaking` in turns where they want the same locks; `batchreader` reads without a view; `producer` and
`once` repeat appends safely. `connected` starts and closes all of it; `routes`, `links` and `requests` find servers and
talk to them; `condition` says what holds up a partition, for error messages. `protocol/` decides, without I/O: which
append committed, where the feed is, what to try again.

What applications use is what `polonaise` exports, documented in `docs/applications.md`: a change there is a change of
the public interface. All else may be changed.
"""
