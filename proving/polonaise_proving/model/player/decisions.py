"""The machines under test: those of production, or production's own text with one change."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from polonaise.player.protocol import activeplayer, patience, reception, targetpartition, targetqueue, targetstream
from polonaise_proving.model.decisions import changed_module, compiled


@dataclass(frozen=True, eq=False)
class Machines:
    """The player's and the target's side."""

    player: Any
    reception: Any


PRODUCTION = Machines(activeplayer.ActivePlayer, reception.Reception)


def mutated(module: ModuleType, old: str, new: str) -> Machines:
    """Production with `old`, which occurs exactly once in the text of `module`, replaced by `new`."""
    changed = changed_module(module, old, new)
    if module is reception:
        return Machines(activeplayer.ActivePlayer, vars(changed)["Reception"])
    # What imports it is made again, too, and given what it defines in place of production's.
    made = {module.__name__: changed}
    for importing in (patience, targetqueue, targetpartition, targetstream, activeplayer):
        if importing is module or not _imports(importing, made):
            continue
        again = compiled(importing, inspect.getsource(importing))
        for each in made.values():
            vars(again).update(
                {name: value for name, value in vars(each).items() if name in vars(again) and _own(value, each)}
            )
        made[importing.__name__] = again
    return Machines(vars(made[activeplayer.__name__])["ActivePlayer"], reception.Reception)


def _imports(module: ModuleType, made: dict[str, ModuleType]) -> bool:
    return any(name in inspect.getsource(module) for name in made)


def _own(value: object, module: ModuleType) -> bool:
    return getattr(value, "__module__", "") == module.__name__
