"""A test that cannot fail is a defect: every mutation is found, and the code without any is not accused."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import polonaise.log.tail
from polonaise_proving.mutations.children import MUTATION, put_into_children
from polonaise_proving.mutations.known import MUTATIONS
from polonaise_proving.mutations.mutation import MutationDoesNotApply, SeedFindsItNoMore
from rigs.lacking import lacking
from rigs.programs import run_python

BUDGET = 500
"""Seeds, from 0, within which each mutation has to be found."""


def search(mutation: str, first: int, seeds: int, *more: object) -> int | None:
    """A seed that finds the mutation."""
    which = ("--first", "--mutation", mutation, "--start", first, "--seeds", seeds, *more)
    done = run_python("-m", "polonaise_proving.simulator", *which, within_s=None)
    assert "Traceback" not in done.stderr, done.stderr
    failed = re.search(r"FAILED seeds: (\d+)", done.stdout)
    assert done.returncode == (0 if failed is None else 1), done.stdout + done.stderr
    return int(failed[1]) if failed else None


def drawn(mutations: Iterable[str]) -> list[Any]:
    """A case for each, which always runs if its module has changed lately."""
    return [pytest.param(each, marks=pytest.mark.exhaustive(MUTATIONS[each].module)) for each in mutations]


def found(mutation: str, known: int | None, later: int) -> int | None:
    """The seed that finds the mutation. Warns if that is not the one that is known, with this many later features."""
    if known is None:
        return search(mutation, 0, BUDGET)
    seed = search(mutation, known, 1, "--later", later)
    if seed is None:
        seed = search(mutation, 0, BUDGET)
        warnings.warn(f"{mutation}: seed={known} finds it no more, but {seed} does", SeedFindsItNoMore, stacklevel=1)
    return seed


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # told at the end, and no failure: any change of the code may do that
@pytest.mark.parametrize("mutation", drawn(name for name, each in MUTATIONS.items() if each.is_for_schedules))
def test_a_mutation_is_found(mutation: str) -> None:
    seed = found(mutation, MUTATIONS[mutation].seed, MUTATIONS[mutation].later)
    assert seed is not None, f"{BUDGET} seeds do not find {mutation}, which {MUTATIONS[mutation].breaks}"


def test_a_seed_that_finds_its_mutation_no_more_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.search", lambda mutation, first, seeds, *_: 7 if seeds == BUDGET else None)
    with pytest.warns(SeedFindsItNoMore, match="quorum-of-one: seed=3 finds it no more, but 7 does"):
        assert found("quorum-of-one", 3, 0) == 7
    assert found("quorum-of-one", None, 0) == 7


@pytest.mark.slow
@pytest.mark.parametrize("mutation", drawn(name for name, each in MUTATIONS.items() if each.test is not None))
def test_a_mutation_is_found_by_a_test(mutation: str) -> None:
    """That the test passes without the mutation shows where it is run itself."""
    name = str(MUTATIONS[mutation].test)
    source = (
        f"import sys, pytest; from polonaise_proving.mutations import known; known.put_in({mutation!r}); "
        "sys.exit(pytest.main(['-qrfEs', '-p', 'no:cacheprovider', sys.argv[1]]))"
    )
    done = run_python("-c", source, name, within_s=None)
    if done.returncode == 0 and "SKIPPED" in done.stdout:
        lacking(f"what {name} needs is not on this machine")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAILED {name}" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_tests_that_find_mutations_stand_where_they_are_named() -> None:
    """A test that was moved would be missed only by the long runs."""
    names = sorted({each.test for each in MUTATIONS.values() if each.test is not None})
    done = run_python("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *names, within_s=None)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_mutation_that_the_code_has_outgrown_is_an_error() -> None:
    source = (
        "from polonaise_proving.mutations import known; "
        "known.MUTATIONS['x'] = known.Mutation('polonaise.log.tail', 'no such line', '', ''); "
        "known.put_in('x'); import polonaise.log.tail"
    )
    done = run_python("-c", source)
    assert done.returncode != 0
    assert "MutationDoesNotApply" in done.stderr


def test_processes_that_are_started_have_a_mutation_and_this_one_has_none() -> None:
    source = "import polonaise.log.tail; print(type(polonaise.log.tail.__loader__).__name__)"
    with put_into_children("acknowledge-before-sync"):
        assert run_python("-c", source).stdout.strip() == "_MutatedLoader"
    assert run_python("-c", source).stdout.strip() == "SourceFileLoader"
    assert type(polonaise.log.tail.__loader__).__name__ == "SourceFileLoader"
    with pytest.raises(MutationDoesNotApply, match="there is no mutation 'none'"), put_into_children("none"):
        pass


def test_a_process_without_the_mutation_that_it_was_to_have_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with put_into_children("acknowledge-before-sync"):
        monkeypatch.setenv(MUTATION, "none")
        done = run_python("-c", "print('runs')")
    assert done.returncode != 0
    assert "runs" not in done.stdout
    assert "there is no mutation 'none'" in done.stderr


def test_every_mutation_applies() -> None:
    found = {module: find_spec(module) for module in {each.module for each in MUTATIONS.values()}}
    for name, each in MUTATIONS.items():
        spec = found[each.module]
        assert spec is not None, f"{name} changes {each.module}, which is not there"
        each.applied(Path(str(spec.origin)).read_text())


@pytest.mark.slow
def test_every_module_can_be_imported_with_its_mutations() -> None:
    source = (
        "from polonaise_proving.mutations import known; import importlib, sys\n"
        "for name, mutation in known.MUTATIONS.items():\n"
        "    sys.modules.pop(mutation.module, None)\n"
        "    known.put_in(name); importlib.import_module(mutation.module)\n"
        "    sys.meta_path.pop(0); del sys.modules[mutation.module]\n"
    )
    done = run_python("-c", source, within_s=None)
    assert done.returncode == 0, done.stderr
