"""The report of a smoke test: for programs as JSON, by which a run also goes on after an interruption; and as text."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from polonaise.errors import BadOption
from polonaise_proving.judges.histories import HELD, BrokenPromise
from polonaise_proving.record.keptreport import KeptReport
from polonaise_proving.scenarios.running import never_loaded
from polonaise_proving.stages.hosts.town import Ports

STATUS: Final = "status"
PLANNED: Final = "planned"
JUDGED: Final = (STATUS, PLANNED)
"""What is judged while the run goes on, step by step: that the cluster's status tells of faults, and that planned
changes fail no append."""


FILE: Final = "report.json"
_NO_PORTS: Final = Ports((), (), ())


@dataclass
class SmokeReport(KeptReport):
    """What a smoke test did, over all its interruptions, and what it found."""

    FORMAT: ClassVar[int] = 3

    command: str
    """The command that does the same again."""
    seed: int
    transactions: int
    """How many transactions were to be acknowledged."""
    hosts: str
    """The kind of its hosts: `namespaces` or `loopback`."""
    started: str
    """When the run began first: ISO 8601, UTC."""
    network: str = ""
    ports: Ports = _NO_PORTS
    commit: str = ""
    duration_s: float = 0.0
    """Seconds of work; what a kill cut short is not counted."""
    mutation: str = ""
    """The mutation that its processes have; empty for none."""
    mutation_loads: int = 0
    """How many of its processes have loaded the module that the mutation changes."""
    interruptions: int = 0
    schedule: str = ""
    """The digest of the schedule: equal for equal seeds, lengths and kinds of faults."""
    steps: int = 0
    done: int = 0
    """The number of steps that are over."""
    faults: dict[str, int] = field(default_factory=dict)
    """How often each kind of fault was inflicted."""
    operations: dict[str, int] = field(default_factory=dict)
    """How many operations were asked for, acknowledged, refused, and of unknown fate; empty until all is checked."""
    committed: int = 0
    """The number of transactions in the log, without the library's own; 0 until the log was read."""
    archive_runs: int = 0
    history: str = ""
    """The digest of the recorded history; empty until all is checked."""
    judged: dict[str, int] = field(default_factory=dict)
    """How many faults of each kind the cluster's status had to tell of."""
    told_s: dict[str, float] = field(default_factory=dict)
    """By kind of fault: the longest that it took the cluster's status to tell of one, in seconds."""
    violations: list[BrokenPromise] = field(default_factory=list)
    failure: str = ""
    """Why the run ended early; empty if it came to its end."""
    finished: bool = False
    """Whether the run is over; if not, it can be resumed."""

    @property
    def passed(self) -> bool:
        """Whether the run came to its end, and every promise was kept, without a mutation that it had to find."""
        return self.held and not self.mutation

    @property
    def held(self) -> bool:
        """Whether the run came to its end, and every promise was kept."""
        return self.finished and not self.violations and not self.failure

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON-ready document."""
        violations = [each._asdict() for each in self.violations]
        ports = [list(each) for each in self.ports]
        return {**super().document(), "ports": ports, "violations": violations, "passed": self.passed}

    @classmethod
    def restored(cls, fields: dict[str, Any]) -> Self:
        del fields["passed"]
        fields["ports"] = Ports(*(tuple(each) for each in fields["ports"]))
        fields["violations"] = [BrokenPromise(**each) for each in fields["violations"]]
        return cls(**fields)

    @classmethod
    def begun(cls, directory: Path) -> Self | None:
        """Return the report of the run in a directory; None if that is missing, or has nothing in it but a lock.

        Raises `BadOption` for a directory that holds anything else, or a report that can't be read.
        """
        if not directory.exists() or not (set(os.listdir(directory)) - {"lock"}):
            return None
        path = directory / FILE
        if not path.exists():
            raise BadOption(f"{directory} holds something else than a smoke test: name a new or an empty directory")
        try:
            return cls.kept(path)
        except ValueError as error:
            raise BadOption(str(error)) from error

    def text(self) -> str:
        """Return the report as text."""
        rows = [
            ("verdict", "passed" if self.passed else "NOT FOUND" if self.held and self.mutation_loads else "FAILED"),
            ("command", self.command),
            ("commit", self.commit),
            ("hosts", self.hosts),
            ("began", self.started),
            ("took", f"{self.duration_s:.0f} s, {self.interruptions} interruptions"),
            ("schedule", f"{self.schedule}, {self.steps} steps"),
            ("faults", ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))),
            ("judged", ", ".join(f"{self.judged.get(kind, 0)} {kind}" for kind in sorted(self.faults))),
            ("told within", ", ".join(f"{kind} {told_s:g} s" for kind, told_s in sorted(self.told_s.items()))),
            ("operations", ", ".join(f"{count:,} {kind}" for kind, count in self.operations.items())),
            ("in the log", f"{self.committed:,} transactions"),
            ("archived", f"{self.archive_runs} times"),
            ("history", self.history),
        ]
        lines = [f"{name:<11} {value}" for name, value in rows]
        if self.failure:
            lines.append(f"it ended early: {self.failure}")
        if self.mutation and self.finished and not self.mutation_loads:
            lines.append(f"nothing was tried: {never_loaded(self.mutation)}")
        elif self.mutation and self.held:
            lines.append(f"not found: {self.mutation}")
        if self.held:
            lines.append(f"held: {', '.join([*HELD, *JUDGED])}")
        lines += [f"BROKEN {each.promise}: {each.text}" for each in self.violations]
        return "\n".join(lines)


def this_version() -> str:
    """Return the commit of the clone that this code runs from, marked if it was changed; else the version."""
    root = Path(__file__).parents[4]
    if (root / ".git").exists():
        try:
            done = subprocess.run(
                ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
                capture_output=True, text=True, timeout=10, check=True,
            )  # fmt: skip
            return done.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return f"version {version('polonaise')}"
