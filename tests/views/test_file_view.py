"""The example of a view in a file: what is torn, damaged or full never costs or doubles a transaction."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from polonaise.errors import ViewUnavailable, ViewUnfit
from rigs.clients import World
from rigs.waiting import wait_until

_spec = importlib.util.spec_from_file_location("file_view", Path(__file__).parents[2] / "examples" / "file_view.py")
assert _spec is not None
assert _spec.loader is not None
file_view = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(file_view)


class Sums(file_view.FileView):
    poison = b""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.failures: list[int] = []

    def change(self, state: dict[str, Any], tx: Any) -> None:
        state["ids"] = [*state.get("ids", []), tx.id]
        state["sum"] = state.get("sum", 0) + int(tx.data)
        if tx.data == self.poison:
            raise ValueError(tx.data)

    def failed(self, partition: int, id: int, error: Exception) -> None:
        self.failures.append(id)


@pytest.fixture
async def world() -> Any:
    world = World()
    world.log.fill(*[b"%d" % number for number in range(20)], each=True)
    yield world
    await world.close()


async def applied(world: World, directory: Path) -> Sums:
    """A view with the world's 20 transactions, whose client is closed."""
    view = Sums(directory)
    client = await world.client(view=view)
    await client.wait_applied(19)
    await client.close()
    return view


async def test_the_view_goes_on_where_its_file_ends(world: World, tmp_path: Path) -> None:
    await applied(world, tmp_path)
    world.log.fill(b"100")
    view = Sums(tmp_path)
    client = await world.client(view=view)
    await client.wait_applied(20)
    assert view.states[0] == {"ids": list(range(21)), "sum": sum(range(20)) + 100}


async def test_a_run_that_fails_leaves_no_trace(world: World, tmp_path: Path) -> None:
    view = Sums(tmp_path)
    view.poison = b"7"
    client = await world.client(view=view)
    await wait_until(lambda: view.failures)
    assert client.applied() == 6
    assert view.states[0]["ids"] == list(range(7))
    view.poison = b""
    await client.wait_applied(19)
    assert view.states[0]["sum"] == sum(range(20))


async def test_a_torn_write_is_as_if_it_had_not_been(world: World, tmp_path: Path) -> None:
    """The process died while it wrote the new document, after any number of bytes."""
    view = await applied(world, tmp_path)
    whole = view.path(0).read_bytes()
    for length in range(0, len(whole), 7):
        view.path(0).with_suffix(".new").write_bytes(whole[:length])
        assert await Sums(tmp_path).high_water_mark(0) == 19
    world.log.fill(b"100")
    again = Sums(tmp_path)
    client = await world.client(view=again)
    await client.wait_applied(20)
    assert again.states[0]["ids"] == list(range(21))


async def test_a_damaged_file_is_refused_by_name(world: World, tmp_path: Path) -> None:
    view = await applied(world, tmp_path)
    whole = view.path(0).read_bytes()
    for length in range(len(whole)):
        view.path(0).write_bytes(whole[:length])
        with pytest.raises(ViewUnfit, match=r"partition-0\.json is damaged: remove it"):
            await view.high_water_mark(0)
    client = await world.client(view=view)
    with pytest.raises(ViewUnfit):
        await client.wait_applied(19)


async def test_a_disk_that_takes_nothing_is_waited_for(world: World, tmp_path: Path) -> None:
    blocked = tmp_path / "views"
    blocked.write_text("a file where the directory should be")
    view = Sums(blocked)
    client = await world.client(view=view)
    await wait_until(lambda: isinstance(client.trouble(0), ViewUnavailable))
    blocked.unlink()
    await client.wait_applied(19)
    assert view.states[0]["sum"] == sum(range(20))
    assert not view.failures
