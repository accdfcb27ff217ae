"""Puts a mutation into the child processes of a run: nodes, clients, drivers, and what these start themselves.

This process stays as it is: it compares what the others have done. The library knows nothing of it. Python itself runs
`startup/sitecustomize.py` in each process that starts, because that directory is on its path.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from polonaise_proving.mutations.known import find

MUTATION: Final = "PROVING_MUTATION"
"""The environment variable that names the mutation of a process."""
NOTES: Final = "PROVING_MUTATION_NOTES"
"""The environment variable that names the directory in which a process notes that it has loaded its mutation."""
_STARTUP: Final = Path(__file__).parent / "startup"


@contextlib.contextmanager
def put_into_children(name: str, notes: Path | None = None) -> Iterator[None]:
    """Put the mutation into all processes that are started within the block; none if `name` is empty.

    Each that loads the changed module leaves a file in the directory `notes`, which is made. Raises
    `MutationDoesNotApply` if there is no such mutation. A process whose code does not hold the old text exactly once
    ends with that error.
    """
    if not name:
        yield
        return
    find(name)
    # Not above: each process imports this module before the mutation is in.
    from polonaise.host.environment import variables

    path = os.pathsep.join(filter(None, [str(_STARTUP), os.environ.get("PYTHONPATH")]))
    changed = {MUTATION: name, "PYTHONPATH": path}
    if notes is not None:
        notes.mkdir(exist_ok=True)
        changed[NOTES] = str(notes.absolute())
    with variables(changed):
        yield


def loads_in(notes: Path) -> int:
    """Return how many processes have loaded the module that their mutation changes."""
    return sum(1 for _ in notes.iterdir()) if notes.exists() else 0
