"""Shell completion: `--install-completion` and `--show-completion`, also with the name of a shell after them."""

from __future__ import annotations

from itertools import takewhile

import typer
from typer.completion import get_completion_script, install  # type: ignore[attr-defined]
from typer.core import TyperGroup

from polonaise.errors import BadOption

_INSTALL = "--install-completion"
_SHOW = "--show-completion"
_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


class CompletingGroup(TyperGroup):
    """The commands of `polonaise`, of which the completion may be installed for a named shell.

    Typer's own option takes no value: it installs for the shell that it finds, whatever is written after it.
    """

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Do what an option for completion asks, and end, if a shell is named after it.

        Raises `BadOption`, with nothing installed, for a shell that is not known.
        """
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
