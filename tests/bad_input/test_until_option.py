"""What `--until` of the archive commands takes."""

from __future__ import annotations

import pytest

from polonaise.cli.inputs import ids_of
from polonaise.errors import BadOption


@pytest.mark.parametrize(
    ("texts", "ids"),
    [
        (["0=100"], {0: 100}),
        (["0=100,1=57"], {0: 100, 1: 57}),
        (["0=100", "1=57, 2=-1"], {0: 100, 1: 57, 2: -1}),
        ([f"0={2**63 - 1}"], {0: 2**63 - 1}),
    ],
)
def test_ids_by_partition(texts: list[str], ids: dict[int, int]) -> None:
    assert ids_of(texts) == ids


@pytest.mark.parametrize(
    "text",
    ["", "100", "0=", "=5", "0=100,", "0:100", "a=1", "0=-2", "-1=0", "0=1.5", f"0={2**63}", f"{2**31}=0", "0=٣"],
)
def test_what_is_no_id_of_a_partition(text: str) -> None:
    with pytest.raises(BadOption, match="write 0=100"):
        ids_of([text])


def test_a_partition_that_is_named_twice() -> None:
    with pytest.raises(BadOption, match="partition 0 is given twice"):
        ids_of(["0=1", "0=1"])
