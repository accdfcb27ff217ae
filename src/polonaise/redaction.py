"""Redact addresses: errors, logs and names of threads show them without passwords, keys and tokens.

An address that is wrong must be redacted as well, so nothing here parses one: what looks like a secret is taken out of
any text, and where that is not clear, rather more than less.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.parse import quote, unquote

T = TypeVar("T")

HIDDEN: Final = "***"
_TEXT_CHARACTERS_MAX: Final = 2_000
"""The most characters of an application's text that are told: several times what any message shows."""

_SECRET_NAMES: Final = "pass|pwd|secret|token|key|cred|sig|auth|private|sas"
_NAMED: Final = re.compile(
    rf"(?i)((?:^|[?&;,\s'\"({{/:])[\w.\-%]*(?:{_SECRET_NAMES})[\w.\-%]*=)('[^']*'|\"[^\"]*\"|[^&;\s'\")}},]*)"
)
"""A parameter whose name suggests a secret: `password=…` in a query, a JDBC address or a DSN of words."""
_PASSWORD: Final = re.compile(r"(?P<scheme>\b[\w+.\-]+:/{1,3}|//)?(?P<user>[^\s:/@'\"]*):(?!/)\S+@")
"""`user:password@`, up to the last at sign: an unquoted at sign within a password would leave its second half visible.
"""
_SPACED: Final = re.compile(r"(?P<scheme>\b[\w+.\-]+://)(?P<user>[^\s:/@'\"]*):[^@\n]{1,200}@")
"""`user:password@` with blanks in it, only where a scheme shows that an address begins."""
_TOKEN: Final = re.compile(r"(?i)\b(?P<scheme>https?://)[^\s:/@'\"]+@")
"""A user without a password in an http or https address, where the user may be itself the token."""
_QUOTED: Final = re.compile(r"(?i)[^\s?&=;'\"]*(?:%3a%2f%2f|%40|%3d)[^\s&;'\"]*")
"""A percent-encoded address within an address, or text that resembles one and holds no secret.

Often only its delimiters are encoded: in `fragments=s3://bucket?aws_secret_access_key%3D…` the equals sign is.
"""


def redacted(text: object) -> str:
    """Return the text without the secrets of the addresses in it. Bytes are decoded first."""
    shown = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    shown = _QUOTED.sub(lambda match: _within(match[0]), shown)
    for pattern in (_PASSWORD, _SPACED):
        shown = pattern.sub(lambda match: f"{match['scheme'] or ''}{match['user']}:{HIDDEN}@", shown)
    shown = _TOKEN.sub(lambda match: f"{match['scheme']}{HIDDEN}@", shown)
    return _NAMED.sub(lambda match: match[1] + HIDDEN, shown)


def _within(quoted: str) -> str:
    """Return the percent-encoded text redacted, or as it was when it holds no secret."""
    unquoted = unquote(quoted)
    shown = redacted(unquoted)
    return quoted if shown == unquoted else quote(shown, safe=HIDDEN + "/:" if "/" in quoted else HIDDEN)


def redacted_text(given: object, text_of: Callable[[object], str] = str) -> str:
    """Return the text of an object of the application's own, redacted, and cut if it is very long.

    An object without a text is told by its type. Cut before it is redacted, because that takes long for a long text;
    whoever tells less of it cuts it once more, so that no secret is cut where it would not be seen any more.
    """
    try:
        return redacted(text_of(given)[:_TEXT_CHARACTERS_MAX])
    except Exception:  # noqa: BLE001 - the application's objects say how they look
        return f"{type(given).__name__} without a text"


def redacted_trace(error: BaseException) -> str:
    """Return the traceback of an error of the application's own code, redacted."""
    try:
        return redacted("".join(traceback.format_exception(error))).rstrip()
    except Exception:  # noqa: BLE001 - the application's objects say how they look
        return f"{type(error).__name__} without a traceback"


def redacted_repr(cls: type[T]) -> type[T]:
    """Decorate a class so that its `repr` shows addresses redacted, because a `repr` ends up in logs and tracebacks."""
    whole_repr = cls.__repr__

    def shown_repr(self: T) -> str:
        return redacted(whole_repr(self))

    setattr(cls, "__repr__", shown_repr)  # noqa: B010 - mypy takes no assignment to a method
    return cls
