"""The `polonaise config` command: show the settings of nodes, and the origin of each."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.output import Json, print_table, say, say_json, tidy
from polonaise.cli.running import Config, reading_settings
from polonaise.errors import BadOption
from polonaise.redaction import redacted

config = typer.Typer(help="Show the settings of nodes.", no_args_is_help=True)


@config.command("show", epilog=EXIT_STATUS)
def show(
    table: Annotated[
        str | None,
        Argument(metavar="[server|storage|cluster|player]", help="Whose settings. Default: all.", show_default=False),
    ] = None,
    file: Config = None,
    given: Annotated[bool, Option("--given", help="Only settings that the environment or the file gives.")] = False,
    as_json: Json = False,
) -> None:
    """Show every setting with its value and where that is from: the environment, the file, or the default.

    What the command line of a node says comes before all of these. Passwords, keys and tokens in addresses are left
    out. Settings that are invalid or unknown are refused, as the node would refuse them.
    """
    from polonaise.admin.configuration import DEFAULT, configuration_of
    from polonaise.admin.settingkeys import TABLES

    if table is not None and table not in TABLES:
        raise BadOption(f"no settings of {redacted(table)!r}: there are those of {', '.join(TABLES)}")
    with tidy(), reading_settings():
        rows = []
        for name in [table] if table else TABLES:
            configuration = configuration_of(name, file, {})
            for each in (*configuration.given.values(), *configuration.target_settings):
                if given and each.origin == DEFAULT:
                    continue
                # Targets have tables of their own.
                setting = each.key.name if "." in each.key.name else f"{name}.{each.key.name}"
                rows.append((setting, each.shown, each.origin, each.key.meaning))
                if as_json:
                    value = each.value if isinstance(each.value, bool | int | float | None) else each.shown
                    say_json(
                        {
                            "setting": rows[-1][0],
                            "value": value,
                            "unit": each.key.unit,
                            "origin": each.origin,
                            "meaning": each.key.meaning,
                        }
                    )
        if not as_json:
            if rows:
                print_table(["setting", "value", "origin", "meaning"], rows)
            else:
                say("nothing is given: every setting has its default")
