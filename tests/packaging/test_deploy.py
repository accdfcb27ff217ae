"""The examples in `deploy/` are right: the units for systemd, the settings in the file, the commands in the image."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

from polonaise.admin.configuration import configuration_of
from polonaise.cli.application import application
from polonaise.cli.exitstatus import ExitStatus
from polonaise.host.address import HostPort, parse_address
from polonaise.node.addresses import storage_nodes_of
from rigs.lacking import program
from rigs.programs import run_program

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
INSTALLED = "/opt/polonaise/bin/polonaise"


def assert_is_command(words: list[str]) -> None:
    command = typer.main.get_command(application)
    context = command.make_context("polonaise", list(words))
    for _ in range(2):
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
        context = command.make_context(name, arguments, parent=context)


def started_by(unit: Path) -> list[str]:
    (line,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    return shlex.split(line.removeprefix("ExecStart="))


def test_there_is_a_unit_for_each_node() -> None:
    assert [unit.stem for unit in UNITS] == ["polonaise-player", "polonaise-server", "polonaise-storage"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_with_these_options(unit: Path) -> None:
    program, *words = started_by(unit)
    assert program == INSTALLED
    assert_is_command(words)


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(INSTALLED, sys.executable))  # it has to be there
    checked = run_program(program("systemd-analyze", "systemd"), "verify", "--man=no", copy)
    # Other units of this machine may be at fault, and are no matter of ours.
    complaints = [line for line in (checked.stdout + checked.stderr).splitlines() if unit.name in line]
    assert complaints == []


@pytest.mark.slow
def test_systemd_would_have_found_a_typo(tmp_path: Path) -> None:
    copy = tmp_path / "polonaise-typo.service"
    text = UNITS[0].read_text().replace(INSTALLED, sys.executable).replace("RestartSec=", "RestartSek=")
    copy.write_text(text)
    checked = run_program(program("systemd-analyze", "systemd"), "verify", "--man=no", copy)
    assert "RestartSek" in checked.stdout + checked.stderr


def test_a_unit_does_not_start_a_node_again_and_again_whose_settings_are_wrong() -> None:
    for unit in UNITS:
        (line,) = [line for line in unit.read_text().splitlines() if line.startswith("RestartPreventExitStatus=")]
        assert set(map(int, line.partition("=")[2].split())) == {2, ExitStatus.SETTINGS}


def test_a_storage_node_waits_for_its_disk() -> None:
    text = (DEPLOY / "systemd" / "polonaise-storage.service").read_text()
    directory = configuration_of("storage", str(DEPLOY / "polonaise.toml"), {}, {})["directory"]
    (mount,) = re.findall("^RequiresMountsFor=(.*)$", text, re.MULTILINE)
    assert Path(directory).is_relative_to(mount)


def test_the_unit_of_a_server_says_how_it_may_write_to_directories() -> None:
    assert "# ReadWritePaths=" in (DEPLOY / "systemd" / "polonaise-server.service").read_text()


def test_the_settings_in_the_example_are_taken() -> None:
    file = str(DEPLOY / "polonaise.toml")
    server, storage = (configuration_of(table, file, {}, {}) for table in ("server", "storage"))
    assert server["partitions"] == 16
    assert len(server["storage"]) == 3
    settings = storage.storage_settings()
    assert storage_nodes_of(server["storage"], "storage")[str(settings.name)] == settings.listen
    assert isinstance(parse_address(server.server_settings().listen), HostPort)


def test_the_settings_that_the_example_only_mentions_are_right_too(tmp_path: Path) -> None:
    text = (DEPLOY / "polonaise.toml").read_text()
    mentioned = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ") and " = " in line]
    assert len(mentioned) == 6
    whole = tmp_path / "p.toml"
    whole.write_text(
        "\n".join(
            line.removeprefix("# ") if line.removeprefix("# ") in mentioned else line for line in text.splitlines()
        )
    )
    assert configuration_of("server", str(whole), {}, {})["settle_s"] == 10.0


def test_the_settings_of_a_player_in_the_example_are_taken(tmp_path: Path) -> None:
    text = (DEPLOY / "player.toml").read_text()
    mentioned = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ") and " = " in line]
    assert len(mentioned) == 6
    whole = tmp_path / "player.toml"
    whole.write_text(
        "\n".join(line[2:] if line.removeprefix("# ") in mentioned else line for line in text.splitlines())
    )
    for file in (DEPLOY / "player.toml", whole):
        plan = configuration_of("player", str(file), {}, {"SHARD_0_URL": "postgresql://db/shard0"}).player_plan()
        assert set(plan.targets) == {"search", "shard-0", "audit"}
    assert plan.log.endswith("/payments")
    assert plan.targets["shard-0"].start_after == {0: 41, 1: 7}
    unit = (DEPLOY / "systemd" / "polonaise-player.service").read_text()
    (patience,) = re.findall("^TimeoutStopSec=(.*)$", unit, re.MULTILINE)
    assert plan.hand_over_s_max < float(patience) - 10, "systemd must not kill it while it hands over"


@pytest.mark.slow
def test_the_image_runs_commands_that_there_are() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["polonaise"]' in text
    shown = text.replace("\\\n#", " ")
    runs = [line for line in shown.splitlines() if line.startswith("#   docker run")]
    commands = [shlex.split(line.split(" polonaise ")[1]) for line in runs if " polonaise " in line]
    assert len(commands) == 4
    for words in commands:
        assert_is_command(words)


def test_the_containers_that_are_shown_make_a_cluster() -> None:
    shown = (DEPLOY / "Dockerfile").read_text().replace("\\\n#", " ")
    names = re.findall(r"--hostname (\S+)", shown)
    (storage,) = re.findall(r"cluster create .*--storage (\S+)", shown)
    (named,) = re.findall(r"storage run --name (\S+) .*--listen (\S+)", shown)
    assert storage == "=".join(named), "the cluster is made of the storage node that runs"
    coordinators = re.findall(r"zookeeper://(\w+):2181", shown)
    assert set(coordinators) <= set(names), "somebody runs the coordinator"


def test_an_image_is_built_of_the_sources_and_of_nothing_else() -> None:
    root = DEPLOY.parent
    lines = [line for line in (root / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "what is not named stays out: .git, .venv, settings, keys"
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert let_in == {"LICENSE", "README.md", "pyproject.toml", "src"}
    project = tomllib.loads((root / "pyproject.toml").read_text())
    needed = {project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {Path(each).parts[0] for each in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert needed | {"pyproject.toml"} == let_in
