"""Fields of the decisions are written by their own objects, but for those whose descriptions say otherwise."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import polonaise.server.protocol

PROTOCOL = Path(polonaise.server.protocol.__file__).parent
DECISIONS = {"feeds", "inbox", "locks", "mount", "order", "owner", "readiness", "session"}
"""The names by which objects of the decisions are reached."""
TOLD = {
    "feeds.py: mount.flow",
    "feeds.py: mount.ready",
    "inbox.py: mount.inbox_bytes",
    "owner.py: mount.credit",
    "owner.py: mount.flow",
    "owner.py: session.value",
}
"""What the descriptions of these fields say."""


def written(text: str) -> Iterator[str]:
    """Yield the fields that a text assigns to, each with the name of the object, but for those of `self`."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Assign(targets=targets):
                pass
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                targets = [target]
            case _:
                continue
        for each in targets:
            for target in each.elts if isinstance(each, ast.Tuple) else [each]:
                while isinstance(target, ast.Subscript):
                    target = target.value
                if isinstance(target, ast.Attribute):
                    of = ast.unparse(target.value).rsplit(".", 1)[-1].lstrip("_")
                    if of != "self":
                        yield f"{of}.{target.attr}"


def test_no_object_writes_a_field_of_another_one_that_does_not_say_so() -> None:
    found = set()
    for path in PROTOCOL.parent.rglob("*.py"):
        name = path.relative_to(PROTOCOL if path.is_relative_to(PROTOCOL) else PROTOCOL.parent)
        found |= {f"{name}: {each}" for each in written(path.read_text()) if each.split(".")[0] in DECISIONS}
    assert found == TOLD


def test_an_assignment_is_found_however_it_is_written() -> None:
    text = "self._owner.session.value = 1\nmount.credit += 2\nself.x, readiness.late['a'] = 3, 4\nself.y = 5"
    assert list(written(text)) == ["session.value", "mount.credit", "readiness.late"]
