"""What MkDocs is told beside `mkdocs.yml`: which pages there are besides those of docs/, and where their links lead.

Every page is written for a plain git host, too: it links to files of the repository, relative to itself. In the site
the pages of the repository's root lie beside those of docs/, and source files have no page. A link to something that
is not in the repository stays as it is, so that MkDocs complains of it (`--strict`).
"""

from __future__ import annotations

import html
import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import polonaise
from polonaise import blocking, errors, player, testing

ROOT = Path(__file__).parents[2]
FROM_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages of the repository's root, and what they are called in the site."""
MODULES = {
    "api/polonaise.md": polonaise,
    "api/errors.md": errors,
    "api/blocking.md": blocking,
    "api/player.md": player,
    "api/testing.md": testing,
}
"""Pages of the API reference, and the module that each is made from."""

_ORIGIN = {page: source for source, page in FROM_ROOT.items()}
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!`)(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(<pre.*?</pre>|<h[1-6].*?</h[1-6]>|<a .*?</a>)|<code>([^<>]+)</code>", re.DOTALL)
_DOUBLE_COLON = re.compile(r"<p>::</p>")


def on_config(config: MkDocsConfig) -> None:
    """Fill the part of the navigation that is a folder."""
    decisions = [f"decisions/{path.name}" for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    for chapter in config.nav or []:
        for item in (item for held in chapter.values() if isinstance(held, list) for item in held):
            if "Decisions" in item:
                item["Decisions"] = decisions


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are not in docs/."""
    for source, page in FROM_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for page, module in MODULES.items():
        made = "\n".join(_errors()) if module is errors else f"::: {module.__name__}\n"
        files.append(File.generated(config, page, content=made))


def _errors() -> Iterator[str]:
    """The page of the errors: all in one table, then each by itself."""
    named = sorted((name, item) for name, item in dict(public(errors)).items() if "." not in name)
    yield "::: polonaise.errors\n    options:\n      members: false\n"
    yield "| error, code | trying again | |\n| --- | --- | --- |"
    for name, item in named:
        if inspect.isclass(item) and issubclass(item, errors.PolonaiseError):
            said = (inspect.getdoc(item) or "").split("\n\n")[0].replace("\n", " ")
            yield f"| [`{name}`][polonaise.errors.{name}]<br>`{item.code}` | {item.retry.value} | {said} |"
    for code, kind in sorted(errors.CODES.items()):
        yield f"| `{code}` | {kind.retry.value} | {kind.meaning} |"
    for name, item in named:
        inherited = "true" if item is errors.PolonaiseError else "false"
        yield f"\n::: polonaise.errors.{name}\n    options:\n      heading_level: 2\n      show_root_full_path: false"
        yield f"      inherited_members: {inherited}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site, but none within code."""
    at, done = 0, []
    for fence in _FENCE.finditer(markdown):
        done += [_relinked(markdown[at : fence.start()], page.file.src_uri), fence.group()]
        at = fence.end()
    return "".join([*done, _relinked(markdown[at:], page.file.src_uri)])


def _relinked(text: str, page: str) -> str:
    folder = posixpath.dirname(_ORIGIN.get(page, f"docs/{page}"))

    def relinked(link: re.Match[str]) -> str:
        image, shown, target = link.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return link.group()
        path = posixpath.normpath(posixpath.join(folder, path))
        inside = FROM_ROOT.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if inside.endswith((".md", ".png", ".svg")):
            target = posixpath.relpath(inside, posixpath.dirname(page) or ".") + (f"#{anchor}" if anchor else "")
            return f"{image}[{shown}]({target})"
        return shown if (ROOT / path).exists() else link.group()

    return _LINK.sub(relinked, text)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make names of the API and of pages, which docstrings have as code, links."""
    module = MODULES.get(page.file.src_uri, polonaise)
    known = {**_NAMES[polonaise], **_NAMES[errors], **_NAMES[module]}

    def linked(code: re.Match[str]) -> str:
        passed, name = code.groups()
        if passed:
            return passed
        shown = f"<code>{name}</code>"
        if (target := known.get(name.removesuffix("()"))) is not None:
            return f'<autoref optional identifier="{html.escape(target)}">{shown}</autoref>'
        if (to := files.get_file_from_path(name.removeprefix("docs/"))) is not None and name.startswith("docs/"):
            return f'<a href="{to.url_relative_to(page.file)}">{shown}</a>'
        return shown

    return _CODE.sub(linked, _DOUBLE_COLON.sub("", content))


def public(module: Any) -> Iterator[tuple[str, Any]]:
    """The public names of a module, and of its classes as `Class.member`, each with what it names."""
    names = getattr(module, "__all__", None) or [
        name
        for name, item in vars(module).items()
        if not name.startswith("_") and getattr(item, "__module__", "").startswith("polonaise.")
    ]
    for name in names:
        item = getattr(module, name)
        yield name, item
        if inspect.isclass(item):
            # What all errors have is told once; what Python's own classes bring is not ours to tell.
            for base in item.__mro__:
                if base.__module__.startswith("polonaise") and (base is not errors.PolonaiseError or base is item):
                    yield from ((f"{name}.{member}", held) for member, held in vars(base).items() if member[0] != "_")


_NAMES: dict[Any, dict[str, str]] = {}
"""For each module of the API, its names as its docstrings write them, and the anchors that they have."""
for _module in MODULES.values():
    _known = _NAMES[_module] = {each.__name__: each.__name__ for each in MODULES.values()}
    for _name, _ in public(_module):
        _known[_name] = _known[f"{_module.__name__}.{_name}"] = f"{_module.__name__}.{_name}"
