"""Check columns that the user wrote as Spark DDL, before Spark parses a longer text, which the user did not write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\w.]+|\S)")
_TYPES: Final = (
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double",
    "decimal", "dec", "numeric", "string", "char", "character", "varchar", "binary", "date", "time", "timestamp",
    "timestamp_ntz", "timestamp_ltz", "interval", "void", "variant", "geometry", "geography", "array", "map", "struct",
)  # fmt: skip
_OPENS: Final = {"<": ">", "(": ")"}
_NAME: Final = re.compile(r"`.*`|\w+", re.DOTALL)


def checked_columns(text: str) -> str:
    """Return `text` if each of its columns has a name and a known type, nested ones too. Raises `ValueError`."""
    for field in _parts(_TOKEN.findall(text)):
        _check_field(field, "column")
    return text


def _check_field(tokens: Sequence[str], what: str) -> None:
    if not tokens:
        raise ValueError("a column is missing between two commas, or behind the last one: write id long, name string")
    name, kind = tokens[0], tokens[1:]
    if kind[:1] == [":"]:
        kind = kind[1:]
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a {what}: write id long, name string")
    if not kind:
        raise ValueError(f"{what} {name} has no type: write {name} string, or another type")
    _check_type(kind, f"{what} {name}")


def _check_type(tokens: Sequence[str], whose: str) -> None:
    word = tokens[0].lower()
    if word not in _TYPES:
        close = get_close_matches(word, _TYPES, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(_TYPES)}"
        raise ValueError(f"{whose} is {tokens[0]}, which is no type: {hint}")
    if word not in ("array", "map", "struct"):
        return
    if tokens[1:2] != ["<"]:
        raise ValueError(f"{whose} is {word} without the types in it: write {_EXAMPLES[word]}")
    inside = _inside(tokens[2:], whose)
    parts = _parts(inside) if inside else []
    if word == "struct":
        for part in parts:
            _check_field(part, f"{whose}: field")
        return
    if len(parts) != {"array": 1, "map": 2}[word]:
        raise ValueError(f"{whose} is {word} of {len(parts)} types: write {_EXAMPLES[word]}")
    for part in parts:
        _check_type(part or [","], whose)


_EXAMPLES: Final = {"array": "array<string>", "map": "map<string,long>", "struct": "struct<id long, name string>"}


def _inside(tokens: Sequence[str], whose: str) -> Sequence[str]:
    """Return the tokens before the `>` that closes a `<` which stood before `tokens`."""
    depth = 1
    for index, token in enumerate(tokens):
        depth += (token == "<") - (token == ">")
        if not depth:
            return tokens[:index]
    raise ValueError(f"{whose}: a < has no >: write one after the types in it")


def _parts(tokens: Sequence[str]) -> list[Sequence[str]]:
    """Cut tokens into parts at the commas outside of brackets."""
    parts: list[list[str]] = [[]]
    open_: list[str] = []
    for token in tokens:
        if token in _OPENS:
            open_.append(_OPENS[token])
        elif open_ and token == open_[-1]:
            open_.pop()
        if token == "," and not open_:
            parts.append([])
        else:
            parts[-1].append(token)
    return list(parts)
