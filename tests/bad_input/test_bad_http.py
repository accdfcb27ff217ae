"""What is wrong with `--http` and `--log-format` is said in one line, before anything is made."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from rigs.shell import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capfd)


@pytest.mark.parametrize("library", ["aiohttp", "prometheus_client"])
@pytest.mark.parametrize("node", ["storage", "server"])
def test_http_without_its_library(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str, node: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    for module in [name for name in sys.modules if name.startswith("polonaise.node.monitoring")]:
        monkeypatch.delitem(sys.modules, module)
    options = {
        "storage": ["--directory", tmp_path / "made"],
        "server": ["--coordinator", f"file:{tmp_path / 'made'}", "--storage", "127.0.0.1:7100"],
    }[node]
    shell.refuses(
        node, "run", *options, "--http", "9101", code="extra_missing", naming="pip install 'polonaise[metrics]'"
    )
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("node", ["storage", "server"])
def test_an_http_port_in_use(shell: Shell, tmp_path: Path, node: str) -> None:
    options = {
        "storage": ["--directory", tmp_path / "made"],
        "server": ["--coordinator", f"file:{tmp_path / 'made'}", "--storage", "127.0.0.1:7100"],
    }[node]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        shell.refuses(node, "run", *options, "--http", port, code="address_in_use", naming=f"127.0.0.1:{port}")
    assert not (tmp_path / "made").exists()


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
