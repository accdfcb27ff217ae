"""The functions under test: those of production, or production's own text with one change."""

from __future__ import annotations

import inspect
import itertools
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from polonaise.server.protocol import commit, effects, owner, recovery
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
    changed = changed_module(module, old, new)
    if module is commit:
        return Decisions(recovery, changed, replica)
    if module is replica:
        return Decisions(recovery, commit, changed)
    counting = compiled(commit, inspect.getsource(commit))
    counting.__dict__["quorum"] = changed.__dict__["quorum"]
    return Decisions(changed, counting, replica)


def mutated_owner(module: ModuleType, old: str, new: str) -> Any:
    """`PartitionOwner`, with `module`, which is its own or that of its effects, changed in the same way."""
    changed = changed_module(module, old, new)
    if module is not owner:
        effects_changed = {name: value for name, value in vars(changed).items() if name in vars(effects)}
        changed = compiled(owner, inspect.getsource(owner))
        vars(changed).update(effects_changed)
    return vars(changed)["PartitionOwner"]


def changed_module(module: ModuleType, old: str, new: str) -> ModuleType:
    text = inspect.getsource(module)
    if text.count(old) != 1:
        raise ValueError(f"occurs {text.count(old)} times in {module.__name__}: {old!r}")
    return compiled(module, text.replace(old, new))


def compiled(module: ModuleType, text: str) -> ModuleType:
    """Make a module from a text. It stays known by its name: states of the owner, which are pickled, look for it."""
    name = f"{module.__name__}_mutated_{next(_numbers)}"
    made = sys.modules[name] = ModuleType(name)
    exec(compile(text, name, "exec"), made.__dict__)
    return made
