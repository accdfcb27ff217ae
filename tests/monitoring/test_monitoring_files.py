"""The dashboard, the alert rules and the page for operators name the metrics that exist, and no others."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from polonaise.node.monitoring.exposition import Exposition
from polonaise.node.monitoring.metriclist import FROM_THE_LIBRARY, METRICS, Metric, MetricKind
from polonaise.node.monitoring.samples import Samples
from polonaise.node.reasons import OF_PLAYERS, OF_SERVERS, OF_STORAGE, Reason

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy" / "monitoring"
PAGE = ROOT / "docs" / "monitoring.md"
FUNCTIONS = {
    "abs", "absent_over_time", "and", "by", "changes", "clamp_min", "deriv", "histogram_quantile", "increase",
    "max", "max_over_time", "min", "or", "predict_linear", "rate", "sum", "time", "topk", "without",
}  # fmt: skip
ELSEWHERE = {"up": {"job", "instance"}}
"""Metrics that Prometheus makes itself."""
ADDED = {"instance", "job"}
"""Labels that Prometheus adds."""


def series() -> dict[str, set[str]]:
    """The labels of every series."""
    known: dict[str, set[str]] = {name: {"generation"} for name in FROM_THE_LIBRARY} | ELSEWHERE
    for metric in METRICS:
        labels = set(metric.labels)
        if metric.kind is MetricKind.HISTOGRAM:
            known |= {f"{metric.name}_bucket": labels | {"le"}, f"{metric.name}_count": labels}
            known[f"{metric.name}_sum"] = labels
        else:
            known[metric.name] = labels
    return known


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of the dashboard and of the rules, with where it stands."""
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield f"dashboard: {panel['title']}", target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"dashboard: ${variable['name']}", variable["query"]["query"]
    for rule in rules():
        yield f"alerts: {rule['alert']}", rule["expr"]


@functools.cache
def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_an_expression_names_only_metrics_and_labels_that_exist(where: str, expression: str) -> None:
    known = series()
    bare = re.sub(r'"[^"]*"', '""', expression)
    if listed := re.fullmatch(r"label_values\((\w+), (\w+)\)", bare):
        assert listed[2] in known[listed[1]] | ADDED
        return
    for opening, closing in ("()", "{}", "[]"):
        assert bare.count(opening) == bare.count(closing), "brackets"
    named = re.findall(r"\b(?:polonaise|process|python)_\w+|\bup\b", bare)
    assert named, "an expression names a metric"
    assert set(named) <= set(known)
    labels = set().union(*(known[name] for name in named)) | ADDED
    used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", bare))
    for grouped in re.findall(r"\b(?:by|without) \(([^)]*)\)", bare):
        used |= {label.strip() for label in grouped.split(",")}
    assert used <= labels, f"{where}: labels that none of its metrics has"
    for name, selected in re.findall(r"\b((?:polonaise|process)_\w+)\{([^}]*)\}", bare):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selected)) <= known[name] | ADDED
    rest = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(?:by|without) \([^)]*\)|\$\w+", " ", bare)
    words = set(re.findall(r"\b[a-z]\w*", rest)) - set(named)
    assert words - used <= FUNCTIONS, "words that are no function"


def test_counters_are_looked_at_by_their_rate() -> None:
    counters = {metric.name for metric in METRICS if metric.kind is MetricKind.COUNTER}
    for where, expression in EXPRESSIONS:
        for name in counters & set(re.findall(r"\w+", expression)):
            plain = re.findall(rf"(?<![\w]){name}(?!\w)(?:\{{[^}}]*\}})?(?!\[)(?!\{{)", expression)
            assert not plain, f"{where}: {name} without rate or increase"


def test_the_dashboard_has_no_two_panels_in_one_place() -> None:
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def expression_of(alert: str) -> str:
    (rule,) = [rule for rule in rules() if rule["alert"] == alert]
    return " ".join(rule["expr"].split())


def test_partitions_without_an_owner_are_those_that_the_description_has_more() -> None:
    expression = expression_of("PolonaisePartitionsWithoutOwner")
    known = "max by (cluster) (max_over_time(polonaise_server_cluster_partitions[1d]))"
    owned, _, rest = expression.partition(f" < {known}")
    assert owned == f"(sum by (cluster) (polonaise_server_owned_partitions) or 0 * {known})", "none at all counts as 0"
    assert rest == " or absent_over_time(polonaise_server_cluster_partitions[1d])", "without any server it fires"


def test_a_storage_node_that_is_started_again_is_no_series_of_faults() -> None:
    expression = expression_of("PolonaiseSessionFaults")
    _, _, limit = expression.partition(" > ")
    assert limit == "5 * clamp_min(sum without (state) (polonaise_server_partitions), 1)", (
        "one fault for each partition"
    )


def test_the_bytes_that_are_left_are_those_of_now_and_not_those_foretold() -> None:
    expression = expression_of("PolonaiseDiskFillsUp")
    assert expression.count("predict_linear") == expression.count(
        "(polonaise_storage_disk_free_bytes and predict_linear"
    )


def test_damage_that_is_over_in_any_way_raises_no_alert() -> None:
    names = set(re.findall(r"polonaise_\w+", expression_of("PolonaiseDamageFound")))
    gauges = {metric.name for metric in METRICS if metric.kind is MetricKind.GAUGE}
    assert names <= gauges, "a difference of counters stays when a damaged fragment is deleted"


def test_every_alert_says_what_it_means() -> None:
    told = rules()
    assert len({rule["alert"] for rule in told}) == len(told)
    page = PAGE.read_text()
    for rule in told:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))
        assert rule["alert"] in page, "docs/monitoring.md says what to do"


def test_the_example_for_prometheus_loads_the_rules() -> None:
    example = yaml.safe_load((FILES / "prometheus.yml").read_text())
    assert example["rule_files"] == ["alerts.yml"]
    for job in example["scrape_configs"]:
        assert job["job_name"].startswith("polonaise"), "as the rules have it"


def metric_row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.meaning} |"


def metric_rows() -> list[str]:
    rows = [metric_row(metric) for metric in METRICS]
    return rows + [f"| `{name}` | {meaning} |" for name, meaning in FROM_THE_LIBRARY.items()]


def test_every_metric_is_on_the_page_for_operators() -> None:
    page = PAGE.read_text()
    missing = [row for row in metric_rows() if row not in page]
    assert not missing, "docs/monitoring.md should have:\n" + "\n".join(missing)


def reason_row(reason: Reason) -> str:
    declared = reason.declared
    of = {"servers": OF_SERVERS, "storage nodes": OF_STORAGE, "players": OF_PLAYERS}
    nodes = [role for role, reasons in of.items() if reason in reasons]
    alerts = ", ".join(f"`{alert}`" for alert in declared.alerts)
    who = "all nodes" if len(nodes) == len(of) else ", ".join(nodes)
    return f"| `{reason}` | {who} | {declared.meaning} | {declared.metrics} | {alerts} |"


def test_the_page_has_the_reasons_for_degraded_health_and_no_others() -> None:
    rows = [reason_row(reason) for reason in Reason]
    table = PAGE.read_text().partition("| reason | of |")[2].partition("\n\n")[0].splitlines()[2:]
    assert sorted(table) == sorted(rows), "docs/monitoring.md should have:\n" + "\n".join(
        sorted(set(rows) - set(table))
    )


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_is_said_by_somebody_and_has_an_alert_on_each_of_its_metrics(reason: Reason) -> None:
    declared = reason.declared
    assert reason in OF_SERVERS | OF_STORAGE | OF_PLAYERS, "each node tells its own"
    assert set(declared.alerts) <= {rule["alert"] for rule in rules()}, "deploy/monitoring/alerts.yml has each alert"
    named = {name for alert in declared.alerts for name in re.findall(r"polonaise_\w+", expression_of(alert))}
    assert set(re.findall(r"`(\w+)`", declared.metrics)) <= named


def test_the_page_names_no_metric_that_does_not_exist() -> None:
    named = set(re.findall(r"`((?:polonaise|process|python)_[a-z_]+)`", PAGE.read_text()))
    known = set(series()) | {metric.name for metric in METRICS}
    assert named - known - {name for name in named if name.endswith("_")} == set()


def test_the_metrics_of_the_process_are_those_of_the_library() -> None:
    text = Exposition().text(Samples(), "")[0].decode()
    names = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    assert names == set(FROM_THE_LIBRARY)


def test_names_end_as_prometheus_has_it() -> None:
    for metric in METRICS:
        assert metric.name.startswith("polonaise_")
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert metric.name.endswith("_seconds") or metric.kind is not MetricKind.HISTOGRAM
        assert metric.meaning.endswith(".")
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_an_outage_of_the_whole_coordinator_pages_within_half_a_minute() -> None:
    groups = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]
    [(group, rule)] = [(g, r) for g in groups for r in g["rules"] if r["alert"] == "PolonaiseCoordinatorAway"]
    scraped = yaml.safe_load((FILES / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["job_name"] == "polonaise-servers"
    # The gauge is 1 a second or two after the last answer; then a scrape, the wait, and two evaluations at the latest.
    parts = [scraped["scrape_interval"], rule["for"], group["interval"], group["interval"]]
    assert 2 + sum(int(part.removesuffix("s")) for part in parts) <= 30
    assert rule["labels"] == {"severity": "critical"}
