"""What each version of Polonaise leaves behind for later ones to read: a log, a view, a stream, and frames.

`rigs.keptwriter` writes it with the sources of one version, and `tests/upgrades` opens it with those of today. So this
module uses only what every version has.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, Table

from polonaise import SqlView, Transaction
from polonaise.wire import codec
from polonaise.wire.codec import Message

KEPT = Path(__file__).parent.parent / "upgrades" / "kept"
VERSIONS = sorted(path.name for path in KEPT.iterdir() if path.is_dir())
PARTITIONS = 2
STORAGE = 3
SEGMENT_BYTES = 4096
"""Small, so that there are several segments of each partition."""
ACCOUNTS = 7
ROUNDS = 40
PRODUCER = "counter"
REGISTER = b"rate"
SINK = "kept"
"""The `txnAppId` of the rows that Spark's sink writes."""


class KeptView(SqlView):
    """The sum of each account's amounts; a transaction is `account amount` as text."""

    metadata = MetaData()
    balances = Table(
        "balances",
        metadata,
        Column("account", Integer, primary_key=True, autoincrement=False),
        Column("balance", BigInteger, nullable=False),
    )

    def apply(self, tx: Transaction, db: Connection) -> None:
        account, amount = (int(part) for part in tx.data.split())
        mine = self.balances.c.account == account
        changed = db.execute(self.balances.update().where(mine).values(balance=self.balances.c.balance + amount))
        if not changed.rowcount:
            db.execute(self.balances.insert(), {"account": account, "balance": amount})


def body(number: int) -> bytes:
    return b"%d %d" % (number % ACCOUNTS, number * 37 % 101 - 50)


def row_of(tx: Transaction) -> list[Any]:
    """All that a reader is told of a transaction, as JSON can hold it."""
    return [tx.id, tx.header, tx.data.decode(), tx.commit_time_us, tx.client_id, tx.generation, tx.sequence]


def pack(folder: Path, archive: Path) -> None:
    """Pack a folder so that the same contents give the same bytes, but for compression."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member if member.isfile() or member.isdir() else None

    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in sorted(folder.rglob("*")):
            packed.add(path, str(path.relative_to(folder)), recursive=False, filter=plain)


def unpack(version: str, directory: Path) -> dict[str, Any]:
    """Unpack what this version wrote, and return its manifest."""
    with tarfile.open(KEPT / version / "files.tar.xz") as packed:
        packed.extractall(directory, filter="data")
    return manifest(version)


def manifest(version: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((KEPT / version / "manifest.json").read_text())
    return read


# ---------------------------------------------------------------------- frames


def sample(kind: type[Message]) -> dict[str, Any]:
    """Values for the fields of a message, which tell each from its neighbours."""
    hints = get_type_hints(kind, include_extras=True)
    values: dict[str, Any] = {}
    for number, name in enumerate((each.name for each in fields(kind)), 1):
        if name == "payload":
            values[name] = "payload"
            continue
        form = hints[name].__metadata__[0]
        values[name] = {
            "text": f"{name} é",
            "blob": f"{name} blob",
            "16s": "sixteen bytes 16",
            "B": number,
            "H": 0x100 + number,
            "I": 0x10000000 + number,
            "i": -number,
            "q": -(2**40) - number,
        }[form]
    return values


def message_with(kind: type[Message], values: dict[str, Any]) -> Message:
    """Return the message with values that were kept as JSON: texts for what are bytes."""
    hints = get_type_hints(kind, include_extras=True)

    def value(name: str, kept: Any) -> Any:
        if name == "payload":
            return [kept.encode()]
        return kept.encode() if hints[name].__metadata__[0] in ("16s", "blob") else kept

    return kind(**{name: value(name, kept) for name, kept in values.items()})


def frames() -> Iterator[dict[str, Any]]:
    """A frame of every message, with the values that are in it."""
    for number, kind in sorted(codec.kinds().items()):
        values = sample(kind)
        raw = b"".join(bytes(part) for part in message_with(kind, values).frame(request=7, partition=3))
        yield {"type": number, "name": kind.__name__, "values": values, "bytes": raw.hex()}
