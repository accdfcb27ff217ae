"""A skip for want of something is a failure in CI."""

from __future__ import annotations

import pytest

from lacking import VARIABLE, lacking


def test_what_a_machine_lacks_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no chromium"):
        lacking("no chromium")


def test_what_ci_lacks_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception, match="no chromium"):
        lacking("no chromium")
