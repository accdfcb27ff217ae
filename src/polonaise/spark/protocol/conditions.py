"""Find ranges in a condition: `partition = 0 and transaction_id >= 100` becomes options of the source.

Only what is certain is used: comparisons of one column with a literal, and `in` with a list of literals, joined by
`and`. Spark applies the whole condition in any case: a range that is missed costs time, one that is too narrow rows.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from polonaise.client.protocol.arguments import INT64_MAX
from polonaise.fragments.protocol.coverage import Span

_TERM: Final = re.compile(
    r"""\s*(?:(partition|transaction_id|header)\s*(<=|>=|==|=|<|>)\s*(-?\d{1,18})
        |(timestamp)\s*(<=|>=|==|=|<|>)\s*(?:timestamp\s*)?'([^']*)')\s*""",
    re.IGNORECASE | re.VERBOSE,
)
_IN: Final = re.compile(r"\s*(partition|header)\s+in\s*\(\s*(-?\d{1,9}(?:\s*,\s*-?\d{1,9})*)\s*\)\s*", re.IGNORECASE)
_TOKEN: Final = re.compile(r"'[^']*'|[()]|\band\b", re.IGNORECASE)
"""Matches strings, parentheses and `and`. A condition is cut only at an `and` outside of strings and parentheses."""
# Whatever could make a part mean something else than it says (OR, NOT, comments, escapes): then nothing is used.
_TANGLED: Final = re.compile(r"""\b(or|not|between|case|like)\b|--|/\*|[\\"`!;]""", re.IGNORECASE)
_ISO: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)")
"""Times that Python and Spark read alike."""
_INT32: Final = Span(-(2**31), 2**31 - 1)


class _Term(NamedTuple):
    column: str
    operator: str
    value: str


class Ranges(NamedTuple):
    """The ranges that a condition allows, as far as that is certain."""

    partitions: frozenset[int] | None = None
    """The partitions that may match; None for all."""
    headers: frozenset[int] | None = None
    """The headers that may match; None for all."""
    ids: Span = Span(0, INT64_MAX)
    """In every partition."""
    since: datetime | None = None
    """Beginning of the range of commit times, inclusive; None for the log's beginning."""
    until: datetime | None = None
    """End of the range of commit times, exclusive; None for the log's end."""


def ranges_in(where: str) -> Ranges:
    """Return the ranges that `where` allows; all of the log if the condition is too complex to be sure."""
    parts = [] if _TANGLED.search(where) else _conjuncts(where)
    terms = [
        _Term(match[1].lower(), match[2], match[3]) if match[1] else _Term("timestamp", match[5], match[6])
        for match in map(_TERM.fullmatch, parts)
        if match
    ]
    since, until = _times(terms)
    return Ranges(_listed("partition", parts, terms), _listed("header", parts, terms), _ids(terms), since, until)


def _conjuncts(where: str) -> list[str]:
    """Split a condition at its outermost `and`s. Return nothing if parentheses or strings are not closed."""
    parts: list[str] = []
    depth = begin = 0
    for token in _TOKEN.finditer(where):
        text = token[0].lower()
        depth += (text == "(") - (text == ")")
        if depth < 0:
            return []
        if text == "and" and depth == 0:
            parts.append(where[begin : token.start()])
            begin = token.end()
    complete = depth == 0 and where.count("'") % 2 == 0
    return [*parts, where[begin:]] if complete else []


def _listed(column: str, parts: list[str], terms: list[_Term]) -> frozenset[int] | None:
    """Return the values that `=`, `==` and `in` allow for a column; None if the condition has none of them for it."""
    lists = [match for match in map(_IN.fullmatch, parts) if match is not None and match[1].lower() == column]
    sets = [frozenset(int(each) for each in match[2].split(",")) for match in lists]
    sets += [frozenset({int(term.value)}) for term in terms if term.column == column and term.operator in ("=", "==")]
    if not sets:
        return None
    # Values beyond 32 bits match no row: an empty set is the right answer for them.
    return frozenset(each for each in frozenset.intersection(*sets) if _INT32.first <= each <= _INT32.last)


def _ids(terms: list[_Term]) -> Span:
    first, last = 0, INT64_MAX
    for term in terms:
        if term.column != "transaction_id":
            continue
        value = int(term.value)
        if term.operator in (">", ">=", "=", "=="):
            first = max(first, value + (term.operator == ">"))
        if term.operator in ("<", "<=", "=", "=="):
            last = min(last, value - (term.operator == "<"))
    return Span(first, last)


def _times(terms: list[_Term]) -> tuple[datetime | None, datetime | None]:
    """Return `Ranges.since` and `until`. Only literals with a time zone count: others depend on the session's."""
    since: list[datetime] = []
    until: list[datetime] = []
    for term in terms:
        moment = _moment(term.value) if term.column == "timestamp" else None
        if moment is None:
            continue
        if term.operator in (">", ">=", "=", "=="):
            since.append(moment)
        if term.operator in ("<", "<=", "=", "=="):
            # `until` is exclusive, and `<=` needs the moment itself. For `<` it is one too many: Spark filters it out.
            with suppress(OverflowError):  # nothing is later than the last moment that there is
                until.append(moment + timedelta(microseconds=1))
    return max(since, default=None), min(until, default=None)


def _moment(text: str) -> datetime | None:
    if not _ISO.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
