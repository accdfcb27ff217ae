"""What a machine may lack: there a test is skipped, except in CI, which installs all of it."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

VARIABLE = "POLONAISE_CI"


def lacking(what: str) -> NoReturn:
    """Skip the test that needs this, or fail it where `POLONAISE_CI` is set: a skip that nobody sees tests nothing."""
    if os.environ.get(VARIABLE):
        pytest.fail(f"{VARIABLE} is set, so this machine should have it: {what}", pytrace=False)
    pytest.skip(what)
