"""`import polonaise` is cheap for whoever needs little of it."""

from __future__ import annotations

import pytest

from rigs.programs import output_of, run_python

HEAVY = {
    "asyncio",
    "ssl",
    "typer",
    "rich",
    "uvloop",
    "polonaise.client.log",
    "polonaise.blocking",
    "polonaise.testing",
    "polonaise.admin",
}


def loaded(script: str) -> set[str]:
    return set(output_of(run_python("-c", f"{script}; import sys; print(' '.join(sys.modules))")).split())


def test_the_package_itself_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded("import polonaise")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["blocking", "testing"])
def test_modules_of_the_package_are_loaded_when_they_are_named(module: str) -> None:
    assert f"polonaise.{module}" in loaded(f"import polonaise; polonaise.{module}")


def test_a_client_loads_no_server_and_no_test_driver() -> None:
    names = loaded("import polonaise; polonaise.connect; polonaise.blocking.connect")
    assert not {
        name for name in names if name.startswith(("polonaise.server", "polonaise.storage", "polonaise.testing"))
    }
