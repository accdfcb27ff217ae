"""The functions under test: those of production, or production's own text with one change."""

from __future__ import annotations

import inspect
import itertools
import sys
from dataclasses import dataclass
from types import ModuleType

from polonaise.server.protocol import commit, recovery
from polonaise.storage.protocol import replica

_numbers = itertools.count(1)


@dataclass(frozen=True, eq=False)
class Decisions:
    """The modules that the model calls, by their production names."""

    recovery: ModuleType
    commit: ModuleType
    replica: ModuleType


def production() -> Decisions:
    return Decisions(recovery, commit, replica)


def mutated(module: ModuleType, old: str, new: str) -> Decisions:
    """Production with `old`, which occurs exactly once in the text of `module`, replaced by `new`."""
    text = inspect.getsource(module)
    if text.count(old) != 1:
        raise ValueError(f"occurs {text.count(old)} times in {module.__name__}: {old!r}")
    changed = _compiled(module, text.replace(old, new))
    if module is commit:
        return Decisions(recovery, changed, replica)
    if module is replica:
        return Decisions(recovery, commit, changed)
    counting = _compiled(commit, inspect.getsource(commit))
    counting.__dict__["quorum"] = changed.__dict__["quorum"]
    return Decisions(changed, counting, replica)


def _compiled(module: ModuleType, text: str) -> ModuleType:
    name = f"{module.__name__}_mutated_{next(_numbers)}"
    made = ModuleType(name)
    # Dataclasses look their module up while they are made, and at no other time.
    sys.modules[name] = made
    try:
        exec(compile(text, name, "exec"), made.__dict__)
    finally:
        del sys.modules[name]
    return made
