"""What a node's HTTP paths answer, on a cluster of real nodes, and its log lines."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_in
from prometheus_client.parser import text_string_to_metric_families

from polonaise.admin.logs import conditions
from polonaise.host.tls import TlsIdentity
from polonaise.node.condition import health_status_of
from polonaise.node.logformat import JsonLines, LogFormat, TextLines, log_to
from rigs.httpget import dialled, exchanged, http_get
from rigs.observed import observed_cluster, observed_storage
from rigs.smalldisk import small_disk
from rigs.tls import Authority
from rigs.town import Town, held_down
from rigs.waiting import wait_until

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


async def scraped(address: str, query: str = "") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples, by name and labels."""
    said = await http_get(address, f"/metrics{query}")
    assert said.status == 200
    assert said.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(said.body.decode())
        for sample in family.samples
    }


async def until_ready(address: str) -> None:
    async def look() -> bool:
        return (await http_get(address, "/ready")).status == 200

    await wait_until(look, "the node is ready", every_s=0.05)


async def until_stored(address: str, count: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Wait until a storage node has stored so many transactions: a commit needs a quorum, and not all nodes."""

    async def look() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        seen = await scraped(address)
        return seen if seen["polonaise_storage_stored_transactions_total", ()] == count else {}

    return await wait_until(look, f"{count} transactions are stored", every_s=0.05)


@pytest.mark.slow
async def test_an_append_shows_at_the_server_and_at_each_storage_node(tmp_path: Path) -> None:
    async with observed_cluster(tmp_path, partitions=2) as cluster, cluster.connected() as log:
        await until_ready(cluster.server.http)
        before = await scraped(cluster.server.http)
        for _ in range(3):
            await log.append(b"a transaction", partition=1)
        after = await scraped(cluster.server.http)
        risen = {
            name: after[name, ()] - before[name, ()]
            for name in (
                "polonaise_server_committed_transactions_total",
                "polonaise_server_committed_batches_total",
                "polonaise_server_append_seconds_count",
            )
        }
        assert set(risen.values()) == {3.0}
        assert after["polonaise_server_append_seconds_sum", ()] > 0
        assert after["polonaise_server_committed_bytes_total", ()] > 3 * len(b"a transaction")
        one = (("partition", "1"),)
        assert after["polonaise_partition_committed_id", one] == 2
        assert after["polonaise_partition_ready", one] == 1
        assert after["polonaise_partition_committed_id", (("partition", "0"),)] == -1
        assert after["polonaise_server_connections", ()] >= 1
        for node in cluster.storage:
            stored = await until_stored(node.http, 3)
            # Two of three nodes commit: a late one may have two of the transactions synced at once.
            assert 1 <= stored["polonaise_storage_sync_seconds_count", ()] <= 3
            assert stored["polonaise_storage_disk_bytes", ()] > stored["polonaise_storage_disk_free_bytes", ()] > 0
            assert stored["polonaise_replica_last_id", one] == 2
            assert stored["process_resident_memory_bytes", ()] > 0


async def test_the_formats_are_those_that_the_asker_takes(tmp_path: Path) -> None:
    async with observed_cluster(tmp_path, storage=1) as cluster:
        said = await http_get(cluster.server.http, "/metrics", accept=OPEN_METRICS)
        assert said.headers["content-type"].startswith("application/openmetrics-text")
        families = {family.name for family in open_metrics_in(said.body.decode())}
        assert "polonaise_server_committed_transactions" in families
        assert said.body.endswith(b"# EOF\n")


async def test_the_head_of_an_answer_comes_without_its_body(tmp_path: Path) -> None:
    async with observed_storage(tmp_path / "storage") as node:
        for path in ("/live", "/health", "/ready", "/metrics"):
            said = await http_get(node.http, path, method="HEAD")
            assert (said.status, said.body) == (200, b"")
            assert int(said.headers["content-length"]) > 0


@pytest.mark.slow
async def test_http_stays_plain_while_the_nodes_have_tls(tmp_path: Path) -> None:
    """A supervisor's probes and most scrapers have no certificate of the cluster's CA."""
    authority = Authority(tmp_path / "tls")
    identity, operator = TlsIdentity(authority.node()), TlsIdentity(authority.client())
    async with observed_cluster(tmp_path, storage=1, tls=identity, operator=operator) as cluster:
        await until_ready(cluster.server.http)
        nodes = (cluster.server, *cluster.storage)
        for node in nodes:
            assert (await http_get(node.http, "/live")).document == {"live": True}
            assert (await scraped(node.http))["polonaise_node_ready", ()] == 1
        asked = b"GET /live HTTP/1.1\r\n\r\n"
        for hello in await asyncio.gather(*(exchanged(node.address, asked) for node in nodes)):
            assert b"HTTP/1" not in hello, "the node's own address takes TLS only, and answers nothing over HTTP"


@pytest.mark.slow
async def test_a_lost_storage_node_shows_in_health_and_metrics_as_log_health_tells_it(tmp_path: Path) -> None:
    async with observed_cluster(tmp_path) as cluster, cluster.connected() as log:
        await until_ready(cluster.server.http)
        await log.append(b"all there", partition=0)
        lost = cluster.storage[0]
        lag = "polonaise_server_replica_lag_transactions_max", (("storage", lost.address),)

        async def holds_all() -> bool:
            return (await scraped(cluster.server.http))[lag] == 0

        await wait_until(holds_all, "it holds the append, which the two others may have committed without it")
        await lost.stop()

        async def told() -> dict[str, Any]:
            document = (await http_get(cluster.server.http, "/health")).document
            return document if document["status"] == "degraded" else {}

        document = await wait_until(told, "the loss is told", every_s=0.1)
        assert document["ready"], "two of three go on"
        (problem,) = document["problems"]["0"]
        assert problem.startswith(f"{lost.address} is not engaged: ")
        (condition,) = await conditions(log, [0], 10.0)
        assert health_status_of([condition]) == document["status"]
        assert [line.split(":")[0] for line in condition.troubles] == [problem.split(":")[0]]
        for _ in range(2):
            await log.append(b"without it", partition=0)
        seen = await scraped(cluster.server.http)
        of_lost = (("storage", lost.address),)
        assert seen["polonaise_server_storage_connected", of_lost] == 0
        assert seen["polonaise_server_under_replicated_partitions", ()] == 1
        assert seen["polonaise_server_replicas", (("state", "late"), *of_lost)] == 1
        assert seen["polonaise_partition_engaged_replicas", (("partition", "0"),)] == 2
        assert seen[lag] == 2, "it has heard of neither append"
        assert seen["polonaise_server_session_faults_total", ()] == 1


@pytest.mark.slow
async def test_a_storage_node_whose_directory_is_gone_is_not_ready(tmp_path: Path) -> None:
    async with observed_cluster(tmp_path, storage=1) as cluster, cluster.connected() as log:
        await log.append(b"stored", partition=0)
        node = cluster.storage[0]
        (tmp_path / "storage-0").rename(tmp_path / "elsewhere")

        async def told() -> dict[str, Any]:
            said = await http_get(node.http, "/ready")
            return said.document if said.status == 503 else {}

        document = await wait_until(told, "the loss is told", every_s=0.1)
        assert "storage-0" in document["reason"]
        health = (await http_get(node.http, "/health")).document
        assert health["status"] == "not_ready"
        assert health["problems"][0] == document["reason"]
        assert (await scraped(node.http))["polonaise_storage_directory_gone", ()] == 1


@pytest.mark.slow
async def test_a_storage_node_whose_disk_is_full_is_degraded_and_ready_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polonaise.storage.measures._TOLD_S", 1.0)
    full = ("polonaise_node_degraded", (("reason", "disk_full"),))
    with small_disk(tmp_path / "storage-0", 12 * 1024 * 1024) as place:
        async with observed_cluster(tmp_path) as cluster, cluster.connected() as log:
            node = cluster.storage[0]

            async def status(expected: str) -> Any:
                document = (await http_get(node.http, "/health")).document
                return document if document["status"] == expected else None

            await log.append(b"stored everywhere", partition=0)
            await wait_until(lambda: status("ok"), "all is well", every_s=0.1)
            with contextlib.suppress(OSError), (place / "filler").open("wb", buffering=0) as filler:
                while filler.write(bytes(64 * 1024)):
                    pass
            await log.append(bytes(1024 * 1024), partition=0)
            document = await wait_until(lambda: status("degraded"), "the full disk is told", every_s=0.1)
            assert document["reasons"] == ["disk_full"]
            assert document["problems"][0].startswith(f"the disk of {place} ")
            assert (await scraped(node.http))[full] == 1
            assert (await http_get(node.http, "/ready")).status == 200
            (place / "filler").unlink()
            await wait_until(lambda: status("ok"), "there is room again", every_s=0.1)
            assert (await scraped(node.http))[full] == 0


async def test_clients_and_partitions_are_listed_as_the_request_says(tmp_path: Path) -> None:
    async with observed_cluster(tmp_path, storage=1, partitions=2) as cluster, cluster.connected() as log:
        await log.append(b"mounted", partition=0)
        for query, listed in {"": 1, "?partitions=all": 1, "?partitions=none&clients=none": 0}.items():
            seen = await scraped(cluster.server.http, query)
            names = {name for name, _ in seen}
            assert seen["polonaise_server_partitions_listed", ()] == listed
            assert ("polonaise_partition_ready" in names) == bool(listed)
            assert ("polonaise_client_feed_lag_transactions" in names) == bool(listed)
        seen = await scraped(cluster.storage[0].http, "?partitions=none")
        assert "polonaise_replica_usable" not in {name for name, _ in seen}
        assert seen["polonaise_storage_partitions", (("state", "usable"),)] == 2


async def test_requests_that_nobody_answers(tmp_path: Path) -> None:
    async with observed_storage(tmp_path / "storage") as node:
        for path, status in {
            "/nowhere": 404,
            "/metrics?partitions=some": 400,
            "/metrics?partition=all": 400,
        }.items():
            said = await http_get(node.http, path)
            assert said.status == status
            assert said.document["error"]
        said = await http_get(node.http, "/metrics", method="DELETE")
        assert (said.status, said.headers["allow"]) == (405, "get, head")
        assert (await http_get(node.http, "/")).body == b"/live /ready /health /metrics\n"


async def test_http_ends_with_its_node(tmp_path: Path) -> None:
    async with observed_storage(tmp_path / "storage") as node:
        pass
    with pytest.raises(ConnectionRefusedError):
        await dialled(node.http)


_LOG = logging.getLogger("polonaise.test")


def record(message: str, *arguments: object, **known: Any) -> logging.LogRecord:
    return _LOG.makeRecord("polonaise.test", logging.WARNING, "", 1, message, arguments, None, extra=known)


def test_a_line_of_json_has_the_fields_that_are_known() -> None:
    line = json.loads(JsonLines().format(record("partition %d: %s", 3, "waits\nfor two", partition=3, generation=7)))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "polonaise.test",
        "message": "partition 3: waits\nfor two",
        "partition": 3,
        "generation": 7,
    }


@pytest.mark.parametrize("lines", [JsonLines(), TextLines()])
def test_no_line_shows_a_secret(lines: logging.Formatter) -> None:
    try:
        raise ValueError("postgresql://bank:hunter2@db/bank")
    except ValueError:
        secret = _LOG.makeRecord(
            "polonaise.test", logging.ERROR, "", 1, "s3://b?aws_secret_access_key=hunter2", (), sys.exc_info()
        )
    line = lines.format(secret)
    assert "hunter2" not in line
    assert "***" in line
    assert "ValueError" in line


def test_each_line_of_json_is_one_line_with_its_traceback_in_it() -> None:
    try:
        raise ZeroDivisionError("twice")
    except ZeroDivisionError:
        failed = _LOG.makeRecord("polonaise.test", logging.ERROR, "", 1, "it failed", (), sys.exc_info())
    line = JsonLines().format(failed)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["exception"].startswith("Traceback")


@pytest.mark.parametrize(("verbose", "count"), [(False, 1), (True, 2)])
def test_what_is_done_is_logged_only_when_asked_for(monkeypatch: pytest.MonkeyPatch, verbose: bool, count: int) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as a new process has it
    monkeypatch.setattr(logging.getLogger(), "level", logging.NOTSET)
    monkeypatch.setattr(_LOG, "_cache", {})
    written = io.StringIO()
    log_to(written, LogFormat.JSON, verbose=verbose)
    _LOG.info("it was done")
    _LOG.warning("it is late")
    assert len([json.loads(line) for line in written.getvalue().splitlines()]) == count


def test_a_cluster_at_work_logs_partition_generation_and_session(caplog: pytest.LogCaptureFixture) -> None:
    async def story(town: Town) -> None:
        await town.append(b"first")
        held_down(town.cluster.storage[0])
        await town.append(b"second")

    with caplog.at_level(logging.INFO):
        Town(1).run(story)
    lines = [json.loads(JsonLines().format(each)) for each in caplog.records if "servedpartition" in each.name]
    assert lines
    assert all({"partition", "generation"} <= set(line) for line in lines)
    ended = [line for line in lines if "ended" in line["message"]]
    assert ended
    assert all(f"session {line['session']} ended" in line["message"] for line in ended)
