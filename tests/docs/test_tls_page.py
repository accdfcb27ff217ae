"""The first commands of docs/tls.md make a cluster of encrypted connections as they stand there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tls.md"
PATIENCE_S = 180.0


def free_ports(count: int) -> list[int]:
    """Ports that the system has just chosen, for commands that name the same one twice."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.slow
def test_the_first_commands_of_the_page_on_tls_append_a_transaction(tmp_path: Path) -> None:
    block = PAGE.read_text().split("```sh\n", 1)[1].split("```", 1)[0]
    commands = "".join(line for line in block.splitlines(keepends=True) if not line.startswith("pip install"))
    for shown, port in zip((7100, 7101, 7102), free_ports(3), strict=True):
        assert f"localhost:{shown}" in commands
        commands = commands.replace(f"localhost:{shown}", f"localhost:{port}")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("POLONAISE_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    shell = subprocess.Popen(
        ["bash", "-e", "-c", commands], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert shell.stdout is not None
        status = shell.wait(PATIENCE_S)
        os.killpg(shell.pid, signal.SIGTERM)  # the nodes, which have the pipe open
        told = shell.communicate(timeout=PATIENCE_S)[0]
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert status == 0, told
    assert "Traceback" not in told
    assert "\n0 0\n" in told, "the partition and id of the transaction"
