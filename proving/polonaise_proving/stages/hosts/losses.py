"""A host of a smoke test that loses a part of what it sends: in pulses, because that needs no module of the kernel."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
from collections.abc import Sequence
from typing import Final

_LOST_S: Final = 0.06
"""Seconds for which all that is sent is lost, on average."""
_SENT_S: Final = 0.14
"""Seconds for which nothing is lost, on average: so 30 % of the time all is lost, and 30 % of an even stream."""
_END_S: Final = 10.0


class PacketLoss:
    """Loses about 30 % of what is sent, in pulses of some hundredths of a second, from its making until `end`."""

    def __init__(self, command: Sequence[str], lose: Sequence[str], pass_on: Sequence[str]) -> None:
        """Begin. `command` is a process that carries out what it reads, line by line: `lose` begins a pulse, and
        `pass_on` ends it. Raises `OSError`.
        """
        self._lose, self._pass_on = ("".join(f"{line}\n" for line in lines) for lines in (lose, pass_on))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,  # Ctrl-C is for the run, which ends this one
        )  # fmt: skip
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pulse, daemon=True)
        self._thread.start()

    def _pulse(self) -> None:
        while not self._ended.is_set():
            self._say(self._lose)
            self._ended.wait(_LOST_S * random.uniform(0.5, 1.5))
            self._say(self._pass_on)
            self._ended.wait(_SENT_S * random.uniform(0.5, 1.5))

    def _say(self, lines: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(lines)
            self._process.stdin.flush()

    def end(self) -> bool:
        """Lose nothing any more. Return whether that could be said: False if the process had ended by itself."""
        self._ended.set()
        self._thread.join()
        went_on = self._process.poll() is None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return went_on
