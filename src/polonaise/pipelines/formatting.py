"""Format values as people read them, and turn them into positions on an axis."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias

from polonaise.errors import BadOption
from polonaise.redaction import redacted

Number: TypeAlias = int | float | Decimal | Fraction
Place: TypeAlias = Number | date
"""A position on a horizontal axis. A `datetime` without a time zone is UTC."""

_PLAIN: Final = re.compile(r"[^\s\"'\\,:]+")
NOTHING: Final = "\N{EN DASH}"
_MINUS: Final = "\N{MINUS SIGN}"
_SCALES: Final = ((10**12, "T"), (10**9, "bn"), (10**6, "M"), (10**3, "k"))


def read(value: Any) -> str:
    """Format a value for a table or a fact: thousands separated, times in UTC, bytes in hexadecimal, None as a dash."""
    match value:
        case None:
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case int() | float() | Decimal() | Fraction():
            return number(value)
        case datetime():
            precision = "milliseconds" if value.microsecond else "seconds"
            return _utc(value).replace(tzinfo=None).isoformat(" ", precision)
        case date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case _:
            return str(value)


def quoted(value: Any) -> str:
    """Format a value unlike all others of its column: None as NULL, bytes after 0x, odd texts in quotes."""
    match value:
        case None:
            return "NULL"
        case str():
            plain = _PLAIN.fullmatch(value) and value.upper() != "NULL"
            return value if plain else json.dumps(value, ensure_ascii=False)
        case bytes() | bytearray():
            return f"0x{bytes(value).hex()}"
        case date():
            return value.isoformat()
        case _:
            return str(value)


def number(value: Number) -> str:
    """Format a number: integers and decimals exactly, non-finite floats as a dash, others to six significant digits. A
    float or fraction from a million on, and below 10**16, has all digits before the point."""
    if isinstance(value, Fraction):
        value = value.numerator if value.denominator == 1 else float(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return NOTHING
        exponent = math.floor(math.log10(abs(value))) if value else 0
        if exponent < -4 or exponent > 15:
            return f"{value:.6g}".replace("-", _MINUS)
        text = f"{value:,.{max(0, 5 - exponent)}f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", _MINUS)
    return f"{value:,}".replace("-", _MINUS)


def short(value: Number) -> str:
    """Format a number to three significant digits at most, up to trillions: 7, 1.2 M. Raises as `finite`."""
    size = abs(finite(value))
    sign = _MINUS if value < 0 else ""
    for scale, suffix in _SCALES:
        if size >= scale * 0.9995:
            scaled = size / scale
            return f"{sign}{scaled:.1f} {suffix}" if scaled < 9.95 else f"{sign}{scaled:,.0f} {suffix}"
    return sign + (f"{size:.0f}" if size == int(size) or size >= 9.95 else f"{size:.2g}")


def finite(value: Any) -> float:
    """Return a value as a number that can be drawn. Raises `BadOption` for any other."""
    try:
        converted = float(value)
    except (TypeError, ValueError, OverflowError):
        converted = math.nan
    if not math.isfinite(converted) or isinstance(value, bool | str | bytes):
        raise BadOption(f"{value!r} can't be drawn: give a finite number; a line also takes None, as a gap")
    return converted


def place(value: Any) -> float:
    """Return a position on an axis: a number as it is, a date or time as seconds since 1970. Raises `BadOption`."""
    if isinstance(value, datetime):
        return _utc(value).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    return finite(value)


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# ------------------------------------------------------------------ width of texts


def width_of(text: str, size: float) -> float:
    """Return roughly the width of a text in a sans-serif font of this size, rather too large, in the unit of `size`."""
    return sum(_share(character) for character in text) * size


def _share(character: str) -> float:
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    if unicodedata.combining(character):
        return 0.0
    if character in "iljt.,:;|!'()[] ":
        return 0.36
    return 0.96 if character in "mwMW@%" else 0.72 if character.isupper() else 0.62


def cut(text: str, size: float, width: float) -> str:
    """Return a text redacted, with its end replaced by … if it is wider than `width` in a font of this size."""
    text = redacted(text)
    room, used, fit = width / size, 0.0, 0
    for index, character in enumerate(text, start=1):
        used += _share(character)
        if used > room:
            return text[:fit].rstrip() + "…"
        if used + _share("…") <= room:
            fit = index
    return text
