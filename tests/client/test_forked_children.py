"""A forked child that ends as programs end prints nothing and takes nothing from its parent.

Each case is a program of its own, because the test's process must not fork.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from polonaise.errors import HostFailed
from polonaise.node import hostelection
from polonaise.node.embedded import parse_embedded
from rigs.programs import run_python

pytestmark = pytest.mark.slow

ENDS = {"os._exit": "os._exit(0)", "sys.exit": "sys.exit(0)", "the end": "pass"}

BLOCKING = """
    import os, sys, time
    from polonaise.blocking import connect
    from polonaise.errors import Forked

    log = connect(sys.argv[1], wait=20)
    log.append(b"first", partition=0).result()
    reading = log.read(0, after=0, follow=True)  # which goes on in the background
    child = os.fork()
    if child == 0:
        try:
            log.append(b"x", partition=0)
        except Forked:
            print("refused", flush=True)
        END
    else:
        os.waitpid(child, 0)
        began = time.monotonic()
        log.append(b"next", partition=0).result()
        assert time.monotonic() - began < 2, "the parent was deaf"
        assert next(reading).data == b"next"
        print("parent", flush=True)
        log.close()
"""

ASYNCHRONOUS = """
    import asyncio, os, sys, time
    import polonaise
    from polonaise.errors import Forked

    async def main():
        async with polonaise.connect(sys.argv[1], wait=20) as log:
            await log.append(b"first", partition=0)
            child = os.fork()
            if child == 0:
                try:
                    await log.append(b"x", partition=0)
                except Forked:
                    print("refused", flush=True)
                END
            else:
                await asyncio.to_thread(os.waitpid, child, 0)
                began = time.monotonic()
                await log.append(b"next", partition=0)
                assert time.monotonic() - began < 2, "the parent was deaf"
                print("parent", flush=True)

    asyncio.run(main())
"""

PROCESS = """
    import multiprocessing, sys
    from polonaise.blocking import connect
    from polonaise.errors import Forked

    log = connect(sys.argv[1], wait=20)

    def work():
        try:
            log.append(b"x", partition=0)
        except Forked:
            print("refused", flush=True)

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    log.append(b"next", partition=0).result(timeout=2)
    print("parent", flush=True)
    log.close()
"""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("program", [BLOCKING, ASYNCHRONOUS], ids=["blocking", "asynchronous"])
def test_a_child_that_ends_leaves_its_parent_alone(program: str, end: str, tmp_path: Path) -> None:
    ended = run_python("-c", textwrap.dedent(program).replace("END", ENDS[end]), f"embedded:{tmp_path}/log")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("refused\nparent\n", "", 0)


def test_a_process_of_multiprocessing_leaves_its_parent_alone(tmp_path: Path) -> None:
    ended = run_python("-c", textwrap.dedent(PROCESS), f"embedded:{tmp_path}/log")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("refused\nparent\n", "", 0)


def test_whatever_keeps_the_nodes_from_running_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loop(*_: object) -> None:
        raise RuntimeError("cannot run while another loop is running")

    monkeypatch.setattr(hostelection.HostElection, "_host", no_loop)
    election = hostelection.take(parse_embedded(f"embedded:{tmp_path}"))
    try:
        with pytest.raises(HostFailed, match="cannot run while another loop is running"):
            election.settled.result(timeout=10)
    finally:
        hostelection.leave(election)
