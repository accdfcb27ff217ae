"""A fragment whose footer was read: what it holds, and the batches of its row groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from polonaise.errors import FragmentDamaged
from polonaise.fragments.agreement import FragmentFacts
from polonaise.fragments.format import Footer, open_fragment
from polonaise.fragments.groups import ends_in_group, first_of_group, group_batches, parts_for_group
from polonaise.fragments.objects import of_fragment
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.ranges import Parts
from polonaise.log.batch import Batch
from polonaise.terms import TransactionId


@dataclass(slots=True)
class OpenFragment:
    """A fragment whose footer was read."""

    name: FragmentName
    size: int
    """Bytes of the whole fragment."""
    metadata: Any
    """The metadata of its Parquet file."""
    firsts: list[TransactionId]
    """The first id of each row group."""
    footer: Footer
    ends: dict[TransactionId, int | None] = field(default_factory=dict)
    """The CRC of the batch that ends at an id, None where none ends, for the ids that were looked up."""
    verified: bool = False
    """Whether all its bytes were read, and have the digest in its name."""

    @property
    def facts(self) -> FragmentFacts:
        return FragmentFacts(self.name, self.footer, self.ends)


def opened_by_end(name: FragmentName, size: int, end: bytes, cluster_key: bytes) -> OpenFragment:
    """Return the fragment whose end this is. Raises `FragmentDamaged`, `UnsupportedFormat`, `WrongClusterKey`."""
    with of_fragment(name):
        footer, file = open_fragment(end, cluster_key)
        if footer[1:4] != name[:3]:
            raise FragmentDamaged(
                f"it holds other ids than its name says: {footer.first} to {footer.last} of partition "
                f"{footer.partition}"
            )
        metadata = file.metadata
        needed = max(part.stop for part in parts_for_group(metadata, metadata.num_row_groups - 1))
        if size < needed + metadata.serialized_size:
            raise FragmentDamaged(f"it has {size} bytes, and its rows alone reach up to byte {needed}")
        firsts = [first_of_group(metadata, number) for number in range(metadata.num_row_groups)]
        return OpenFragment(name, size, metadata, firsts, footer)


def decoded_group(opened: OpenFragment, number: int, parts: Mapping[int, bytes]) -> list[Batch]:
    """Decode a row group from parts of its fragment, keyed by offset. Making the batches compares each with its CRC."""
    source = pa.PythonFile(Parts(parts, opened.size), mode="r")
    return [Batch.parse(raw, verify=False) for raw in group_batches(source, opened.metadata, number)]


def decoded_end(opened: OpenFragment, number: int, parts: Mapping[int, bytes], id: TransactionId) -> int | None:
    """Return the CRC of the batch that ends at an id of a row group, from parts of the fragment, or None."""
    source = pa.PythonFile(Parts(parts, opened.size), mode="r")
    return ends_in_group(source, opened.metadata, number, [id])[id]


def span_of(
    batches: list[Batch], first: TransactionId, last: TransactionId, bytes_max: int, after_time_us: int
) -> list[Batch]:
    """Return those of a row group's batches that `FragmentHistory.read` is to return, given its arguments."""
    chosen: list[Batch] = []
    size = 0
    for batch in batches:
        if batch.last < first or batch.commit_time_us < after_time_us:
            continue
        size += batch.length
        if batch.last > last or (chosen and size > bytes_max):
            break
        chosen.append(batch)
    return chosen
