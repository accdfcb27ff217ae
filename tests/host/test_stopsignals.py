"""Signals that end a program: a handler never waits for a lock of the thread that it interrupts."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from polonaise.host.real import FAILED_EXIT_CODE
from polonaise.host.stopsignals import STOPS, ForcedStop, StopFlag, stop_signals_call
from rigs.hangup import sighup_by_default
from rigs.waiting import PATIENCE_S

WAITS = """
from polonaise.host.stopsignals import StopFlag, stop_signals_call
flag = StopFlag()
with stop_signals_call(flag.set):
    print("waits", flush=True)
    while not flag.wait(0.05):
        pass
print("ends", flush=True)
"""


def stopped_at(step: int) -> bool:
    """Wait for a flag, and set it from within the thread that waits, at this step of its way; tell if it came so far.

    As a signal handler, which runs between any two steps of the main thread.
    """
    flag = StopFlag()
    steps = 0

    def at_each_line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == step:
            flag.set()
        return at_each_line

    def wait() -> None:
        sys.settrace(at_each_line)
        try:
            flag.wait(0.001)
        finally:
            sys.settrace(None)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive(), f"the handler waits for the wait that it interrupts, at step {step}"
    return steps >= step


def test_a_flag_may_be_set_within_any_step_of_the_wait_for_it() -> None:
    step = 1
    while stopped_at(step):
        step += 1
    assert step > 3  # it was tried at more than the wait's first and last step


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_what_waits_for_the_flag(number: signal.Signals) -> None:
    with sighup_by_default():
        process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        assert process.stdout.readline() == "ends\n"
        assert process.wait(PATIENCE_S) == 0


def test_handlers_from_before_are_back_after_the_block() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    with stop_signals_call(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in before} == before


def test_sighup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals_call(lambda: None):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


ENDS = """
import asyncio, sys, threading
from polonaise.host import files
from polonaise.host.real import run

def hang(descriptor):
    print("hangs", flush=True)
    threading.Event().wait()

async def main(host):
    file = await host.disk.open(sys.argv[1], create=True)
    try:
        if sys.argv[2] == "works":
            print("works", flush=True)
            await asyncio.Event().wait()
        files._sync_data = hang
        await file.write(0, [b"x"], sync=True)
    finally:
        await file.close()

run(main, syncs_in_loop=sys.argv[2] == "loop", stop_s_max=0.5)
print("stopped", flush=True)
"""


def _ended_by(number: signal.Signals, path: Path, how: str) -> tuple[int, str, str]:
    """Run a node, send it the signal once it works or its disk hangs, and return its exit code and what it said."""
    program = [sys.executable, "-c", ENDS, str(path), how]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        said, errors = process.communicate(timeout=PATIENCE_S)
        return process.returncode, said, errors
    finally:
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("how", ["thread", "loop"])
def test_a_node_whose_disk_hangs_is_ended_by_force_and_says_so(
    how: str, number: signal.Signals, tmp_path: Path
) -> None:
    code, said, errors = _ended_by(number, tmp_path / "file", how)
    assert code == FAILED_EXIT_CODE
    assert "ended by force: it has not stopped within 0.5 s" in errors
    assert "stopped" not in said


@pytest.mark.parametrize("number", STOPS)
def test_a_node_whose_disk_works_stops_by_itself(number: signal.Signals, tmp_path: Path) -> None:
    assert _ended_by(number, tmp_path / "file", "works") == (0, "stopped\n", "")


def test_the_signals_are_as_they_were_after_a_node_was_run() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with ForcedStop(60.0, 1) as forced:
        thread = forced._thread
        assert set(STOPS) <= signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert not thread.is_alive()
