"""What a client process is told: its job when it starts, and words at its standard input then."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from polonaise_proving.record.journal import journal_of

GO: Final = "go"
PAUSE: Final = "pause"
QUIET: Final = "quiet"
END: Final = "end"


@dataclass(frozen=True, slots=True)
class ClientJob:
    """What a client process is told at its start."""

    log: str
    """The log's address."""
    directory: str
    """Where its journals are."""
    database: str
    """The URL of the database of all its lives; it may be that of other clients, too."""
    name: str
    life: int
    """The number of this start of the client: 1 for its first one."""
    seed: int
    rate: float
    """The most operations that it begins in a second, on average."""

    @property
    def journal(self) -> Path:
        """The journal of this life."""
        return journal_of(Path(self.directory), self.name, self.life)

    def encode(self) -> str:
        """Return the job as the argument of the program."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, argument: str) -> Self:
        """Return the job in the argument of the program."""
        return cls(**json.loads(argument))
