"""The operations that clients append, as bodies, and the fold of a log of them: accounts with balances."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

OPENING_BALANCE: Final = 1_000
"""The balance of each account before its first transfer."""
ACCOUNTS: Final = 50
"""The number of accounts of each partition: few, so that transfers conflict."""


class Transfer(NamedTuple):
    """A transfer between two accounts of a partition, and the balances that it was built on."""

    source: int
    target: int
    amount: int
    source_seen: int
    """The balance of the source that the context read."""
    target_seen: int


class BankOperation(NamedTuple):
    """A body of the log."""

    name: str
    """Unique for ever: who tried it, in which life, as the how-manieth, in which run of its context."""
    transfer: Transfer | None
    """None for a note, which changes nothing."""

    def encode(self) -> bytes:
        """Return the operation as a body."""
        return " ".join([self.name, *map(str, self.transfer or ())]).encode()

    @classmethod
    def decode(cls, body: bytes) -> BankOperation:
        """Return the operation in a body. Raises `ValueError` for any other body."""
        name, *numbers = body.decode("ascii").split(" ")
        if len(numbers) not in (0, 5):
            raise ValueError(f"a body with {len(numbers)} numbers")
        return cls(name, Transfer(*map(int, numbers)) if numbers else None)


def digest_of(body: bytes) -> int:
    """Return a digest of a body that fits a column of a database."""
    return int.from_bytes(blake2b(body, digest_size=7).digest(), "big")


class Fold:
    """Balances after some operations, and what is wrong: transfers that were built on others, or that overdraw."""

    def __init__(self, opening_balance: int = OPENING_BALANCE) -> None:
        self.balances: dict[int, int] = defaultdict(lambda: opening_balance)
        self.wrong: list[str] = []

    def follow(self, operations: Iterable[tuple[int, BankOperation]]) -> None:
        """Apply operations in the order of their ids."""
        for id, operation in operations:
            if operation.transfer is not None:
                self.apply(id, operation.name, operation.transfer)

    def apply(self, id: int, name: str, transfer: Transfer) -> None:
        """Apply one transfer."""
        source, target = self.balances[transfer.source], self.balances[transfer.target]
        if (source, target) != (transfer.source_seen, transfer.target_seen):
            self.wrong.append(
                f"{name} ({id}) was built on balances {transfer.source_seen} and {transfer.target_seen}, and its "
                f"accounts had {source} and {target}"
            )
        if source < transfer.amount:
            self.wrong.append(f"{name} ({id}) takes {transfer.amount} from an account with {source}")
        self.balances[transfer.source] -= transfer.amount
        self.balances[transfer.target] += transfer.amount
