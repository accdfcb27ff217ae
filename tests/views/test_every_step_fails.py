"""A view, a target and their databases, when each step of their talk fails in turn: none of these errors gets through.

What an application is told is that its view waits for its database. Another error would be taken for a failure of its
own code, or for a mistake of the client's, which ends the client.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, func, select
from sqlalchemy.engine import make_url

from polonaise.errors import ViewUnavailable, ViewUnfit
from polonaise.terms import Transaction
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import Bank, check_fold, journal, transactions

STEPS_MAX = 2_000


class Keeper(Bank):
    """A bank that keeps keys, and says while its own code runs."""

    once_table = "polonaise_once"
    inside = False

    def apply_many(self, run: Sequence[Transaction], db: Connection) -> None:
        self.inside = True
        try:
            super().apply_many(run, db)
        finally:
            self.inside = False


class Cutter:
    """Passes on what is said to a database's socket; ends the connection in place of passing one message to it on."""

    def __init__(self, target: str, place: str) -> None:
        self._target = target
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(place)
        Path(place).chmod(0o777)
        self._server.listen()
        self._left = -1
        self._times = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, after: int, times: int) -> None:
        """Pass `after` messages on, and end the connection with each of the next `times`."""
        self._left, self._times = after, times

    @property
    def is_spent(self) -> bool:
        return not self._times

    def _cuts(self) -> bool:
        self._left -= 1
        if self._left >= 0 or not self._times:
            return False
        self._times -= 1
        return True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._server.accept()[0]
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                for source, sink, counted in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._pass, args=(source, sink, counted), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while (chunk := source.recv(65_536)) and not (counted and self._cuts()):
                sink.sendall(chunk)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()  # the other one is closed by the other thread, which reads it

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@contextlib.contextmanager
def cut(url: str) -> Iterator[tuple[str, Cutter]]:
    """Yield the address of a database behind a `Cutter`, and that."""
    parsed = make_url(url)
    with tempfile.TemporaryDirectory(prefix="cut-") as directory:
        name = "unix_socket" if "unix_socket" in parsed.query else "host"
        place = str(parsed.query[name])
        if name == "host":
            file = f".s.PGSQL.{parsed.query.get('port', 5432)}"
            target, mine, said = f"{place}/{file}", f"{directory}/{file}", directory
        else:
            target, mine, said = place, f"{directory}/socket", f"{directory}/socket"
        cutter = Cutter(target, mine)
        try:
            yield parsed.update_query_dict({name: said}).render_as_string(hide_password=False), cutter
        finally:
            cutter.close()


async def nobody() -> Sequence[str]:
    return ()


async def insisted(what: Callable[[], Awaitable[Any]], tries: int = 5) -> Any:
    """Return what `what` returns, once the database is back."""
    for left in reversed(range(tries)):
        try:
            return await what()
        except ViewUnavailable:
            if not left:
                raise
    raise AssertionError


async def life(view: Keeper, first: int) -> None:
    """Do all that a client, a worker and a reader do with a view."""
    run = transactions(2, first=first)
    await insisted(lambda: view.high_water_mark(0))
    await insisted(lambda: view.apply_run(run))
    await insisted(view.stepped_back)
    await insisted(lambda: view.claim(0, "g", nobody))
    _, epoch = await insisted(lambda: view.take_over(0))
    await insisted(lambda: view.apply_run_under(epoch, transactions(1, first=first + 2)))
    await insisted(lambda: view.stepped_back({0: first + 2}))
    await insisted(lambda: view.once(0, "k"))
    assert await insisted(lambda: view.read(count)) == first + 3
    await view.close()


def count(db: Connection) -> int:
    return db.execute(select(func.count()).select_from(journal)).scalar_one()


@pytest.mark.slow
async def test_a_connection_that_is_lost_at_any_step_is_a_database_that_is_away(
    server_url: str, drawn: Callable[[int], bool]
) -> None:
    with cut(server_url) as (url, cutter):
        await life(Keeper(url), 0)
        lives = 1
        for step in filter(drawn, itertools.count()):
            assert step < STEPS_MAX
            cutter.arm(step, 1 + 2 * (step % 2))  # the next connection, too
            try:
                await life(Keeper(url), 3 * lives)
            except BaseException as error:
                error.add_note(f"the connection was lost at message {step}")
                raise
            lives += 1
            if not cutter.is_spent:
                break
        assert step > 20
        assert lives > 3
    check_fold(server_url, {0: 3 * lives})


def refuse(engine: Engine, at: int, whose: Keeper) -> list[str]:
    """Have the database refuse the statement of this number, but for the application's own. Return what was asked."""
    asked: list[str] = []

    def refusing(_: Any, statement: str, *rest: Any) -> None:
        if whose.inside or statement.startswith("RELEASE"):  # whose end means that `apply` has ended it
            return
        asked.append(statement)
        if len(asked) == at + 1:
            raise engine.dialect.loaded_dbapi.ProgrammingError("permission denied for table polonaise_secret")

    event.listen(engine, "do_execute", refusing)
    event.listen(engine, "do_execute_no_params", refusing)
    return asked


@pytest.mark.slow
async def test_what_the_database_refuses_the_view_is_no_failure_of_the_application(
    url: str, drawn: Callable[[int], bool]
) -> None:
    async def read(view: Keeper) -> int:
        def reader(db: Connection) -> int:
            view.inside = True
            try:
                return count(db)
            finally:
                view.inside = False

        return await view.read(reader)

    async def refusable(view: Keeper, first: int) -> None:
        steps: list[Callable[[], Awaitable[Any]]] = [
            lambda: view.high_water_mark(0),
            lambda: view.apply_run(transactions(2, first=first)),
            view.stepped_back,
            lambda: view.claim(0, "g", nobody),
            lambda: view.once(0, "k"),
            lambda: read(view),
        ]
        for each in steps:
            with contextlib.suppress(ViewUnavailable, ViewUnfit):
                await each()
                continue
            await each()

    lives = 1
    with engine_at(url) as engine:
        await refusable(first := Keeper(engine), 0)
        await first.close()
    for step in filter(drawn, range(STEPS_MAX)):
        with engine_at(url) as engine:
            engine.connect().close()  # what SQLAlchemy asks first of all comes of the options
            view = Keeper(engine)
            asked = refuse(engine, step, view)
            try:
                await refusable(view, 2 * lives)
                await view.close()
            except BaseException as error:
                error.add_note(f"refused: {asked[step]}")
                raise
        lives += 1
        if len(asked) <= step:
            break
    assert step > 10
    assert lives > 3
    check_fold(url, {0: 2 * lives})
