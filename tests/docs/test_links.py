"""Links in the pages lead somewhere on a plain git host, and files that are named by their path exist."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "proving" / "README.md"])
TOP = ("src", "proving", "tests", "docs", "examples", "benchmarks")
FILES = {f"/{path.relative_to(ROOT).as_posix()}" for folder in TOP for path in (ROOT / folder).rglob("*")}
PACKAGES = (ROOT / "src" / "polonaise", ROOT / "proving" / "polonaise_proving")
FOLDERS = {*TOP, "protocol", *(path.name for package in PACKAGES for path in package.iterdir() if path.is_dir())}

_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return _FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What can follow a # in a link to this page, as git hosts make it of headings."""
    counted: Counter[str] = Counter()
    made = set()
    for heading in _HEADING.findall(prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        made.add(f"{name}-{counted[name]}" if counted[name] else name)
        counted[name] += 1
    return made


def dead_links(page: Path, root: Path = ROOT) -> list[str]:
    dead = []
    for target in _LINK.findall(_CODE.sub("", prose(page))):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists() or not to.is_relative_to(root) or (anchor and anchor not in anchors(to)):
            dead.append(target)
    return dead


def is_path(mention: str) -> bool:
    """Whether this is a path within the repository, or within a folder of it."""
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?", mention) is not None and mention.split("/")[0] in {
        *FOLDERS,
        "protocol",
    }


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    assert dead_links(page) == []


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_a_path_that_is_named_is_that_of_a_file(page: Path) -> None:
    named = [mention.rstrip("/") for mention in _CODE.findall(prose(page)) if is_path(mention)]
    assert [path for path in named if not any(file.endswith((f"/{path}", f"/{path}.py")) for file in FILES)] == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A title, `and code`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n[here](#a-page) [there](there.md#a-title-and-code) [gone](#gone) [missing](nowhere.md)\n"
        "[outside](../..) `[code](link.md)`\n\n```\n[code](link.md)\n```\n[more](there.md#more)\n"
    )
    assert dead_links(page, tmp_path) == ["#gone", "nowhere.md", "../..", "there.md#more"]


@pytest.mark.slow
def test_a_name_of_the_code_in_contributing_is_there() -> None:
    """Its steps name functions, tests and constants, which others rename."""
    named = {name for name in _CODE.findall(prose(ROOT / "CONTRIBUTING.md")) if re.fullmatch(r"_?[A-Za-z]\w+", name)}
    code = "".join(path.read_text() for folder in ("src", "proving", "tests") for path in (ROOT / folder).rglob("*.py"))
    words = set(re.findall(r"\w+", code))
    assert len(named) > 20
    assert sorted(named - words - {"venv", "git", "make"}) == []
