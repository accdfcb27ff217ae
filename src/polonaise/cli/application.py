"""The `polonaise` command: its groups, each loaded when it is asked for, and what other packages bring.

Nodes start by this command: to load all groups, and to make their options, is a quarter of the time that takes.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from itertools import takewhile
from typing import Annotated, Any, Final, TypeAlias, cast

import typer
from typer import Option
from typer.completion import get_completion_script, install  # type: ignore[attr-defined]
from typer.core import TyperGroup

from polonaise.cli.inputs import ANY_ARGUMENTS
from polonaise.cli.running import say_now
from polonaise.errors import BadOption, ExtraMissing
from polonaise.redaction import redacted_line

Command: TypeAlias = Any
"""A command as Typer makes it, of a class of its own."""

_INSTALL = "--install-completion"
_SHOW = "--show-completion"
_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


_GROUPS: Final = {
    "cluster": ("cluster", "requirement"), "server": ("server",), "storage": ("storage",), "player": ("player",),
    "partition": ("partition",), "topic": ("topic", "requirement"), "zookeeper": ("zookeeper",), "config": ("config",),
    "log": ("log",), "group": ("group",), "segment": ("segment",), "archive": ("archive",),
    "pipeline": ("pipeline",), "tls": ("tls",), "bench": ("bench",),
}  # fmt: skip
"""The groups, in the order in which the help has them, and the modules of each; the first one has it."""


class LazyCommands(TyperGroup):
    """The commands of `polonaise`, of which the completion may be installed for a named shell.

    Typer's own option takes no value: it installs for the shell that it finds, whatever is written after it.
    """

    _loaded: dict[str, Command]

    @property
    def commands(self) -> MutableMapping[str, Command]:
        """All commands, by name: loads those that were not asked for yet, for the help and for a name that is none."""
        self._loaded = {**{name: self._load(name) for name in _GROUPS}, **_commands_of_packages(), **self._loaded}
        return self._loaded

    @commands.setter
    def commands(self, commands: MutableMapping[str, Command]) -> None:
        self._loaded = dict(commands)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Command | None:  # type: ignore[override]
        return self._load(cmd_name) if cmd_name in _GROUPS else self.commands.get(cmd_name)

    def _load(self, name: str) -> Command:
        if name not in self._loaded:
            group, *_ = [import_module(f"polonaise.cli.{module}") for module in _GROUPS[name]]
            self._loaded[name] = _with_its_name(getattr(group, name), name)
        return self._loaded[name]

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Do what an option for completion asks, and end, if a shell is named after it. Or raise `BadOption`."""
        options = list(takewhile(lambda word: word.startswith("-"), args))
        asked, named = next((o for o in options if o in (_INSTALL, _SHOW)), None), args[len(options) :]
        if asked and named and not ctx.resilient_parsing:
            shell = named[0]
            if shell not in _SHELLS or len(named) > 1:
                raise BadOption(f"{asked} {' '.join(named)}: name one shell of {', '.join(_SHELLS)}, or none for yours")
            self._complete_for(shell, asked, ctx)
        return super().parse_args(ctx, args)

    def _complete_for(self, shell: str, asked: str, ctx: typer.Context) -> None:
        program = ctx.find_root().info_name or "polonaise"
        variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
        if asked == _SHOW:
            typer.echo(get_completion_script(prog_name=program, complete_var=variable, shell=shell))
        else:
            found, path = install(shell=shell, prog_name=program, complete_var=variable)
            typer.echo(f"{found} completion installed in {path}; it takes effect in the next terminal")
        raise typer.Exit


def _with_its_name(group: typer.Typer, name: str) -> Command:
    parent = typer.Typer()
    parent.add_typer(group, name=name)
    return _commands_of(parent)[name]


def _commands_of(made: typer.Typer) -> Mapping[str, Command]:
    made.callback()(lambda: None)  # or a single command would stand for all
    return cast(TyperGroup, typer.main.get_command(made)).commands


application = typer.Typer(
    name="polonaise",
    cls=LazyCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_OF_PROVING = ("demo", "smoke")


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say_now(f"polonaise {version('polonaise')}")
        raise typer.Exit


@application.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_say_version, is_eager=True, help="Show the version, and exit.")
    ] = False,
) -> None:
    """A distributed write-ahead log: optimistic locks, quorum commits, feeds in order without gaps."""


def _add_commands(application: typer.Typer) -> None:
    """Add the commands of other packages: each entry point of `polonaise.commands` is a function that adds some.

    The names that only the package `polonaise-proving` brings are there without it, too, and say what brings them.
    """
    found = {each.name: each for each in entry_points(group="polonaise.commands")}
    for name, entry in sorted(found.items()):
        try:
            entry.load()(application)
        except Exception as error:  # noqa: BLE001 - the code of another package
            # A broken package may not take all other commands with it.
            _add_refusal(
                application,
                name,
                f"`polonaise {name}` can't be loaded from {entry.value}: {redacted_line(error)}: install its package "
                "again, in a version that fits this one",
            )
    for name in _OF_PROVING:
        if name not in found:
            why = f"`polonaise {name}` comes with another package: pip install 'polonaise[proving]'"
            _add_refusal(application, name, why)


def _add_refusal(application: typer.Typer, name: str, why: str) -> None:
    """Add a hidden command of this name, which takes any arguments and fails with this reason."""
    from rich.markup import escape

    def command() -> None:
        raise ExtraMissing(why)

    command.__doc__ = escape(why)  # what --help shows, which takes square brackets for markup
    application.command(name, hidden=True, context_settings=ANY_ARGUMENTS)(command)


@cache
def _commands_of_packages() -> Mapping[str, Command]:
    made = typer.Typer()
    _add_commands(made)
    return _commands_of(made)
