"""The decisions about fragments, which need no store: their names, coverage, what to archive and what to scrub."""
