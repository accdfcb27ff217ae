"""Addresses as errors, logs and names of threads may show them: without passwords, keys and tokens.

Meant for what is wrong with an address as well, so nothing here parses one: what looks like a secret is taken out of
any text, and where that is not clear, rather more than less.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar
from urllib.parse import quote, unquote

T = TypeVar("T")

HIDDEN: Final = "***"

_SECRET_NAMES: Final = "pass|pwd|secret|token|key|cred|sig|auth|private|sas"
_NAMED: Final = re.compile(
    rf"(?i)((?:^|[?&;,\s'\"({{/:])[\w.\-%]*(?:{_SECRET_NAMES})[\w.\-%]*=)('[^']*'|\"[^\"]*\"|[^&;\s'\")}},]*)"
)
"""`password=…` in a query, a JDBC address or a DSN of words."""
_PASSWORD: Final = re.compile(r"(?P<scheme>\b[\w+.\-]+:/{1,3}|//)?(?P<user>[^\s:/@'\"]*):(?!/)\S+@")
"""`user:password@`, up to the last at sign: who writes one in a password without quoting it gives it away else."""
_SPACED: Final = re.compile(r"(?P<scheme>\b[\w+.\-]+://)(?P<user>[^\s:/@'\"]*):[^@\n]{1,200}@")
"""The same with blanks in it, where it is plain that it begins an address."""
_TOKEN: Final = re.compile(r"(?i)\b(?P<scheme>https?://)[^\s:/@'\"]+@")
"""A user without a password, where that is one itself."""
_QUOTED: Final = re.compile(r"(?i)[^\s?&=;'\"]*(?:%3a%2f%2f|%40)[^\s&;'\"]*")
"""An address within an address; or the like of it, in which nothing is found."""


def redacted(text: object) -> str:
    """The text without the secrets of the addresses in it. Of bytes, their text."""
    shown = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    shown = _QUOTED.sub(lambda found: _within(found[0]), shown)
    for pattern in (_PASSWORD, _SPACED):
        shown = pattern.sub(lambda found: f"{found['scheme'] or ''}{found['user']}:{HIDDEN}@", shown)
    shown = _TOKEN.sub(lambda found: f"{found['scheme']}{HIDDEN}@", shown)
    return _NAMED.sub(lambda found: found[1] + HIDDEN, shown)


def _within(quoted: str) -> str:
    said = unquote(quoted)
    shown = redacted(said)
    return quoted if shown == said else quote(shown, safe=HIDDEN)


def redacted_repr(cls: type[T]) -> type[T]:
    """A class whose `repr`, as it was made, shows its addresses redacted: it ends up in logs and tracebacks."""
    shown = cls.__repr__

    def told(self: T) -> str:
        return redacted(shown(self))

    setattr(cls, "__repr__", told)  # noqa: B010 - mypy takes no assignment to a method
    return cls
