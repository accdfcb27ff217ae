"""Spark and a cluster with TLS: the files travel as options, and hold on every machine."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polonaise.errors import BadOption
from polonaise.host.tls import TlsFiles
from polonaise.spark.options import read_options, write_options
from polonaise.spark.sessions import _settings
from rigs.cluster import running
from rigs.tls import Authority

GIVEN = {"cluster": "file:/bank", "tls.ca": "/a/ca.pem", "tls.certificate": "/a/c.pem", "TLS.Key": "/a/k.pem"}


def test_tls_files_are_options_of_reads_and_writes() -> None:
    files = TlsFiles("/a/ca.pem", "/a/c.pem", "/a/k.pem")
    for options in (read_options(GIVEN), write_options(GIVEN, is_stream=True)):
        assert pickle.loads(pickle.dumps(options)).tls == files
    assert read_options({"cluster": "file:/bank"}).tls is None


def test_a_part_of_the_tls_files_is_refused_as_options() -> None:
    with pytest.raises(BadOption, match="certificate and key not given"):
        read_options({"cluster": "file:/bank", "tls.ca": "/a/ca.pem"})
    with pytest.raises(BadOption, match=r"tls\.ca is empty"):
        read_options({**GIVEN, "tls.ca": " "})


def test_executors_get_the_files_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLONAISE_TLS_KEY", "/a/k.pem")
    assert _settings("spark://a:1", {})["spark.executorEnv.POLONAISE_TLS_KEY"] == "/a/k.pem"


@pytest.mark.slow
@pytest.mark.usefixtures("connections_closed")
def test_a_query_and_a_sink_reach_a_cluster_with_tls(spark: SparkSession, tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    files = ours.client("spark")
    options = {"tls.ca": files.ca, "tls.certificate": files.certificate, "tls.key": files.key}
    assert "POLONAISE_TLS_CA" not in os.environ
    with running(tmp_path / "cluster", storage=1, tls=ours.node()) as cluster:
        frame = spark.createDataFrame([(b"one",), (b"two",)], "data binary")
        where = {"cluster": cluster.coordinator, **options}
        frame.coalesce(1).write.format("polonaise").mode("append").options(**where).option(
            "staging", str(tmp_path / "staging")
        ).save()
        read = spark.read.format("polonaise").options(**where).load()
        assert sorted(bytes(row.data) for row in read.select("data").collect()) == [b"one", b"two"]
