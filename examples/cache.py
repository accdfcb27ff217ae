"""A cache that follows the log: prices in memory, never older than the log was when they were asked for.

    polonaise log append embedded:./prices 'tea 310'
    python examples/cache.py embedded:./prices

It answers lines of standard input, as a service would answer requests. A name alone is looked up in a state that holds
all that was committed by then. A name and a transaction id wait for that transaction only, and cost no round trip once
it is in the cache: for whoever has written a price and wants to read it. (`polonaise log append` prints both, partition
and id.)

    tea
    tea 310
    tea 0
    tea 310

When the log can't be reached the answer is an error, and not an old price. Nothing is kept on disk: a cache that is
started again reads the log from its beginning. Where that takes too long, keep the view in a database
(docs/applications.md) or in files (examples/file_view.py).
"""

from __future__ import annotations

import sys

import polonaise
from polonaise import blocking

PARTITION = 0


class Prices:
    """The view. The client applies each transaction, in order, in its background thread."""

    def __init__(self) -> None:
        self.mark = -1
        self.prices: dict[str, int] = {}

    def high_water_mark(self, partition: int) -> int:
        return self.mark

    def apply(self, tx: polonaise.Transaction) -> None:
        try:
            name, price = tx.data.decode().split()
            self.prices[name] = int(price)
        except ValueError:
            # An error from here would stop the view until somebody mends it: what is in the log stays there.
            print(f"transaction {tx.id} is no price: {tx.data!r}", file=sys.stderr)
        self.mark = tx.id

    def failed(self, partition: int, id: int, error: Exception) -> None:
        print(f"transaction {id} can't be applied: {error}", file=sys.stderr)


def answer(log: blocking.Log, view: Prices, line: str) -> str:
    name, *after = line.split()
    try:
        mark = int(*after) if after else log.high_water_mark(PARTITION, timeout=5)
    except (TypeError, ValueError):
        return f"error: a name, or a name and a transaction id, are wanted, and not {line.strip()!r}"
    except polonaise.PolonaiseError as error:
        return f"error: {error}"
    try:
        log.wait_applied(mark, PARTITION, timeout=5)
    except polonaise.PolonaiseError as error:
        return f"error: {error}"
    price = view.prices.get(name)
    return f"{name} has no price" if price is None else f"{name} {price}"


def main(address: str) -> None:
    view = Prices()
    with blocking.connect(address, view=view, partitions=[PARTITION], wait=30) as log:
        for line in sys.stdin:
            if line.strip():
                print(answer(log, view, line), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
