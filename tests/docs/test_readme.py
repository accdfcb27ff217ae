"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rigs.programs import output_of, run_python

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def example_with(text: str) -> str:
    (example,) = [block for block in blocks("python") if text in block]
    return example


def run(script: Path) -> str:
    ended = run_python(script.name, cwd=script.parent)
    assert ended.stderr == ""
    return output_of(ended)


@pytest.mark.slow
def test_the_example_runs_as_it_stands_and_finds_its_log_again(tmp_path: Path) -> None:
    script = tmp_path / "bank.py"
    script.write_text(example_with("def withdraw"))
    assert run(script) == "account 1 has 70\n"
    assert (tmp_path / "bank" / "host.lock").exists()
    assert run(script) == "account 1 has 140\n"


@pytest.mark.slow
def test_the_shortest_one_does_as_well(tmp_path: Path) -> None:
    script = tmp_path / "shortest.py"
    script.write_text(example_with('append(b"hello")'))
    assert run(script) == "0 b'hello'\n"
    assert run(script) == "0 b'hello'\n1 b'hello'\n"
