"""P7: killed with -9 between any two statements, alone or among several processes, each transaction counts once."""

from __future__ import annotations

import random
from multiprocessing.process import BaseProcess

import pytest

from rigs.bankview import check_fold, open_accounts
from rigs.killing import apply_until_killed, context, run

RUNS = [1, 2]


def kill_everywhere(url: str) -> None:
    """Die at every point in turn, each time going on from what the death before has left."""
    open_accounts(url)
    lives = 1
    while (status := run(url, lives, RUNS)) != 0:
        assert status == -9
        lives += 1
    check_fold(url, {0: sum(RUNS)})
    assert lives > 10


@pytest.mark.slow
def test_an_sqlite_view_dies_between_any_two_statements(sqlite_url: str) -> None:
    kill_everywhere(sqlite_url)


@pytest.mark.exhaustive  # of databases
@pytest.mark.slow
def test_a_servers_view_dies_between_any_two_statements(server_url: str) -> None:
    kill_everywhere(server_url)


@pytest.mark.slow
def test_several_processes_keep_one_database_and_are_killed_at_random(url: str) -> None:
    """Four processes apply the same two partitions; whoever dies is replaced."""
    open_accounts(url, 2)
    chance = random.Random(7)
    runs = [1, 5, 3, 8, 2, 1] * 4

    def start(place: int, kill_at: int) -> BaseProcess:
        process = context.Process(target=apply_until_killed, args=(url, kill_at, runs, place % 2))
        process.start()
        return process

    living = {place: start(place, chance.randrange(5, 120)) for place in range(4)}
    deaths = 0
    while living:
        for place, process in list(living.items()):
            process.join(60)
            assert process.exitcode in (0, -9)
            del living[place]
            if process.exitcode == -9:
                deaths += 1
                # The last lives are left alone, so that the end is reached.
                living[place] = start(place, chance.randrange(5, 120) if deaths < 12 else 0)
            process.close()
    assert deaths
    check_fold(url, {0: sum(runs), 1: sum(runs)})
