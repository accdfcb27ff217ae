"""The detail of an answer: whether it has metrics of each partition and of each client, or totals only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from polonaise.errors import BadOption

AUTO_MAX: Final = 100
"""The most partitions, or mounts of clients, that are listed unless the request says otherwise.

A series of its own costs Prometheus some kilobytes, and there may be thousands of partitions with a dozen series each.
"""


class SeriesListed(enum.Enum):
    """Which of many things get series of their own; the values are what a request says."""

    AUTO = "auto"
    """All, if there are `AUTO_MAX` at most, else none: which ones are listed must not change with each answer."""
    ALL = "all"
    NONE = "none"

    def lists(self, count: int) -> bool:
        """Whether `count` things are listed."""
        return self is SeriesListed.ALL or (self is SeriesListed.AUTO and count <= AUTO_MAX)


class Detail(NamedTuple):
    """How much a request for metrics wants to know."""

    partitions: SeriesListed = SeriesListed.AUTO
    clients: SeriesListed = SeriesListed.AUTO


def detail_in(query: Mapping[str, str]) -> Detail:
    """Return the detail that the query of a request asks for. Raises `BadOption` for what it can't mean."""
    unknown = set(query) - set(Detail._fields)
    if unknown:
        raise BadOption(f"unknown parameter {sorted(unknown)[0]!r}: there are {' and '.join(Detail._fields)}")
    try:
        return Detail(**{name: SeriesListed(value) for name, value in query.items()})
    except ValueError:
        raise BadOption("partitions and clients are auto, all or none") from None
