"""A client as a program: it appends numbers to all partitions in turn, one after the other, until its input ends.

It prints each number that is committed. An append that fails ends it with a traceback.
"""

from __future__ import annotations

import sys
import threading

from polonaise.blocking import connect

_ended = threading.Event()


def _watch() -> None:
    sys.stdin.read()
    _ended.set()


def main(address: str, partitions: int) -> None:
    threading.Thread(target=_watch, daemon=True).start()
    with connect(address) as log:
        number = 0
        while not _ended.is_set():
            log.append(str(number).encode(), partition=number % partitions).result(120)
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
            number += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
