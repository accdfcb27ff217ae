"""The decisions of a storage node, as plain objects without clock or I/O.

Begin with `replica`: which session one replica obeys, what it stores, and what it may acknowledge. `scrubschedule`
decides which bytes the scrub reads next. `standing` tells what a single replica proves about a transaction.

Times come as arguments, and what is to be done is returned. `make model` explores `replica` exhaustively; the lines
that the mutations of the proving ground and of `tests/model/` name must stay findable.
"""
