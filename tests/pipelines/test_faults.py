"""What Spark says went wrong: faults of ours come back as what they were."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from polonaise.errors import FragmentDamaged, PolonaiseError, SparkFailed, StoreUnavailable
from polonaise.pipelines.faults import translated

TRACE = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
Traceback (most recent call last):
  File "worker.py", line 1, in main
{errors}

	at org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("errors", "kind", "text"),
    [
        ("polonaise.errors.FragmentDamaged: [fragment_damaged] 0/1.parquet", FragmentDamaged, "0/1.parquet"),
        (
            "polonaise.errors.FragmentDamaged: [fragment_damaged] a\nDuring handling of it:\n"
            "polonaise.errors.StoreUnavailable: [store_unavailable] b: [x] c",
            StoreUnavailable,
            "b: [x] c",
        ),
        ("polonaise.errors.OfANewerVersion: [newer] d", PolonaiseError, "newer: d"),
        ("ZeroDivisionError: division by zero", SparkFailed, "Job aborted due to stage failure: Task 0 in stage 1.0"),
    ],
)
def test_a_fault_is_found_in_what_spark_says(errors: str, kind: type[PolonaiseError], text: str) -> None:
    found = translated(PySparkException(TRACE.format(errors=errors)))
    assert type(found) is kind
    assert found.text.startswith(text)


def test_an_error_without_words_is_named() -> None:
    assert translated(PySparkException("")).text == "PySparkException"
