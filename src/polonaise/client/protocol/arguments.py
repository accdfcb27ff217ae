"""Checks of what an application passes: an invalid argument is refused by name, with its value and what is wanted."""

from __future__ import annotations

import math
from datetime import datetime
from reprlib import Repr
from typing import Any, Final
from uuid import UUID

from polonaise.coordination.topics import where_of
from polonaise.errors import BadOption, UnknownPartition
from polonaise.log import registers
from polonaise.redaction import redacted
from polonaise.terms import LockMode, PartitionId

INT64_MAX: Final = 2**63 - 1

_NO_UTF8: Final = "a text that UTF-8 can encode: this one has half of a surrogate pair"


class _RedactedRepr(Repr):
    """A `repr` of bounded length in which each text is redacted before it is shortened."""

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(redacted(x), level)

    def repr_instance(self, x: object, level: int) -> str:
        try:
            return redacted(repr(x), self.maxother)
        except Exception:  # noqa: BLE001 - the application's objects say how they look
            return f"<{type(x).__name__}>"


_repr = _RedactedRepr()
_repr.maxstring = _repr.maxother = 60


def wrong(name: str, given: object, wanted: str) -> BadOption:
    return BadOption(f"{name}={_shown(given)} ({type(given).__name__}): {wanted}")


def _shown(given: object) -> str:
    return _repr.repr(given)


def checked_seconds(name: str, given: Any) -> float | None:
    """Return a finite number of seconds from 0 on, or None for no bound. Raises `BadOption` for anything else."""
    if given is None:
        return None
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise wrong(name, given, "seconds as a number, or None for no bound")
    if not 0 <= given < math.inf:  # a NaN is neither
        raise wrong(name, given, "a finite number of seconds from 0 on, or None for no bound")
    return given


def checked_id(name: str, given: Any, lowest: int = -1, wanted: str = "") -> int:
    """Return `given` if it is an integer from `lowest` to 2**63 - 1. Else raises `BadOption`, which says `wanted`."""
    if not isinstance(given, int) or isinstance(given, bool) or not lowest <= given <= INT64_MAX:
        raise wrong(name, given, wanted or f"a transaction's id is an integer from {lowest} on")
    return given


def checked_key(key: Any) -> bytes:
    """Return a register's key, bytes. Raises `BadOption` for anything else, or one past its bound."""
    return _checked_bytes("key", key, registers.KEY_BYTES_MAX)


def checked_value(value: Any) -> bytes:
    """Return a register's value, bytes. Raises `BadOption` for anything else, or one past its bound."""
    return _checked_bytes("value", value, registers.VALUE_BYTES_MAX)


def _checked_bytes(name: str, given: Any, bytes_max: int) -> bytes:
    if not isinstance(given, bytes):
        raise wrong(name, given, f"a register's {name} is bytes: encode it")
    if len(given) > bytes_max:
        raise BadOption(f"a register's {name} of {len(given)} bytes; the limit is {bytes_max}")
    return given


def encoded(name: str, text: str) -> bytes:
    """Return a text in UTF-8. Raises `BadOption` for a lone surrogate, which has no UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise wrong(name, text, _NO_UTF8) from None


def wrong_lock(name: Any, id: Any, mode: Any) -> BadOption:
    if not isinstance(mode, LockMode):
        return wrong("mode", mode, "LockMode.READ, WRITE or APPEND")
    if not isinstance(name, str):
        return wrong("name", name, "a lock's name is text")
    if not isinstance(id, int | str | UUID) or isinstance(id, bool):
        return wrong("id", id, "a lock's id is an integer of 64 bits, signed, a text or a UUID")
    if isinstance(id, int) and not -INT64_MAX - 1 <= id <= INT64_MAX:
        return wrong("id", id, "an integer as a lock's id has 64 bits, signed: write it as a text")
    return wrong("name", name, _NO_UTF8) if _is_broken(name) else wrong("id", id, _NO_UTF8)


def _is_broken(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def partitions_named(text: str | None, count: int, topic: str = "") -> list[PartitionId]:
    """Parse an operator's choice of partitions: `all`, `3` or `0-6,9`; None means the only partition. `count` is the
    number of partitions of `topic`, empty for none. Raises `BadOption`, also for None where there are several, and
    `UnknownPartition`."""
    if text is None:
        if count == 1:
            return [0]
        raise BadOption(f"the log has {count} partitions: pass --partition 0, --partition 0-2,5 or --partition all")
    if text.strip() == "all":
        return list(range(count))
    named: dict[PartitionId, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise BadOption(f"invalid partitions {text!r}: write all, 3, or 0-6,9")
        if int(last or first) >= count:
            raise UnknownPartition(f"partition {last or first}; {where_of(topic)} has partitions 0 to {count - 1}")
        named.update(dict.fromkeys(range(int(first), int(last or first) + 1)))
    return list(named)


def microseconds(since: int | datetime) -> int:
    """Return a moment in microseconds UTC. Raises `BadOption`."""
    # At least 1: in a request, 0 stands for a reading that begins at an id.
    if isinstance(since, int) and since <= INT64_MAX:
        return max(1, since)
    if not isinstance(since, datetime):
        raise wrong("since", since, "microseconds UTC as an integer, or a datetime with a time zone")
    if since.tzinfo is None:
        raise BadOption(f"since={since} has no time zone: give it one, for example datetime.now(UTC)")
    return max(1, int(since.timestamp() * 1_000_000))
