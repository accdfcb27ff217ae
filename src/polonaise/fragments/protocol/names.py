"""The names of fragments, which say what is in them: `<partition>/<first id>-<last id>-<sha256>.parquet`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from polonaise.errors import BadOption
from polonaise.terms import PartitionId, TransactionId

_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,9})/([0-9]{20})-([0-9]{20})-([0-9a-f]{64})\.parquet")


class FragmentName(NamedTuple):
    """One fragment, as its name describes it. Sorts by partition and ids."""

    partition: PartitionId
    first: TransactionId
    last: TransactionId
    digest: str
    """SHA-256 of the whole object, in hexadecimal."""

    @property
    def path(self) -> str:
        """The object's name in its store."""
        return f"{self.partition}/{self.first:020d}-{self.last:020d}-{self.digest}.parquet"

    @classmethod
    def parse(cls, path: str) -> FragmentName | None:
        """Return the fragment that an object's path names; None if it names none: a store may hold other objects."""
        match = _NAME.fullmatch(path)
        if match is None:
            return None
        partition, first, last = map(int, match.groups()[:3])
        return cls(partition, first, last, match[4]) if first <= last < 2**63 and partition < 2**31 else None


def partition_prefix(partition: PartitionId) -> str:
    """Return the prefix of the names of a partition's fragments. Raises `BadOption` for a number below 0."""
    if partition < 0:
        raise BadOption(f"invalid partition {partition}: name 0 or more")
    return f"{partition}/"


def fingerprint(fragments: Iterable[FragmentName]) -> bytes:
    """Return SHA-256 over the names, in this order: two parties that name the same fragments mean the same bytes."""
    return hashlib.sha256("".join(f"{fragment.path}\n" for fragment in fragments).encode()).digest()
