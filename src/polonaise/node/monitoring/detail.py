"""The detail of a request for metrics: metrics of each partition and of each client, or totals only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from polonaise.errors import BadOption

AUTO_MAX: Final = 100
"""The most partitions, or mounts of clients, that are listed unless the request says otherwise: each series costs
Prometheus some kilobytes, and there may be thousands of partitions with a dozen series each."""


class SeriesListed(enum.Enum):
    """Whether each of many things gets series of its own; the values are the words of a request."""

    AUTO = "auto"
    """List all if there are at most `AUTO_MAX`, else none: a selection would differ from answer to answer."""
    ALL = "all"
    NONE = "none"

    def lists(self, count: int) -> bool:
        return self is SeriesListed.ALL or (self is SeriesListed.AUTO and count <= AUTO_MAX)


class Detail(NamedTuple):
    """What a request for metrics wants listed: series of partitions, and of clients."""

    partitions: SeriesListed = SeriesListed.AUTO
    clients: SeriesListed = SeriesListed.AUTO


def detail_in(query: Mapping[str, str]) -> Detail:
    """Return the detail in the query of a request; raises `BadOption`."""
    unknown = set(query) - set(Detail._fields)
    if unknown:
        raise BadOption(f"unknown parameter {sorted(unknown)[0]!r}: there are {' and '.join(Detail._fields)}")
    try:
        return Detail(**{name: SeriesListed(value) for name, value in query.items()})
    except ValueError:
        raise BadOption("invalid value: partitions and clients take auto, all or none") from None
