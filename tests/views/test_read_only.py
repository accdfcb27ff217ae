"""A transaction that takes no changes: the server is read-only and passes, or what `apply` did has made it so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from polonaise.errors import BadOption, ViewUnavailable
from polonaise.player.protocol.entries import RoutedEntry
from polonaise.player.sqldelivery import SqlDeliveryTarget
from polonaise.terms import Transaction
from rigs.bankview import Bank, open_accounts, transactions
from rigs.databases import execute
from rigs.deliverycalls import batch_of, stream

FORBIDS = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET TRANSACTION READ ONLY",
    "mariadb": "SHOW GRANTS",  # which the option --skip-grant-tables prevents
}
TOLD = {"sqlite": "read-only.*readonly", "postgresql": "read-only.*read-only", "mariadb": "skip-grant-tables"}


def kind_of(url: str) -> str:
    return url.partition("+")[0].partition(":")[0]


class Careless(Bank):
    """A bank that makes the transaction of a payment read-only, before or after it applies it."""

    careless = True
    first = True

    def apply(self, tx: Transaction, db: Connection) -> None:
        if not self.careless or self.first:
            super().apply(tx, db)
        if self.careless:
            db.execute(text(FORBIDS[db.dialect.name]))
            super().apply(tx, db)


class CarelessTarget(SqlDeliveryTarget):
    def apply_entries(self, partition: int, entries: Sequence[RoutedEntry], db: Connection) -> None:
        db.execute(text(FORBIDS[db.dialect.name]))
        db.execute(text("CREATE TABLE kept (id INTEGER)"))


@pytest.mark.parametrize("first", [True, False])
async def test_what_makes_its_own_transaction_read_only_is_told_and_the_database_is_not_blamed(
    url: str, first: bool
) -> None:
    view = Careless(url)
    view.first = first
    open_accounts(url)
    try:
        assert await view.high_water_mark(0) == -1
        with pytest.raises((BadOption, DBAPIError), match=TOLD[kind_of(url)]):
            await view.apply_run(transactions(1))
        view.careless = False
        assert await view.apply_run(transactions(1)) == 0, "on a connection that takes changes"
    finally:
        await view.close()


async def test_a_target_refuses_an_entry_that_makes_its_transaction_read_only(url: str) -> None:
    target = CarelessTarget(url)
    try:
        session = await stream(target)
        applied = await session.take(batch_of(-1, ("x",), 0))
        assert applied.last == -1
        assert "read-only" in applied.refusal or "skip-grant-tables" in applied.refusal
    finally:
        await target.close()


async def test_a_database_that_takes_no_changes_at_all_is_away(postgresql_url: str) -> None:
    view = Bank(postgresql_url)
    open_accounts(postgresql_url)
    name = postgresql_url.partition("?")[0].rpartition("/")[2]
    try:
        await view.high_water_mark(0)
        await view.close()
        execute(postgresql_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        with pytest.raises(ViewUnavailable, match="read-only"):
            await view.apply_run(transactions(1))
    finally:
        await view.close()
