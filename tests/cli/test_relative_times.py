"""How long ago a time was is told by the clock of a server; where there is none, it is said whose clock told it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rigs.shell import Shell

pytestmark = pytest.mark.slow

DAY_S = 86_400


@pytest.fixture
def days_off(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The clock of the command is off by so many days; that of the log's host, a thread of its own, is right."""
    real, command = time.time_ns, threading.current_thread()
    off_ns = request.param * DAY_S * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: real() + off_ns * (threading.current_thread() is command))


@pytest.mark.parametrize("days_off", [-1, 1], indirect=True)
def test_a_reading_since_some_minutes_ago_is_told_by_the_servers_clock(
    shell: Shell, tmp_path: Path, days_off: None
) -> None:
    log = f"embedded:{tmp_path}/log"
    assert shell.run("log", "append", log, "now").status == 0
    read = shell.run("log", "read", log, "--since", "5m", "--json")
    assert [tx["data"] for tx in read.objects] == ["now"], read
    assert shell.run("log", "read", log, "--since", "0s", "--json").objects == []


@pytest.mark.parametrize("days_off", [-1, 1], indirect=True)
def test_a_restore_says_whose_clock_told_how_long_ago_the_time_was(
    shell: Shell, tmp_path: Path, days_off: None, request: pytest.FixtureRequest
) -> None:
    log, store = f"embedded:{tmp_path}/log", tmp_path / "store"
    assert shell.run("log", "append", log, "now").status == 0
    assert shell.run("archive", "run", log, store, "--rest").status == 0
    restore = ("archive", "restore", store, tmp_path / "again", "--new-key", "--until-time")
    restored = shell.run(*restore, "1h")
    told = datetime.fromtimestamp(time.time_ns() / 1e9 - 3_600, UTC)
    assert f"--until-time 1h is {told:%Y-%m-%dT%H:}" in restored.errors or told.minute in (0, 59)
    assert "by the clock of this machine" in restored.errors
    if request.node.callspec.params["days_off"] < 0:  # the store shows that
        assert restored.status == 1
        assert "one of the clocks is wrong" in restored.errors
        assert not (tmp_path / "again").exists()
        restored = shell.run(*restore, "2100-01-01T00:00:00Z")
        assert "by the clock of this machine" not in restored.errors
    assert restored.output == "partition 0 restored up to 0\n"
