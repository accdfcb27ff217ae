"""The page about TLS names the commands that need a server's certificate, as the code asks for one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tls.md"
_FUNCTION = re.compile(r"^(?=@|(?:async )?def |class )", re.MULTILINE)
_COMMAND = re.compile(r'^@(\w+)\.command\("([a-z-]+)"', re.MULTILINE)


def asking_as_a_server() -> Iterator[str]:
    """The commands that open the coordinator, and so reach nodes, with `as_server=True`."""
    for path in sorted((ROOT / "src" / "polonaise" / "cli").glob("*.py")):
        decorators = ""
        for part in _FUNCTION.split(path.read_text()):
            decorators += part if part.startswith("@") else ""
            if "as_server=True" in part:
                named = [" ".join(each) for each in _COMMAND.findall(decorators)]
                assert named, f"{path.name}: not in a command: let the commands themselves say as_server=True"
                yield from named
            if part.startswith(("def ", "async def ")):
                decorators = ""


def test_the_page_names_the_commands_that_need_a_servers_certificate() -> None:
    (row,) = re.findall(r"^\| `urn:polonaise:server` \|.*$", PAGE.read_text(), re.MULTILINE)
    asking = set(asking_as_a_server())
    assert asking, "or the code has another way to say so"
    assert set(re.findall(r"`([a-z]+ [a-z-]+)`", row)) == asking
