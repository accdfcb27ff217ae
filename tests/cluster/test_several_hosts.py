"""What the page tells an operator to type on several machines is typed on hosts of their own, and one of them is lost.

The hosts are network namespaces. Of two, `m2` also is what the page calls `m3`: with `m1`, a minority is lost.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from polonaise_proving.record.faultkinds import Fault, FaultKind
from polonaise_proving.stages.hosts.hosts import NamespaceHosts, namespaces_possible
from polonaise_proving.stages.hosts.leftovers import Notes, names_of
from rigs.lacking import program
from rigs.programs import output_of, run_program
from rigs.waiting import PATIENCE_S, block_until

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
HEADING = "### Three machines, command by command\n"
CLIENT = Path(__file__).parents[1] / "rigs" / "steadyclient.py"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
PARTITIONS = 4
READY_S_MAX = 45.0
"""Three times what is promised for an idle machine: other tests may run beside this one. The figure is printed."""


def typed() -> list[tuple[str, list[str]]]:
    """Return the page's commands, each block with the machine that the words before it name last; empty for any."""
    section = PAGE.read_text().split(HEADING)[1].split("\n### ")[0]
    found, before = [], 0
    for block in re.finditer(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        named = re.match(r"On `(m\d)`", section[before : block.start()].strip().rpartition("\n\n")[2])
        found.append((named[1] if named else "", block[1].splitlines()))
        before = block.end()
    return found


class Machines:
    """The machines of the page: hosts, and the processes that were started on them."""

    def __init__(self, notes: Notes, count: int, directory: Path) -> None:
        self.hosts = NamespaceHosts(notes.prefix, [f"m{number + 1}" for number in range(count)])
        self._count = count
        self._directory = directory
        self.started: dict[str, subprocess.Popen[str]] = {}

    def on(self, machine: str) -> str:
        """Return the host that is this machine of the page."""
        return f"m{min(int(machine[1:]), self._count)}"

    def command(self, machine: str, line: str) -> list[str]:
        """Return what is run for a line of the page, with the addresses of the hosts for their names."""
        line = re.sub(r"\bm\d(?=:)", lambda name: self.hosts.address(self.on(name[0])), line)
        return [*self.hosts.prefix(self.on(machine)), *shlex.split(line)]

    def start(self, machine: str, line: str) -> subprocess.Popen[str]:
        directory = self._directory / machine
        directory.mkdir(exist_ok=True)
        with (directory / f"{len(self.started)}.log").open("w") as log:
            process = subprocess.Popen(
                self.command(machine, line), cwd=directory, env={**os.environ, "PATH": PATH}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE if str(CLIENT) in line else log, stderr=log,
            )  # fmt: skip
        self.started[f"{machine} {line}"] = process
        return process

    def run(self, machine: str, line: str) -> subprocess.CompletedProcess[str]:
        return run_program(*self.command(machine, line), environment={"PATH": PATH})

    def server_of(self, machine: str) -> subprocess.Popen[str]:
        (server,) = [
            process for name, process in self.started.items() if name.startswith(f"{machine} polonaise server")
        ]
        return server

    def close(self) -> None:
        self.hosts.close()  # kills all that runs there
        for process in self.started.values():
            process.kill()
            process.wait(PATIENCE_S)
            for stream in (process.stdin, process.stdout):
                if stream:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()


@pytest.fixture
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machines]:
    program("ip", "iproute2")
    if why := namespaces_possible():
        pytest.skip(why)  # in CI as well: rights can't be installed
    notes = Notes()
    try:
        made = Machines(notes, request.param, tmp_path)
        try:
            yield made
        finally:
            made.close()
    finally:
        notes.tidy()
    assert not names_of("netns", notes.prefix)
    assert not names_of("link", notes.prefix)


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", ["killed", "cut"])
@pytest.mark.parametrize("machines", [2, 3], indirect=True, ids=["two_hosts", "three_hosts"])
def test_a_client_goes_on_when_the_machine_of_an_owner_is_lost(machines: Machines, loss: str) -> None:
    *nodes, (anywhere, (status, append)) = typed()
    assert [machine for machine, _ in nodes] == ["m3", "m2", "m1", "m2"]
    assert not anywhere
    began_s = time.monotonic()
    for machine, lines in nodes:
        for line in lines:
            if line.endswith(" &"):
                machines.start(machine, line.removesuffix(" &"))
            else:  # typed at once: what was started before may not answer yet
                block_until(lambda at=machine, what=line: machines.run(at, what).returncode == 0, line)
    block_until(lambda: machines.run("m2", status).returncode == 0, "the cluster is ready")
    ready_s = time.monotonic() - began_s
    sys.stdout.write(f"ready after {ready_s:.1f} s\n")
    assert ready_s < READY_S_MAX
    for machine in ("m1", "m2", "m3"):
        output_of(machines.run(machine, status))
    output_of(machines.run("m1", append))

    coordinator, log = status.split()[-1], append.split()[3]
    owns = re.compile(rf"{re.escape(machines.hosts.address('m1'))}:\d+ +\S+ +[1-9]")
    block_until(
        lambda: owns.search(machines.run("m3", f"polonaise server list --coordinator {coordinator}").stdout),
        "the server of m1 owns partitions",
    )
    client = machines.start("m3", f"{shlex.quote(sys.executable)} {CLIENT} {log} {PARTITIONS}")
    committed: list[int] = []
    assert client.stdout is not None
    output = client.stdout
    reader = threading.Thread(target=lambda: committed.extend(int(line) for line in output), daemon=True)
    reader.start()
    block_until(lambda: len(committed) > 2 * PARTITIONS, "the client appends")

    if loss == "killed":
        machines.server_of("m1").kill()
        machines.server_of("m1").wait(PATIENCE_S)
    else:
        machines.hosts.cut(Fault(FaultKind.CUT, "m1"))
    before = len(committed)
    block_until(lambda: len(committed) > before + 3 * PARTITIONS, "the same client goes on, in every partition")
    assert client.stdin is not None
    client.stdin.close()
    assert client.wait(PATIENCE_S) == 0, "no append has failed"
    reader.join(PATIENCE_S)
    assert committed == list(range(len(committed)))
    read = output_of(machines.run("m3", f"polonaise log read {log} --partition all --json"))
    bodies = re.findall(r'"data": ?"([^"]*)"', read)
    assert sorted(bodies) == sorted(["hello", *map(str, committed)])
