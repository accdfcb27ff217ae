"""Wheel and sdist: they build without a network, hold what they should, and the wheel alone is enough to begin with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from rigs.lacking import lacking
from rigs.programs import output_of, run_program

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PYSPARK", "JAVA"))
}
"""Nothing here may come from the project's own environment."""
NO_INDEX = ("No matching distribution", "Could not find a version", "Temporary failure in name resolution")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, timeout_s: float = 300) -> str:
    done = run_program(*command, cwd=cwd, env=ENVIRONMENT, stdin=subprocess.DEVNULL, within_s=timeout_s)
    if done.returncode and "pip" in command and any(words in done.stderr for words in NO_INDEX):
        lacking(f"no package index that has the dependencies: {done.stderr.strip().splitlines()[-1]}")
    return output_of(done)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with both: the sdist from the source, the wheel from the sdist, without isolation or network."""
    to = tmp_path_factory.mktemp("dist")
    for package in (ROOT, ROOT / "proving"):
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", to, package, cwd=to)
    return to


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("polonaise-*.whl")
    return found


@pytest.fixture(scope="module")
def proving(built: Path) -> Path:
    """The wheel of the proving ground."""
    (found,) = built.glob("polonaise_proving-*.whl")
    return found


class Installed:
    """An empty virtual environment, and what is installed there."""

    def __init__(self, directory: Path, *packages: str) -> None:
        venv.create(directory / "venv", with_pip=True)
        self.directory = directory
        self._bin = directory / "venv" / "bin"
        # Not compiled: most of the files of so many packages are never imported.
        options = ("--quiet", "--disable-pip-version-check", "--no-compile")
        self.run("python", "-m", "pip", "install", *options, *packages, timeout_s=1200)

    def run(self, program: str, *arguments: str | Path, timeout_s: float = 300) -> str:
        return run(self._bin / program, *arguments, cwd=self.directory, timeout_s=timeout_s)


def example_of_the_readme() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (example,) = [block for block in blocks if "def withdraw" in block]
    return example


@pytest.mark.parametrize(("which", "folder"), [("wheel", "src"), ("proving", "proving/polonaise_proving")])
def test_a_wheel_has_every_file_of_its_package_and_no_other(
    which: str, folder: str, request: pytest.FixtureRequest
) -> None:
    with zipfile.ZipFile(request.getfixturevalue(which)) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    about = {name for name in names if ".dist-info/" in name}
    root = ROOT / folder.partition("/")[0]
    source = {path.relative_to(root).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()}
    assert names - about == {path for path in source if "__pycache__" not in path and ".egg-info" not in path}
    assert any(name.endswith("licenses/LICENSE") for name in about)


def test_the_sdist_has_what_a_packager_needs_and_nothing_that_was_made(built: Path) -> None:
    (found,) = built.glob("polonaise-*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "Makefile", "mkdocs.yml"} <= names
    assert {"src/polonaise/__init__.py", "tests/conftest.py", "docs/tour.md", "docs/site/sitepages.py"} <= names
    assert [name for name in names if re.match(r"\.venv|build/|dist/|\.git/|.*__pycache__|\.\w+_cache", name)] == []


def test_the_wheel_alone_runs_the_example_of_the_readme(wheel: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, str(wheel))
    (tmp_path / "bank.py").write_text(example_of_the_readme())
    assert installed.run("python", "bank.py") == "account 1 has 70\n"
    assert installed.run("polonaise", "log", "read", "embedded:./bank").count("\n") >= 2
    assert "pip install 'polonaise[proving]'" in installed.run("polonaise", "smoke", "--help")
    where = installed.run("python", "-c", "import polonaise; print(polonaise.__file__)")
    assert where.startswith(str(tmp_path / "venv"))


IMPORT_ALL = """
import importlib, pkgutil, polonaise, polonaise_proving
packages = (polonaise, polonaise_proving)
names = [module.name for each in packages for module in pkgutil.walk_packages(each.__path__, f"{each.__name__}.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names), polonaise.__file__)
"""


def test_every_module_of_the_wheels_can_be_imported_where_all_extras_are_installed(
    wheel: Path, proving: Path, tmp_path: Path
) -> None:
    installed = Installed(tmp_path, "--no-deps", str(wheel), str(proving))
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # What this environment has installed, but not its own Polonaise: path files in a folder named by one are not read.
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    count, where = installed.run("python", "-c", IMPORT_ALL).split()
    assert int(count) > 100
    assert where.startswith(str(tmp_path / "venv"))


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_the_wheels_with_all_extras_run_the_demo(wheel: Path, proving: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, f"{wheel}[all]", str(proving))
    said = installed.run("polonaise", "demo", "bank", "--generate", "500", "--tellers", "2", timeout_s=600)
    assert (tmp_path / "bank-demo" / "report.html").exists()
    assert "balances" in said
