"""Reads the tables `[targets.NAME]` of a configuration file: where a player's targets are."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from polonaise.errors import BadOption
from polonaise.node.playerplan import TargetPlan
from polonaise.player.protocol.entries import NAME_CHARACTERS_MAX, TargetName
from polonaise.player.remotetargets import remote_place
from polonaise.redaction import redacted
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
