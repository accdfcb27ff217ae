"""Rows as people read them in messages: Spark makes their texts, which are redacted, and only then cut, here: what
Spark cut short could end within a password, which is not seen to be one any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it

from polonaise.redaction import redacted

if TYPE_CHECKING:
    from pyspark.sql import Column

_SHOWN: Final = 200
_CARRIED: Final = 10_000
"""Letters of a row that Spark hands over, at most: so many that an address which is shown is whole in them."""
_BEGIN, _END = "\x02", "\x03"
"""Around a row's text within an error of Spark's. JSON escapes both, so they are never a part of it."""
_CARRIED_ROW: Final = re.compile(f"{_BEGIN}([^{_END}]*){_END}")
_TOKENS: Final = re.compile(r'"(?P<text>(?:[^"\\]|\\(?:u[0-9A-Fa-f]{4}|[^u]))*)"?|[,:]')
"""The texts of a JSON object, the last of which may be cut, and what stands between them."""
_EXACT: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
"""Spark itself would leave out nulls, and cut times to milliseconds."""


def json_of(columns: Iterable[Column]) -> Column:
    """Return the columns as one JSON object, with those that are null, and times in UTC to the microsecond."""
    return F.to_json(F.struct(*columns), _EXACT)


def carried(columns: Iterable[Column]) -> Column:
    """Return the columns as the text of which `shown` makes what people read."""
    return F.substring(json_of(columns), 1, _CARRIED)


def carried_in_error(columns: Iterable[Column]) -> Column:
    """Return the columns as a part of an error's text, of which `shown_in_error` makes what people read."""
    return F.concat(F.lit(_BEGIN), carried(columns), F.lit(_END))


def shown(row: str) -> str:
    """Return what people read of a row: redacted, and then cut."""
    return redacted(_TOKENS.sub(_shown_token, row), _SHOWN)


def _shown_token(token: re.Match[str]) -> str:
    if token["text"] is None:
        # As words of their own: all columns in front of an at sign would be taken for a part of the address.
        return f"{token[0]} "
    # Without JSON's escapes: the letter of `\n` is none of the word behind it.
    return json.dumps(redacted(json.loads(f'"{token["text"]}"')), ensure_ascii=False)


def has_row(text: str) -> bool:
    """Whether the text of an error has a row in it, as Spark made it."""
    return _CARRIED_ROW.search(text) is not None


def shown_in_error(text: str) -> str:
    """Return the text of an error with each row in it as people read it."""
    return _CARRIED_ROW.sub(lambda match: shown(match[1]), text)
