"""docs/formats.md tells the truth about the messages: its table is what the code declares."""

from __future__ import annotations

from pathlib import Path

import polonaise.wire.copies
import polonaise.wire.deliveries
import polonaise.wire.leases
import polonaise.wire.messages
import polonaise.wire.topics  # noqa: F401
from polonaise.wire import codec

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats.md"
_TYPES = {"B": "u8", "H": "u16", "I": "u32", "i": "i32", "q": "i64", "16s": "16 bytes"}


def message_rows() -> list[str]:
    """A table row for each message: number, name, fields in their order on the wire, payload."""
    rows = []
    for number, kind in sorted(codec.kinds().items()):
        formats = kind._FIXED.format.removeprefix("<").replace("16s", "K")
        fields = [
            f"{name} {_TYPES['16s' if form == 'K' else form]}"
            for name, form in zip(kind._FIXED_NAMES, formats, strict=True)
        ]
        fields += [f"{name} {form}" for name, form in kind._VARIABLE]
        has_payload = "yes" if "payload" in kind.__dataclass_fields__ else ""
        rows.append(f"| {number} | {kind.__name__} | {' · '.join(fields)} | {has_payload} |")
    return rows


def test_every_message_is_in_the_document_as_it_is_on_the_wire() -> None:
    text = DOCUMENT.read_text()
    missing = [row for row in message_rows() if row not in text]
    assert not missing, "docs/formats.md should say:\n" + "\n".join(missing)


def test_the_document_has_no_message_that_does_not_exist() -> None:
    table = DOCUMENT.read_text().split("## Messages")[1].split("\n## ")[0]
    told = [line for line in table.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert sorted(told) == sorted(message_rows())
