"""Decisions of the source and the sink, without clock or I/O.

A read is cut into `splits`; `conditions` become ranges of ids, and `admission` shares a micro-batch out among
partitions. A write is `blocks` of rows, the `plans` that order them, and a batch's `progress`.
"""
