"""The options of commands that give settings, made from the declarations of the settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

from typer import Option

from polonaise.admin.settingkeys import TABLES, SettingKey, SettingKind, written
from polonaise.cli.addedoptions import adding

T = TypeVar("T")

_TYPES: Final[Mapping[SettingKind, type]] = {SettingKind.COUNT: int, SettingKind.BYTES: int, SettingKind.FLAG: bool}
"""The types of options for settings of these kinds; those of others take texts."""
_ENUMERATION: Final[Any] = StrEnum
"""Untyped, because type checkers want to see the members."""


def with_settings(
    table: str, names: Collection[str] = (), *, variables: Mapping[str, str] | None = None
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorate a command: it takes an option for each setting of the table that has one, or for those with these names.

    The command gets what is given, by the names of settings, as its parameter `options`, which is for
    `configuration_of`. `variables` are names of variables that stand for options, beside those that settings have.
    """
    options = {
        key.name: (_annotation_of(key, (variables or {}).get(key.name)), None)
        for key in TABLES[table]
        if key.option and (not names or key.name in names)
    }

    def decorated(command: Callable[..., T]) -> Callable[..., T]:
        def run(given: dict[str, Any], called: Callable[..., T]) -> T:
            return called(options=given)

        return adding(command, options, run, instead_of="options", first=True)

    return decorated


def _annotation_of(key: SettingKey, variable: str | None) -> Any:
    """Return the annotation of a parameter whose option gives this setting."""
    kind: Any = _TYPES.get(key.kind, str)
    name, default = key.option, written(key.kind, key.default) if key.default else ""  # neither none, empty, nor off
    if kind is bool:
        name, default = f"{name}/--no-{name.removeprefix('--')}", default and name
    elif key.choices:
        kind = _ENUMERATION("Choice", {each: each for each in key.choices})
    bounds: dict[str, Any] = {"min": key.least, "max": key.most} if kind is int else {}
    told = f"{key.meaning} Default: {default}." if default else key.meaning
    return Annotated[
        kind | None, Option(name, help=told, show_default=False, metavar=key.metavar, envvar=variable, **bounds)
    ]
