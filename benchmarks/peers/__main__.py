"""Polonaise, Kafka, PostgreSQL and NATS JetStream at the same work, one after the other on this machine.

    python -m benchmarks.peers [--seconds 4] [--runs 2] [--only kafka,nats] [--write]

One partition (topic, table, stream), three copies on one disk, transactions of 100 bytes, with 1, 64 and 1,024 of them
unanswered at a time. Prints each load; with `--write` the best of the runs replace the tables in docs/why.md.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from benchmarks.document import machine
from benchmarks.peers import table
from benchmarks.peers.jetstream import JetStream
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.ours import Polonaise
from benchmarks.peers.peer import Peer
from benchmarks.peers.postgresql import PostgreSQL
from benchmarks.peers.sittings import sittings

SPACE_BYTES = 10_000_000_000
"""The free bytes needed to begin: the quickest peer writes a few gigabytes."""


def peers() -> list[Peer]:
    """Return the peers; first those that sync before they acknowledge."""
    return [
        Polonaise(),
        PostgreSQL(synced=True),
        JetStream(synced=True),
        Kafka(synced=True),
        PostgreSQL(synced=False),
        JetStream(synced=False),
        Kafka(synced=False),
    ]


def chosen(only: str) -> list[Peer]:
    """Return the peers that were asked for. An unknown name ends the program."""
    everybody = peers()
    if not only:
        return everybody
    names = {name.strip() for name in only.split(",")}
    known = {peer.configuration.peer for peer in everybody}
    if names - known:
        sys.exit(f"--only {','.join(sorted(names - known))}: not one of {', '.join(sorted(known))}")
    return [peer for peer in everybody if peer.configuration.peer in names]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4, help="how long each load runs (default: 4)")
    parser.add_argument("--runs", type=int, default=2, help="how often each load runs (default: 2)")
    parser.add_argument("--only", default="", help="some of polonaise, postgresql, nats, kafka, with commas between")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on which disk (default: /var/tmp)")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/why.md")
    options = parser.parse_args()
    if options.seconds < 1 or options.runs < 1:
        parser.error("--seconds and --runs are at least 1")
    if shutil.disk_usage(options.directory).free < SPACE_BYTES:
        parser.error(
            f"{options.directory} has less than {SPACE_BYTES // 10**9} GB free: --directory names another disk"
        )
    everybody = chosen(options.only)
    signal.signal(signal.SIGTERM, _end)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="polonaise-peers-", dir=options.directory, ignore_cleanup_errors=True
    ) as own:
        Path(own).chmod(0o711)
        done = sittings(everybody, Path(own), options.seconds, options.runs)
    print(f"\n{time.monotonic() - began:.0f} s in all")
    command = f"`python -m benchmarks.peers --seconds {options.seconds:g} --runs {options.runs}"
    command += f" --only {options.only}`" if options.only else "`"
    runs = (
        f"{machine()}; best of {options.runs} runs of {options.seconds:g} s. Floors are measured before and after each."
    )
    print("\n".join(["", *table.lines(done, command, runs)]))
    if options.write:
        table.write(done, command, runs)


def _end(number: int, frame: FrameType | None) -> None:
    """End the program; running servers are ended on the way out."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
