"""What is wrong with `--http` and `--log-format` is said in one line, before anything is made."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from rigs.shell import Shell


def run_of(node: str, made: Path) -> tuple[object, ...]:
    """The command that runs a node, which would make this directory."""
    if node == "storage":
        return "storage", "run", "--directory", made
    return "server", "run", "--coordinator", f"file:{made}", "--storage", "127.0.0.1:7100"


@pytest.mark.parametrize("library", ["aiohttp", "prometheus_client"])
@pytest.mark.parametrize("node", ["storage", "server"])
def test_http_without_its_library(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str, node: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    for module in [name for name in sys.modules if name.startswith("polonaise.node.monitoring")]:
        monkeypatch.delitem(sys.modules, module)
    made = tmp_path / "made"
    run = run_of(node, made)
    shell.refuses(*run, "--http", "9101", code="extra_missing", naming="pip install 'polonaise[metrics]'")
    assert not made.exists()


@pytest.mark.parametrize("node", ["storage", "server"])
def test_an_http_port_in_use(shell: Shell, tmp_path: Path, node: str) -> None:
    made = tmp_path / "made"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        shell.refuses(*run_of(node, made), "--http", port, code="address_in_use", naming=f"127.0.0.1:{port}")
    assert not made.exists()


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:99999", "999999", ""])
def test_an_invalid_http_address(shell: Shell, tmp_path: Path, address: str) -> None:
    made = tmp_path / "made"
    shell.refuses("storage", "run", "--directory", made, "--http", address, code="bad_option", naming="host:port")
    assert not made.exists()


def test_an_unknown_log_format(shell: Shell, tmp_path: Path) -> None:
    said = shell.run("storage", "run", "--directory", tmp_path / "made", "--log-format", "xml")
    assert said.status == 2
    assert "--log-format" in said.errors
    assert not (tmp_path / "made").exists()
