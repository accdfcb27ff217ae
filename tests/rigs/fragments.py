"""Tools for the tests of fragments: batches made to order, and fragments of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from polonaise.errors import StoreUnavailable
from polonaise.fragments.format import CRC_KEY, NO_CRC, Footer, FragmentWriter, seal_footer
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import Listed, ObjectStore, ObstoreStore, open_store
from polonaise.log import registers
from polonaise.log.batch import Batch, Columns, seal

KEY = bytes(range(16))
PARTITION = 7

transactions = st.tuples(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.binary(max_size=30),
    st.integers(-1, 2**63 - 1),
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 3)), max_size=3),
)
made = st.tuples(
    st.lists(transactions, min_size=1, max_size=6),
    st.integers(1, 2**62),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**52),
    st.booleans(),
    st.booleans(),
)
"""The transactions of a batch; its session, generation and time; whether it keeps evidence, and changes registers."""

PLAN = [([(1, 2, 3, 4, b"a", 0, [(5, 1)]), (1, 2, 4, 4, b"bc", 1, [])], 9, 8, 1_000_000, True, True)] * 3


def batches_of(plans: Sequence[Any], first: int = 0, crc: int = 0, *, partition: int = PARTITION) -> list[Batch]:
    batches = []
    for rows, session, generation, time_us, evidence, changes in plans:
        columns = Columns()
        for client, its_generation, sequence, header, data, mark, locks in rows:
            columns.add(client, its_generation, sequence, header, data, client_high_water_mark=mark, locks=locks)
        changed = registers.encode([(b"key", b"%d" % session)]) if changes else b""
        raw = seal(
            columns, partition=partition, first=first, session=session, generation=generation, commit_time_us=time_us,
            previous_crc=crc, registers=changed, evidence=evidence,
        )  # fmt: skip
        batches.append(Batch.parse(raw))
        first, crc = batches[-1].last + 1, batches[-1].crc
    return batches


def plain_batches(counts: Sequence[int], first: int = 0) -> list[Batch]:
    """Return batches with these numbers of transactions, every body different."""
    plans = []
    for number, count in enumerate(counts):
        rows = [(1, 2, 100 * number + k, k % 5, b"%d/%d" % (number, k) * (k % 4), -1, []) for k in range(count)]
        plans.append((rows, 3, 4, 1_000_000 * number, False, False))
    return batches_of(plans, first)


def fragment_of(batches: Iterable[Batch], key: bytes = KEY) -> tuple[Footer, bytes]:
    writer = FragmentWriter(key)
    for batch in batches:
        writer.add(batch)
    return writer.finish()


def named_fragment(batches: Iterable[Batch], key: bytes = KEY) -> tuple[FragmentName, bytes]:
    """Return the fragment of these batches under the name that a store has it by."""
    footer, raw = fragment_of(batches, key)
    return FragmentName(footer.partition, footer.first, footer.last, hashlib.sha256(raw).hexdigest()), raw


def name_of(footer: Footer) -> FragmentName:
    return FragmentName(footer.partition, footer.first, footer.last, "ab" * 32)


class MoodyStore(ObstoreStore):
    """A store that answers, or does not; that takes what is written, or does not."""

    away = read_only = False
    withheld = ""
    """The path of an object that is listed and not given out."""

    async def list(self, prefix: str = "") -> list[Listed]:
        if self.away:
            raise StoreUnavailable("the store does not answer")
        return await super().list(prefix)

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        if self.away:
            raise StoreUnavailable("the store does not answer")
        if path == self.withheld:
            raise StoreUnavailable("input/output error")
        return await super().get_range(path, offset, length)

    async def replace(self, path: str, data: bytes) -> None:
        if self.read_only:
            raise StoreUnavailable("no writing today")
        await super().replace(path, data)


def moody_store(directory: Path) -> MoodyStore:
    opened = open_store(str(directory))
    return MoodyStore(opened._store, opened._url, opened._directory)


async def flip(store: ObjectStore, name: FragmentName, place: int | None = None) -> None:
    """Damage a stored fragment by one bit, of the byte at `place` or somewhere in its rows."""
    raw = bytearray(await store.get(name.path))
    raw[len(raw) // 3 if place is None else place] ^= 1
    await store.delete(name.path)
    await store.put_if_absent(name.path, bytes(raw))


def rewritten(raw: bytes, change: Any, metadata: dict[bytes, bytes] | None = None) -> bytes:
    """Return the fragment as a Parquet file with other contents: valid for any reader, but not what was written."""
    table = change(pq.read_table(pa.BufferReader(raw)))
    sink = pa.BufferOutputStream()
    kept = {**pq.ParquetFile(pa.BufferReader(raw)).metadata.metadata, **(metadata or {}), CRC_KEY: NO_CRC}
    with pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(kept)
    written = bytearray(sink.getvalue())
    seal_footer(memoryview(written))
    return bytes(written)


def with_column(name: str, value: Any) -> Any:
    def change(table: Any) -> Any:
        field = table.schema.field(name)
        values = [value, *table.column(name).to_pylist()[1:]]
        return table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))

    return change
