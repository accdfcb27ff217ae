"""The environment of a simulated world: the time, randomness, trace and fault census that all its parts share.

Everything random comes from the seed, through one generator per component: an additional draw in one component
leaves the draws of all others as they were.
"""

from __future__ import annotations

import random
from hashlib import blake2b

from polonaise_proving.record.failures import ScheduleFailed
from polonaise_proving.record.faultcounts import FaultCounts
from polonaise_proving.record.trace import Trace
from polonaise_proving.stages.simulated.configuration import Configuration
from polonaise_proving.stages.simulated.loop import Life, VirtualLoop


class ProcessFailed(ScheduleFailed):
    """A process, or something in the scenario itself, died of an error that the scenario did not allow.

    The error is `error` and the exception's cause. `process` names the process, or is "scenario".
    """

    def __init__(self, seed: int, name: str, error: BaseException) -> None:
        super().__init__(f"seed {seed}: {name} failed: {type(error).__name__}: {error}")
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

    @property
    def now(self) -> float:
        """The virtual time in seconds; `loop.START_S` at the start of the schedule."""
        return self.loop.now

    def random(self, name: str) -> random.Random:
        """Return a new generator for the component `name`, which draws the same for the same seed and name."""
        digest = blake2b(f"{self.seed}/{name}".encode(), digest_size=16).digest()
        return random.Random(int.from_bytes(digest, "big"))

    def failed(self, life: Life | None, error: BaseException) -> None:
        """End the schedule because of an `error` that no code handled. The first of several is its `failure`."""
        if self.failure is None:
            self.failure = ProcessFailed(self.seed, life.name if life else "scenario", error)
            self.failure.__cause__ = error
        self.loop.stop()
