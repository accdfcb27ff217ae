"""A skip for want of something is a failure in CI."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigs.lacking import VARIABLE, lacking
from rigs.programs import run_python


def test_what_a_machine_lacks_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no chromium"):
        lacking("no chromium")


def test_what_ci_lacks_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception, match="no chromium"):
        lacking("no chromium")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("without", "tests_of", "said"),
    [
        (
            "from polonaise_proving.stages.databaseservers import MariaDB\n"
            "MariaDB.program = staticmethod(lambda: None)\n",
            "mariadb",
            "no `mariadbd`",
        ),
        (
            "import shutil\nfind = shutil.which\n"
            "shutil.which = lambda name, *more, **named: None if name == 'pgbouncer' else find(name, *more, **named)\n",
            "pooled",
            "not on this machine: Debian's packages postgresql and pgbouncer",
        ),
    ],
    ids=["mariadb", "pgbouncer"],
)
def test_ci_has_each_database(tmp_path: Path, without: str, tests_of: str, said: str) -> None:
    (tmp_path / "without.py").write_text(without)
    tests = Path(__file__).parent
    environment = {VARIABLE: "1", "PYTHONPATH": f"{tmp_path}:{tests}"}
    command = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "without", "-k", tests_of, "--maxfail=1"]
    done = run_python(*command, tests / "views" / "test_sql_faults.py", environment=environment)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert f"this machine should have it: {said}" in done.stdout
