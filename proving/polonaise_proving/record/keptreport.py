"""A report that a run keeps in a file from step to step, so that it goes on there when it was interrupted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self


@dataclass
class KeptReport:
    """The base of such reports: what a run was asked for, how far it has come, and what it found."""

    FORMAT: ClassVar[int]
    """The number of the form of the file; another one is refused."""

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON-ready document."""
        return {"format": self.FORMAT, **vars(self)}

    @classmethod
    def restored(cls, fields: dict[str, Any]) -> Self:
        """Return the report that has these fields in its document."""
        return cls(**fields)

    def keep(self, path: Path) -> None:
        """Write the report in one atomic step, so that a kill at any moment leaves a whole file. Raises `OSError`."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(self.document(), indent=2) + "\n")
        new.replace(path)

    @classmethod
    def kept(cls, path: Path) -> Self:
        """Return the report in a file. Raises `ValueError`, which says what to do, if it can't be read; `OSError`."""
        try:
            fields = json.loads(path.read_text())
            if fields.pop("format", None) != cls.FORMAT:
                raise ValueError("another version has written it")
            return cls.restored(fields)
        except (ValueError, LookupError, TypeError) as error:
            why = f"{path} can't be read ({error}): name another directory, or remove this one"
            raise ValueError(why) from error
