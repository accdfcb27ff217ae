"""Checks the options of `polonaise.connect` and `Log` before anything is begun."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from polonaise.client.protocol.arguments import wrong
from polonaise.client.settings import ClientSettings
from polonaise.errors import BadOption
from polonaise.terms import BodyForm

_VIEW = ("high_water_mark", "apply", "failed")
_RUN_VIEW = ("high_water_mark", "apply_run", "failed")
_SERIALIZER = ("encode", "decode")


class Serializer(Protocol):
    """Converts the application's values into transaction bodies, and back."""

    def encode(self, value: Any) -> bytes:
        """Return the body of a transaction that carries this value."""

    def decode(self, data: bytes) -> Any:
        """Return the value from which `encode` made this body."""


def check_options(
    *,
    view: Any,
    settings: Any,
    serializer: Any,
    partitioner: Any,
    partitions: Any,
    bodies: Any,
    wants: Any,
    header_filter: Any,
) -> None:
    """Raise `BadOption` for an invalid option, or one that does not go with another."""
    _check_methods("view", view, _RUN_VIEW if hasattr(view, "apply_run") else _VIEW)
    _check_methods("serializer", serializer, _SERIALIZER)
    if settings is not None and not isinstance(settings, ClientSettings):
        raise wrong("settings", settings, "a polonaise.ClientSettings")
    for name, function in (("partitioner", partitioner), ("wants", wants)):
        if function is not None and not callable(function):
            raise wrong(name, function, "a function")
    if partitions is not None and not (
        isinstance(partitions, Collection) and all(isinstance(p, int) for p in partitions)
    ):
        raise wrong("partitions", partitions, "a list of partition numbers, or None for the default")
    if not isinstance(bodies, BodyForm):
        raise wrong("bodies", bodies, "a polonaise.BodyForm")
    if header_filter is not None and not _is_pair(header_filter):
        raise wrong("header_filter", header_filter, "a pair of integers, (mask, value)")
    if (bodies is BodyForm.FILTERED) != (header_filter is not None):
        raise BadOption("bodies=FILTERED goes together with header_filter=(mask, value)")
    if wants is not None and bodies is BodyForm.INLINE:
        raise BadOption("wants= chooses among bodies that are fetched: it goes with bodies=LAZY or FILTERED")


def _check_methods(name: str, given: Any, methods: tuple[str, ...]) -> None:
    if given is None:
        return
    if isinstance(given, type):
        raise wrong(name, given, f"an instance, not the class: {name}={given.__name__}(...)")
    for method in methods:
        if not callable(getattr(given, method, None)):
            raise wrong(name, given, f"it has no method {method}: it needs {', '.join(methods)}")


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(each, int) for each in given)
