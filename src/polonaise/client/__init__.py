"""The client library: runs transaction contexts, learns the fate of every append, keeps views, and reads.

Begin with `log`, the class that an application uses, then `appends`: one append from its call to its receipt. Then
`mounting`, which keeps a partition mounted wherever it moves, and `running`, which runs contexts. `partitions` has
those that are used, starts all of it, and feeds the view; `clientparts` is what they share: `routes`, `links` and
`requests`, which find servers and talk to them, and more. `protocol/` decides, without I/O: which append committed,
where the feed is, what to try again.

What applications use is what `polonaise` exports, documented in `docs/applications.md`; all else may be changed.
"""
