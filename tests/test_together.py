"""Tests that stand on what takes long to start run in one process, and what takes minutes begins before the rest."""

from __future__ import annotations

import pytest

from together import LONGEST, ROOT, group_of, turn


@pytest.mark.parametrize(
    ("file", "group"),
    [
        ("tests/pipelines/test_views_job.py", "spark"),
        ("tests/redaction/test_no_secret_is_told.py", "spark"),
        ("tests/views/test_once.py", "databases"),
        ("tests/docs/test_site.py", "tests/docs/test_site.py"),
        ("tests/cluster/test_hostile.py", "tests/cluster/test_hostile.py"),
        ("tests/kill/test_kill.py", ""),
    ],
)
def test_a_process_has_all_tests_of_what_it_has_started(file: str, group: str) -> None:
    assert group_of(file) == group


def test_spark_databases_and_whole_runs_come_first() -> None:
    files = (
        "log/test_batch.py",
        "kill/test_kill.py",
        "soak/test_soak.py",
        "views/test_once.py",
        "spark/test_spark_reads.py",
    )
    ids = [f"tests/{file}::test_it" for file in files]
    assert sorted(ids, key=turn) == ids[::-1]


def test_directories_that_begin_early_exist() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_dir()] == []
