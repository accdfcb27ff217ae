"""How a log for threads ends: never hanging, never leaving a thread, and in no process but its own."""

from __future__ import annotations

import asyncio
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable

import pytest

from polonaise import testing
from polonaise.blocking import background
from polonaise.client.applicationhost import ApplicationHost
from polonaise.errors import AppendUnknown, Closed
from polonaise.terms import Transaction
from rigs.programs import STRICT, run_python
from rigs.waiting import block_for

pytestmark = pytest.mark.slow


def threads_of_logs() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("polonaise")}


@pytest.fixture
def kept_by_others() -> set[threading.Thread]:
    """The threads of logs that other tests of this process have left open on purpose, as Spark keeps them."""
    return threads_of_logs()


def test_close_ends_the_thread_and_all_who_wait(kept_by_others: set[threading.Thread]) -> None:
    log = testing.blocking_log()
    log.ready()
    log.faults.suspend_feed()
    receipt = log.append(b"x")
    raised: list[Exception] = []

    def wait(what: object) -> None:
        try:
            what()  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001
            raised.append(error)

    waits = [receipt.result, lambda: next(log.read(0, after=0, follow=True)), lambda: log.wait_applied(99)]
    waiting = [threading.Thread(target=wait, args=(each,)) for each in waits]
    for thread in waiting:
        thread.start()
    block_for(0.05)  # so that all of them wait
    log.close()
    for thread in waiting:
        thread.join(5)
        assert not thread.is_alive()
    assert {type(error) for error in raised} <= {Closed, AppendUnknown}
    assert len(raised) == 3
    assert threads_of_logs() <= kept_by_others


def test_many_threads_close_at_once(kept_by_others: set[threading.Thread]) -> None:
    log = testing.blocking_log()
    closing = [threading.Thread(target=log.close) for _ in range(8)]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(5)
    assert threads_of_logs() <= kept_by_others


def test_a_view_that_never_returns_does_not_hold_up_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "CLOSE_S_MAX", 0.2)
    release = threading.Event()

    class Stuck:
        def high_water_mark(self, partition: int) -> int:
            return -1

        def apply(self, tx: Transaction) -> None:
            release.wait(20)

        def failed(self, partition: int, id: int, error: Exception) -> None: ...

    log = testing.blocking_log(view=Stuck())
    log.append(b"x")
    block_for(0.05)  # so that it is being applied
    raised: list[Exception] = []

    def wait() -> None:
        try:
            log.flush()
        except Closed as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    block_for(0.05)  # so that it waits
    began_s = time.monotonic()
    log.close()
    assert time.monotonic() - began_s < 5
    waiting.join(5)
    assert raised
    release.set()


def run(script: str) -> subprocess.CompletedProcess[str]:
    return run_python(*STRICT, "-c", textwrap.dedent(script))


@pytest.mark.parametrize(
    "script",
    [
        "log.append(b'x')",
        "log.append(b'x').result(); reading = log.read(0, follow=True); next(reading)",
        "import contextlib, threading, polonaise\n"
        "def wait():\n"
        "    with contextlib.suppress(polonaise.errors.Closed): log.wait_applied(9)\n"
        "threading.Thread(target=wait, daemon=True).start()",
        "log.submit(lambda tx: tx.append(b'x'))",
    ],
)
def test_a_program_that_does_not_close_ends_all_the_same(script: str) -> None:
    done = run(f"from polonaise import testing\nlog = testing.blocking_log()\n{script}\nprint('end')")
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert "Fatal" not in done.stderr


def test_a_forked_child_is_told_to_open_its_own() -> None:
    done = run(
        """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from polonaise import testing
        from polonaise.errors import Forked
        log = testing.blocking_log()
        reading = log.read(0, follow=True)
        child = os.fork()
        if not child:
            for use in (log.flush, log.applied, lambda: log.append(b"x"), lambda: next(reading)):
                try:
                    use()
                except Forked as error:
                    print(error.code, flush=True)
            log.close()
            reading.close()
            with testing.blocking_log() as own:
                own.append(b"y").result(5)
                print("own", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        log.append(b"x").result(5)
        log.close()
        print("parent")
        """
    )
    assert done.stdout.split() == ["forked"] * 4 + ["own", "parent"], done.stderr


def test_the_child_of_a_coroutines_process_is_told_the_same() -> None:
    done = run(
        """
        import asyncio, os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from polonaise import testing
        from polonaise.errors import PolonaiseError

        async def child(log, receipt):
            uses = (lambda: log.append(b"x"), log.flush, log.ready, lambda: log.run(print), lambda: log.submit(print))
            for use in (*uses, log.high_water_mark, lambda: log.register(b"k"), lambda: receipt.applied(1)):
                try:
                    done = use()
                    if asyncio.iscoroutine(done):
                        await asyncio.wait_for(done, 2)
                    print("done", flush=True)
                except PolonaiseError as error:
                    print(error.code, flush=True)
            async with testing.log() as own:
                await own.append(b"y")
                print("own", flush=True)

        async def parent():
            async with testing.log() as log:
                receipt = log.append(b"x")
                if not os.fork():
                    try:
                        asyncio.run(child(log, receipt))
                    finally:
                        os._exit(0)
                os.wait()
                await log.append(b"x")
                print("parent", flush=True)

        asyncio.run(parent())
        """
    )
    assert done.stdout.split() == ["forked"] * 8 + ["own", "parent"], done.stdout + done.stderr


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt()])
def test_a_background_thread_that_code_of_the_application_ends_tells_all_who_wait(raised: BaseException) -> None:
    ended = background.Background("ended")
    never: background.Call[None] = background.Call(ended)
    ended.begin(never, for_ever)

    def exit_there() -> None:
        raise raised

    with pytest.raises(Closed, match=f"code of the application, which raised {type(raised).__name__}"):
        ended.now(exit_there)
    with pytest.raises(Closed, match="connect a new one"):
        never.result()
    for ask in (lambda: ended.now(exit_there), lambda: ended.call(for_ever)):
        with pytest.raises(Closed, match="connect a new one"):
            ask()
    ended.close(for_ever)


def test_tasks_that_end_with_the_background_thread_were_cancelled_by_no_application() -> None:
    told: list[BaseException] = []
    ended = background.Background("ended")

    def works() -> None:
        host = ApplicationHost()
        host.on_fail = told.append
        host.spawn(for_ever(), "what a client does")
        ended.post(ended._loop.stop)  # as at the end of a program that did not close

    ended.now(works)
    ended.close(for_ever)
    assert told == []


def stop_again(ended: background.Background) -> None:
    ended._loop.stop()


def exit_there(ended: background.Background) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(("act", "told"), [(stop_again, Closed), (exit_there, SystemExit)])
def test_a_background_thread_ends_to_the_end_whatever_its_last_tasks_do(
    act: Callable[[background.Background], None], told: type[BaseException]
) -> None:
    ended = background.Background("ended")
    never: background.Call[None] = background.Call(ended)

    async def acts_at_its_end() -> None:
        try:
            await for_ever()
        finally:
            act(ended)
            await for_ever()

    ended.begin(never, acts_at_its_end)
    ended.now(lambda: None)  # so that the task has begun
    ended.post(ended._loop.stop)  # as at the end of a program that did not close
    ended.close(for_ever)
    with pytest.raises(told):
        never.result()
    assert ended._loop.is_closed()


async def for_ever() -> None:
    await asyncio.Event().wait()
