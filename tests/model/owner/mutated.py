"""The owner with one change: two effects that change places, or a condition that is left out."""

from __future__ import annotations

import inspect
import itertools
import sys
from types import ModuleType
from typing import Any

from polonaise.server.protocol import effects, owner

_numbers = itertools.count(1)


def mutated(module: ModuleType, old: str, new: str) -> Any:
    """`PartitionOwner` with `old`, which occurs exactly once in the text of `module`, replaced by `new`."""
    text = inspect.getsource(module)
    if text.count(old) != 1:
        raise ValueError(f"occurs {text.count(old)} times in {module.__name__}: {old!r}")
    changed = _compiled(module, text.replace(old, new))
    if module is owner:
        return changed.__dict__["PartitionOwner"]
    whole = _compiled(owner, inspect.getsource(owner))
    whole.__dict__.update({name: held for name, held in changed.__dict__.items() if name in effects.__dict__})
    return whole.__dict__["PartitionOwner"]


def _compiled(module: ModuleType, text: str) -> ModuleType:
    """States are pickled, so the module stays where its classes are looked for."""
    name = f"{module.__name__}_mutated_{next(_numbers)}"
    made = sys.modules[name] = ModuleType(name)
    exec(compile(text, name, "exec"), made.__dict__)
    return made
