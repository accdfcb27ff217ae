"""Evaluates expressions of Prometheus' language: as much of it as the alert rules need, on samples that a test has.

What it understands means what it means to Prometheus 3, without native histograms: `test_promql.py` has cases of that.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = dict[Labels, float]
Points: TypeAlias = list[tuple[float, float | None]]
"""Values of a series with their times; None from when it was there no more."""
Matrix: TypeAlias = dict[Labels, list[tuple[float, float]]]


class Window(NamedTuple):
    """The values of series after a moment."""

    found: Matrix
    since_s: float


_STALE_S: Final = 300.0
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_TOKEN: Final = re.compile(
    r'\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<word>[A-Za-z_]\w*)|"(?P<text>[^"]*)"|(?P<sign>==|!=|>=|<=|=~|!~|[-+*/(){}\[\],<>=]))'
)
_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
_ARITHMETIC: Final[dict[str, Callable[[float, float], float]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
}  # fmt: skip


def _max(values: Iterable[float]) -> float:
    """Return the largest value; NaN only if there is no other."""
    return max((value for value in values if value == value), default=math.nan)


def _min(values: Iterable[float]) -> float:
    return -_max(-value for value in values)


_TOGETHER: Final[dict[str, Callable[[list[float]], float]]] = {"sum": sum, "max": _max, "min": _min}
_LEVELS: Final = (("or",), ("and", "unless"), tuple(_COMPARISONS), ("+", "-"), ("*",))


class Token(NamedTuple):
    """A piece of an expression: its kind, which is a group of `_TOKEN`, and what stands there."""

    kind: str
    value: str


class Series:
    """All that was scraped, by name."""

    def __init__(self) -> None:
        self._points: dict[str, dict[Labels, Points]] = {}

    def add(self, name: str, labels: Labels, time_s: float, value: float | None) -> None:
        self._points.setdefault(name, {}).setdefault(labels, []).append((time_s, value))

    def at(self, name: str, selects: Callable[[Labels], bool], now_s: float) -> Vector:
        """Return the latest values of the series with such labels; none of those that are there no more, or silent."""
        found: Vector = {}
        for labels, points in self._points.get(name, {}).items():
            time_s, value = points[-1]
            if value is not None and now_s - time_s < _STALE_S and selects(labels):
                found[labels] = value
        return found

    def within(self, name: str, selects: Callable[[Labels], bool], since_s: float) -> Window:
        """Return all values after a moment, of the series with such labels."""
        found: Matrix = {}
        for labels, points in self._points.get(name, {}).items():
            if selects(labels):
                lately = [(time_s, value) for time_s, value in points if time_s > since_s and value is not None]
                if lately:
                    found[labels] = lately
        return Window(found, since_s)


class Evaluation:
    """One evaluation of an expression, at one moment."""

    def __init__(self, expression: str, series: Series, now_s: float) -> None:
        self._tokens = _tokens(expression)
        self._series = series
        self._now_s = now_s
        self._next = 0

    def vector(self) -> Vector:
        """Return what the expression comes to. Raises `AssertionError` for what this does not understand."""
        found = self._level(0)
        assert self._next == len(self._tokens), f"{self._tokens[self._next :]} is more than this understands"
        assert isinstance(found, dict)
        return found

    # ------------------------------------------------------------------ reading

    def _peek(self) -> str:
        return self._tokens[self._next].value if self._next < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        value = self._peek()
        assert not wanted or value in wanted, f"{value!r} stands in place of {wanted}"
        self._next += 1
        return value

    def _taken(self, value: str) -> bool:
        if self._peek() != value:
            return False
        self._next += 1
        return True

    def _level(self, level: int) -> Any:
        if level == len(_LEVELS):
            return self._operand()
        left = self._level(level + 1)
        while self._peek() in _LEVELS[level]:
            sign = self._take()
            left = _combined(sign, left, self._level(level + 1))
        return left

    def _operand(self) -> Any:
        if self._taken("("):
            inner = self._level(0)
            self._take(")")
            return inner
        token = self._tokens[self._next]
        self._next += 1
        if token.kind == "number":
            return float(token.value)
        assert token.kind == "word", f"{token} is more than this understands"
        if token.value in _TOGETHER:
            return self._together(_TOGETHER[token.value])
        return self._called(token.value) if self._peek() == "(" else self._selected(token.value)

    def _names(self) -> set[str]:
        names = set()
        self._take("(")
        while not self._taken(")"):
            names.add(self._take())
            self._taken(",")
        return names

    def _together(self, of: Callable[[list[float]], float]) -> Vector:
        how, names = ("by", set()) if self._peek() == "(" else (self._take("by", "without"), self._names())
        self._take("(")
        inner = self._level(0)
        self._take(")")
        groups: dict[Labels, list[float]] = {}
        for labels, value in inner.items():
            key = frozenset(each for each in labels if (each[0] in names) == (how == "by"))
            groups.setdefault(key, []).append(value)
        return {labels: of(values) for labels, values in groups.items()}

    def _selected(self, name: str) -> Vector | Window:
        selects, _ = self._selector()
        if (window_s := self._window()) is None:
            return self._series.at(name, selects, self._now_s)
        return self._series.within(name, selects, self._now_s - window_s)

    def _selector(self) -> tuple[Callable[[Labels], bool], Vector]:
        tests: list[tuple[str, str, str]] = []
        if self._taken("{"):
            while not self._taken("}"):
                tests.append((self._take(), self._take("=", "!=", "=~", "!~"), self._take()))
                self._taken(",")
        names = [name for name, _, _ in tests]
        named = {frozenset((name, value) for name, sign, value in tests if sign == "=" and names.count(name) == 1): 1.0}
        return lambda labels: all(_fits(dict(labels).get(name, ""), sign, value) for name, sign, value in tests), named

    def _window(self) -> float | None:
        if not self._taken("["):
            return None
        number, unit = float(self._take()), self._take(*_UNITS)
        self._take("]")
        return number * _UNITS[unit]

    def _called(self, name: str) -> Any:
        self._take("(")
        if name == "absent_over_time":
            metric = self._take()
            selects, named = self._selector()
            window_s = self._window()
            assert window_s is not None
            self._take(")")
            return {} if self._series.within(metric, selects, self._now_s - window_s).found else named
        arguments = []
        while not self._taken(")"):
            arguments.append(self._level(0))
            self._taken(",")
        return _FUNCTIONS[name](self._now_s, *arguments)


@functools.cache
def _tokens(expression: str) -> tuple[Token, ...]:
    tokens: list[Token] = []
    at = 0
    text = expression.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None, f"{text[at:]!r} is more than this understands"
        kind = found.lastgroup
        assert kind is not None
        tokens.append(Token(kind, found[kind]))
        at = found.end()
    return tuple(tokens)


def _fits(value: str, sign: str, wanted: str) -> bool:
    if sign in ("=", "!="):
        return (value == wanted) == (sign == "=")
    return (re.fullmatch(wanted, value) is not None) == (sign == "=~")


def _combined(sign: str, left: Any, right: Any) -> Any:
    if sign == "or":
        return {**right, **left}
    if sign in ("and", "unless"):
        return {labels: value for labels, value in left.items() if (labels in right) == (sign == "and")}
    pairs: dict[Labels, tuple[float, float]]
    if isinstance(left, float) and isinstance(right, float):
        return _ARITHMETIC[sign](left, right)
    if isinstance(right, float):
        pairs = {labels: (value, right) for labels, value in left.items()}
    elif isinstance(left, float):
        pairs = {labels: (left, value) for labels, value in right.items()}
    else:
        pairs = {labels: (value, right[labels]) for labels, value in left.items() if labels in right}
    if sign in _COMPARISONS:
        keeps_left = not isinstance(left, float)
        return {at: a if keeps_left else b for at, (a, b) in pairs.items() if _COMPARISONS[sign](a, b)}
    return {labels: _ARITHMETIC[sign](a, b) for labels, (a, b) in pairs.items()}


# ---------------------------------------------------------------------- functions


def _grown(points: list[tuple[float, float]]) -> float:
    """Return how much a counter has grown; one that begins anew has grown by all that it has."""
    values = [value for _, value in points]
    return sum(later - before if later >= before else later for before, later in itertools.pairwise(values))


def _grown_in(points: list[tuple[float, float]], since_s: float, now_s: float) -> float:
    """Return how much a counter has grown in all of a window, also before its first and after its last sample there.

    It goes on as between the samples: up to the window's bound if one more could be missing there, else for half of the
    time between two; and not to before the moment at which it would have been 0.
    """
    (first_s, first), last_s, grown = points[0], points[-1][0], _grown(points)
    sampled_s = last_s - first_s
    between_s = sampled_s / (len(points) - 1)
    before_s, after_s = (
        between_s / 2 if gap_s >= 1.1 * between_s else gap_s for gap_s in (first_s - since_s, now_s - last_s)
    )
    if grown > 0 and first >= 0:
        before_s = min(before_s, sampled_s * first / grown)
    return grown * (before_s + sampled_s + after_s) / sampled_s


def _increase(now_s: float, window: Window) -> Vector:
    return {at: _grown_in(points, window.since_s, now_s) for at, points in window.found.items() if len(points) > 1}


def _rate(now_s: float, window: Window) -> Vector:
    return {at: grown / (now_s - window.since_s) for at, grown in _increase(now_s, window).items()}


def _line(points: list[tuple[float, float]], now_s: float) -> tuple[float, float]:
    """Return the slope, and the value now, of the line that fits best."""
    times, values = [time_s - now_s for time_s, _ in points], [value for _, value in points]
    if len(set(values)) == 1:
        return 0.0, values[0]
    middle_s, middle = sum(times) / len(times), sum(values) / len(values)
    spread = sum((time_s - middle_s) ** 2 for time_s in times)
    slope = sum((t - middle_s) * (v - middle) for t, v in zip(times, values, strict=True)) / spread
    return slope, middle - slope * middle_s


def _lines(now_s: float, window: Window) -> dict[Labels, tuple[float, float]]:
    return {at: _line(each, now_s) for at, each in window.found.items() if len(each) > 1}


def _predicted(now_s: float, window: Window, ahead_s: float) -> Vector:
    return {at: value + slope * ahead_s for at, (slope, value) in _lines(now_s, window).items()}


def _changes(_: float, window: Window) -> Vector:
    return {
        at: float(sum(a != b and not (a != a and b != b) for (_, a), (_, b) in itertools.pairwise(each)))
        for at, each in window.found.items()
    }


def _quantile(_: float, share: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        rest = frozenset(each for each in labels if each[0] != "le")
        groups.setdefault(rest, []).append((float(dict(labels)["le"]), count))
    return {labels: _quantile_of(share, sorted(counts)) for labels, counts in groups.items()}


def _quantile_of(share: float, rising: list[tuple[float, float]]) -> float:
    """Return the value below which a share of what is in buckets lies; NaN for no buckets, or with nothing in them."""
    bounds = [bound for bound, _ in rising]
    counts = [*itertools.accumulate((count for _, count in rising), max)]  # rates of them need not rise
    if len(rising) < 2 or not math.isinf(bounds[-1]) or not counts[-1]:
        return math.nan
    rank = share * counts[-1]
    at = next(number for number, count in enumerate(counts) if count >= rank)
    if at == len(bounds) - 1:
        return bounds[-2]
    if at == 0 and bounds[0] <= 0:
        return bounds[0]
    low, below = (bounds[at - 1], counts[at - 1]) if at else (0.0, 0.0)
    return low + (bounds[at] - low) * (rank - below) / (counts[at] - below)


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "abs": lambda _, found: {at: abs(value) for at, value in found.items()},
    "changes": _changes,
    "clamp_min": lambda _, found, least: {at: max(value, least) for at, value in found.items()},
    "deriv": lambda now_s, window: {at: slope for at, (slope, _) in _lines(now_s, window).items()},
    "histogram_quantile": _quantile,
    "increase": _increase,
    "max_over_time": lambda _, window: {at: _max(value for _, value in each) for at, each in window.found.items()},
    "predict_linear": _predicted,
    "rate": _rate,
    "time": lambda now_s: now_s,
}
