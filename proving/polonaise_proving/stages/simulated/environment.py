"""The environment of a simulated world: the time, randomness, trace and fault census that all its parts share.

Everything random comes from the seed, through one generator per component: an additional draw in one component
leaves the draws of all others as they were.

In the configuration a field named `…_chance` is the probability, from 0 to 1, that a fault strikes one call, connection
or chunk (bytes that travel as one piece). Scenarios inflict faults with a chosen target (crashes, partitions, damage)
themselves. With the defaults nothing fails by itself. All times are in virtual seconds.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import polonaise_proving
from polonaise_proving.record.failures import ScheduleFailed
from polonaise_proving.record.faultcounts import FaultCounts
from polonaise_proving.record.trace import Trace
from polonaise_proving.stages.simulated.loop import Life, VirtualLoop, VirtualTask

_STAGED: Final = tuple(
    Path(polonaise_proving.__file__).with_name(folder) for folder in ("scenarios", "work", "faults", "judges")
)
"""Where is what a schedule does, and not what carries it out or writes it down."""


@dataclass(frozen=True, slots=True)
class NetworkConfiguration:
    """How links and connections behave."""

    latency_s: float = 0.0002
    """The least time that bytes travel from one machine to another."""
    jitter_s: float = 0.0003
    """The upper bound of what is added to `latency_s` for each chunk: drawn uniformly between 0 and this."""
    loopback_s: float = 0.00002
    """The least time that bytes travel within one machine; a random time, up to as much again, is added."""
    delay_chance: float = 0.0
    """The chance that a chunk is delayed by up to `delay_s`. Later bytes of the same connection wait behind it."""
    delay_s: float = 0.3
    """The longest delay that `delay_chance` causes."""
    split_chance: float = 0.05
    """The chance that the bytes of one write arrive in two chunks."""
    merge_chance: float = 0.5
    """The chance that one read returns all the bytes that have arrived, and not the next chunk alone."""
    window_bytes: int = 256 * 1024
    """The most bytes on their way or unread in one direction of a connection; the rest waits at the sender."""
    reset_chance: float = 0.0
    """The chance that a write is followed by a reset of its connection."""
    flip_chance: float = 0.0
    """The chance that a chunk arrives with one bit wrong."""
    partition_reset_chance: float = 0.3
    """How likely a network partition ends a connection that it cuts. While it lasts, each direction that is cut times
    out with half of this chance, unless the whole partition has held nothing back yet; when it heals, each direction
    that held something back breaks the connection with this chance."""
    connect_tries: int = 6
    """The most attempts to connect while no answer comes; the pauses between them are about 1, 2, 4, … seconds."""


@dataclass(frozen=True, slots=True)
class DiskConfiguration:
    """How a disk behaves."""

    operation_s: float = 0.00005
    """The least time that a call of the disk takes; a random time, up to as much again, is added. `identity` and
    `space` take no time."""
    sync_s: float = 0.0005
    """The least time that a sync takes beside `operation_s`; a random time, up to twice as much, is added."""
    spike_chance: float = 0.0
    """The chance that a call takes up to `spike_s` longer, drawn once more for a sync."""
    spike_s: float = 0.5
    """The most time that `spike_chance` adds at once."""


@dataclass(frozen=True, slots=True)
class ClockConfiguration:
    """How wrong the wall clocks of machines are."""

    offset_s_max: float = 0.5
    """The most seconds by which a wall clock is ahead or behind at the start."""
    drift_max: float = 0.0001
    """The most seconds that a wall clock gains or loses in each second."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of one world."""

    network: NetworkConfiguration = field(default_factory=NetworkConfiguration)
    disk: DiskConfiguration = field(default_factory=DiskConfiguration)
    clock: ClockConfiguration = field(default_factory=ClockConfiguration)
    steps_max: int = 2_000_000
    """The most handles (callbacks of the event loop) that a schedule may run before it counts as endless."""
    record: bool = False
    """Whether the trace is kept as readable lines, beside its fingerprint."""


class ProcessFailed(ScheduleFailed):
    """A process, or something in the scenario itself, died of an error that the scenario did not allow.

    The error is `error` and the exception's cause. `process` names the process, or the scenario's task; "scenario" if
    it is not known which.
    """

    def __init__(self, seed: int, name: str, error: BaseException) -> None:
        super().__init__(f"seed {seed}: {name} failed: {type(error).__name__}: {error}{_place(error)}")
        self.process = name
        self.error = error


class Environment:
    """The time, randomness, trace and census of faults of one schedule."""

    def __init__(self, seed: int, configuration: Configuration | None = None) -> None:
        self.seed = seed
        self.configuration = configuration or Configuration()
        self.loop = VirtualLoop(self.configuration.steps_max, self.failed)
        self.faults = FaultCounts()
        self.trace = Trace(self.loop.time, record=self.configuration.record)
        self.failure: ProcessFailed | None = None
        self.tellers: list[Callable[[], Iterable[str]]] = []
        """What tells, in words, which faults are in force: each part of a stage that can be harmed adds its own."""

    def faults_in_force(self) -> list[str]:
        """Return the faults that somebody began and has not ended, in words. Damage that is done is none of them."""
        return [fault for teller in self.tellers for fault in teller()]

    @property
    def now(self) -> float:
        """The virtual time in seconds; `loop.START_S` at the start of the schedule."""
        return self.loop.now

    def random(self, name: str) -> random.Random:
        """Return a new generator for the component `name`, which draws the same for the same seed and name."""
        digest = blake2b(f"{self.seed}/{name}".encode(), digest_size=16).digest()
        return random.Random(int.from_bytes(digest, "big"))

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> VirtualTask:
        """Run a coroutine of the scenario's own beside it; an error that it raises fails the schedule.

        Everything that runs beside a scenario starts here: of another task nobody would hear that a fault or a check
        of its has crashed, and all that it had still to find would count as held.
        """
        task = self.loop.create_task(coroutine, name=name)
        task.add_done_callback(self._spawned_done)
        return task

    def _spawned_done(self, task: VirtualTask) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(None, error, task.get_name())

    def failed(self, life: Life | None, error: BaseException, name: str = "scenario") -> None:
        """End the schedule because of an `error` that no code handled. The first of several is its `failure`.

        `life` is the process that raised it; if that is None, `name` says what of the scenario did.
        """
        if self.failure is None:
            self.failure = ProcessFailed(self.seed, life.name if life else name, error)
            self.failure.__cause__ = error
        self.loop.stop()


def _place(error: BaseException) -> str:
    """Return where an error was raised, as an addition to its text; nothing if it was not raised.

    Behind the function that raised it are those of the schedule through which that was called, outermost first.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    *outer, last = frames
    callers = [
        f"{Path(frame.filename).stem}.{frame.name}:{frame.lineno}"
        for frame in outer
        if any(Path(frame.filename).is_relative_to(folder) for folder in _STAGED)
    ]
    called = f"; called through {', '.join(callers)}" if callers else ""
    return f" ({Path(last.filename).name}:{last.lineno}, in {last.name}{called})"
