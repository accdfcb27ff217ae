"""Fetching what the peers need into build/peers, once, by the ordinary clients of the registries."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.loads import Missing
from benchmarks.peers.processes import run

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "peers"
SECONDS = 600.0
"""Seconds that one download may take."""

CONFLUENT_KAFKA = "confluent-kafka==2.16.1"


def tool(name: str, needed_for: str, package: str) -> str:
    """Return the path of a program. Raises `Missing` with what to install."""
    path = shutil.which(name)
    if not path:
        raise Missing(f"{needed_for} needs `{name}`, which this machine does not have (Debian: {package})")
    return path


def kafka_jars() -> Path:
    """Return the directory of Kafka's jars, of the version that pom.xml names."""
    return _once("kafka", HERE / "pom.xml", _fetch_jars)


def _fetch_jars(directory: Path) -> None:
    maven = tool("mvn", "fetching Kafka", "maven")
    command = [maven, "-q", "-B", "-f", HERE / "pom.xml", f"-Dmaven.repo.local={BUILD / 'maven'}"]
    _fetch("Kafka's jars", [*command, "dependency:copy-dependencies", f"-DoutputDirectory={directory}"])


def kafka_python() -> Path:
    """Return a Python with Kafka's usual client, in an environment of its own, as it is no dependency of ours."""
    return _once("python", Path(__file__), _make_environment) / "bin" / "python"


def _make_environment(directory: Path) -> None:
    _fetch("an environment for Kafka's client", [sys.executable, "-m", "venv", directory])
    pip = [directory / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _fetch("Kafka's client", [*pip, CONFLUENT_KAFKA])


def nats_programs() -> Path:
    """Return the directory of `nats-server` and our load, built from the versions that go.mod names."""
    sources = HERE / "nats"
    newest = max(sources.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return _once("nats", newest, _build_nats)


def _build_nats(directory: Path) -> None:
    go = tool("go", "building NATS", "golang")
    environment = {
        "GOPATH": str(BUILD / "go"),
        "GOFLAGS": "-modcacherw -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }
    command = [go, "build", "-o", f"{directory}/", ".", "github.com/nats-io/nats-server/v2"]
    _fetch("NATS", command, directory=HERE / "nats", environment=environment)


def _fetch(
    what: str, command: Sequence[object], *, directory: Path | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Run a command that fetches or builds `what`. Raises `Missing` with a short reason, for the table.

    What the command printed is printed and left out of the reason: it names places of this machine and others.
    """
    try:
        run(command, SECONDS, directory=directory, environment=environment)
    except Missing as missing:
        print(missing, flush=True)
        raise Missing(f"{what} could not be fetched or built; the reason was printed") from None


def _once(name: str, newer_than: Path, make: Callable[[Path], None]) -> Path:
    """Return the directory `name` of the build; make it if there is none, or if `newer_than` has changed since."""
    directory, mark = BUILD / name, BUILD / f"{name}.made"
    if mark.exists() and mark.stat().st_mtime_ns >= newer_than.stat().st_mtime_ns:
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    print(f"installing {name} into {directory.relative_to(ROOT)}", flush=True)
    make(directory)
    mark.touch()
    return directory
