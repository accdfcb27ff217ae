"""Skips tests that need something the machine lacks, except in CI, which installs all of it."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

VARIABLE = "POLONAISE_CI"


def lacking(what: str) -> NoReturn:
    """Skip the test that needs `what`, or fail it where `POLONAISE_CI` is set: there nobody would notice a skip."""
    if os.environ.get(VARIABLE):
        pytest.fail(f"{VARIABLE} is set, so this machine should have it: {what}", pytrace=False)
    pytest.skip(what)


def program(name: str, package: str) -> str:
    """Return the path of a program; if it is missing, skip the test, or fail it in CI."""
    found = shutil.which(name)
    if found is None:
        lacking(f"no {name} on this machine: Debian's package {package} has it")
    return found
