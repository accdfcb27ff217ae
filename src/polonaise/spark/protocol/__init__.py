"""The sink's decisions, without clock or I/O: `blocks` of rows, the `plans` that order them, a batch's `progress`."""
