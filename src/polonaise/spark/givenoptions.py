"""The options of a query as texts, under the names that the documentation gives them; unknown ones are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final, TypeVar

from polonaise.errors import BadOption
from polonaise.redaction import redacted, redacted_address

T = TypeVar("T")

KAFKAS: Final = {
    "startingoffsets": "startingTransactions",
    "endingoffsets": "endingTransactions",
    "maxoffsetspertrigger": "maxTransactionsPerTrigger",
}
"""By the name, in lower case, that Spark's Kafka source has for an option: our name. It may be given by either."""
_SPARKS: Final = frozenset({"checkpointlocation", "path", "queryname", "__partition_columns"})
"""Options that are Spark's own."""
_TABLES: Final = frozenset({"provider", "owner", "option.cluster"})
"""Options that Spark adds for a table in a catalog."""


class GivenOptions:
    """The given options, under their documented names.

    Raises `BadOption` for a name that is neither among `known` nor Spark's, for an option under two names, for a path,
    and for a table in a catalog.
    """

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        by_name = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        self._given = {key.lower(): value for key, value in given.items()}
        for key, value in self._given.items():
            name = by_name.get(key) or by_name.get(KAFKAS.get(key, "").lower())
            if name is None:
                _check_foreign(key, value, by_name)
            elif name in self._values:
                raise BadOption(f"{name} is given twice, once under the name that Spark's Kafka source gives it")
            else:
                self._values[name] = value

    def text(self, name: str) -> str | None:
        """Return an option's text; None if it was not given. Raises `BadOption` for an empty one."""
        value = self._values.get(name)
        if value is not None and not value.strip():
            raise BadOption(f"{name} is empty: leave it out, or give it a value")
        return value

    def value(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Return what `parse` makes of an option, or the default. Raises `BadOption`, with what `parse` objects to."""
        text = self.text(name)
        if text is None:
            return default
        try:
            return parse(text)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise BadOption(f"{name}={redacted_address(text)!r}: {redacted(error)}") from None

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Return the options whose names begin with this, under the rest of their names in lower case."""
        return {key.removeprefix(prefix): value for key, value in self._given.items() if key.startswith(prefix)}


def _check_foreign(key: str, value: str, by_name: Mapping[str, str]) -> None:
    if key == "path" and value:
        raise BadOption(
            f"a log has no path {redacted_address(value)!r}: name it with .option('cluster', 'embedded:PATH'), "
            "then .load()"
        )
    if key in _TABLES:
        raise BadOption(
            "a table: Spark does not hand on a table's options when it is read; write CREATE TEMPORARY VIEW name USING "
            "polonaise OPTIONS (cluster '…')"
        )
    if key in _SPARKS or (key.startswith("decoder.") and "decoder" in by_name):
        return
    close = get_close_matches(key, by_name, 1)
    hint = f": did you mean {by_name[close[0]]}?" if close else f": there are {', '.join(by_name.values())}"
    raise BadOption(f"no option is named {key!r}{hint}")
