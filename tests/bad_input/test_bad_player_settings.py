"""Settings of a player that are wrong: each is told by name, with what would be right, and no process starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polonaise.admin.configuration import configuration_of
from polonaise.cli.exitstatus import ExitStatus
from polonaise.errors import BadOption
from polonaise.node.playerplan import imported_function, look_in
from rigs.shell import Shell

WHOLE = """
[player]
name = "accounts"
log = "polonaise://127.0.0.1:7000"
route = "shop:route"

[targets.a]
file = "a.jsonl"
"""


def refused(directory: Path, text: str, environment: dict[str, str] | None = None) -> str:
    path = directory / "player.toml"
    path.write_text(text)
    with pytest.raises(BadOption) as error:
        configuration_of("player", str(path), {}, environment or {}).player_plan()
    assert "\n" not in error.value.text
    return error.value.text


@pytest.mark.parametrize(
    ("target", "naming"),
    [
        ("", "targets.b: it is nowhere: give one of address, sql, sql_variable or file"),
        ("adress = 'link://h:1'", "targets.b: unknown setting adress, did you mean address?"),
        ("colour = 'red'", "targets.b: unknown setting colour: there are address, sql, sql_variable, file"),
        ("address = 'link://h:1'\nfile = 'f'", "it has address and file: give one of"),
        ("address = 'http://h:1'", "'http://h:1' is no address of a target: write link://HOST:PORT"),
        ("address = 7", "invalid address 7: write a text"),
        ("file = ''", "invalid file '': write a text"),
        ("sql = 'sqlite:///x.db'", 'sql needs apply = "package.module:Class"'),
        ("file = 'f'\napply = 'a:B'", "apply goes with sql or sql_variable alone"),
        ("address = 'link://h:1'\ndecode = 'json:loads'", "decode goes with file alone"),
        ("sql_variable = 'NOT_THERE'\napply = 'a:B'", "sql_variable names NOT_THERE, which is not in the environment"),
        ("file = 'f'\nstart_after = 7", "invalid start_after 7: write ids by partition, such as {0 = 41, 1 = 7}"),
        ("file = 'f'\nstart_after = {first = 7}", "invalid start_after {'first': 7}: write the number of a partition"),
        ("file = 'f'\nstart_after = {0 = -2}", "invalid start_after {'0': -2}"),
        ("file = 'f'\nstart_after = {0 = true}", "invalid start_after {'0': True}"),
        ("file = 'f'\nstart_after = {99999999999999999999 = 1}", "invalid start_after"),
        ("file = 'f'\nstart_after = {0 = 99999999999999999999}", "invalid start_after"),
    ],
)
def test_a_target_that_can_not_be_meant(tmp_path: Path, target: str, naming: str) -> None:
    assert naming in refused(tmp_path, f"{WHOLE}\n[targets.b]\n{target}\n")


@pytest.mark.parametrize(
    ("text", "naming"),
    [
        (WHOLE.replace("[targets.a]\n", "[targets]\n"), "targets.file: write [targets.file], and where it is below"),
        (WHOLE.replace("[targets.a]\n", "[target.a]\n"), "unknown table target, did you mean [targets]?"),
        (WHOLE.partition("[targets.a]")[0], "there is no target: write [targets.NAME]"),
        ("targets = 3\n" + WHOLE.partition("[targets.a]")[0], "targets is a table of tables: write [targets.NAME]"),
        (WHOLE + "[targets.b]\nfile = 'x/../f'\n[targets.c]\nfile = 'f'\n", "targets.b and targets.c are at one place"),
        (
            WHOLE
            + "[targets.b]\nsql = 'sqlite:///x'\napply = 'a:B'\n[targets.c]\nsql = 'sqlite:///x'\napply = 'a:B'\n",
            "targets.b and targets.c are at one place",
        ),
        (WHOLE.replace('route = "shop:route"\n', ""), "player.route is not given: give POLONAISE_PLAYER_ROUTE"),
        (WHOLE.replace('"accounts"', '""'), "--name is empty: give --name, POLONAISE_PLAYER_NAME"),
        (WHOLE.replace("route =", "rout ="), "unknown setting player.rout, did you mean route?"),
        (WHOLE.replace("[targets.a]", "lease_s = 0.2\n[targets.a]"), "invalid player.lease_s 0.2: write seconds"),
        (WHOLE.replace("[targets.a]", "retired = ['a']\n[targets.a]"), "a can't be a target and in player.retired"),
        (WHOLE.replace("[targets.a]", "partitions = ['x']\n[targets.a]"), "invalid player.partitions ['x']"),
        (WHOLE.replace("[targets.a]", "retry_s_min = 100\n[targets.a]"), "retry_s_min may not be above retry_s_max"),
        (WHOLE.replace("[targets.a]", "topic = 'a b'\n[targets.a]"), "a b"),
        (
            WHOLE.replace("7000", "7000/payments").replace("[targets.a]", "topic = 'orders'\n[targets.a]"),
            "player.log names a topic, and player.topic is 'orders': leave one of them out",
        ),
    ],
)
def test_settings_of_a_player_that_can_not_be_meant(tmp_path: Path, text: str, naming: str) -> None:
    assert naming in refused(tmp_path, text)


def test_a_typo_in_a_target_is_told_to_every_node_that_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "polonaise.toml"
    path.write_text(WHOLE + "[targets.b]\nadress = 'link://h:1'\n")
    with pytest.raises(BadOption, match="unknown setting adress"):
        configuration_of("server", str(path), {}, {})


def test_a_password_in_a_wrong_target_is_not_told(tmp_path: Path) -> None:
    text = refused(tmp_path, f"{WHOLE}\n[targets.b]\naddress = 'postgresql://me:hush@host/db'\n")
    assert "is no address of a target" in text
    assert "hush" not in text


def test_a_database_is_named_by_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "player.toml"
    path.write_text(WHOLE + "[targets.b]\nsql_variable = 'SHARD_URL'\napply = 'a:B'\n")
    given = configuration_of("player", str(path), {}, {"SHARD_URL": "sqlite:///b.db", "POLONAISE_PLAYER_LEASE_S": "3"})
    plan = given.player_plan()
    assert plan.targets["b"].sql == "sqlite:///b.db"
    assert plan.lease_s == 3.0


# ---------------------------------------------------------------------- the application's code


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test adds to the path of imports, and what it imports of its own, is gone after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("shopcode", "shoptargets"):
        sys.modules.pop(name, None)


MODULE = """
import asyncio
NUMBER = 3
def route(tx): return {}
async def later(tx): return {}
def two(tx, other): return {}
class Shard: pass
"""


@pytest.mark.parametrize(
    ("path", "naming"),
    [
        ("shopcode", "write package.module:name, such as shop.routing:route"),
        ("shopcode:", "write package.module:name"),
        ("a b:c", "write package.module:name"),
        ("/etc/passwd:x", "write package.module:name"),
        ("shopcod:route", "there is no module 'shopcod'. It was looked for in"),
        ("shopcode.sub:route", "there is no module 'shopcode.sub'"),
        ("shopcode:rout", "there is no 'rout' in"),
        ("shopcode:rout", "did you mean route?"),
        ("shopcode:NUMBER", "is no function, but of type int"),
        ("shopcode:Shard", "is a class, and not a function"),
        ("shopcode:later", "is a coroutine function: write a plain one"),
        ("shopcode:two", "can't be called with a transaction alone: missing a required argument: 'other'"),
        ("needing:route", "module 'needing' imports 'not_installed_at_all', which is not installed"),
        ("failing:route", "module 'failing' can't be imported: ZeroDivisionError"),
        ("ending:route", "module 'ending' can't be imported: SystemExit: 3"),
        ("wrong:route", "module 'wrong' can't be imported: SyntaxError"),
    ],
)
def test_code_that_can_not_be_used(tmp_path: Path, path: str, naming: str) -> None:
    (tmp_path / "shopcode.py").write_text(MODULE)
    (tmp_path / "needing.py").write_text("import not_installed_at_all\n")
    (tmp_path / "failing.py").write_text("1 / 0\n")
    (tmp_path / "ending.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "wrong.py").write_text("def def\n")
    look_in([str(tmp_path)])
    with pytest.raises(BadOption) as error:
        imported_function("route", path)
    assert naming in error.value.text
    assert "route" in error.value.text


def test_a_directory_of_modules_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="and that is no directory"):
        look_in([str(tmp_path / "none")])


SHOP = """
from polonaise.player import SqlDeliveryTarget
def route(tx): return {}
class Shard(SqlDeliveryTarget): pass
class Other: pass
class Fails(SqlDeliveryTarget):
    def __init__(self, url): raise RuntimeError("no such shard")
class Later(SqlDeliveryTarget):
    async def apply_entry(self, partition, entry, db): pass
"""


@pytest.mark.parametrize(
    ("line", "naming"),
    [
        ("sql = 'sqlite:///a.db'\napply = 'shoptargets:Other'", "is no subclass of polonaise.player.SqlDeliveryTarget"),
        ("sql = 'sqlite:///a.db'\napply = 'shoptargets:route'", "is no subclass of polonaise.player.SqlDeliveryTarget"),
        ("sql = 'sqlite:///a.db'\napply = 'shoptargets:Shrd'", "targets.a.apply = 'shoptargets:Shrd': there is no"),
        ("sql = 'sqlite:///a.db'\napply = 'shoptargets:Fails'", "shoptargets:Fails can't be made: RuntimeError"),
        ("sql = 'sqlite:///a.db'\napply = 'shoptargets:Later'", "is a coroutine function"),
        ("sql = 'nothing://'\napply = 'shoptargets:Shard'", "targets.a: "),
        ("file = 'a'\ndecode = 'json:lods'", "targets.a.decode = 'json:lods': there is no 'lods'"),
        ("file = 'a'", "route = 'shoptargets:rout'"),
    ],
)
def test_a_process_whose_code_is_wrong_has_the_exit_status_for_settings(
    shell: Shell, tmp_path: Path, line: str, naming: str
) -> None:
    (tmp_path / "shoptargets.py").write_text(SHOP)
    route = "rout" if "rout'" in naming else "route"
    config = tmp_path / "player.toml"
    config.write_text(
        f'[player]\nname = "p"\nlog = "file:{tmp_path}/none"\nroute = "shoptargets:{route}"\n'
        f'python_path = ["{tmp_path}"]\n[targets.a]\n{line}\n'
    )
    said = shell.run("player", "start", "--config", config)
    assert said.status == ExitStatus.SETTINGS, "systemd does not start it again"
    assert said.errors.startswith("polonaise: [bad_option] ")
    assert naming in said.errors
    assert said.errors.count("\n") == 1


def test_settings_that_are_right_are_only_checked(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "shoptargets.py").write_text(SHOP)
    config = tmp_path / "player.toml"
    config.write_text(
        f'[player]\nname = "p"\nlog = "file:{tmp_path}/none"\nroute = "shoptargets:route"\n'
        f'python_path = ["{tmp_path}"]\n[targets.a]\nsql = "sqlite:///{tmp_path}/a.db"\napply = "shoptargets:Shard"\n'
        f'[targets.b]\nfile = "{tmp_path}/b.jsonl"\ndecode = "json:loads"\nstart_after = {{0 = 7}}\n'
    )
    said = shell.run("player", "start", "--check", "--config", config)
    assert said.output == "player p: the settings are right; targets a, b\n"
    assert sorted(each.name for each in tmp_path.iterdir() if each.name != "__pycache__") == [
        "player.toml", "shoptargets.py",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["x" * 201, "\udcff"])
def test_a_name_that_no_player_can_have_is_refused_with_the_settings(shell: Shell, tmp_path: Path, name: str) -> None:
    (tmp_path / "shoptargets.py").write_text(SHOP)
    config = tmp_path / "player.toml"
    config.write_text(
        f'[player]\nlog = "file:{tmp_path}/none"\nroute = "shoptargets:route"\npython_path = ["{tmp_path}"]\n'
        f'[targets.a]\nfile = "{tmp_path}/a.jsonl"\n'
    )
    said = shell.run("player", "start", "--check", "--name", name, "--config", config)
    assert said.status == ExitStatus.SETTINGS
    assert "player.name: the name '" in said.errors
    assert "1 to 200 characters" in said.errors


def test_targets_are_shown_with_the_other_settings_and_without_their_secrets(shell: Shell, tmp_path: Path) -> None:
    config = tmp_path / "player.toml"
    config.write_text(WHOLE + "[targets.b]\nsql = 'postgresql://me:hush@host/db'\napply = 'a:B'\n")
    said = shell.run("config", "show", "player", "--given", "--config", config, "--json")
    shown = {each["setting"]: each["value"] for each in said.objects}
    assert shown["player.name"] == "accounts"
    assert shown["targets.a.file"] == "a.jsonl"
    assert shown["targets.b.sql"] == "postgresql://me:***@host/db"
    assert "hush" not in said.output
