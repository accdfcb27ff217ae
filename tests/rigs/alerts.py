"""Evaluates alert rules on samples of nodes: as much of Prometheus' language as rules of one comparison need."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from polonaise.node.monitoring.samples import Samples

_RULES: Final = Path(__file__).parents[2] / "deploy" / "monitoring" / "alerts.yml"
_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_TERM: Final = re.compile(
    r"(?:(?P<function>abs|rate|changes)\()?(?P<name>\w+)(?:\{(?P<selected>[^}]*)\})?(?:\[\w+\])?\)?"
    r"(?P<age> - time\(\))? (?P<comparison>==|!=|>|<) (?P<limit>[0-9 *]+)"
)


def rule_of(alert: str) -> dict[str, Any]:
    """Return the rule of an alert."""
    groups = yaml.safe_load(_RULES.read_text())["groups"]
    (found,) = [rule for group in groups for rule in group["rules"] if rule["alert"] == alert]
    return found


def fires(alert: str, now: Samples, before: Samples | None = None, *, now_s: float = 0.0) -> bool:
    """Whether an alert's condition holds by these samples; `before` are those of an earlier scrape, for rates."""
    return any(_holds(term, now, before, now_s) for term in rule_of(alert)["expr"].split(" or "))


def _holds(term: str, now: Samples, before: Samples | None, now_s: float) -> bool:
    parsed = _TERM.fullmatch(term.strip())
    assert parsed is not None, f"{term!r} is more than this understands"
    holds, limit = _COMPARISONS[parsed["comparison"]], _product(parsed["limit"])
    values, earlier = _values(now, parsed["name"], parsed["selected"]), {}
    if parsed["function"] == "rate":
        assert before is not None, "a rate needs an earlier scrape"
        earlier = _values(before, parsed["name"], parsed["selected"])
    for labels, value in values.items():
        seen = value - earlier.get(labels, 0.0) - (now_s if parsed["age"] else 0.0)
        if holds(abs(seen) if parsed["function"] == "abs" else seen, limit):
            return True
    return False


def _product(text: str) -> float:
    product = 1.0
    for factor in text.split("*"):
        product *= float(factor)
    return product


def _values(samples: Samples, name: str, selected: str | None) -> dict[tuple[str, ...], float]:
    wanted = dict(re.findall(r'(\w+)="([^"]*)"', selected or ""))
    return {
        tuple(map(str, labels)): value
        for metric, rows in samples.items()
        if metric.name == name
        for labels, value in rows
        if all(str(labels[metric.labels.index(label)]) == each for label, each in wanted.items())
    }
