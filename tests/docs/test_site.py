"""The site of `make docs`: built without a network, complete, and whole when it is read without one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from rigs.lacking import program
from rigs.pages import browser
from rigs.programs import output_of, run_program
from sitepages import FROM_ROOT, MODULES, public

ROOT = Path(__file__).parents[2]
_WITHOUT_NETWORK = """
import socket, sys

def refuse(*_):
    raise OSError("the site is built without a network")

socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli

sys.argv[0] = "mkdocs"
cli()
"""

pytestmark = pytest.mark.slow


def build(directory: Path, to: Path) -> subprocess.CompletedProcess[str]:
    # Not with --quiet: MkDocs counts only those warnings that it tells.
    command = [sys.executable, "-c", _WITHOUT_NETWORK, "build", "--strict", "--site-dir", str(to)]
    return run_program(*command, cwd=directory, environment={"NO_MKDOCS_2_WARNING": "1"}, within_s=300)


@dataclass
class Built(HTMLParser):
    """One page of the site: its anchors, its links, and what a browser fetches for it."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        if "id" in has:
            self.anchors.add(has["id"])
        if "href" in has:
            (self.links if tag == "a" else self.fetched).append(has["href"])
        if "src" in has:
            self.fetched.append(has["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site")
    done = build(ROOT, to)
    assert done.returncode == 0, done.stdout + done.stderr
    return to


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Built]:
    # The page for what is not found belongs to a server, whose addresses nobody knows.
    return {path: Built(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_of_the_repository_is_there(site: Path) -> None:
    docs = ROOT / "docs"
    expected = {path.relative_to(docs).with_suffix(".html").as_posix() for path in docs.rglob("*.md")}
    expected |= {page.replace(".md", ".html") for page in (*FROM_ROOT.values(), *MODULES)}
    assert expected == {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}


def test_every_link_leads_to_a_page_and_an_anchor(pages: dict[Path, Built]) -> None:
    dead = []
    for page in pages.values():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto"):
                continue
            to = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            anchor = unquote(parts.fragment)
            if not to.exists() or (anchor and anchor not in pages[to].anchors):
                dead.append(f"{page.path.name}: {link}")
    assert dead == []


def test_nothing_is_fetched_from_elsewhere_when_it_is_read(site: Path, pages: dict[Path, Built]) -> None:
    for page in pages.values():
        for address in page.fetched:
            assert not re.match(r"(\w+:)?//", address), f"{page.path.name}: {address}"
            assert (page.path.parent / urlsplit(address).path).exists(), f"{page.path.name}: {address}"
        assert 'class="mermaid' not in page.path.read_text(), "the theme would fetch a program that draws it"
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", style.read_text()), style.name


@pytest.mark.parametrize("page", MODULES)
def test_the_reference_has_every_public_name(page: str, pages: dict[Path, Built], site: Path) -> None:
    module = MODULES[page]
    anchors = pages[site / page.replace(".md", ".html")].anchors
    expected = [
        f"{module.__name__}.{name}" for name, item in public(module) if callable(item) or isinstance(item, property)
    ]
    assert len(expected) > 5
    assert [name for name in expected if name not in anchors] == []


def test_a_browser_without_a_network_searches_it(site: Path, tmp_path: Path) -> None:
    command = [*browser(program("chromium", "chromium"), tmp_path), "--host-resolver-rules=MAP * ~NOTFOUND"]
    command += ["--virtual-time-budget=20000", "--dump-dom", f"{(site / 'tour.html').as_uri()}?q=poison"]
    shown = output_of(run_program(*command, within_s=120))
    results = re.findall(r'<a href="([^"]+)" class="md-search-result__link"', shown)
    assert any("applications.html" in result for result in results), results


def test_broken_links_fail_the_build(tmp_path: Path) -> None:
    for name in ("src", *FROM_ROOT):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs" / "tour.md").open("a") as page:
        page.write("\n[x](nowhere.md)\n[x](glossary.md#nothing-of-that-name)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    # Each as a warning, which fails a strict build: what is only mentioned would be hidden by the other one's failure.
    warnings = [line for line in (done.stdout + done.stderr).splitlines() if "WARNING" in line]
    assert any("nowhere.md" in line for line in warnings)
    assert any("nothing-of-that-name" in line for line in warnings)
