"""What the commands on storage nodes say of moves, and of nodes that can't be done without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polonaise.admin.storagenodes import check_enough_without
from polonaise.cli.storage import _moved
from polonaise.coordination.memberchanges import Move
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import CopyNeeded


def test_a_copy_that_is_added_or_given_up_is_moved_from_or_to_no_place() -> None:
    assert _moved(Move(0, "a", "d")) == "from a to d"
    assert _moved(Move(0, None, "c")) == "another copy, on c"
    assert _moved(Move(0, "b", None)) == "one copy less, without the one on b"


def test_who_can_not_be_done_without_is_told_with_those_that_are_being_drained() -> None:
    description = replace(
        ClusterDescription.new(bytes(16), 1, {name: f"{name}:1" for name in "abcd"}), copies=3, draining=("b",)
    )
    with pytest.raises(CopyNeeded, match=r"has 2 storage nodes \(c, d\) for 3 copies .*, as b is being drained"):
        check_enough_without(description, "a")
    with pytest.raises(CopyNeeded) as refused:
        check_enough_without(replace(description, draining=(), copies=4), "a")
    assert "drain" not in refused.value.text
