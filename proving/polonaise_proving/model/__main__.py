"""`make model`: explore the default configurations, or some of them, or with other bounds."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import Field, fields, replace
from typing import Any

from polonaise.server.protocol.owner import PartitionOwner
from polonaise_proving.model import owner, player
from polonaise_proving.model.bounds import DEFAULT, ModelBounds
from polonaise_proving.model.decisions import production
from polonaise_proving.model.search import ModelResult, Search
from polonaise_proving.model.walk import Explored


def main() -> int:
    arguments = _arguments()
    chosen = [bounds for bounds in DEFAULT if not arguments.names or bounds.name in arguments.names]
    of_owner = [bounds for bounds in owner.BOUNDS if not arguments.names or bounds.name in arguments.names]
    of_player = [bounds for bounds in player.BOUNDS if not arguments.names or bounds.name in arguments.names]
    given = {each.name: getattr(arguments, each.name) for each in _budgets()}
    changed = {name: value for name, value in given.items() if value is not None}
    began = time.monotonic()
    states, broken = 0, False
    with ProcessPoolExecutor(arguments.processes) as pool:
        explored = [pool.submit(explore, replace(bounds, **changed), arguments.states_max) for bounds in chosen]
        owners = [pool.submit(explore_owner, bounds) for bounds in of_owner]
        owners += [pool.submit(explore_player, bounds) for bounds in of_player]
        for each in as_completed(owners):
            states += each.result().states
            broken |= bool(each.result().broken)
            _say(f"{each.result()}")
        for done in as_completed(explored):
            result = done.result()
            states += result.states
            broken |= not result.complete
            _say(f"{result}")
            if result.counterexample is not None:
                _say(f"{result.counterexample}")
    _say(f"{states:,} states in {time.monotonic() - began:.0f} s: {'BROKEN' if broken else 'every promise holds'}")
    return int(broken)


def explore(bounds: ModelBounds, states_max: int | None) -> ModelResult:
    return Search(production(), bounds).run(states_max)


def explore_owner(bounds: owner.OwnerBounds) -> Explored:
    return owner.OwnerExploration(PartitionOwner, bounds).run()


def explore_player(bounds: player.PlayerBounds) -> Explored:
    return player.PlayerExploration(player.PRODUCTION, bounds).run()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m polonaise_proving.model", description=__doc__)
    names = [bounds.name for bounds in (*DEFAULT, *owner.BOUNDS, *player.BOUNDS)]
    parser.add_argument("names", nargs="*", help=f"which configurations; without any, all: {', '.join(names)}")
    parser.add_argument("--processes", type=int, default=2, help="explore so many configurations at the same time")
    parser.add_argument("--states-max", type=int, help="give up on a configuration after so many states")
    for each in _budgets():
        parser.add_argument(f"--{each.name}", type=int, help=each.metadata["help"])
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"no configuration is called {', '.join(sorted(unknown))}")
    return arguments


def _budgets() -> list[Field[Any]]:
    return [each for each in fields(ModelBounds) if "help" in each.metadata]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
