"""A view and the child of the process that uses it: connections are the parent's, and stay so."""

from __future__ import annotations

import textwrap

import pytest

from rigs.programs import STRICT, output_of, run_python

pytestmark = pytest.mark.slow

BEFORE = """
    import asyncio, os, sys, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import polonaise
    from polonaise import testing
    from polonaise.errors import PolonaiseError

    class Nothing(polonaise.SqlView):
        once_table = "polonaise_once"

        def apply(self, tx, db):
            pass

    def one(db):
        return db.exec_driver_sql("SELECT 1").scalar()

    def reads(view):
        with view.reading() as db:
            return one(db)

    async def within(seconds, asked):
        return await asyncio.wait_for(asked, seconds)

    def forked(uses):
        child = os.fork()
        if not child:
            for use in uses:
                try:
                    print(use(), flush=True)
                except PolonaiseError as error:
                    print(error.code, flush=True)
                except BaseException as error:
                    print(repr(error), flush=True)
            os._exit(0)
        os.waitpid(child, 0)

    view = Nothing(sys.argv[1])
"""


def run(script: str, url: str) -> list[str]:
    return output_of(run_python(*STRICT, "-c", textwrap.dedent(BEFORE) + textwrap.dedent(script), url)).splitlines()


def test_a_forked_child_is_told_to_make_a_view_of_its_own(url: str) -> None:
    told = run(
        """
        asyncio.run(view.high_water_mark(0))
        print(reads(view))

        async def connected():
            async with testing.log(view=view) as log:
                await log.wait_applied(0, timeout=5)

        own = Nothing(sys.argv[1])
        forked([
            lambda: reads(view),
            lambda: asyncio.run(within(5, view.read(one))),
            lambda: asyncio.run(within(5, view.once(0, "key"))),
            lambda: asyncio.run(within(5, view.high_water_mark(0))),
            lambda: view.prepare(),
            lambda: asyncio.run(within(5, connected())),
            lambda: asyncio.run(within(5, view.close())),
            lambda: reads(own),
            lambda: asyncio.run(own.close()),
        ])
        print(reads(view), asyncio.run(view.high_water_mark(0)))
        asyncio.run(view.close())
        """,
        url,
    )
    assert told == ["1", *["forked"] * 6, "None", "1", "None", "1 -1"]


def test_a_view_that_was_closed_before_the_fork_is_anybodys(url: str) -> None:
    told = run(
        """
        print(reads(view))
        asyncio.run(view.close())
        forked([lambda: reads(view), lambda: asyncio.run(view.close())])
        print(reads(view))
        asyncio.run(view.close())
        """,
        url,
    )
    assert told == ["1", "1", "None", "1"]
