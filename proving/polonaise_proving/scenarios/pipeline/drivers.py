"""Drivers as processes: started ahead, asked, killed and stopped with all that belongs to them, never left behind."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from polonaise_proving.record.failures import GaveUp
from polonaise_proving.scenarios.running import SOURCES
from polonaise_proving.stages.processes import Program, session_of, signal_session, state_of, wait_until

STARTED_S_MAX = 120.0
ANSWERED_S_MAX = 240.0
wait_for = partial(wait_until, within_s=ANSWERED_S_MAX)
"""Waits as long as for an answer."""


class DriverDied(Exception):
    """The driver was gone before it answered."""


class AnsweredEarly(Exception):
    """The driver ended its job without reaching the awaited step; the message is its answer."""


class Driver(Program):
    """One driver, with its JVM and its workers."""

    def __init__(self, directory: Path, name: str) -> None:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK", "PYSPARK"))}
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), SOURCES]))
        environment = {**inherited, "PYTHONPATH": path}
        super().__init__(name, directory / f"{name}.log", speaks=True, environment=environment)
        self.launch(["polonaise_proving.scenarios.pipeline.driver", str(directory)])
        self.leader = self.pid or 0
        """The process that leads the session of all of them, also once it has ended."""
        self._answered = 0
        """How many of the lines that it has said were taken as answers."""
        self.started = False

    def check_alive(self) -> None:
        """Raises `DriverDied`."""
        if not self.alive:
            raise DriverDied(self.last_words)

    def check_at_work(self) -> None:
        """Raises `DriverDied`, and `AnsweredEarly` with what it has answered."""
        self.check_alive()
        if len(self.said) > self._answered:
            raise AnsweredEarly(str(self.answer()))

    def wait_started(self) -> None:
        """Raises `DriverDied`, `GaveUp`."""
        if not self.started:
            self.answer(STARTED_S_MAX)
            self.started = True

    def ask(self, job: dict[str, Any]) -> None:
        self.wait_started()
        self.say(json.dumps(job))

    def answer(self, within_s: float = ANSWERED_S_MAX) -> dict[str, Any]:
        """Raises `DriverDied`, `GaveUp`."""
        try:
            line = self.says(after=self._answered, within_s=within_s)
        except GaveUp:
            if self.silent:
                raise DriverDied(self.last_words) from None
            raise GaveUp(f"a driver's answer: not within {within_s:g} s; its log ends with {self.last_words}") from None
        self._answered += 1
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        self.ask(job)
        return self.answer()

    # ------------------------------------------------------------------ what is done to it

    def stop(self) -> None:
        """Send SIGSTOP to all processes of the driver."""
        signal_session(self.leader, signal.SIGSTOP)

    def resume(self) -> None:
        signal_session(self.leader, signal.SIGCONT)

    @property
    def stopped(self) -> bool:
        """Whether all processes of the driver are stopped or gone."""
        return all(state_of(pid) in "TZX" for pid in session_of(self.leader))

    def kill(self) -> None:
        """Kill all processes of the driver with -9, and wait until they are gone."""
        wait_for(lambda: not signal_session(self.leader, signal.SIGKILL), f"the end of session {self.leader}")
        self.wait_ended()


class Drivers:
    """Drivers, one of them started ahead. A context manager: none outlives it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self._all: list[Driver] = []
        self._current: Driver | None = None
        self._spare: Driver | None = None

    def __enter__(self) -> Drivers:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_all()

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

    def end_all(self) -> None:
        """Kill all drivers; `current` starts a new one."""
        for driver in list(self._all):
            self.over(driver)
        self._current = self._spare = None

    def _start(self) -> Driver:
        self._count += 1
        driver = Driver(self._directory, f"driver-{self._count}")
        self._all.append(driver)
        return driver
