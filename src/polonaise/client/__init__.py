"""The client library: runs transaction contexts, learns the fate of every append, keeps views, reads.

`protocol/` decides: what cannot be meant (`arguments`), which append committed (`outstanding`), where the feed is
(`subscription`), what goes into a frame (`packing`), what to try again (`outcomes`). Around it: `log` is what an
application sees, `connected` what that stands on from start to close, `running` runs contexts, `partition` sends
appends, `mounting` keeps a partition mounted wherever it moves, `applying` feeds the view, `reading` reads without one,
`links` and `routes` find the servers.
"""
