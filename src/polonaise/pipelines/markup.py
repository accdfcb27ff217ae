"""HTML and SVG as values of a type of their own: a value of any other type is text, and is escaped."""

from __future__ import annotations

import html
import re
from typing import Final

_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
"""Characters that HTML forbids, that UTF-8 can't encode, or that would reverse the text after them."""
_EMPTY: Final = frozenset({"meta", "link", "br"})


class Markup(str):
    """Text that is HTML already. Made only by `escaped`, `joined`, `element` and `canvas.svg`, and of constants."""

    __slots__ = ()


def printable(text: str) -> str:
    """Replace the characters that a page can't hold or show."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> Markup:
    """Escape text, so that no character of it can be taken for markup."""
    return Markup(html.escape(printable(text)))


def joined(*children: str) -> Markup:
    """Join children; those that are not markup are escaped."""
    return Markup("".join(child if isinstance(child, Markup) else escaped(child) for child in children))


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """Make an element. Underscores in attributes become hyphens, `class_` is `class`; None omits the attribute."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    end = "" if tag in _EMPTY else f"</{tag}>"
    return Markup(f"<{tag}{written}>{joined(*children)}{end}")


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
