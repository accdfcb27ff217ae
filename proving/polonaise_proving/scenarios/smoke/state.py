"""How far a smoke test has come, in a file of its directory, so that it goes on after an interruption."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from polonaise.errors import BadOption
from polonaise.host.files import with_own_errors
from polonaise_proving.stages.hosts.town import Ports

_FILE: Final = "smoke.json"
_FORMAT: Final = 2


@dataclass
class SmokeState:
    """One run of a smoke test, over all its interruptions."""

    seed: int
    transactions: int
    hosts: str
    """The kind of its hosts: `namespaces` or `loopback`."""
    network: str
    ports: Ports
    started: str
    """When the run began first: ISO 8601, UTC."""
    schedule: str = ""
    """The digest of the schedule by which the run began."""
    steps: int = 0
    """The number of steps that are over."""
    seconds: float = 0.0
    """Seconds of work until the run last ended or was interrupted; what a kill cut short is not counted."""
    interruptions: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """How many faults of each kind were inflicted."""
    found: list[str] = field(default_factory=list)
    """What was found wrong while the run went on, each with the promise that it breaks before a colon."""
    judged: dict[str, int] = field(default_factory=dict)
    """How many faults of each kind the cluster's status had to tell of."""
    told_s: dict[str, float] = field(default_factory=dict)
    """By kind of fault: the longest that it took the cluster's status to tell of one, in seconds."""
    finished: bool = False

    def write(self, directory: Path) -> None:
        """Write the state, as a whole. Raises faults of the disk."""
        path = directory / _FILE
        new = path.with_suffix(".new")

        def write() -> None:
            new.write_text(json.dumps({"format": _FORMAT, **asdict(self), "ports": self.ports}, indent=2))
            os.replace(new, path)

        with_own_errors(str(path), write)

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Return the state of the run in a directory; None if that is missing, or has nothing in it but a lock.

        Raises `BadOption` for a directory that holds anything else, or a state that can't be read.
        """
        if not directory.exists() or not (set(os.listdir(directory)) - {"lock"}):
            return None
        path = directory / _FILE
        if not path.exists():
            raise BadOption(f"{directory} holds something else than a smoke test: name a new or an empty directory")
        try:
            fields = json.loads(path.read_text())
            if fields.pop("format") != _FORMAT:
                raise ValueError("another version has written it")
            fields["ports"] = Ports(*(tuple(each) for each in fields["ports"]))
            return cls(**fields)
        except (ValueError, LookupError, TypeError) as error:
            raise BadOption(f"{path} can't be read ({error}): name another directory, or remove this one") from error
