"""An importer: the rows of a CSV file go into the log, each once, however often the import is killed and begun again.

    printf 'account,amount\n1,100.50\n2,70\n1,-30\n' > payments.csv
    python examples/importer.py embedded:./payments payments.csv january

Each row becomes a transaction: a JSON object with the names of the first line. `january` names the import, and its
producer. The log keeps each row's number with the row; so the same command, run again, goes on where the log ends.

- The last 16 rows in the log are sent once more, and recognized. If other rows are in their place in the file by now,
  the import ends with `producer_differs`.
- A file that has grown goes on under the same name. Another file needs another name.
- Where the same import runs twice at a time, the one that began first ends with `producer_fenced`.
- A file with a row that does not fit the first line is refused before any of it is appended.
"""

from __future__ import annotations

import asyncio
import csv
import json
import sys
from collections.abc import Iterator
from itertools import islice

import polonaise

WINDOW = 16  # as many appends of a producer may be under way at once


def rows(path: str) -> Iterator[bytes]:
    """Yield the body of each row. It has to be the same in each run: the log tells a repetition by number and body.

    Raises `ValueError` for a row with more or fewer columns than the first line.
    """
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"{path}, line {reader.line_num}: not as many columns as in the first line")
            yield json.dumps(row).encode()


async def load(log: polonaise.Log, path: str, name: str) -> int:
    """Append the rows that are not in the log yet; return how many of the import's rows are in the log then.

    Raises `ValueError` for a file with fewer rows than the log has of this import.
    """
    count = sum(1 for _ in rows(path))
    producer = await log.producer(name, partition=0)
    if count <= producer.last_sequence:
        raise ValueError(f"{path} has {count} rows, and {producer.last_sequence + 1} of {name!r} are in the log")
    numbered = islice(enumerate(rows(path)), max(0, producer.last_sequence + 1 - WINDOW), None)
    while window := list(islice(numbered, WINDOW)):
        # What is appended in one turn of the event loop travels, and is synced, together.
        await asyncio.gather(*(producer.append(number, body) for number, body in window))
    return producer.last_sequence + 1


async def main(address: str, path: str, name: str) -> None:
    async with polonaise.connect(address, wait=30) as log:
        print(f"{await load(log, path, name)} rows are in the log")


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except (polonaise.PolonaiseError, csv.Error, OSError, ValueError) as error:
        sys.exit(f"importer: {error}")
