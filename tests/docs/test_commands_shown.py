"""Commands in the pages are ones with these options, and every command is in a page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import typer.main

from polonaise.cli.application import application

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = frozenset("|&<>;")
COMMAND = typer.main.get_command(application)
"""Made once: it holds no state, and making it takes longer than all that is asked of it."""


@cache
def lines(page: Path) -> list[str]:
    return re.findall(r"^polonaise .*", "".join(_SHELL.findall(page.read_text())), re.MULTILINE)


def words(line: str) -> list[str]:
    """The words of one command: what it is piped into, or reads from, is no part of it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&<>;")
    lexer.whitespace_split = True
    found = []
    for word in lexer:
        if set(word) <= _END:
            break
        found.append(word)
    return found


def commands(holder: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in getattr(holder, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif not command.hidden:
            yield " ".join(("polonaise", *path, name))


@pytest.mark.parametrize(
    "line", [pytest.param(line, id=f"{page.name}-{line[:60]}") for page in PAGES for line in lines(page)]
)
def test_a_command_is_one_with_these_options(line: str) -> None:
    """Parsed only: the logs and ports that pages name are not here."""
    command = COMMAND
    context = command.make_context("polonaise", words(line)[1:])
    while hasattr(command, "resolve_command"):
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
        context = command.make_context(name, arguments, parent=context)
    assert context.params


@pytest.mark.parametrize("command", [*commands(COMMAND)])
def test_a_command_is_in_a_page(command: str) -> None:
    shown = [line for page in PAGES for line in lines(page)]
    assert any(line.split()[:3] == command.split() for line in shown) or any(
        f"`{command}" in page.read_text() for page in PAGES
    )


def test_no_page_gives_a_node_the_directory_of_a_cluster_that_another_command_makes_whole() -> None:
    """Who follows one block after the other would give a second coordinator the storage nodes of the first cluster."""
    shown = " ".join(page.read_text() for page in PAGES)
    whole = set(re.findall(r"cluster start --directory (\S+)", shown))
    parts = set(re.findall(r"storage run --directory (\S+)|\bfile:(\./\S+)", shown))
    assert whole
    assert not [part for pair in parts for part in pair for each in whole if part.startswith(f"{each}/")]
