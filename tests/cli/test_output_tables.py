"""Tables say what is in their cells: a list line by line, and nothing that would steer a terminal."""

from __future__ import annotations

import pytest

from polonaise.cli.output import print_table


def test_a_cell_that_is_a_list_has_a_line_for_each_of_its_items(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["partition", "problems"], [(0, ["one thing", "another\nthing"]), (1, []), (2, "a\x1b[31m")])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "partition  problems",
        "0          one thing",
        r"           another\nthing",
        "1",
        r"2          a\x1b[31m",
    ]
