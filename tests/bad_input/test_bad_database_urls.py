"""URLs of databases that no engine takes: what is said of them, and that a view does not fail on its driver's error."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection

from polonaise.errors import BadOption, ViewUnavailable
from polonaise.terms import Transaction
from polonaise.views.sql import SqlView


class Accounts(SqlView):
    def apply(self, tx: Transaction, db: Connection) -> None: ...


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("charset=nope", "unknown charset 'nope' in .*: write charset=utf8mb4"),
        ("conv=nope", "can't connect to .* correct the options of the URL"),
        ("ssl=nope", "can't connect to .* correct the options of the URL"),
        ("nope=1", "can't connect to .* correct the options of the URL"),
        ("read_timeout=nope", "invalid literal for int.*'nope'; correct the URL"),
    ],
)
async def test_an_option_that_a_driver_fails_on_is_told_by_the_url(query: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        Accounts(f"mariadb+pymysql://bank:p@127.0.0.1:1/db?{query}").prepare()


async def test_a_charset_that_the_driver_knows_is_taken() -> None:
    made = Accounts("mariadb+pymysql://bank:p@127.0.0.1:1/db?charset=latin1")
    with pytest.raises(ViewUnavailable, match=r"charset=latin1.*refused"):
        made.prepare()
