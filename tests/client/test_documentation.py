"""Whatever `polonaise` exports says what it means, in what units, and what it raises."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polonaise


def public(holder: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of our own classes among the bases of this one."""
    for base in holder.__mro__:
        if not base.__module__.startswith("polonaise"):
            continue
        for name, member in vars(base).items():
            if isinstance(member, classmethod | staticmethod):
                member = member.__func__
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                yield f"{holder.__name__}.{name}", member


def values(holder: type) -> Iterator[str]:
    """The members of an enum, the fields of a data class: each is documented below its name."""
    if issubclass(holder, enum.Enum):
        yield from (member.name for member in holder)
    elif dataclasses.is_dataclass(holder):
        yield from (field.name for field in dataclasses.fields(holder))


EXPORTED = {name: getattr(polonaise, name) for name in polonaise.__all__}
CLASSES = [item for item in EXPORTED.values() if inspect.isclass(item)]
MEMBERS = dict(pair for item in CLASSES if item is not polonaise.Batch for pair in public(item))
"""Without a batch's columns: `docs/formats.md` has them, byte by byte."""


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_an_exported_name_has_a_docstring_of_its_own(name: str) -> None:
    documented = vars(EXPORTED[name]).get("__doc__") if inspect.isclass(EXPORTED[name]) else EXPORTED[name].__doc__
    assert documented
    assert not documented.startswith(f"{name}("), "made by the machine"


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_a_public_method_has_a_docstring(name: str) -> None:
    assert (inspect.getdoc(MEMBERS[name]) or "").strip()


@pytest.mark.parametrize("holder", [pytest.param(item, id=item.__name__) for item in CLASSES if any(values(item))])
def test_a_member_of_an_enum_and_a_setting_says_what_it_means(holder: type) -> None:
    lines = [line.strip() for line in inspect.getsource(holder).splitlines()]
    undocumented = []
    for name in values(holder):
        (place,) = [n for n, line in enumerate(lines) if line.startswith((f"{name} =", f"{name}:"))]
        if not lines[place + 1].startswith('"""'):
            undocumented.append(name)
    assert undocumented == []


@pytest.mark.parametrize(
    ("method", "raised"),
    [
        ("Log.run", ("Abandoned", "AppendExpired", "AppendUnknown", "BadOption")),
        ("Log.submit", ("Overloaded", "BadOption")),
        ("Log.append", ("Overloaded", "LockConflict", "BadOption", "BodyTooLarge")),
        ("Log.ready", ("DeadlineExceeded",)),
        ("Log.flush", ("DeadlineExceeded",)),
        ("Log.high_water_mark", ("DeadlineExceeded",)),
        ("Log.register", ("DeadlineExceeded",)),
        ("Log.health", ("DeadlineExceeded",)),
        ("Log.transaction", ("BeyondLog", "DeadlineExceeded")),
        ("Log.read", ("DeadlineExceeded", "DataDamaged")),
        ("Receipt.applied", ("DeadlineExceeded",)),
        ("Producer.append", ("ProducerFenced", "ProducerSequence", "ProducerDiffers", "AppendUnknown")),
    ],
)
def test_a_method_that_waits_or_refuses_names_its_errors(method: str, raised: tuple[str, ...]) -> None:
    documented = inspect.getdoc(MEMBERS[method]) or ""
    assert [error for error in raised if f"`{error}`" not in documented] == []


@pytest.mark.slow
def test_the_api_reference_can_be_made_and_has_every_exported_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pdoc", "--output-directory", str(tmp_path), "--no-show-source", "polonaise"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    made = (tmp_path / "polonaise.html").read_text()
    assert [name for name in polonaise.__all__ if f'id="{name}"' not in made] == []
