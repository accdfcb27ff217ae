"""Read the settings of a node or a local cluster from command line, environment, file and default, in this order."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from polonaise.admin.settingkeys import BYTE_UNITS, TABLES, SettingKey, SettingKind, written
from polonaise.errors import BadOption, NotFound
from polonaise.host.files import with_own_errors
from polonaise.link.settings import LinkSettings
from polonaise.node.addresses import check_storage_name, split_topic, with_topic
from polonaise.node.playerplan import PlayerPlan, TargetPlan
from polonaise.player.protocol.entries import NAME_CHARACTERS_MAX, TargetName, checked_name
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.remotetargets import remote_place
from polonaise.redaction import redacted
from polonaise.server.settings import ServerSettings
from polonaise.storage.settings import StorageSettings
from polonaise.terms import PARTITIONS_MAX, PartitionId, TransactionId

TARGETS: Final = "targets"
MEANINGS: Final = {
    "address": "Address at which the target serves itself.",
    "sql": "URL of a database that the player applies to.",
    "apply": "Class that applies entries to the database.",
    "file": "File of lines in JSON.",
    "decode": "Function that makes of a payload what stands in a line.",
    "start_after": "Ids after which a new target begins, by partition.",
}
"""For `config show`."""
_PLACES: Final = ("address", "sql", "sql_variable", "file")
"""The keys of which a target has exactly one."""
_TEXTS: Final = (*_PLACES, "apply", "decode")
_KEYS: Final = (*_TEXTS, "start_after")
_ID_MAX: Final = 2**63 - 1
_SHOWN_MAX: Final = 60


def targets_in(
    table: object, origin: str, environment: Mapping[str, str], mistakes: list[str]
) -> dict[TargetName, TargetPlan]:
    """Return the targets in the table `targets` of a file, and note in `mistakes` what is wrong with the others."""
    if not isinstance(table, dict):
        mistakes.append(f"{origin}: targets is a table of tables: write [targets.NAME], and where it is below that")
        return {}
    found = {}
    for name, given in table.items():
        where = f"{origin}: targets.{name}"
        wrong: list[str] = []
        if not 0 < len(name) <= NAME_CHARACTERS_MAX:
            wrong.append(f"a name has 1 to {NAME_CHARACTERS_MAX} characters")
        if not isinstance(given, dict):
            wrong.append(f"write [targets.{name}], and where it is below that")
        else:
            plan = _target_in(given, environment, wrong)
            if plan is not None:
                found[name] = plan
        mistakes += [f"{where}: {each}" for each in wrong]
    mistakes += [f"{origin}: {each}" for each in _doubled(found)]
    return found


def _doubled(targets: Mapping[TargetName, TargetPlan]) -> Iterator[str]:
    """Yield what is wrong with targets that are at one place: a memory belongs to one target."""
    first: dict[tuple[str, ...], TargetName] = {}
    for name, plan in targets.items():
        # A class of its own may have tables of its own; and at one address there may be targets of several names.
        place = (plan.sql, plan.apply) if plan.sql else (os.path.realpath(plan.file),) if plan.file else (name,)
        if place in first:
            yield f"targets.{first[place]} and targets.{name} are at one place: give each a database or file of its own"
        first.setdefault(place, name)


def _target_in(given: Mapping[str, Any], environment: Mapping[str, str], wrong: list[str]) -> TargetPlan | None:
    for key in given.keys() - set(_KEYS):
        near = difflib.get_close_matches(key, _KEYS, n=1)
        wrong.append(
            f"unknown setting {key}{f', did you mean {near[0]}?' if near else f': there are {_listed(_KEYS)}'}"
        )
    texts = {key: given[key] for key in _TEXTS if key in given}
    for key, value in texts.items():
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            wrong.append(f"invalid {key} {quoted(value)}: write a text")
    places = [key for key in _PLACES if key in given]
    if len(places) != 1:
        what = f"it has {' and '.join(places)}" if places else "it is nowhere"
        wrong.append(f"{what}: give one of {_listed(_PLACES)}")
    start_after = _ids_in(given.get("start_after", {}), wrong)
    if wrong:
        return None
    sql = texts.get("sql", "")
    if variable := texts.get("sql_variable"):
        sql = environment.get(variable, "")
        if not sql:
            wrong.append(f"sql_variable names {redacted(variable)}, which is not in the environment, or is empty")
    if ("apply" in texts) != (places[0] in ("sql", "sql_variable")):
        wrong.append(
            'sql needs apply = "package.module:Class", the class that applies entries'
            if "apply" not in texts
            else "apply goes with sql or sql_variable alone"
        )
    if "decode" in texts and places != ["file"]:
        wrong.append("decode goes with file alone")
    address = texts.get("address", "")
    if address:
        try:
            remote_place(address)
        except BadOption as error:
            wrong.append(error.text)
    if wrong:
        return None
    return TargetPlan(address, sql, texts.get("apply", ""), texts.get("file", ""), texts.get("decode", ""), start_after)


def _ids_in(value: object, wrong: list[str]) -> dict[PartitionId, TransactionId]:
    """Return ids by partition, which TOML writes as {0 = 41, 1 = 7}."""
    ids: dict[PartitionId, TransactionId] = {}
    if not isinstance(value, dict):
        wrong.append(f"invalid start_after {quoted(value)}: write ids by partition, such as {{0 = 41, 1 = 7}}")
        return ids
    for partition, id in value.items():
        is_partition = partition.isascii() and partition.isdecimal() and int(partition[:9]) < PARTITIONS_MAX
        if not is_partition or isinstance(id, bool) or not isinstance(id, int) or not -1 <= id <= _ID_MAX:
            wrong.append(
                f"invalid start_after {quoted({partition: id})}: write the number of a partition and an id from -1 on, "
                "such as {0 = 41}"
            )
        else:
            ids[int(partition)] = id
    return ids


def _listed(keys: tuple[str, ...]) -> str:
    return f"{', '.join(keys[:-1])} and {keys[-1]}" if keys is _KEYS else f"{', '.join(keys[:-1])} or {keys[-1]}"


def quoted(value: object) -> str:
    return redacted(repr(value), _SHOWN_MAX)


DEFAULT: Final = "default"
COMMAND_LINE: Final = "command line"
CONFIG_VARIABLE: Final = "POLONAISE_CONFIG"
"""The environment variable that names the configuration file."""

_PREFIX: Final = "POLONAISE_"
_FILE_BYTES_MAX: Final = 1024 * 1024
_TOLD_MAX: Final = 5
_SERVICE_LINK: Final = re.compile(
    r"(\w+?_)??(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""The end of a variable that Kubernetes sets for a service `polonaise-…`, which is no setting."""
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://.*")
"""The value of such a variable whose name ends in `_PORT`."""
_OTHER_VARIABLES: Final = ("CI", "CONFIG", "COORDINATOR", "LOG", "TLS_CA", "TLS_CERTIFICATE", "TLS_KEY")
"""The valid variables that are no settings of a table, without the prefix."""
_QUANTITY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SECOND_UNITS: Final = {"": 1.0, "s": 1.0, "ms": 0.001, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_FLAGS: Final = {
    "true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip


class GivenSetting(NamedTuple):
    """A setting's value and its origin."""

    key: SettingKey
    value: Any
    origin: str
    """`default`, `command line`, `environment NAME`, or `file PATH`."""

    @property
    def shown(self) -> str:
        """The value as text, without secrets."""
        if self.value is None:
            return ""
        return redacted(written(self.key.kind, self.value))


class GivenSettings:
    """The settings of one table, each with its value and origin."""

    def __init__(
        self,
        given: Iterable[GivenSetting],
        targets: Mapping[TargetName, TargetPlan] | None = None,
        origin: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`origin` is where the targets are from; `environment` is as for `configuration_of`."""
        self.given = {each.key.name: each for each in given}
        self.targets = dict(targets or {})
        """The targets that a player's file of settings names; empty for other nodes."""
        self._origin = origin
        self._environment = environment

    def __getitem__(self, name: str) -> Any:
        return self.given[name].value

    @property
    def target_settings(self) -> list[GivenSetting]:
        """What is given about targets, as settings of their own, for `config show`."""
        return [
            GivenSetting(
                SettingKey(f"{TARGETS}.{name}.{key}", SettingKind.TEXT, None, MEANINGS[key]), value, self._origin
            )
            for name, plan in self.targets.items()
            for key, value in plan.shown().items()
        ]

    def required(self, name: str, table: str) -> Any:
        """Return a value that has no default. Raises `BadOption`, with the ways to give it, if missing or empty."""
        value = self[name]
        if value is None or value == "":
            variable, option = variable_of(table, name), self.given[name].key.option
            missing = "is empty" if value == "" else "is not given"
            raise BadOption(
                f"{option or f'{table}.{name}'} {missing}: give {option and f'{option}, '}{variable} in the "
                f"environment, or {name} in [{table}] of the file that --config names"
                f"{not_read_here(name, variable, self._environment)}"
            )
        return value

    def server_settings(self) -> ServerSettings:
        return ServerSettings(link=self._link(), **self._fields_of(ServerSettings))

    def storage_settings(self) -> StorageSettings:
        """Return the settings of a storage node. Raises `BadOption` without a directory, and for an invalid name."""
        directory = self.required("directory", "storage")
        values = {**self._fields_of(StorageSettings), "directory": os.path.abspath(directory)}
        if values["name"] is not None:
            check_storage_name(values["name"])
        return StorageSettings(link=self._link(), **values)

    def player_plan(self) -> PlayerPlan:
        """Return what a player is to do. Raises `BadOption` if something is missing, or contradicts something else."""
        name, log, route = (self.required(each, "player") for each in ("name", "log", "route"))
        try:
            checked_name(name)
        except BadOption as error:
            raise BadOption(f"player.name: {error.text}") from None
        if not self.targets:
            raise BadOption(
                "there is no target: write [targets.NAME], and below that its address, sql or file, in the file that "
                "--config names"
            )
        if both := self.targets.keys() & set(self["retired"]):
            raise BadOption(f"{', '.join(sorted(both))} can't be a target and in player.retired: take out one of them")
        if topic := self["topic"]:
            if split_topic(log)[1]:
                raise BadOption(f"player.log names a topic, and player.topic is {topic!r}: leave one of them out")
            log = with_topic(log, topic)
        split_topic(log)  # refuses a topic that can't be one
        partitions = self["partitions"]
        return PlayerPlan(
            name, log, route, self.targets, None if partitions is None else tuple(sorted(partitions)),
            self["python_path"], self["retired"], PlayerSettings(**self._fields_of(PlayerSettings)),
            self["lease_s"], self["hand_over_s_max"],
        )  # fmt: skip

    def _link(self) -> LinkSettings:
        return LinkSettings(**self._fields_of(LinkSettings))

    def _fields_of(self, settings: Any) -> dict[str, Any]:
        return {field.name: self[field.name] for field in fields(settings) if field.name in self.given}


class _SettingSource(NamedTuple):
    origin_of: Callable[[str], str]
    """Returns the origin of the setting with this name, as messages and `config show` tell it."""
    values: Mapping[str, Any]
    """The values in this source by the names of settings, unchecked."""


def configuration_of(
    table: str,
    file: str | None,
    command_line: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
) -> GivenSettings:
    """Return the settings of a table: `server`, `storage`, `cluster` or `player`, the last one with its targets.

    `command_line` has the options by the names of settings; None stands for one that was not given. `file` is the path
    of the configuration file, by default that in POLONAISE_CONFIG; `environment` is by default that of the process.

    Raises `BadOption`, which names wrong settings and their origins, or a file that can't be one; and `AccessDenied`
    and other faults of the disk. All tables of the file are checked.
    """
    environment = os.environ if environment is None else environment
    mistakes: list[str] = []
    file = file if file is not None else environment.get(CONFIG_VARIABLE) or None
    tables = {} if file is None else _tables_in(file, mistakes)
    # As the tables of other nodes below, they are checked in any case.
    targets = targets_in(tables.pop(TARGETS, {}), f"file {file}", environment, mistakes)
    sources = [
        _SettingSource(
            lambda name: COMMAND_LINE, {name: value for name, value in command_line.items() if value is not None}
        ),
        _environment_of(table, environment, mistakes),
        _SettingSource(lambda name: f"file {file}", tables.get(table, {})),
    ]
    # A typo in the table of another kind of node would else stay unnoticed until such a node is started.
    for other, settings in tables.items():
        if other != table:
            _checked(other, _SettingSource(lambda name: f"file {file}", settings), mistakes)
    checked = [_checked(table, source, mistakes) for source in sources]
    configuration = GivenSettings(
        (
            next((found[key.name] for found in checked if key.name in found), GivenSetting(key, key.default, DEFAULT))
            for key in TABLES[table]
        ),
        targets if table == "player" else None,
        f"file {file}",
        environment,
    )
    _check_together(configuration, mistakes)
    if mistakes:
        more = f"; and {len(mistakes) - _TOLD_MAX} more" if len(mistakes) > _TOLD_MAX else ""
        raise BadOption("; ".join(mistakes[:_TOLD_MAX]) + more)
    return configuration


def variable_of(table: str, name: str) -> str:
    return f"{_PREFIX}{table}_{name}".upper()


def not_read_here(name: str, read: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a clause, or nothing, on variables that give others a setting of this name, or misspell `read`, which is
    missing.
    """
    given = {variable_of(table, name) for table in _holders(name)} | {f"{_PREFIX}{name}".upper()}
    found = [
        variable
        for variable, value in (os.environ if environment is None else environment).items()
        if value and variable.startswith(_PREFIX) and variable != read
        and (variable in given or _variable_meant("", variable.removeprefix(_PREFIX)) == read)
    ]  # fmt: skip
    return f" ({', '.join(sorted(found))} {'is' if len(found) == 1 else 'are'} set, and not read here)" if found else ""


def _holders(name: str) -> list[str]:
    return [table for table, keys in TABLES.items() if any(key.name == name for key in keys)]


def _tables_in(path: str, mistakes: list[str]) -> dict[str, dict[str, Any]]:
    """Return a configuration file's tables, and note in `mistakes` what else stands at its top. Raises `BadOption`."""
    import tomllib  # not where there is no file: most nodes that tests start have none

    try:
        text = with_own_errors(path, lambda: _read(Path(path)))
    except NotFound as error:
        raise BadOption(
            f"there is no file {redacted(path)!r}: correct the path in --config, or in {CONFIG_VARIABLE}"
        ) from error
    if len(text) > _FILE_BYTES_MAX:
        raise BadOption(f"{path} has more than {_FILE_BYTES_MAX:,} bytes: it is no configuration file")
    try:
        parsed = tomllib.loads(text.decode("utf-8-sig"))  # some editors begin a file with a mark of its encoding
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadOption(f"{path} is no valid TOML: {redacted(error)}; correct it") from error
    tables = {}
    for name, value in parsed.items():
        if name == TARGETS:
            tables[name] = value
        elif name not in TABLES:
            what = "table" if isinstance(value, dict) else "key"
            mistakes.append(f"file {path}: unknown {what} {name}{_hint(name, value)}")
        elif not isinstance(value, dict):
            mistakes.append(f"file {path}: {name} is a table: write [{name}], and its settings below that")
        else:
            tables[name] = value
    return tables


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_FILE_BYTES_MAX + 1)


def _hint(name: str, value: object) -> str:
    near = difflib.get_close_matches(name, (*TABLES, TARGETS), n=1)
    if near and isinstance(value, dict):
        return f", did you mean [{near[0]}]?"
    if holders := _holders(name):
        return f": it belongs below {' or '.join(f'[{table}]' for table in holders)}"
    return f": there are {', '.join(f'[{table}]' for table in (*TABLES, f'{TARGETS}.NAME'))}"


def _environment_of(table: str, environment: Mapping[str, str], mistakes: list[str]) -> _SettingSource:
    prefix = variable_of(table, "")
    named = {}
    for variable, value in environment.items():
        name = variable.removeprefix(_PREFIX)
        if name == variable or not value or _is_service_link(name, value):
            continue  # empty: that is how scripts and compose files leave a variable unset
        rest = variable.removeprefix(prefix)
        if rest != variable and (rest not in _OTHER_VARIABLES or _holders(rest.lower())):
            named[rest.lower()] = value
        elif meant := f"{_PREFIX}{rest}" if rest != variable else _variable_meant(table, name):
            mistakes.append(f"environment {variable}: there is no such variable, did you mean {meant}?")
    return _SettingSource(lambda name: f"environment {variable_of(table, name)}", named)


def _is_service_link(name: str, value: str) -> bool:
    """Whether a variable is one that Kubernetes sets for a service; `name` is what follows the prefix."""
    link = _SERVICE_LINK.fullmatch(name)
    if link is None:
        return False
    return link[2] != "PORT" or _SERVICE_URL.fullmatch(value) is not None


def _variable_meant(wanted: str, name: str) -> str:
    """Return the variable that a variable of no table may be a typo of, by preference of table `wanted`; else empty.

    One that resembles none is accepted: images and scripts have variables of their own, such as `POLONAISE_VERSION`.
    """
    word, _, rest = name.lower().partition("_")
    if name in _OTHER_VARIABLES or (rest and word in TABLES):
        return ""
    for table in sorted(TABLES, key=lambda each: each != wanted):
        if name.lower() in [key.name for key in TABLES[table]]:
            return variable_of(table, name)
    if rest and (near := difflib.get_close_matches(word, TABLES, n=1, cutoff=0.8)):
        return variable_of(near[0], rest)
    others = [other for other in _OTHER_VARIABLES if len(name) >= len("TLS_CE") and other.startswith(name)]
    others += difflib.get_close_matches(name, _OTHER_VARIABLES, n=1, cutoff=0.75)
    return f"{_PREFIX}{others[0]}" if others else ""


def _checked(table: str, source: _SettingSource, mistakes: list[str]) -> dict[str, GivenSetting]:
    keys = {key.name: key for key in TABLES[table]}
    found = {}
    for name, value in source.values.items():
        origin = source.origin_of(name)
        key = keys.get(name)
        if key is None:
            near = difflib.get_close_matches(name, keys, n=1, cutoff=0.5)
            advice = f", did you mean {near[0]}?" if near else f": `polonaise config show {table}` lists all"
            if holders := _holders(name):
                advice = f": it is one of {' and '.join(holders)} ({variable_of(holders[0], name)}, or [{holders[0]}])"
            mistakes.append(f"{origin}: unknown setting {table}.{name}{advice}")
            continue
        try:
            found[name] = GivenSetting(key, _value_of(key, value), origin)
        except ValueError:
            mistakes.append(f"{origin}: invalid {table}.{name} {quoted(value)}: write {_expected(key)}")
    return found


def _expected(key: SettingKey) -> str:
    if key.kind is SettingKind.CHOICE:
        return " or ".join(key.choices)
    if key.kind in (SettingKind.TEXT, SettingKind.LIST, SettingKind.PARTITIONS, SettingKind.FLAG):
        return str(key.kind.value)
    return f"{key.kind.value}, from {written(key.kind, key.least)} to {written(key.kind, key.most)}"


def _value_of(key: SettingKey, value: object) -> Any:
    """Return `value` as one of the setting's kind. Raises `ValueError` if it is none, or outside the bounds."""
    match key.kind:
        case SettingKind.TEXT:
            if not isinstance(value, str) or "\0" in value:
                raise ValueError
            return value
        case SettingKind.CHOICE:
            if value not in key.choices:
                raise ValueError
            return str(value)
        case SettingKind.LIST:
            return _list_of(value)
        case SettingKind.PARTITIONS:
            return _partitions_of(key, value)
        case SettingKind.FLAG:
            return value if isinstance(value, bool) else _flag_of(value)
        case SettingKind.COUNT | SettingKind.RATIO:
            number: float = _number_of(value, {"": 1})
        case SettingKind.BYTES:
            number = _number_of(value, BYTE_UNITS)
        case SettingKind.SECONDS:
            number = _number_of(value, _SECOND_UNITS)
    if key.kind in (SettingKind.COUNT, SettingKind.BYTES):
        if number != int(number):
            raise ValueError
        number = int(number)
    else:
        number = float(number)
    if not key.least <= number <= key.most:
        raise ValueError
    return number


def _list_of(value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError
    return tuple(item.strip() for item in items if item.strip())


def _partitions_of(key: SettingKey, value: object) -> frozenset[int]:
    items = _list_of(value) if isinstance(value, str) else value
    if not isinstance(items, list | tuple | frozenset):
        raise ValueError
    if any(isinstance(item, bool) or not isinstance(item, int | str) for item in items):
        raise ValueError
    partitions = frozenset(map(int, items))
    if not all(key.least <= partition <= key.most for partition in partitions):
        raise ValueError
    return partitions


def _flag_of(value: object) -> bool:
    if not isinstance(value, str) or value.strip().lower() not in _FLAGS:
        raise ValueError
    return _FLAGS[value.strip().lower()]


def _number_of(value: object, units: Mapping[str, float]) -> float:
    """Return `value`, a number or a text of a number and a unit, in the basic unit. Raises `ValueError`."""
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match is None or match[2].lower() not in units or len(match[1]) > 30:
            raise ValueError
        number = float(match[1]) if "." in match[1] else int(match[1])
        return number * units[match[2].lower()]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return value


def _check_together(configuration: GivenSettings, mistakes: list[str]) -> None:
    """Note settings that are valid each by itself but not together."""
    given = configuration.given
    if "heartbeat_s" in given and given["silence_s_max"].value < 2 * given["heartbeat_s"].value:
        silence, heartbeat = given["silence_s_max"], given["heartbeat_s"]
        mistakes.append(
            f"silence_s_max is {silence.shown} ({silence.origin}) with a heartbeat_s of {heartbeat.shown} "
            f"({heartbeat.origin}): make it at least twice as long, or living peers count as dead"
        )
    if "copy_bytes_per_s" in given and given["copy_bytes_per_s"].value < given["copy_bytes_per_s_min"].value:
        most, least = given["copy_bytes_per_s"], given["copy_bytes_per_s_min"]
        mistakes.append(
            f"copy_bytes_per_s is {most.shown} ({most.origin}), and copy_bytes_per_s_min is {least.shown} "
            f"({least.origin}): a server can't copy at least more than at most; raise the first, or lower the second"
        )
