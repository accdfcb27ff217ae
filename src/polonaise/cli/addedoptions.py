"""Options that several commands share, with those for TLS and settings: a decorator adds them to a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

from typer import Option

from polonaise.admin.settingkeys import TABLES, SettingKey, SettingKind, written
from polonaise.host.environment import variables
from polonaise.host.tls import VARIABLES, files_of

T = TypeVar("T")


def adding(
    command: Callable[..., Any],
    options: Mapping[str, tuple[Any, Any]],
    run: Callable[[dict[str, Any], functools.partial[Any]], T],
    *,
    instead_of: str = "",
    first: bool = False,
) -> Callable[..., T]:
    """Return the command with these options: annotation and default, by the names of parameters.

    When it is called, `run` gets the values of these options, and the command with all its other arguments; it gives
    the parameter `instead_of`. The options are shown behind the command's own ones or, with `first`, before them.
    """
    signature = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [each.replace(kind=keyword) for each in signature.parameters.values() if each.name != instead_of]
    added = [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]

    @functools.wraps(command)
    def called(**given: Any) -> T:
        values = {name: given.pop(name, default) for name, (_, default) in options.items()}
        return run(values, functools.partial(command, **given))

    called.__signature__ = signature.replace(parameters=added + own if first else own + added)  # type: ignore[attr-defined]
    return called


_PANEL: Final = "TLS"
_OPTIONS: Final = {
    "tls_ca": ("ca", "CA certificates (PEM) that this process believes."),
    "tls_certificate": ("certificate", "Certificate (PEM) of this process."),
    "tls_key": ("key", "Private key (PEM) of the certificate."),
}


def with_tls(command: Callable[..., T]) -> Callable[..., T]:
    """Decorate a command: it takes the TLS options, and runs with the files that they name in its environment.

    There `polonaise.connect` finds them, and so do child processes. Variables that are set are the options' defaults.
    """

    def run(given: dict[str, Any], called: Callable[..., T]) -> T:
        with _in_environment({file: given[name] for name, (file, _) in _OPTIONS.items()}):
            return called()

    return adding(command, {name: (_annotation_of_file(name), None) for name in _OPTIONS}, run)


def _annotation_of_file(name: str) -> Any:
    file, text = _OPTIONS[name]
    option = f"--{name.replace('_', '-')}"
    return Annotated[
        str | None, Option(option, metavar="FILE", envvar=VARIABLES[file], help=text, rich_help_panel=_PANEL)
    ]


def _in_environment(given: dict[str, str | None]) -> AbstractContextManager[None]:
    files = files_of(given)
    return variables({} if files is None else {variable: getattr(files, file) for file, variable in VARIABLES.items()})


_TYPES: Final[Mapping[SettingKind, type]] = {SettingKind.COUNT: int, SettingKind.BYTES: int, SettingKind.FLAG: bool}
"""The types of options for settings of these kinds; those of others take texts."""
_ENUMERATION: Final[Any] = StrEnum
"""Untyped, because type checkers want to see the members."""


def with_settings(
    table: str, names: Collection[str] = (), *, variables: Mapping[str, str] | None = None
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorate a command: it takes an option for each setting of the table that has one, or for those with these names.

    What is given becomes its parameter `options`, which is for `configuration_of`. `variables` are names of variables
    that stand for options, beside those that settings have.
    """
    options = {
        key.name: (_annotation_of_setting(key, (variables or {}).get(key.name)), None)
        for key in TABLES[table]
        if key.option and (not names or key.name in names)
    }

    def decorated(command: Callable[..., T]) -> Callable[..., T]:
        def run(given: dict[str, Any], called: Callable[..., T]) -> T:
            return called(options=given)

        return adding(command, options, run, instead_of="options", first=True)

    return decorated


def _annotation_of_setting(key: SettingKey, variable: str | None) -> Any:
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
