"""Which values of a lost coordinator are made again from what storage nodes tell, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polonaise.cli.cluster import lack_told
from polonaise.coordination.coordinator import first_entries
from polonaise.coordination.rebuilding import BACKUP, Lack, NodeAnswer, Noted, Promised, lacking, rebuilt
from polonaise.coordination.values import (
    EXPECTED,
    ClusterDescription,
    Engagement,
    ExpectedServer,
    ExpectedServers,
    PartitionValue,
)
from polonaise.errors import RecoveryUnsafe
from polonaise.storage.clusternote import CONTRADICTING_MAX, merged
from rigs.faults import raises_code

KEY = b"k" * 16
ABC = ("a", "b", "c")
DESCRIPTION = ClusterDescription(KEY, 1, ABC)


def value(session: int, *engaged: str) -> PartitionValue:
    return PartitionValue(3, session, ABC, engagements={name: Engagement(session) for name in engaged or ABC})


def told(noted: PartitionValue | None, fence: int, joined: int, *, lost: bool = False, key: bytes = KEY) -> NodeAnswer:
    partitions = {} if noted is None else {0: noted}
    return NodeAnswer(key, Noted(DESCRIPTION, 7, 41, partitions), {0: Promised(fence, joined, lost)})


def refused(backup: Noted | None, **answers: NodeAnswer) -> str:
    with pytest.raises(RecoveryUnsafe) as error:
        rebuilt(backup, answers)
    return str(error.value)


def test_sessions_generations_versions_and_ids_rise_above_all_that_is_seen() -> None:
    answers = {"a": told(value(5), 9, 5), "b": told(value(5), 6, 5), "c": told(None, 6, 5)}
    description, beginning = rebuilt(None, answers)
    assert description == DESCRIPTION
    made = beginning.partitions[0]
    assert made.session > 9
    assert made.generation > 3
    assert made.members == ABC
    assert made.engagements == value(5).engagements, "the value names who was engaged"
    assert beginning.unique_id > 41
    assert beginning.version > 7


def test_a_minority_may_be_silent_if_the_value_of_the_last_session_is_noted() -> None:
    _, beginning = rebuilt(None, {"a": told(value(5), 5, 5), "b": told(value(5), 5, 5)})
    assert set(beginning.partitions[0].engagements) == {*ABC}
    assert "no answer from b, c" in refused(None, a=told(value(5), 5, 5))


def test_of_a_later_session_than_is_noted_the_copies_tell_if_all_answer() -> None:
    answers = {"a": told(value(5), 8, 8), "b": told(value(5), 8, 8), "c": told(value(5), 5, 5)}
    _, beginning = rebuilt(None, answers)
    assert beginning.partitions[0].engagements == {"a": Engagement(8), "b": Engagement(8)}
    assert "every storage node has to answer: no answer from c" in refused(None, a=answers["a"], b=answers["b"])


def test_a_session_that_only_a_minority_joined_was_never_engaged() -> None:
    answers = {"a": told(value(5), 8, 8), "b": told(value(5), 5, 5), "c": told(value(5), 5, 5)}
    _, beginning = rebuilt(None, answers)
    assert beginning.partitions[0].engagements == {"a": Engagement(8), "b": Engagement(5), "c": Engagement(5)}


@pytest.mark.parametrize(
    ("third", "why"),
    [
        (told(None, 8, -1), "is empty, or older"),
        (told(None, 8, 2), "is empty, or older"),
        (told(None, 8, 8, lost=True), "may have lost something"),
        (told(None, 8, 8, key=b"o" * 16), "belong to different clusters: a, b to 6b6b6b6b, c to 6f6f6f6f"),
    ],
)
def test_a_copy_that_lacks_something_is_no_witness_of_a_later_session(third: NodeAnswer, why: str) -> None:
    assert why in refused(None, a=told(value(5), 8, 8), b=told(value(5), 8, 8), c=third)


def test_an_older_backup_is_raised_by_what_the_copies_have_promised() -> None:
    older = Noted(DESCRIPTION, 2, 12, {0: value(1)})
    answers = {name: told(None, 4, 4) for name in ABC}
    _, beginning = rebuilt(older, answers)
    assert beginning.partitions[0].engagements == {name: Engagement(4) for name in ABC}
    assert beginning.partitions[0].session > 4


def test_the_backup_of_another_cluster_is_refused_whichever_description_is_newer() -> None:
    answers = {name: told(value(1), 1, 1) for name in ABC}
    for version in (1, 99):
        other = Noted(replace(DESCRIPTION, key=b"o" * 16), version, 500, {0: value(5)})
        why = refused(other, **answers)
        assert "the backup is of cluster 6f6f6f6f, the storage nodes belong to 6b6b6b6b" in why
        assert "Nothing was changed" in why
    assert "does not tell of which cluster" in refused(Noted(partitions={0: value(5)}), **answers)


def described(version: int, **topics: tuple[int, ...]) -> Noted:
    members = {partition: PartitionValue.initial(ABC) for partition in range(1 + sum(map(len, topics.values())))}
    return Noted(replace(DESCRIPTION, topics=topics), version, 41, members)


def of_a_fork() -> dict[str, NodeAnswer]:
    """What nodes tell after an older copy of the coordinator was in place: b was away meanwhile."""
    notes = {"a": described(4, t2=(1,)), "b": described(1), "c": described(4, t2=(1,))}
    return {name: NodeAnswer(KEY, noted, {}) for name, noted in notes.items()}


def test_of_two_descriptions_that_contradict_an_operator_chooses() -> None:
    backup = described(2, t1=(1,))
    why = refused(backup, **of_a_fork())
    assert "--believe backup: that of the backup, of version 2, has topics t1 (ids 1). Topics" in why
    assert "--believe a: that of storage node a, of version 4, has topics t2 (ids 1); or --believe backup" in why
    assert "Nothing was changed" in why
    for believed, topics in (("backup", {"t1": (1,)}), ("a", {"t2": (1,)})):
        description, beginning = rebuilt(backup, of_a_fork(), believed=believed)
        assert description.topics == topics
        assert beginning.version > 4, "it is later than both"
    with pytest.raises(RecoveryUnsafe, match="'d' was to be believed, and has told no description"):
        rebuilt(backup, of_a_fork(), believed="d")


@pytest.mark.parametrize(
    "backup", [described(1), described(9, t2=(1, 2)), described(4, t2=(1,)), replace(described(9, t2=(1,), t3=(2,)))]
)
def test_a_backup_of_the_same_history_contradicts_nothing(backup: Noted) -> None:
    assert rebuilt(backup, of_a_fork())[0].topics["t2"][0] == 1


@pytest.mark.parametrize("backup", [described(4, t1=(1,)), described(4), described(9), described(3, t2=(1, 2))])
def test_descriptions_of_one_version_or_with_less_than_an_earlier_one_contradict(backup: Noted) -> None:
    assert "can't both be right" in refused(backup, **of_a_fork())


def test_a_storage_node_whose_note_is_of_another_cluster_is_refused() -> None:
    other = replace(told(value(5), 5, 5), noted=Noted(replace(DESCRIPTION, key=b"o" * 16), 99, 41, {0: value(9)}))
    why = refused(None, a=told(value(5), 5, 5), b=told(value(5), 5, 5), c=other)
    assert "storage node c belongs to cluster 6b6b6b6b, and what it has noted is of another one, 6f6f6f6f" in why


def test_a_cluster_to_whose_storage_nodes_servers_are_connected_is_in_use() -> None:
    idle = told(value(5), 5, 5)
    answers = {"a": replace(idle, servers={1: "10.0.0.1:4242"}), "b": idle, "c": replace(idle, servers={1: "", 2: ""})}
    with raises_code("cluster_in_use") as error:
        rebuilt(None, answers)
    assert "server 1 from 10.0.0.1:4242 (connected to a, c), server 2 (connected to c)" in str(error.value)
    named = ExpectedServers({"s1": ExpectedServer(1, "10.0.0.1:7000")})
    noted = replace(idle, noted=replace(idle.noted, expected_version=3, expected=named))
    with raises_code(
        "cluster_in_use",
        match=r"server 1 \(s1\) from 10\.0\.0\.1:4242 \(connected to a, c\), server 2 \(connected to c\)",
    ):
        rebuilt(None, {**answers, "b": noted})
    assert "nothing was changed" in str(error.value)
    assert f"--confirm {KEY.hex()}" in str(error.value)
    assert rebuilt(None, answers, KEY.hex().upper()) == rebuilt(None, dict.fromkeys(ABC, idle))
    with pytest.raises(RecoveryUnsafe, match="was given to confirm"):
        rebuilt(None, dict.fromkeys(ABC, idle), "yes")


def test_a_used_partition_that_nobody_has_noted_is_not_guessed() -> None:
    assert "nobody has noted who holds its copies" in refused(None, **{name: told(None, 4, 4) for name in ABC})


def test_a_note_reads_as_it_was_written() -> None:
    noted = Noted(DESCRIPTION, 7, 41, {0: value(5, "a", "b")})
    assert Noted.of(noted.document()) == noted
    named = replace(noted, expected_version=3, expected=ExpectedServers({"s1": ExpectedServer(1, "127.0.0.1:7000")}))
    assert Noted.of(named.document()) == named


def test_the_servers_that_are_to_be_there_are_known_again_and_none_owns_anything() -> None:
    older, newer = (ExpectedServers({name: ExpectedServer(1, "127.0.0.1:7000")}) for name in ("older", "newer"))
    answers = {name: told(value(5), 5, 5) for name in ABC}
    for name, version, expected in (("a", 2, older), ("b", 3, newer)):
        noted = replace(answers[name].noted, expected_version=version, expected=expected)
        answers[name] = replace(answers[name], noted=noted)
    _, beginning = rebuilt(None, answers)
    assert beginning.expected == newer
    assert first_entries(DESCRIPTION, beginning)[EXPECTED].contents == newer.encode()
    assert EXPECTED not in first_entries(DESCRIPTION)
    assert beginning.assignment.owners[0].generation == beginning.partitions[0].generation
    assert beginning.assignment.owner_of(0) is None
    assert beginning.assignment.owned == {}


def test_a_storage_node_keeps_the_newest_of_what_servers_tell_of_those_that_are_to_be_there() -> None:
    assert merged({"expected": [3, "later"]}, {"expected": [2, "earlier"]})["expected"] == [3, "later"]
    assert merged({"expected": [3, "later"]}, {"unique_id": 7})["expected"] == [3, "later"]
    assert "expected" not in merged({}, {"unique_id": 7})


ABCD = (*ABC, "d")
MOVED = replace(value(4, "b", "c", "d"), members=("b", "c", "d"))
"""A partition of which one copy was moved to a node that was added."""
LATEST = replace(DESCRIPTION, storage=ABCD, copies=3, topics={"pay": (1, 2)})


def of_an_older_copy(*, zones: bool) -> dict[str, NodeAnswer]:
    """What nodes tell after an older copy of the coordinator was changed: its description is in their notes."""
    changed = replace(DESCRIPTION, zones={"a": "north"}) if zones else replace(DESCRIPTION, topics={"other": (1, 2)})
    values = {0: MOVED, 1: value(1), 2: value(1)}
    promised = {partition: Promised(each.session, each.session) for partition, each in values.items()}
    return {name: NodeAnswer(KEY, Noted(changed, 3, 41, values), promised) for name in ABC}


@pytest.mark.parametrize("backup", [None, Noted(DESCRIPTION, 0, 12, {0: value(0)})])
@pytest.mark.parametrize("zones", [True, False])
def test_a_description_without_a_storage_node_that_has_a_copy_is_refused(backup: Noted | None, *, zones: bool) -> None:
    why = refused(backup, **of_an_older_copy(zones=zones))
    assert "the description that was told last, that of storage node a, of version 3, can't be right" in why
    assert "storage node d has a copy of partition 0 and is not in it" in why
    assert ("partitions 1, 2 are in use and not in it" in why) == zones
    assert (
        "No description that was told has all that: have d answer as well (--storage NAME=HOST:PORT), or give a" in why
    )
    assert ("give a backup" if backup is None else "give a later backup") in why
    assert "--believe a: that of storage node a, of version 3, has " in why
    assert "--believe backup" not in why, "it is of the same past, and lacks no less"
    assert "Nothing was changed" in why


def test_the_description_that_has_what_the_latest_lacks_is_named_and_can_be_chosen() -> None:
    answers, backup = of_an_older_copy(zones=True), Noted(LATEST, 2, 41, {0: MOVED})
    why = refused(backup, **answers)
    assert "least: --believe backup: that of the backup, of version 2, has topics pay (ids 1, 2); or --believe a" in why
    assert "No description that was told has all that" not in why
    assert rebuilt(backup, answers, believed=BACKUP)[0] == LATEST
    assert not lacking(rebuilt(backup, answers, believed=BACKUP)[0], backup, answers)


def test_of_descriptions_that_all_lack_something_each_is_named_with_that_and_the_one_that_lacks_least_is_first() -> (
    None
):
    """In the older copy node d was removed and a topic created, which its partition's copies have heard of."""
    changed = replace(LATEST, storage=ABC, topics={"pay": (1, 2), "other": (3,)})
    promised = {0: Promised(4, 4), 1: Promised(1, 1), 2: Promised(1, 1), 3: Promised(0, -1)}
    values = {0: MOVED, 1: value(1), 2: value(1)}
    answers = {name: NodeAnswer(KEY, Noted(changed, 5, 41, values), promised) for name in ABC}
    backup = Noted(LATEST, 4, 41, values)
    chosen = (
        "has topics pay (ids 1, 2), and lacks something (partition 3 is in use and not in it); or --believe a: that of "
        "storage node a, of version 5, has topics other (ids 3), pay (ids 1, 2), and lacks something (storage node d "
        "has a copy of partition 0 and is not in it). Nothing was changed"
    )
    why = refused(backup, **answers)
    assert f"least: --believe backup: that of the backup, of version 4, {chosen}" in why
    assert "have d answer as well (--storage NAME=HOST:PORT), or give a later backup. See which" in why
    answers["d"] = NodeAnswer(KEY, Noted(LATEST, 4, 41, values), {0: Promised(4, 4)})
    why = refused(backup, **answers)
    assert f"least: --believe d: that of storage node d and of the backup, of version 4, {chosen}" in why
    assert "No description that was told has all that: give a later backup. See which" in why, "d was asked"
    assert rebuilt(backup, answers, believed=BACKUP)[0] == LATEST


def test_a_description_that_an_operator_chose_before_is_shown_as_that() -> None:
    """A node keeps what was rejected then. It asks again: nobody can tell whether that was seen by who chose."""
    other = replace(LATEST, topics={"other": (1, 2)})
    answers = {name: NodeAnswer(KEY, Noted(other, 5, 41), {}) for name in "abcd"}
    backup = Noted(LATEST, 4, 41)
    chosen, beginning = rebuilt(backup, answers, believed=BACKUP)
    assert chosen == LATEST
    again = replace(answers["a"].noted, description=LATEST, version=beginning.version, contradicting=((5, other),))
    why = refused(backup, **dict.fromkeys("abcd", NodeAnswer(KEY, again, {})))
    made = (
        f"--believe a: that of storage node a, of version {beginning.version}, which an earlier `cluster recover` has"
    )
    assert (
        f"least: {made} made, has topics pay (ids 1, 2); or --believe a@5: that of storage node a@5, of version 5, h"
        in why
    )
    assert "--believe backup" not in why, "it is of the past of what was chosen"


def test_what_is_advised_after_a_choice_fits_what_is_missing() -> None:
    partition, node = lack_told(Lack(partitions=[6])), lack_told(Lack({"d": 0}))
    assert "partition 6 is in use and not in it. Nobody serves partition 6 any more" in partition
    assert "storage add" not in partition
    assert "storage node d has a copy of partition 0 and is not in it. Add d (polonaise storage add NAME HOST" in node
    assert "serves" not in node


def test_who_chooses_a_description_that_lacks_something_is_told_what() -> None:
    answers = of_an_older_copy(zones=True)
    description, beginning = rebuilt(None, answers, believed="a")
    assert beginning.partitions[0].members == ("b", "c", "d")
    assert str(lacking(description, None, answers)) == (
        "storage node d has a copy of partition 0 and is not in it; partitions 1, 2 are in use and not in it"
    )


def test_partitions_that_only_promises_tell_of_are_in_use() -> None:
    answers = {name: replace(told(value(5), 5, 5), promised={0: Promised(5, 5), 1: Promised(0, 0)}) for name in ABC}
    assert "partition 1 is in use and not in it" in refused(None, **answers)


def test_a_description_that_a_node_kept_beside_its_latest_one_can_be_chosen() -> None:
    one = of_an_older_copy(zones=False)["a"]
    both = replace(one, noted=replace(one.noted, contradicting=((2, LATEST),)))
    assert Noted.of(both.noted.document()) == both.noted
    why = refused(None, a=both)
    assert "least: --believe a@2: that of storage node a@2, of version 2, has topics pay (ids 1, 2); or" in why
    assert "topics other (ids 1, 2), and lacks something (storage node d has a copy of partition 0" in why
    answers = {**of_an_older_copy(zones=False), "a": both}
    assert rebuilt(None, answers, believed="a@2")[0] == LATEST


def test_a_note_keeps_a_description_that_the_latest_one_contradicts() -> None:
    def noted(version: int, description: ClusterDescription) -> dict[str, list[object]]:
        return {"description": [version, description.encode().decode()]}

    other, grown = replace(DESCRIPTION, topics={"other": (1, 2)}), replace(LATEST, topics={"pay": (1, 2, 3)})
    note = merged(noted(1, DESCRIPTION), noted(2, LATEST))
    assert "contradicting" not in note, "a later one of the same history replaces it"
    note = merged(note, noted(3, other))
    kept = [noted(2, LATEST)["description"]]
    assert (note["description"], note["contradicting"]) == (noted(3, other)["description"], kept)
    assert merged(merged(note, noted(3, other)), {"unique_id": 7})["contradicting"] == kept
    assert merged(note, noted(2, LATEST))["contradicting"] == kept
    back = merged(note, noted(4, grown))
    assert back["description"] == noted(4, grown)["description"]
    assert back["contradicting"] == [noted(3, other)["description"]]
    same = merged(noted(3, other), noted(3, grown))
    assert {each[1] for each in (same["description"], *same["contradicting"])} == {
        other.encode().decode(), grown.encode().decode()
    }  # fmt: skip
    for version in range(5, 20):
        note = merged(note, noted(version, replace(DESCRIPTION, topics={f"t{version}": (1,)})))
    assert len(note["contradicting"]) == CONTRADICTING_MAX
    assert "contradicting" not in merged(noted(3, other), {"description": [4, "of a newer version"]})
