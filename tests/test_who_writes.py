"""Fields of the protocol objects are written by their own classes, but for those whose docstrings name another writer.

Assignments are looked at as they happen, whoever makes them, in all tests (`rigs.owned`, switched on in `conftest.py`);
what holds many things, and is changed without one, in the text of all of `src`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import polonaise
from rigs import owned

SOURCES = Path(polonaise.__file__).parent
OF_OTHERS = {
    "_replica.batches",
    "kind.waiting",
    "lane.batches",
    "main.requests",
    "message.batches",
    "report.batches",
    "requests.waiting",
}
"""Fields of other objects that are called like one of a protocol object."""

OWNER = '''
from dataclasses import dataclass

class Heart:
    """Beats. `Doctor` writes `pace`."""

    def __init__(self):
        self.pace, self.alive = 60, True
        self.beats: list[int] = []
        """`surgeon.mend` clears it."""
        self.told = 0
        """What `Doctor` reads."""

    def stop(self):
        self.alive = False
        (lambda: setattr(self, "pace", 0))()
        self.beats.append(0)
'''


def named(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts)


def strangers(texts: dict[str, str]) -> Iterator[str]:
    """Yield what holds many things, is a protocol object's, and is changed by whom its docstring does not name."""
    of: dict[str, list[tuple[str, owned.OwnedClass]]] = {}
    for module, text in texts.items():
        if owned.PROTOCOL.fullmatch(module):
            for each in owned.classes_of(text).values():
                for field in each.containers:
                    of.setdefault(field, []).append((f"{module}.{each.name}.", each))
    for module, text in texts.items():
        for changed, writer in owned.contents_changed(module, text):
            field = changed.rpartition(".")[2]
            told = of.get(field, ())
            if told and not any(f"{writer}.".startswith(own) or each.may_write(field, writer) for own, each in told):
                yield changed


@pytest.mark.slow
def test_what_a_protocol_object_holds_is_changed_by_nobody_whom_it_does_not_name() -> None:
    found = {
        ".".join(each.split(".")[-2:])
        for each in strangers({named(each): each.read_text() for each in SOURCES.rglob("*.py")})
    }
    assert found == OF_OTHERS


@pytest.mark.parametrize(
    "change",
    [
        "x.beats.append(1)",
        "self.heart.beats.append(1)",
        "x.beats[0] = 1",
        "x.beats[0][1] += 1",
        "x.beats += [1]",
        "del x.beats[1]",
        "heart().beats.clear()",
        "hearts[0].beats.pop(1)",
        "heapq.heappush(x.beats, 1)",
        "for x.beats[0] in y: pass",
        "[0 for x.beats[0] in y]",
        "with y as x.beats[0]: pass",
        "a, (b, *x.beats[0]) = y",
    ],
)
def test_a_change_is_found_however_it_is_written(change: str) -> None:
    texts = {"polonaise.room.protocol.heart": OWNER, "polonaise.room.walk": f"def walk(self):\n    {change}\n"}
    assert list(strangers(texts)) != []
    texts["polonaise.room.surgeon"] = texts.pop("polonaise.room.walk").replace("walk", "mend")
    assert list(strangers(texts)) == [], "its docstring names it"


@pytest.fixture
def heart(tmp_path: Path) -> Iterator[ModuleType]:
    module = ModuleType("polonaise.room.protocol.heart")
    module.__file__ = str(tmp_path / "heart.py")
    Path(module.__file__).write_text(OWNER)
    sys.modules[module.__name__] = module
    exec(compile(OWNER, module.__file__, "exec"), vars(module))
    owned.guard(module)
    yield module
    del sys.modules[module.__name__]


def writes(change: str, heart: ModuleType, function: str) -> None:
    names = {"__name__": "polonaise.room.walk", "x": heart.Heart()}
    where, _, name = function.rpartition(".")
    text = f"def {name}():\n    {change}\n"
    if where:
        text = f"class {where}:\n    @staticmethod\n    def {name}():\n        {change}\n"
    exec(compile(text, "walk.py", "exec"), names)
    eval(f"{function}()", names)


@pytest.mark.parametrize(
    "change",
    [
        "x.told = 1",
        "x.told += 1",
        "x.pace, x.alive = 1, False",
        "del x.told",
        "setattr(x, 'told', 1)",
        "delattr(x, 'told')",
        "for x.alive in (1, 2): pass",
        "[0 for x.told in (1, 2)]",
        "(lambda: setattr(x, 'told', 1))()",
    ],
)
def test_a_write_is_found_however_it_is_made(heart: ModuleType, change: str) -> None:
    for function in ("stranger", "Doctor.looks"):
        with pytest.raises(owned.Written, match="give that class a method"):
            writes(change, heart, function)


def test_own_methods_and_those_whom_a_docstring_names_write(heart: ModuleType) -> None:
    heart.Heart().stop()
    writes("x.pace += 1", heart, "Doctor.treats")
    heart.Heart().told = 5  # not the product's: a test puts an object into a state
    with pytest.raises(owned.Written):
        writes("x.pace += 1", heart, "treats")
