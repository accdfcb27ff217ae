"""Drivers as processes: started ahead, asked, killed and stopped with all that belongs to them, never left behind."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polonaise.redaction import redacted_end
from polonaise_proving.campaigns.running import SOURCES
from polonaise_proving.torture.faults import session_of, signal_session

STARTED_S_MAX = 120.0
ANSWERED_S_MAX = 240.0


class Hangs(Exception):
    """An awaited event did not happen in time; the message says which."""


class DriverDied(Exception):
    """The driver was gone before it answered."""


class AnsweredEarly(Exception):
    """The driver ended its job without reaching the awaited step; the message is its answer."""


def wait_for(holds: Callable[[], bool], what: str, every_s: float = 0.005) -> None:
    """Wait until the condition holds. Raises `Hangs`."""
    until_s = time.monotonic() + ANSWERED_S_MAX
    while not holds():
        if time.monotonic() >= until_s:
            raise Hangs(f"{what}: not within {ANSWERED_S_MAX:g} s")
        time.sleep(every_s)


def start(module: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a module of this test as a process in its own session, with no Spark variables in its environment."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK", "PYSPARK"))}
    return subprocess.Popen(
        [sys.executable, "-m", f"polonaise_proving.torture.{module}", *arguments],
        env={**inherited, "PYTHONPATH": SOURCES},
        start_new_session=True,
        **options,
    )


class Driver:
    """One driver, with its JVM and its workers."""

    def __init__(self, directory: Path, name: str) -> None:
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = start("driver", str(directory), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.started = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def check_alive(self) -> None:
        """Raises `DriverDied`."""
        if not self.alive:
            raise DriverDied(self.log)

    def check_at_work(self) -> None:
        """Raises `DriverDied`, and `AnsweredEarly` with what it has answered."""
        self.check_alive()
        if not self._answers.empty():
            raise AnsweredEarly(str(self.answer()))

    def wait_started(self) -> None:
        """Raises `DriverDied`, `Hangs`."""
        if not self.started:
            self.answer(STARTED_S_MAX)
            self.started = True

    def ask(self, job: dict[str, Any]) -> None:
        self.wait_started()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, within_s: float = ANSWERED_S_MAX) -> dict[str, Any]:
        """Raises `DriverDied`, `Hangs`."""
        try:
            answer = self._answers.get(timeout=within_s)
        except queue.Empty:
            raise Hangs(f"a driver's answer: not within {within_s:g} s; its log ends with {self.log}") from None
        if answer is None:
            self._answers.put(None)
            raise DriverDied(self.log)
        return answer

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        self.ask(job)
        return self.answer()

    @property
    def log(self) -> str:
        return redacted_end(self._log.read_text(errors="replace"), 2_000)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    # ------------------------------------------------------------------ what is done to it

    def stop(self) -> None:
        """Send SIGSTOP to all processes of the driver."""
        signal_session(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        signal_session(self.pid, signal.SIGCONT)

    @property
    def stopped(self) -> bool:
        """Whether all processes of the driver are stopped or gone."""
        return all(state(pid) in "TZX" for pid in session_of(self.pid))

    def kill(self) -> None:
        """Kill all processes of the driver with -9, and wait until they are gone."""
        wait_for(lambda: not signal_session(self.pid, signal.SIGKILL), f"the end of session {self.pid}")
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass


def state(pid: int) -> str:
    """Return a process's state, as `ps` writes it; X if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


class Drivers:
    """Drivers, one of them started ahead. A context manager: none outlives it, however the test ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self._all: list[Driver] = []
        self._current: Driver | None = None
        self._spare: Driver | None = None
        self._watchdog = start("watchdog", stdin=subprocess.PIPE)

    def __enter__(self) -> Drivers:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_all()
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait()

    def current(self) -> Driver:
        """Return the driver that does jobs; if it has died, the next one."""
        if self._current is None or not self._current.alive:
            if self._current is not None:
                self.over(self._current)
            self._current, self._spare = self._spare or self._start(), None
        self._current.wait_started()
        return self._current

    def prepare(self) -> None:
        """Start the next driver ahead, because the current one is about to die."""
        if self._spare is None:
            self._spare = self._start()

    def retire(self) -> Driver:
        """Return the current driver, and have the next one take its place; end the returned one with `over`."""
        driver = self.current()
        self._current = None
        return driver

    def over(self, driver: Driver) -> None:
        """Kill all that is left of the driver."""
        if driver in self._all:
            driver.kill()
            self._all.remove(driver)
            self._tell(f"-{driver.pid}")

    def end_all(self) -> None:
        """Kill all drivers; `current` starts a new one."""
        for driver in list(self._all):
            self.over(driver)
        self._current = self._spare = None

    def _start(self) -> Driver:
        self._count += 1
        driver = Driver(self._directory, f"driver-{self._count}")
        self._tell(f"+{driver.pid}")
        self._all.append(driver)
        return driver

    def _tell(self, line: str) -> None:
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.write(line.encode() + b"\n")
        self._watchdog.stdin.flush()
