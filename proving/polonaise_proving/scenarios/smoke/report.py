"""The report of a smoke test: for programs as JSON, for people as text."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

from polonaise_proving.judges.histories import CHECKS, BrokenPromise

STATUS: Final = "status"
PLANNED: Final = "planned"
JUDGED: Final = (STATUS, PLANNED)
"""What is judged while the run goes on, step by step: that the cluster's status tells of faults, and that planned
changes fail no append."""


@dataclass
class SmokeReport:
    """What a smoke test did, and what it found."""

    command: str
    """The command that does the same again."""
    seed: int
    transactions: int
    """How many transactions were to be acknowledged."""
    hosts: str
    started: str
    commit: str = ""
    duration_s: float = 0.0
    interruptions: int = 0
    schedule: str = ""
    """The digest of the schedule: equal for equal seeds, lengths and kinds of faults."""
    steps: int = 0
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

    @property
    def passed(self) -> bool:
        """Whether the run came to its end, and every promise was kept."""
        return not self.violations and not self.failure

    def document(self) -> dict[str, object]:
        """Return the report as a JSON-ready document."""
        return {**asdict(self), "violations": [each._asdict() for each in self.violations], "passed": self.passed}

    def text(self) -> str:
        """Return the report as text."""
        rows = [
            ("verdict", "passed" if self.passed else "FAILED"),
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
        elif not self.violations:
            lines.append(f"held: {', '.join([*CHECKS, *JUDGED])}")
        lines += [f"BROKEN {each.promise}: {each.text}" for each in self.violations]
        return "\n".join(lines)

    def write(self, directory: Path) -> None:
        """Write `report.json` and `report.txt`. Raises `OSError`."""
        (directory / "report.json").write_text(json.dumps(self.document(), indent=2) + "\n")
        (directory / "report.txt").write_text(self.text() + "\n")


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
