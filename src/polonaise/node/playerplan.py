"""What a process of a player is told to do: which log, route function and targets, by what settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from polonaise.errors import BadOption, ExtraMissing, PolonaiseError
from polonaise.host.tls import PLAYER, TlsFiles, tls_identity
from polonaise.player.protocol.entries import TargetName
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.routing import Route
from polonaise.redaction import redacted, redacted_repr
from polonaise.terms import PartitionId, TransactionId

if TYPE_CHECKING:
    from polonaise.player.deliverytarget import DeliveryTarget
    from polonaise.player.endpoint import DeliveryEndpoint
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable

LEASE_S: Final = (1.0, 60.0)
"""The bounds of `PlayerPlan.lease_s`."""


@redacted_repr
@dataclass(frozen=True, slots=True)
class TargetPlan:
    """Where one target is: exactly one of `address`, `sql` and `file` is given."""

    address: str = ""
    """Where a target serves itself: link://HOST:PORT or grpc://HOST:PORT."""
    sql: str = ""
    """The URL of a database that this process applies to by `apply`."""
    apply: str = ""
    """The subclass of `SqlDeliveryTarget` for that: package.module:Class."""
    file: str = ""
    """The path of a file of lines in JSON."""
    decode: str = ""
    """The function that makes of a payload what stands in a line: module:name. Empty for Base64."""
    start_after: Mapping[PartitionId, TransactionId] = field(default_factory=dict)
    """The id after which a new target begins, by partition."""

    def shown(self) -> dict[str, str]:
        texts = {name: getattr(self, name) for name in ("address", "sql", "apply", "file", "decode")}
        texts["start_after"] = ", ".join(f"{partition}={id}" for partition, id in self.start_after.items())
        return {name: text for name, text in texts.items() if text}


@redacted_repr
@dataclass(frozen=True, slots=True)
class PlayerPlan:
    """The settings of a process of a player."""

    name: str
    log: str
    """The address of the log, with its topic."""
    route: str
    """The import path of the route function."""
    targets: Mapping[TargetName, TargetPlan]
    partitions: tuple[PartitionId, ...] | None = None
    """The partitions to deliver; None for all."""
    python_path: tuple[str, ...] = (".",)
    retired: tuple[TargetName, ...] = ()
    settings: PlayerSettings = field(default_factory=PlayerSettings)
    lease_s: float = 5.0
    """For how long the lease lasts if it is not renewed: so long a process may hang without being replaced, and nothing
    is delivered after one that was killed."""
    hand_over_s_max: float = 10.0
    """How long a process that is stopped waits until what is in flight is acknowledged. Not for ever: a target that
    hangs would keep others from delivering to all the other targets."""


_PATH: Final = re.compile(r"(?!\d)\w+(\.(?!\d)\w+)*:(?!\d)\w+(\.(?!\d)\w+)*")


def look_in(directories: Iterable[str]) -> None:
    """Let modules be imported from these directories, before all others. Raises `BadOption` for one that is none."""
    for directory in directories:
        if not os.path.isdir(directory):
            raise BadOption(f"python_path has {redacted(directory)!r}, and that is no directory: correct it")
    added = [os.path.abspath(directory) for directory in directories]
    sys.path[:] = [*added, *(each for each in sys.path if each not in added)]


def imported(what: str, path: str) -> Any:
    """Return what `path` names; raises `BadOption`, which begins with `what`."""
    if _PATH.fullmatch(path) is None:
        raise BadOption(f"{what} = {redacted(path)!r}: write package.module:name, such as shop.routing:route")
    name, _, attributes = path.partition(":")
    found = _module(what, name)
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            there = [each for each in vars(found) if not each.startswith("_")] if hasattr(found, "__dict__") else []
            near = difflib.get_close_matches(attribute, there, n=1)
            advice = f", did you mean {near[0]}?" if near else ""
            where = getattr(found, "__file__", None) or name
            raise BadOption(f"{what} = {path!r}: there is no {attribute!r} in {where}{advice}")
        found = getattr(found, attribute)
    return found


def _module(what: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Not found is the module itself or a package that it is in; or one that it imports, which is another mistake.
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            looked = ", ".join(each for each in sys.path[:3] if each)
            raise BadOption(
                f"{what}: there is no module {missing!r}. It was looked for in {looked} and where packages are "
                "installed: correct the name, or name its directory in python_path"
            ) from error
        raise BadOption(f"{what}: module {name!r} imports {missing!r}, which is not installed") from error
    # Whatever the application's code does when it is imported, also `sys.exit` in a script.
    except (Exception, SystemExit) as error:
        raise BadOption(
            f"{what}: module {name!r} can't be imported: {type(error).__name__}: {redacted(error)}"
        ) from error


def imported_function(what: str, path: str) -> Callable[[Any], Any]:
    """Return the plain function of one argument that `path` names; raises `BadOption`."""
    found = imported(what, path)
    if not callable(found):
        raise BadOption(f"{what} = {path!r} is no function, but of type {type(found).__name__}")
    if inspect.isclass(found):
        raise BadOption(f"{what} = {path!r} is a class, and not a function")
    if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
        raise BadOption(f"{what} = {path!r} is a coroutine function: write a plain one (def, not async def)")
    try:
        inspect.signature(found).bind(object())
    except TypeError as error:
        raise BadOption(f"{what} = {path!r} can't be called with a transaction alone: {error}") from error
    except ValueError:
        pass  # a function in C may not tell
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class LoadedPlan:
    """A plan with the application's code that it names."""

    plan: PlayerPlan
    route: Route
    code: Mapping[TargetName, Any]
    """What applies to a target's database, or decodes for its file."""

    def target(self, name: TargetName, tls: TlsFiles | None) -> DeliveryTarget | DeliveryEndpoint:
        """Return a target that this process applies to, or the endpoint of one that is elsewhere; opens nothing."""
        plan = self.plan.targets[name]
        try:
            if plan.address:
                from polonaise.player.remotetargets import remote

                return remote(plan.address, tls=tls)
            if plan.file:
                from polonaise.player.jsonlines import JsonLinesTarget

                return JsonLinesTarget(plan.file, decode=self.code.get(name))
            return self.code[name](plan.sql)  # type: ignore[no-any-return]
        except ExtraMissing:
            raise
        except PolonaiseError as error:
            raise BadOption(f"targets.{name}: {error.text}") from error
        # A class of the application's may have an `__init__` of its own.
        except Exception as error:
            raise BadOption(
                f"targets.{name}: {plan.apply} can't be made: {type(error).__name__}: {redacted(error)}"
            ) from error

    def with_targets_of(self, other: LoadedPlan) -> LoadedPlan:
        """Return this with the other's targets; those that are gone count as retired."""
        gone = (self.plan.targets.keys() | set(self.plan.retired)) - other.plan.targets.keys()
        plan = replace(self.plan, targets=other.plan.targets, retired=tuple(sorted(gone)))
        return LoadedPlan(plan, self.route, other.code)


def loaded(plan: PlayerPlan, tls: TlsFiles | None) -> LoadedPlan:
    """Import the application's code, and see that all targets can be made.

    Raises `BadOption`, `ExtraMissing`, and for targets elsewhere `CertificateUnusable` if `tls` is not for a player.
    """
    look_in(plan.python_path)
    route: Route = imported_function("route", plan.route)
    code: dict[TargetName, Any] = {}
    for name, target in plan.targets.items():
        if target.sql:
            code[name] = _class_of(name, target)
        elif target.decode:
            code[name] = imported_function(f"targets.{name}.decode", target.decode)
    found = LoadedPlan(plan, route, code)
    for name, target in plan.targets.items():
        if target.sql:
            found.target(name, tls)
    if any(target.address for target in plan.targets.values()):
        tls_identity(PLAYER, tls)
    return found


def _class_of(name: TargetName, target: TargetPlan) -> Any:
    what = f"targets.{name}.apply"
    found = imported(what, target.apply)
    try:
        from polonaise.player.sqldelivery import SqlDeliveryTarget
    except ImportError as error:
        raise ExtraMissing(f"targets.{name}.sql needs {error.name}: pip install 'polonaise[sql]'") from error

    if not isinstance(found, type) or not issubclass(found, SqlDeliveryTarget):
        raise BadOption(f"{what} = {target.apply!r} is no subclass of polonaise.player.SqlDeliveryTarget")
    return found


class PlanChanges(NamedTuple):
    """What is different in a plan that was read again."""

    added: tuple[TargetName, ...]
    removed: tuple[TargetName, ...]
    moved: tuple[TargetName, ...]
    """Reached or applied to in another way."""
    restart: tuple[str, ...]
    """Settings whose changes only a restart takes up."""

    def text(self) -> str:
        words = [
            f"{what}: {', '.join(names)}"
            for what, names in (
                ("added", self.added), ("removed", self.removed), ("changed", self.moved),
                ("needs a restart", self.restart),
            )
            if names
        ]  # fmt: skip
        return "; ".join(words) or "nothing has changed"


def changes(before: PlayerPlan, now: PlayerPlan) -> PlanChanges:
    both = before.targets.keys() & now.targets.keys()
    moved = [name for name in both if _place(before.targets[name]) != _place(now.targets[name])]
    restart = [
        each.name
        for each in fields(PlayerPlan)
        if each.name not in ("targets", "retired") and getattr(before, each.name) != getattr(now, each.name)
    ]
    # A target that is removed counts as retired from then on, also if the settings do not say so.
    if set(now.retired) - set(before.retired) - before.targets.keys():
        restart.append("retired")
    return PlanChanges(
        tuple(sorted(now.targets.keys() - both)),
        tuple(sorted(before.targets.keys() - both)),
        tuple(sorted(moved)),
        tuple(restart),
    )


def _place(target: TargetPlan) -> tuple[str, ...]:
    # `start_after` is left out: it counts only for a new target.
    file = target.file and os.path.abspath(target.file)
    return target.address, target.sql, target.apply, file, target.decode
