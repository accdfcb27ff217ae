"""The route function of the campaign: a body names its targets by letters, `ab:rest`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from polonaise.terms import Transaction

TARGETS: Final = "abc"
PARTITIONS: Final = 3


def route(tx: Transaction) -> Mapping[str, bytes]:
    names, _, rest = tx.data.partition(b":")
    return dict.fromkeys(names.decode(), rest)
