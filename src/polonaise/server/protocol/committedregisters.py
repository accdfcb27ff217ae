"""The committed registers of a partition, and the answers to requests for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from polonaise.errors import Overloaded, ProtocolError
from polonaise.log import registers
from polonaise.terms import TransactionId
from polonaise.wire.messages import GetRegister, ListRegisters, RegisterIs, RegistersListed

_LISTINGS_MAX: Final = 16
"""The most requests for pages that may wait: one turn of the loop may make all the pages, each in milliseconds."""

AskedRegisters: TypeAlias = GetRegister | ListRegisters
"""A request for one register, or for a page of registers."""


class CommittedRegisters:
    """The registers at the committed mark. For each admitted request `answer` or `release` is called once."""

    __slots__ = ("_keys", "_listing_count_max", "_listings", "values")

    def __init__(self, listing_count_max: int) -> None:
        self._listing_count_max = listing_count_max
        self.values: dict[bytes, bytes] = {}
        self._keys: list[bytes] | None = None
        """Sorted; None after a change, until the next page is made."""
        self._listings = 0
        """Admitted, and neither answered nor given up."""

    def replace(self, values: Mapping[bytes, bytes]) -> None:
        self.values, self._keys = dict(values), None

    def apply(self, section: bytes | memoryview) -> None:
        """Apply the changes in the registers section of a committed batch."""
        registers.apply(self.values, section)
        self._keys = None

    def admit(self, asked: AskedRegisters) -> None:
        """Admit a request.

        Raises `ProtocolError` for a key or prefix that is too long, `Overloaded` for one page too many.
        """
        if isinstance(asked, GetRegister):
            if len(asked.key) > registers.KEY_BYTES_MAX:
                raise ProtocolError(
                    f"a register's key of {len(asked.key)} bytes; the limit is {registers.KEY_BYTES_MAX} bytes"
                )
            return
        # A next page begins behind the last key of the one before, which is that key and a zero byte.
        if max(len(asked.first) - 1, len(asked.prefix)) > registers.KEY_BYTES_MAX:
            raise ProtocolError(
                f"a list of registers from a key of {len(asked.first)} bytes on, with a prefix of {len(asked.prefix)} "
                f"bytes; the limits are {registers.KEY_BYTES_MAX + 1} bytes for that key, and "
                f"{registers.KEY_BYTES_MAX} bytes for the prefix"
            )
        if self._listings >= _LISTINGS_MAX:
            raise Overloaded(f"{self._listings} lists of registers wait to be answered: ask again after a pause")
        self._listings += 1

    def answer(self, asked: AskedRegisters, committed: TransactionId) -> RegisterIs | RegistersListed:
        """Return the register or the page as it is now, at the mark `committed`."""
        if isinstance(asked, GetRegister):
            value = self.values.get(asked.key)
            return RegisterIs(value is not None, committed, value or b"")
        self.release(asked)
        if self._keys is None:
            self._keys = sorted(self.values)
        page = registers.page(self.values, self._keys, asked.prefix, asked.first, self._listing_count_max)
        return RegistersListed(committed, page.more, registers.encode(page.changes))

    def release(self, asked: AskedRegisters) -> None:
        """End a request that is answered or given up, so that another listing may be admitted."""
        if isinstance(asked, ListRegisters):
            self._listings -= 1
