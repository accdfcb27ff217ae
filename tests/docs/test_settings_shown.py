"""`docs/operations.md` has every setting with its default and its meaning, as the code has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from polonaise.admin.configuration import configuration_of
from polonaise.admin.settingkeys import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def rows_of(table: str) -> list[str]:
    """A row for each setting: name, default, meaning."""
    return [
        f"| `{each.key.name}` | {each.shown.replace('|', ' ')} | {each.key.meaning} |"
        for each in configuration_of(table, None, {}, {}).given.values()
    ]


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_is_in_the_page(table: str) -> None:
    rows = ["| setting | default | meaning |", "| --- | --- | --- |", *rows_of(table)]
    assert "\n".join(rows) in PAGE.read_text(), "docs/operations.md should say:\n" + "\n".join(rows)
