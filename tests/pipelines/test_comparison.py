"""Differences as they are told: whoever reads one knows which key it is, and what its values are."""

from __future__ import annotations

from polonaise.pipelines.tablecomparison import DIFFERENT, MISSING, RowDifference


def test_names_with_blanks_are_quoted_and_nothing_is_null() -> None:
    found = RowDifference(
        DIFFERENT, {"name": "Anna Magdalena", "bank": None}, 1, 1, {"owner": (None, "J. S."), "n": (1, 2)}
    )
    assert str(found) == (
        'different: name "Anna Magdalena", bank NULL: owner is NULL instead of "J. S.", n is 1 instead of 2'
    )
    assert str(RowDifference(MISSING, {"account": 17}, 0, 1, {})) == "missing: account 17: 0 rows instead of 1"
