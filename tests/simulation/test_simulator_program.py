"""The command line of the simulator: its exit status is 0 or 1 only if something was tried to its end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest

from polonaise_proving import simulator as program
from polonaise_proving.mutations.known import MUTATIONS
from polonaise_proving.scenarios.schedule import LATER_FEATURES, Schedule
from polonaise_proving.simulator import main
from rigs.programs import run_python

SIMULATOR = ("-m", "polonaise_proving.simulator")


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)  # the program silences the nodes


@pytest.mark.parametrize(
    "option",
    [("--seeds", "0"), ("--seeds", "-3"), ("--seeds", "many"), ("--jobs", "0"), ("--jobs", "-2")],
    ids=" ".join,
)
def test_a_run_that_would_try_nothing_is_refused(capsys: pytest.CaptureFixture[str], option: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*option])
    assert ended.value.code == 2
    assert f"{option[0]}: '{option[1]}' is not a whole number of 1 or more" in capsys.readouterr().err


def test_a_mutation_that_there_is_not_is_refused_with_those_of_a_like_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutation", "quorum-of-on"]) == 2
    said = capsys.readouterr().err
    assert "there is no mutation 'quorum-of-on'; close to it: quorum-of-one" in said
    assert said.count("\n") == 1


def test_a_mutation_that_a_test_finds_is_refused_with_the_name_of_the_test(capsys: pytest.CaptureFixture[str]) -> None:
    name = next(name for name, each in MUTATIONS.items() if each.test is not None)
    assert main(["--mutation", name]) == 2
    said = capsys.readouterr().err
    assert f"no schedule finds {name}, but this test does: {MUTATIONS[name].test}" in said
    assert f"test_a_mutation_is_found_by_a_test[{name}]" in said


def test_a_mutation_that_a_model_finds_is_refused_with_the_command_for_that(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutation", "half-is-a-quorum"]) == 2
    assert "no schedule finds half-is-a-quorum, but a model does: " in capsys.readouterr().err


def test_a_fault_that_there_is_not_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "crsh"]) == 2
    said = capsys.readouterr().err
    assert "the nemesis has no action 'crsh'; close to it: crash; it has: crash, crash_at_call, " in said


@pytest.mark.parametrize("which", [("--trace", "3"), ("--seed", "3", "--jobs", "1")], ids=" ".join)
def test_a_run_whose_only_fault_never_came_says_so_and_counts_for_nothing(
    capsys: pytest.CaptureFixture[str], which: tuple[str, ...]
) -> None:
    assert main(["--only", "store_away", *which]) == 2
    assert "the nemesis never came to store_away: these seeds say nothing of it" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--start", "--seed", "--trace", "--later"])
def test_what_is_no_number_is_refused(capsys: pytest.CaptureFixture[str], option: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option, "abc"])
    assert ended.value.code == 2
    assert f"{option}: 'abc' is not a whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "ignored"),
    [
        ("--trace 3 --seeds 5 --first", "--seeds and --first"),
        ("--trace 3 --start 0", "--start"),
        ("--trace 3 --jobs 2 --having crash --seed 4", "--seed and --having and --jobs"),
        ("--seed 3 --start 4 --seeds 5", "--seeds and --start"),
    ],
)
def test_what_would_be_ignored_is_refused(capsys: pytest.CaptureFixture[str], given: str, ignored: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given.split())
    assert ended.value.code == 2
    assert f"{given.split()[0]} says which seeds to run: leave out {ignored}\n" in capsys.readouterr().err


def tried(monkeypatch: pytest.MonkeyPatch, *given: str) -> list[int]:
    """The seeds that a run with these options runs."""
    seeds: list[int] = []

    def run_all(which: Iterable[int], *_: object) -> Iterator[program._Outcome]:
        seeds.extend(which)
        yield from ()

    monkeypatch.setattr(program, "_run_all", run_all)
    assert main([*given]) == 2  # the only fault never came, for nothing was run
    return seeds


def test_seeds_are_named_one_by_one_or_as_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(monkeypatch, "--seed", "7", "3", "--seed", "11", "--only", "crash") == [7, 3, 11]
    assert tried(monkeypatch, "--start", "5", "--seeds", "3", "--only", "crash") == [5, 6, 7]


@pytest.mark.parametrize("name", ["append_copied", "crash", "swallow_large", "store_away"])
def test_seeds_are_chosen_by_what_they_have(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = tried(monkeypatch, "--seeds", "40", "--having", name, "--only", "crash")
    assert 0 < len(found) < 40
    for seed in range(40):
        of = Schedule(seed)
        steps = {step.__name__ for step, weight in zip(of.steps, of.weights, strict=True) if weight}
        assert (name in steps | {action.__name__ for action in of.nemesis._actions}) == (seed in found)


def test_what_no_seed_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--having", "apend"]) == 2
    assert "no seed has a step or fault 'apend'; close to it: append" in capsys.readouterr().err
    assert main(["--having", "swallow_large", "--later", "0", "--seeds", "3"]) == 2
    assert "none of these seeds has swallow_large: try more of them" in capsys.readouterr().err


def mutated(module: str, old: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A run with a mutation that changes this text of a module to the same text."""
    source = (
        "import sys; from polonaise_proving.mutations import known; from polonaise_proving import simulator; "
        f"known.MUTATIONS['x'] = known.Mutation({module!r}, {old!r}, {old!r}, ''); "
        "sys.exit(simulator.main(sys.argv[1:]))"
    )
    return run_python("-c", source, "--mutation", "x", *arguments, within_s=None)


@pytest.mark.slow
@pytest.mark.parametrize("which", [("--seeds", "2", "--start", "9"), ("--trace", "9")], ids=" ".join)
def test_a_run_that_never_loads_what_a_mutation_changes_says_so_and_counts_for_nothing(which: tuple[str, ...]) -> None:
    done = mutated("polonaise.views.sql", "class", *which)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "polonaise.views.sql, which x changes, was never loaded: these seeds say nothing of it" in done.stdout


def test_a_mutation_that_the_code_has_outgrown_is_told_in_one_line() -> None:
    done = mutated("polonaise.log.tail", "no such line", "--seeds", "1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "'no such line' occurs 0 times in polonaise.log.tail, not once" in done.stderr


def test_a_reader_who_has_seen_enough_ends_a_listing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, *SIMULATOR, "--list-mutations"], stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.slow
def test_an_interrupted_run_says_what_was_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = program._run

    def run(seed: int, *others: object, **how: object) -> object:
        if seed == 10:
            raise KeyboardInterrupt
        return real(seed, *others, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(program, "_run", run)
    assert main(["--start", "9", "--seeds", "5", "--jobs", "1"]) == 130
    assert "interrupted after 1 of 5 seeds in " in capsys.readouterr().out


@contextlib.contextmanager
def simulating(jobs: int) -> Iterator[subprocess.Popen[str]]:
    """A simulator of very many seeds, which has tried some."""
    command = [sys.executable, *SIMULATOR, "--seeds", "100000", "--jobs", str(jobs)]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stdout is not None
    try:
        assert "of 100000 seeds" in running.stdout.readline()
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("end", "number"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)], ids=["Control-C", "SIGTERM"]
)
def test_who_interrupts_it_ends_all_processes_without_a_traceback(
    jobs: int, end: Callable[[int, int], None], number: int
) -> None:
    with simulating(jobs) as running:
        end(running.pid, number)  # a terminal interrupts the whole group
        said, errors = running.communicate()
        assert (running.returncode, errors) == (130, "")
        assert "interrupted after " in said
        with pytest.raises(ProcessLookupError):
            os.killpg(running.pid, 0)


@pytest.mark.slow
def test_workers_do_not_outlive_a_simulator_that_is_killed() -> None:
    with simulating(2) as running:
        running.kill()
        _, errors = (
            running.communicate()
        )  # ends when the workers have ended, too, and with them their ends of the pipes
        assert (running.returncode, errors) == (-signal.SIGKILL, "")


def test_a_seed_is_run_again_by_the_python_of_this_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    trying = program._Trying("quorum-of-one", "crash", 0)
    end = " -m polonaise_proving.simulator --seeds 1 --start 7 --later 0 --mutation quorum-of-one --only crash"
    monkeypatch.setattr(sys, "executable", f"{os.getcwd()}/.venv/bin/python")
    assert trying.command(7) == f".venv/bin/python{end}"
    monkeypatch.setattr(sys, "executable", "/somewhere else/python")
    assert trying.command(7) == f"'/somewhere else/python'{end}"


def test_a_seed_has_all_later_features_but_a_mutations_own_seed_those_that_it_was_found_with() -> None:
    mutation = MUTATIONS["quorum-of-one"]
    assert mutation.seed is not None
    assert program._Trying().later_of(mutation.seed) == LATER_FEATURES
    with_it = program._Trying("quorum-of-one")
    assert (with_it.later_of(mutation.seed), with_it.later_of(mutation.seed + 1)) == (mutation.later, LATER_FEATURES)
    assert program._Trying("quorum-of-one", later=1).later_of(mutation.seed) == 1
    assert f" --later {LATER_FEATURES}" in program._Trying().command(7)


@pytest.mark.parametrize("number", ["-1", str(LATER_FEATURES + 1)])
def test_more_later_features_than_there_are_is_refused(capsys: pytest.CaptureFixture[str], number: str) -> None:
    assert main(["--later", number]) == 2
    said = capsys.readouterr().err
    assert f"--later {number}: there are {LATER_FEATURES} later features; say a number from 0 to that" in said
