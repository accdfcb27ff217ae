"""The functions under test: those of production, or production's own text with one change."""

from __future__ import annotations

import inspect
import itertools
import sys
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from polonaise.server.protocol import commit, effects, owner, recovery
from polonaise.storage.protocol import replica
from polonaise_proving.mutations.mutation import Mutation

_numbers = itertools.count(1)


@dataclass(frozen=True, eq=False)
class Decisions:
    """The modules that the model calls, by their production names."""

    recovery: ModuleType
    commit: ModuleType
    replica: ModuleType


def production() -> Decisions:
    return Decisions(recovery, commit, replica)


def mutated(mutation: Mutation) -> Decisions:
    """Production with the mutation."""
    changed = changed_module(mutation)
    if mutation.module == commit.__name__:
        return Decisions(recovery, changed, replica)
    if mutation.module == replica.__name__:
        return Decisions(recovery, commit, changed)
    counting = compiled(commit, inspect.getsource(commit))
    counting.__dict__["quorum"] = changed.__dict__["quorum"]
    return Decisions(changed, counting, replica)


def mutated_owner(mutation: Mutation) -> Any:
    """`PartitionOwner` with a mutation of its own module, or of that of its effects."""
    changed = changed_module(mutation)
    if mutation.module != owner.__name__:
        effects_changed = {name: value for name, value in vars(changed).items() if name in vars(effects)}
        changed = compiled(owner, inspect.getsource(owner))
        vars(changed).update(effects_changed)
    return vars(changed)["PartitionOwner"]


def changed_module(mutation: Mutation) -> ModuleType:
    """The module of the mutation with it, beside that of production. Raises `MutationDoesNotApply`."""
    module = import_module(mutation.module)
    return compiled(module, mutation.applied(inspect.getsource(module)))


def compiled(module: ModuleType, text: str) -> ModuleType:
    """Make a module from a text. It stays known by its name: states of the owner, which are pickled, look for it."""
    name = f"{module.__name__}_mutated_{next(_numbers)}"
    made = sys.modules[name] = ModuleType(name)
    exec(compile(text, name, "exec"), made.__dict__)
    return made
