"""The registers of a partition as they are committed, and what is answered to those who ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from polonaise.errors import Overloaded, ProtocolError
from polonaise.log import registers
from polonaise.terms import TransactionId
from polonaise.wire.messages import GetRegister, ListRegisters, RegisterIs, RegistersListed

_LISTINGS_MAX: Final = 16
"""Pages of registers that are made in one turn, of up to some milliseconds each."""

AskedRegisters: TypeAlias = GetRegister | ListRegisters
"""One register, or a page of them."""


class CommittedRegisters:
    """The registers of a partition at its committed high-water mark.

    Whoever asks is admitted first; later, `answer` or `give_up` is called once for each who was.
    """

    __slots__ = ("_keys", "_listing_count_max", "_listings", "values")

    def __init__(self, listing_count_max: int) -> None:
        self._listing_count_max = listing_count_max
        self.values: dict[bytes, bytes] = {}
        self._keys: list[bytes] | None = None
        """The keys in order; None until somebody wants them listed, and whenever they have changed."""
        self._listings = 0
        """Pages that were asked for and are not made yet."""

    def replace(self, values: Mapping[bytes, bytes]) -> None:
        """Hold these, whatever was held before."""
        self.values, self._keys = dict(values), None

    def apply(self, section: bytes | memoryview) -> None:
        """Make the changes that a committed batch has in its section of registers."""
        registers.apply(self.values, section)
        self._keys = None

    def admit(self, asked: AskedRegisters) -> None:
        """Take a request. Raises `ProtocolError` for what no key is, and `Overloaded` when many wait for a page."""
        if isinstance(asked, GetRegister):
            if len(asked.key) > registers.KEY_BYTES_MAX:
                raise ProtocolError(
                    f"a register's key of {len(asked.key)} bytes; the limit is {registers.KEY_BYTES_MAX}"
                )
            return
        # The key behind the last one is longer by one.
        if max(len(asked.first) - 1, len(asked.prefix)) > registers.KEY_BYTES_MAX:
            raise ProtocolError(f"keys from {len(asked.first)} bytes on; the limit is {registers.KEY_BYTES_MAX}")
        if self._listings >= _LISTINGS_MAX:
            raise Overloaded(f"{self._listings} lists of registers are asked for at the same time")
        self._listings += 1

    def answer(self, asked: AskedRegisters, committed: TransactionId) -> RegisterIs | RegistersListed:
        """The register, or the page, as it is now; `committed` is the committed high-water mark."""
        if isinstance(asked, GetRegister):
            value = self.values.get(asked.key)
            return RegisterIs(value is not None, committed, value or b"")
        self.give_up(asked)
        if self._keys is None:
            self._keys = sorted(self.values)
        page = registers.page(self.values, self._keys, asked.prefix, asked.first, self._listing_count_max)
        return RegistersListed(committed, page.more, registers.encode(page.changes))

    def give_up(self, asked: AskedRegisters) -> None:
        """Nobody waits for this answer any more."""
        if isinstance(asked, ListRegisters):
            self._listings -= 1
