"""Each kind of fault of the smoke test is complete: whoever adds one is told here what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polonaise_proving.faults.hostfaults import WAYS
from polonaise_proving.record.faultkinds import KINDS, LINK_KINDS, Fault, FaultKind, NodeGroup, Telling, Way, nodes_of
from polonaise_proving.stages.hosts import hosts as hosts_module
from polonaise_proving.stages.hosts.hosts import NamespaceHosts

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_each_kind_has_its_facts() -> None:
    missing = sorted(set(FaultKind) - KINDS.keys())
    assert not missing, f"{missing}: add an entry to KINDS in record/faultkinds.py"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_befalls_somebody_and_lasts_until_it_is_told(kind: FaultKind) -> None:
    facts = KINDS[kind]
    assert facts.targets, f"{kind} befalls nobody: name the groups in KINDS"
    assert not (facts.is_long and facts.telling is Telling.NOTHING), f"{kind} need not last: nobody tells of it"


def test_each_way_has_a_beginning_and_an_end() -> None:
    missing = sorted(set(Way) - WAYS.keys())
    assert not missing, f"{missing}: add what inflicts it, and what ends it, to WAYS in faults/hostfaults.py"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in LINK_KINDS])
def test_each_kind_that_cuts_links_cuts_some_and_heals_them(kind: FaultKind, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, ...]] = []

    class Losing:
        def __init__(self, *_: object) -> None:
            done.append(("begin",))

        def end(self) -> bool:
            done.append(("end",))
            return True

    monkeypatch.setattr(hosts_module, "_run", lambda *arguments: done.append(arguments) or "")
    monkeypatch.setattr(hosts_module, "PacketLoss", Losing)
    hosts = NamespaceHosts("plnx", [node for group in NodeGroup for node in nodes_of(group)])
    fault = Fault(kind, nodes_of(KINDS[kind].targets[0])[0], "storage-1" if kind is FaultKind.CUT_PAIR else "")
    done.clear()
    hosts.cut(fault)
    cut = len(done)
    assert cut, f"nothing is cut by {kind}: add its ways to `_ways` in stages/hosts/hosts.py"
    hosts.heal(fault)
    assert len(done) == 2 * cut, f"{kind} is healed otherwise than it was cut"


def test_the_page_has_a_row_for_each_kind() -> None:
    table = PAGE.read_text().partition("| fault | what happens | to whom |")[2].partition("\n\n")[0]
    named = {
        kind for row in table.splitlines() for kind in re.findall(r"`([a-z-]+)`", row.split("|")[1] if row else "")
    }
    assert named == set(FaultKind), "the table of faults in docs/testing.md has a row for each kind, and no other"
