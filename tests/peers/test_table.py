"""What the command writes into a page: figures in their columns, reasons in place of figures, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.loads import Load
from benchmarks.peers import table
from benchmarks.peers.figures import Configuration, Floor, Sitting

FAST = Configuration("fast", "Fast", "two of three have synced it", durable=True, client="C", locks="a version")
LAZY = Configuration("lazy", "Lazy", "it is in the page cache", durable=False, client="Go")
QUIET = Floor(0.2, 0.04)


def measured(configuration: Configuration = FAST) -> Sitting:
    runs = {
        1: [Load(900, 0.8, 1.25), Load(1_000, 1.0, 1.1)],
        64: [Load(40_000, 1.5, 2), Load(50_000, 1.3, 2)],
        1_024: [Load(123_456.7, 7, 12.34)],
    }
    return Sitting(configuration, "Fast 1.2", before=QUIET, after=replace(QUIET, fdatasync_ms=0.3), runs=runs)


def rows(sittings: list[Sitting], name: str) -> list[list[str]]:
    """The cells of each row that begins with this name, in all tables."""
    lines = table.lines(sittings, "`the command`", "on 2 cores.")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in cells if row[0] == name]


def test_a_row_has_the_best_of_the_runs_beside_the_floors() -> None:
    figures, facts = rows([measured()], "Fast")
    assert figures == ["Fast", "0.80", "3.2", "1.25", "50,000", "123,457", "12.3", "0.200 – 0.300", "0.040 – 0.040", ""]
    assert facts == ["Fast", "Fast 1.2", "C", "two of three have synced it"]


def test_what_syncs_before_it_acknowledges_stands_first_and_apart() -> None:
    lines = table.lines([measured(LAZY), measured()], "`the command`", "on 2 cores.")
    assert lines[0] == "`the command` on 2 cores."
    text = "\n".join(lines)
    assert text.index("Synced to disk") < text.index("| Fast |") < text.index("page cache") < text.index("| Lazy |")


def test_a_noisy_sitting_says_so() -> None:
    noisy = measured()
    noisy.after = Floor(0.7, 0.04)
    assert rows([noisy], "Fast")[0][-1] == "noisy, measure again: its floors differ by more than twice"


def test_a_peer_that_could_not_be_had_has_its_reason_in_the_table() -> None:
    figures, _ = rows([Sitting(FAST, missing="no `mvn` |\nanywhere")], "Fast")
    assert figures == ["Fast", *[""] * 8, "skipped: no `mvn` ¦ anywhere"]


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("can't read /var/tmp/x-1/server.conf: denied", "can't read …: denied"),
        ("not from https://example.org/jars (refused)", "not from … (refused)"),
        ("connects to nats://127.0.0.1:4222, waits", "connects to … waits"),
        ("ended with status 1 (Debian: postgresql)", "ended with status 1 (Debian: postgresql)"),
        ("remove build/peers and run it again, and/or wait", "remove build/peers and run it again, and/or wait"),
    ],
)
def test_a_reason_in_the_table_names_no_place(printed: str, told: str) -> None:
    assert rows([Sitting(FAST, missing=printed)], "Fast")[0][-1] == f"skipped: {told}"


def test_a_sitting_that_ended_early_keeps_what_it_measured() -> None:
    half = measured()
    del half.runs[64], half.runs[1_024]
    half.missing = "the server ended"
    figures, _ = rows([half], "Fast")
    assert figures[1:7] == ["0.80", "3.2", "1.25", "", "", ""]
    assert figures[-1] == "not all loads: the server ended"


def test_withdrawals_stand_only_where_a_peer_can_do_them() -> None:
    able = measured()
    able.withdrawals = {1: [Load(700, 90, 95), Load(800, 80.0, 85.04)], 10_000: [Load(9_000, 7.0, 20)]}
    row = rows([able, measured(LAZY)], "Fast")[1]
    assert row == ["Fast", "800", "80.00", "85.0", "9,000", "7.00", "20.0", "a version"]
    assert len(rows([able, measured(LAZY)], "Lazy")) == 2
    able.after = Floor(0.7, 0.04)
    assert rows([able], "Fast")[1][-1] == "a version; noisy, as above"
    assert not any("withdrawals" in line for line in table.lines([measured()], "", ""))


def test_every_table_has_as_many_columns_in_each_row() -> None:
    able = measured()
    able.withdrawals = {1: [Load(700, 90, 95)]}
    widths = [line.count("|") for line in table.lines([able, measured(LAZY)], "", "") if line.startswith("|")]
    assert widths == [11] * 6 + [9] * 3 + [5] * 4


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "why.md"
    page.write_text("# Why\n\n<!-- benchmarks/peers: begin -->\nold\n<!-- benchmarks/peers: end -->\n\nAnd so.\n")
    for _ in range(2):
        table.write([measured()], "`the command`", "", page)
    text = page.read_text()
    assert text.startswith("# Why\n\n<!-- benchmarks/peers: begin -->\n`the command`\n")
    assert text.endswith("<!-- benchmarks/peers: end -->\n\nAnd so.\n")
    assert "old" not in text
    assert text.count("| Fast | 0.80") == 1


@pytest.mark.parametrize("text", ["# Why\n", "<!-- benchmarks/peers: begin -->\n", "<!-- benchmarks/peers: end -->\n"])
def test_a_page_without_both_marks_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    page = tmp_path / "why.md"
    page.write_text(text)
    with pytest.raises(ValueError, match="begin"):
        table.write([measured()], "", "", page)
    assert page.read_text() == text


def test_the_page_of_the_project_has_the_marks() -> None:
    text = table.PAGE.read_text()
    assert text.index("<!-- benchmarks/peers: begin -->") < text.index("<!-- benchmarks/peers: end -->")
