"""Where gevent or eventlet has patched what threads stand on, that is told at once, and what is advised then works.

Each case is a program of its own, because what was patched stays so.
"""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import polonaise.blocking
from rigs.lacking import lacking
from rigs.programs import output_of, run_python

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "applications.md"
IMPORTS = {"gevent": "from gevent import monkey", "eventlet": "import eventlet"}
WHOLE = {"gevent": "monkey.patch_all()", "eventlet": "eventlet.monkey_patch()"}
PARTS = {
    "gevent": [
        "monkey.patch_all(thread=False)",
        "monkey.patch_all(thread=False, queue=False)",
        "monkey.patch_all(thread=False, select=False)",
        "monkey.patch_thread()",
        "monkey.patch_queue()",
        "monkey.patch_select()",
    ],
    "eventlet": ["eventlet.monkey_patch(thread=True)"],
}
BLOCKING = """
    from polonaise.blocking import connect
    def appends(address):
        with connect(address, wait=10) as log:
            log.append(b"x", partition=0).result(timeout=10)
            assert next(iter(log.read(0, after=-1))).data == b"x"
"""
ASYNCHRONOUS = """
    import asyncio, polonaise
    def appends(address):
        async def main():
            async with polonaise.connect(address, wait=10) as log:
                await log.append(b"x", partition=0)
        asyncio.run(main())
"""
FACES = {"blocking": BLOCKING, "asynchronous": ASYNCHRONOUS}


@pytest.fixture(params=IMPORTS)
def library(request: pytest.FixtureRequest) -> str:
    library = str(request.param)
    if find_spec(library) is None:
        lacking(f"no {library}: pip install {library}, one of the development extras")
    return library


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    return FACES[str(request.param)]


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[str]:
    """The address of a log that another process hosts: this one."""
    address = f"embedded:{tmp_path}/hosted"
    with polonaise.blocking.connect(address):
        yield f"{address}?host=no"


def told(library: str, patches: str, face: str, address: str) -> str:
    """Return what a program prints that patches, and then appends: `appended`, or the error."""
    program = f"""
        import warnings
        warnings.simplefilter("ignore")  # eventlet warns of itself
        {IMPORTS[library]}
        {patches}
    """
    program += textwrap.indent(textwrap.dedent(face), "        ")
    program += f"""
        from polonaise.errors import PolonaiseError
        try:
            appends({address!r})
            print("appended")
        except PolonaiseError as error:
            print(error)
    """
    try:
        return output_of(run_python("-c", textwrap.dedent(program), within_s=30.0)).strip()
    except subprocess.TimeoutExpired:
        return "it hangs"


def advised(library: str, text: str) -> list[str]:
    """Return the calls that patch without threads, and those that patch all, as a text names them."""
    pattern = {"gevent": r"monkey\.patch_all\([^)]*\)", "eventlet": r"eventlet\.monkey_patch\([^)]*\)"}[library]
    return sorted(set(re.findall(pattern, " ".join(text.split()))), key=len, reverse=True)


@pytest.mark.exhaustive  # of libraries
def test_where_only_a_part_is_patched_that_is_told_and_what_is_advised_works(
    library: str, face: str, tmp_path: Path, hosted: str
) -> None:
    address = f"embedded:{tmp_path}/log"
    for part in PARTS[library]:
        message = told(library, part, face, address)
        assert message.startswith(f"[half_patched] {library} has patched "), (part, message)
        assert advised(library, message) == advised(library, PAGE.read_text())
        assert told(library, part, face, hosted) == message, "whoever does not host waits likewise"
    spared, whole = advised(library, message)
    assert whole == WHOLE[library]
    assert told(library, spared, face, address) == "appended"
    assert told(library, spared, face, hosted) == "appended"


@pytest.mark.exhaustive  # of libraries
def test_where_all_is_patched_a_process_hosts_no_log_but_opens_one(
    library: str, face: str, tmp_path: Path, hosted: str
) -> None:
    address = f"embedded:{tmp_path}/log"
    message = told(library, WHOLE[library], face, address)
    assert message.startswith(f"[host_failed] {library} has patched the threads")
    assert "?host=no" in message
    assert told(library, WHOLE[library], face, hosted) == "appended"
    (spared,) = advised(library, message)
    assert told(library, spared, face, address) == "appended"
