"""What commits need beside a quorum, as plain values: copies, and zones that these are in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from polonaise.terms import StorageId
from polonaise.wire.copies import needed_text


class Demand(NamedTuple):
    """An operator's word on what commits need beside a quorum, of a whole cluster or of one topic."""

    number: int
    """A demand that was made later has a larger one, whatever it is of."""
    copies: int
    """The least number of replicas that have synced a batch before it is committed; 0 for a quorum."""
    zones: int
    """The least number of zones that these replicas are in."""

    @classmethod
    def of(cls, fields: Any) -> Demand:
        """Return a demand read from JSON; raises `ValueError` and others."""
        number, copies, zones = fields
        return cls(int(number), int(copies), int(zones))

    def with_other(self, other: Demand | None) -> Demand:
        """Return the demand that meets both. Its number is the larger one: it rises with each change of either."""
        return self if other is None else Demand(*map(max, self, other))

    def among(self, zone_of: Mapping[StorageId, str]) -> Requirement:
        return Requirement(self.number, self.copies, self.zones, zone_of)

    @property
    def told(self) -> str:
        """For operators; empty if nothing is required."""
        return needed_text(self.copies, self.zones)


@dataclass(frozen=True, slots=True)
class Requirement:
    """What each commit of a session needs beside a quorum, as the cluster's description demands."""

    version: int
    """The number of the newest demand that it rests on."""
    copies: int = 0
    """The least number of replicas that have synced a batch before it is committed."""
    zones: int = 0
    """The least number of zones that these replicas are in."""
    zone_of: Mapping[StorageId, str] = field(default_factory=dict)
    """The zones of storage nodes; a node without one counts for none."""

    @classmethod
    def of(cls, fields: Any) -> Requirement:
        """Return a requirement read from JSON; raises `ValueError` and others."""
        version, copies, zones, zone_of = fields
        return cls(int(version), int(copies), int(zones), {str(name): str(zone) for name, zone in zone_of.items()})

    @property
    def fields(self) -> list[Any]:
        """What stands for it in a partition's value."""
        return [self.version, self.copies, self.zones, dict(self.zone_of)]

    @property
    def told(self) -> str:
        """For operators; empty if nothing is required."""
        return needed_text(self.copies, self.zones)

    def lack_of(self, names: Collection[StorageId]) -> str:
        """Return what these replicas lack, for operators; empty if they meet it."""
        if len(names) < self.copies:
            verb = "is" if self.copies == 1 else "are"
            return f"{needed_text(self.copies, 0)} {verb} required, and {len(names)} can be had"
        there = {self.zone_of[name] for name in names if name in self.zone_of}
        if len(there) < self.zones:
            return f"{needed_text(0, self.zones)} are required, and {len(there)} can be had"
        return ""
