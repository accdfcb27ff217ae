"""What README shows is run as it stands there, on a cluster that was started as README says."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from clusterrig import running

from polonaise.cli.application import application

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("source", [pytest.param(source, id=str(n)) for n, source in enumerate(blocks("python"))])
async def test_a_python_block_runs_on_an_empty_cluster(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = compile(source, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {}
    with running(Path("bank")):
        main = eval(code, names)
        if inspect.isawaitable(main):
            await main
    assert names["balances"].accounts == {"1": 70}, "100 were paid in, and 30 out"
    assert names["receipt"].committed


def test_there_is_a_python_block() -> None:
    assert blocks("python")


@pytest.mark.parametrize("line", re.findall(r"^polonaise .*", "".join(blocks("sh")), re.MULTILINE))
def test_a_command_is_one_with_these_options(line: str) -> None:
    """Parsed only: the ports that README names may be taken where this runs."""
    command = typer.main.get_command(application)
    arguments = shlex.split(line.removesuffix("&"), comments=True)[1:]
    context = command.make_context("polonaise", arguments)
    for _ in range(2):
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
        context = command.make_context(name, arguments, parent=context)
    assert context.params
