"""A Prometheus of a test: scrapes nodes, lets what they tell go on for a while, and evaluates the alert rules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from polonaise.histogram import Histogram
from polonaise.host import Clock
from polonaise.node.monitoring.exposition import _Exposed
from polonaise.node.monitoring.face import HttpFace, ObservedNode, ObservedServer, ObservedStorage
from polonaise.node.monitoring.metriclist import NODE_DEGRADED
from polonaise.node.monitoring.samples import Detail, Samples
from polonaise.node.reasons import Reason
from polonaise.server.node import Server
from rigs.promql import Evaluation, Labels, Series
from rigs.town import Town
from rigs.waiting import wait_until

_RULES: Final = Path(__file__).parents[2] / "deploy" / "monitoring" / "alerts.yml"
_COUNTED: Final = ("_total", "_bucket", "_count", "_sum")
LASTS_S: Final = 1_500.0
"""The rates of 10 minutes rise for about 6 until they are above the limits of rules, which then wait for up to 15."""
NOW_S: Final = 10 * 86_400.0
STARTED: Final = {"process_start_time_seconds": NOW_S, "process_open_fds": 10.0, "process_max_fds": 1_024.0}
"""What a process in good order tells of itself, where the test's own has to say nothing about it."""

Told = dict[tuple[str, Labels], float]
"""What one scrape of a node gives, by name and labels."""
fired_by: dict[str, list[str]] = {}
"""The tests that fire each alert, as they declare themselves by `fires`."""
_fired: set[str] = set()
"""The alerts that have fired in the test that runs."""


def rules() -> list[dict[str, Any]]:
    """Return all rules, each with the name of its group."""
    groups = yaml.safe_load(_RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def fires(*alerts: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare that a test fires these alerts; it fails if one of them has not fired in it."""

    def decorator(test: Callable[..., Any]) -> Callable[..., Any]:
        for alert in alerts:
            fired_by.setdefault(alert, []).append(test.__name__)

        def judge() -> None:
            assert set(alerts) <= _fired, f"{sorted(set(alerts) - _fired)} did not fire, but {sorted(_fired)}"

        @functools.wraps(test)
        def running(**given: Any) -> None:
            _fired.clear()
            test(**given)
            judge()

        @functools.wraps(test)
        async def running_in_the_loop(**given: Any) -> None:
            _fired.clear()
            await test(**given)
            judge()

        return running_in_the_loop if inspect.iscoroutinefunction(test) else running

    return decorator


def told(samples: Samples, **process: float) -> Told:
    """Return what a scrape of a node with these samples gives; `process` are metrics of its process."""
    found: Told = {}
    for family in _Exposed(samples).collect():
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = float(sample.value)
    return found | {(name, frozenset()): value for name, value in {**STARTED, **process}.items()}


async def scraped(node: ObservedNode, clock: Clock, delays: Histogram | None = None, network: Any = None) -> Told:
    """Scrape a node, once its metrics and its health agree on what is wrong with it."""
    face = HttpFace(node, clock, lambda samples, accept: (b"", ""), delays or Histogram(), "1", network)
    found: list[Samples] = []

    async def agree() -> bool:
        samples = await node.samples(Detail())
        found.append(samples)
        by_metrics = {labels[0] for labels, value in samples[NODE_DEGRADED] if value}
        # What storage nodes found is told by their own metrics, and not by servers'.
        of_others = {Reason.DAMAGE.value} if node.labels()[0] == "server" else set()
        return by_metrics == set((await node.health())["reasons"]) - of_others

    await wait_until(agree, "metrics and health agree", every_s=0.5)
    face._add_node(found[-1])
    return told(found[-1])


async def scraped_server(server: Server) -> Told:
    clock = server.parts.shared.host.clock
    return await scraped(ObservedServer(lambda: server, clock), clock)


async def scraped_town(town: Town) -> dict[str, Told | None]:
    """Scrape the servers and storage nodes of a town."""
    cluster, found = town.cluster, dict[str, Told | None]()
    for node in cluster.servers:
        server = cluster.owners.get(node.name) if node.running else None
        found[f"polonaise-servers/{node.name}"] = None if server is None else await scraped_server(server)
    for node in cluster.storage:
        store = cluster.stores.get(node.name) if node.running else None
        found[f"polonaise-storage/{node.name}"] = (
            None
            if store is None
            else await scraped(ObservedStorage(store, store._host, store._settings.directory), store._host.clock)
        )
    return found


class Prometheus:
    """Scrapes once a minute, in time that passes at once."""

    def __init__(self, now_s: float = NOW_S) -> None:
        self.now_s = now_s
        self._series = Series()
        self._there: dict[tuple[str, str], set[tuple[str, Labels]]] = {}
        self._since_s: dict[tuple[str, Labels], float] = {}
        """Since when the condition of an alert holds, by its labels."""

    def lasts(
        self,
        nodes: Mapping[str, Told | None],
        before: Mapping[str, Told | None] | None = None,
        *,
        for_s: float = LASTS_S,
        every_s: float = 60.0,
    ) -> set[str]:
        """Let nodes tell this for so long; return the alerts that fire at the end.

        Nodes are named `job/instance`, and one that gives None can't be scraped. Counters grow with each scrape as much
        as they have grown from `before`, which was scraped `every_s` seconds before.
        """
        firing: set[str] = set()
        for number in range(int(for_s / every_s) + 1):
            self.now_s += every_s
            for node, now in nodes.items():
                earlier = (before or {}).get(node)
                self._scrape(node, now if now is None or earlier is None else _gone_on(now, earlier, number))
            firing = self._evaluate()
            _fired.update(firing)
        return firing

    def _scrape(self, node: str, now: Told | None) -> None:
        job, instance = node.split("/")
        own = frozenset({("job", job), ("instance", instance)})
        self._series.add("up", own, self.now_s, float(now is not None))
        there = {(name, labels | own): value for (name, labels), value in (now or {}).items()}
        for (name, labels), value in there.items():
            self._series.add(name, labels, self.now_s, value)
        for name, labels in self._there.get((job, instance), set()) - there.keys():
            self._series.add(name, labels, self.now_s, None)
        self._there[job, instance] = set(there)

    def _evaluate(self) -> set[str]:
        firing: set[str] = set()
        holds: dict[tuple[str, Labels], float] = {}
        for rule in rules_parsed():
            for labels in Evaluation(rule["expr"], self._series, self.now_s).vector():
                key = rule["alert"], labels
                holds[key] = self._since_s.get(key, self.now_s)
                if self.now_s - holds[key] >= _seconds(rule.get("for", "0s")):
                    firing.add(rule["alert"])
        self._since_s = holds
        return firing


@functools.cache
def rules_parsed() -> tuple[dict[str, Any], ...]:
    return tuple(rules())


def _gone_on(now: Told, before: Told, times: int) -> Told:
    """Return what is told after counters have grown so many times by what they have grown from `before`."""
    return {
        key: value + times * (value - before.get(key, 0.0)) if key[0].endswith(_COUNTED) else value
        for key, value in now.items()
    }


def _seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[text[-1]]
