"""How fast do rows go from batches and fragments to Arrow, and back? Bodies of 100 random bytes, one thread.

    python benchmarks/fragments.py [--rows 4000000] [--runs 3] [--write]

Measured is processor time, so that others on the machine matter less; beside it, what pyarrow alone takes to read the
same columns of the same file.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from document import arguments, table, write_figures
from polonaise.fragments.arrow import SCHEMA, columns_of
from polonaise.fragments.columns import ROWS_MAX, columns_in
from polonaise.fragments.format import Footer, FragmentWriter, batches_in
from polonaise.fragments.protocol.coverage import Span
from polonaise.fragments.ranges import Range, RangeFile
from polonaise.fragments.store import ObjectStore, open_store
from polonaise.log.batch import Batch, Columns, seal

COLUMNS = ["partition", "transaction_id", "timestamp", "header", "data"]
BODY_BYTES = 100


def batches(rows: int, per_batch: int) -> Iterator[Batch]:
    """Yield consecutive batches of `rows` transactions in all, rounded up to whole batches.

    The CRCs of their bodies are random, because nothing here checks them.
    """
    first = crc = 0
    while first < rows:
        columns = Columns()
        columns.client_ids = array("i", [7]) * per_batch
        columns.generations = array("i", [1]) * per_batch
        columns.sequences = array("q", range(first, first + per_batch))
        columns.headers = array("i", [k % 5 for k in range(per_batch)])
        columns.data_crcs = array("I", os.urandom(4 * per_batch))
        columns.data_ends = array("I", range(BODY_BYTES, BODY_BYTES * per_batch + 1, BODY_BYTES))
        columns.data.append(os.urandom(BODY_BYTES * per_batch))
        columns.data_bytes = BODY_BYTES * per_batch
        raw = seal(
            columns, partition=0, first=first, session=1, generation=1, commit_time_us=1_700_000_000_000_000 + first,
            previous_crc=crc,
        )  # fmt: skip
        batch = Batch.parse(raw)
        first, crc = batch.last + 1, batch.crc
        yield batch


def best(runs: int, work: Callable[[], int]) -> float:
    """Return the rows per second of processor time, in the best of `runs`. `work` returns the number of its rows."""
    rates: list[float] = []
    for _ in range(runs):
        began = time.process_time()
        rows = work()
        rates.append(rows / (time.process_time() - began))
    return max(rates)


def convert(parts: list[Batch], per_batch: int) -> int:
    step = ROWS_MAX // per_batch
    return sum(columns_of(parts[at : at + step], COLUMNS).num_rows for at in range(0, len(parts), step))


def write(parts: list[Batch], path: Path) -> Footer:
    writer = FragmentWriter(bytes(16))
    for batch in parts:
        writer.add(batch)
    footer, raw = writer.finish()
    path.write_bytes(raw)
    return footer


def read_plain(path: Path, verify: bool) -> int:
    file = pq.ParquetFile(path, memory_map=True, page_checksum_verification=verify)
    return sum(part.num_rows for part in file.iter_batches(ROWS_MAX, columns=COLUMNS, use_threads=False))


def read_columns(source: object, footer: Footer) -> int:
    return sum(part.num_rows for part in columns_in(source, footer, Span(0, footer.last), COLUMNS))


def read_ranges(path: Path, footer: Footer) -> int:
    with path.open("rb") as file:

        def fetch(ranges: Sequence[Range]) -> list[bytes]:
            return [os.pread(file.fileno(), each.stop - each.start, each.start) for each in ranges]

        with RangeFile(fetch, os.path.getsize(path)) as source:
            return read_columns(source, footer)


def read_batches(path: Path, footer: Footer) -> int:
    return footer.last + 1 if sum(1 for _ in batches_in(path)) == footer.batches else 0


def stored(store: ObjectStore, raw: bytes, rows: int) -> int:
    return rows if asyncio.run(store.put_if_absent("0/a", raw)) else 0


def measure(rows: int, runs: int, directory: Path) -> dict[str, float]:
    pa.set_cpu_count(1)
    figures: dict[str, float] = {}
    path = directory / "fragment.parquet"
    for per_batch in (1_000, 4_096):
        made = list(batches(rows // 4, per_batch))
        figures[f"batches of {per_batch:,} to {len(COLUMNS)} columns"] = best(runs, partial(convert, made, per_batch))
    made = list(batches(rows, 1_000))
    began = time.process_time()
    footer = write(made, path)
    figures[f"batches to a fragment, all {len(SCHEMA)} columns"] = rows / (time.process_time() - began)
    del made
    figures["pyarrow alone, without checksums"] = best(runs, lambda: read_plain(path, False))
    figures["pyarrow alone, checksums verified"] = best(runs, lambda: read_plain(path, True))
    figures["`columns_in`, a mapped file"] = best(runs, lambda: read_columns(path, footer))
    figures["`columns_in`, ranges"] = best(runs, lambda: read_ranges(path, footer))
    figures["a fragment to batches"] = best(1, lambda: read_batches(path, footer))
    raw = path.read_bytes()
    figures["the digest in a fragment's name"] = best(runs, lambda: rows if hashlib.sha256(raw).digest() else 0)
    store = open_store(str(directory / "store"))
    figures["put into a directory, synced"] = best(1, lambda: stored(store, raw, rows))
    figures["compared with what is stored"] = best(runs, lambda: rows if asyncio.run(store.holds("0/a", raw)) else 0)
    return figures


def page(figures: dict[str, float], rows: int, runs: int) -> list[str]:
    yardstick = figures["pyarrow alone, checksums verified"]
    return [
        f"`python benchmarks/fragments.py --rows {rows} --runs {runs} --write`: one thread, Python "
        f"{platform.python_version()}, pyarrow {pa.__version__}; best of {runs} runs.",
        "",
        *table(
            ["", "rows/s of processor time", "÷ pyarrow alone"],
            [(name, f"{rate:,.0f}", f"{rate / yardstick:.2f}") for name, rate in figures.items()],
        ),
    ]


def main() -> None:
    options = arguments(__doc__, rows=4_000_000, runs=3)
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(options.rows, options.runs, Path(directory))
    lines = page(figures, options.rows, options.runs)
    print("\n".join(lines))
    if options.write:
        write_figures("fragments.py", lines)


if __name__ == "__main__":
    main()
