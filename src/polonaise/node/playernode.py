"""The process of a player: waits until it is the one that delivers, delivers, and hands over."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from polonaise.client.log import Log
from polonaise.errors import BadOption, Closed, PolonaiseError
from polonaise.host import Host
from polonaise.host.tls import TlsFiles
from polonaise.node.playerplan import LoadedPlan, PlayerPlan, changes
from polonaise.player.deliverytarget import DeliveryTarget
from polonaise.player.endpoint import DeliveryEndpoint
from polonaise.player.player import Player
from polonaise.player.protocol.candidacy import Candidacy, CandidateState, TurnEnd, turn_end_of
from polonaise.player.protocol.entries import TargetName
from polonaise.redaction import redacted

_log = logging.getLogger("polonaise.player")

_LOOK_S: Final = 1.0
_ANSWER_S_MAX: Final = 2.0
"""The longest wait for an answer about the lease, where going on without it does no harm."""


class HeldLease(Protocol):
    """The lease that makes a process the one that delivers."""

    async def acquire(self) -> None:
        """Wait until it is held."""

    async def lost(self) -> str:
        """Wait until it is not held any more, and return why."""

    async def release(self) -> None:
        """Let others have it."""


class PlayerNode:
    """Takes turns with other processes of the same player: one delivers, and the others stand by.

    In each turn it opens the log, waits for the lease, and delivers under a new epoch until the lease is lost, the
    player ends, or the process is told to stop. That two never deliver rests on the epoch, which targets keep; the
    lease is there so that one takes over soon.
    """

    def __init__(
        self,
        host: Host,
        loaded: LoadedPlan,
        tls: TlsFiles | None,
        opening: Callable[[str], AbstractAsyncContextManager[Log]],
        told: Callable[[str], None],
    ) -> None:
        """`told` is called with each state that the process enters, in words."""
        self.loaded = loaded
        self.candidacy = Candidacy(loaded.plan.lease_s)
        self.player: Player | None = None
        """While this process has the lease."""
        self.stopped_partitions = 0
        """How many had stopped when the player of the last turn ended, as it does once all have."""
        self.last_reload = ""
        """What came of the last request to read the settings again."""
        self.reload_refused = False
        self._host = host
        self._tls = tls
        self._opening = opening
        self._told = told
        self._own = f"{socket.gethostname()}:{os.getpid()}"
        self._log_opened: Log | None = None
        self._targets: dict[TargetName, DeliveryTarget | DeliveryEndpoint] = {}
        self._delivered = loaded.plan
        self._changing = asyncio.Lock()
        self._reloading = asyncio.Lock()

    @property
    def active(self) -> str:
        """The active process, as far as this one knows: `HOST:PID`; empty if none is known."""
        return self._own if self.candidacy.has_lease else self.candidacy.other

    async def run(self) -> None:
        """Take turns until cancelled. Raises what is wrong with the settings."""
        while True:
            end, reason, error = TurnEnd.FAILED, "", None
            try:
                end, reason = await self._turn()
            except PolonaiseError as raised:
                connected = self.candidacy.state is not CandidateState.CONNECTING
                end, reason, error = turn_end_of(raised, connected=connected), str(raised), raised
            pause_s = self.candidacy.over(end, reason, self._now_s())
            if pause_s is None:
                assert error is not None
                raise error
            _log.warning("player %s: %s; the next turn begins in %g s", self.loaded.plan.name, reason, pause_s)
            self._told(f"pausing: {reason}")
            await asyncio.sleep(pause_s)
            self.candidacy.next_turn()

    # ------------------------------------------------------------------ a turn

    async def _turn(self) -> tuple[TurnEnd, str]:
        plan = self.loaded.plan
        async with self._opening(plan.log) as log:
            self._log_opened = log
            _check_partitions(plan, log)
            self.candidacy.connected()
            self._told("standby")
            lease: HeldLease = log.lease(f"player/{plan.name}", duration_s=plan.lease_s, note=self._own.encode())
            looking = self._host.spawn(self._look_for_the_active_one(log), "look who is active")
            try:
                await lease.acquire()
            finally:
                looking.cancel()
                await asyncio.wait([looking])
            self.candidacy.acquired()
            try:
                return await self._deliver(log, lease)
            finally:
                self.candidacy.lets_go()
                # First of all: others wait for it.
                await self._release(lease)
                await self._close_targets()

    async def _look_for_the_active_one(self, log: Log) -> None:
        """Have the candidacy know who has the lease, or why the log does not tell."""
        name = f"player/{self.loaded.plan.name}"
        while True:
            try:
                held = await log.list_leases(name, timeout=_ANSWER_S_MAX)
            except PolonaiseError as error:
                self.candidacy.log_is_silent(str(error))
            else:
                active = next((each.note.decode(errors="replace") for each in held if each.name == name), "")
                self.candidacy.others_deliver(active, self._now_s())
            await asyncio.sleep(_LOOK_S)

    async def _deliver(self, log: Log, lease: HeldLease) -> tuple[TurnEnd, str]:
        """Deliver while the lease is held and the player does not end; when cancelled, hand over first."""
        loaded = self.loaded
        plan = loaded.plan
        self._targets = {name: loaded.target(name, self._tls) for name in plan.targets}
        self._delivered = plan
        self.player = player = Player(
            log, plan.name, loaded.route, self._targets, partitions=plan.partitions, settings=plan.settings,
            start_after={name: target.start_after for name, target in plan.targets.items() if target.start_after},
            retired=plan.retired,
        )  # fmt: skip
        lost = asyncio.ensure_future(lease.lost())
        delivering = asyncio.ensure_future(self._start(player))
        try:
            await asyncio.wait({lost, delivering}, return_when=asyncio.FIRST_COMPLETED)
            if delivering.done():
                delivering.result()
            return TurnEnd.LEASE_LOST, f"the lease is lost: {lost.result()}"
        except asyncio.CancelledError:
            if self.candidacy.state is CandidateState.ACTIVE:
                self.candidacy.handing_over()
                self._told("handing over")
                await player.finish(plan.hand_over_s_max)
            raise
        finally:
            self.player = None
            self.stopped_partitions = sum(bool(each["stopped"]) for each in player.health()["partitions"].values())
            await player.close()
            for task in (lost, delivering):
                task.cancel()
            await asyncio.gather(lost, delivering, return_exceptions=True)

    async def _start(self, player: Player) -> None:
        await player.start()
        epoch = player.health()["epoch"]
        self.candidacy.started(epoch, self._now_s())
        self._told(f"active, epoch {epoch}")
        await self._have_targets()
        await player.ended()

    async def _release(self, lease: HeldLease) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                await lease.release()
        except (PolonaiseError, TimeoutError) as error:
            why = str(error) or "the coordinator gave no answer"  # a timeout says nothing
            _log.warning("player %s: the lease was not released, and runs out: %s", self.loaded.plan.name, why)

    async def _close_targets(self) -> None:
        """Close the targets that this process applies to; the player has closed the ways to others."""
        targets, self._targets = self._targets, {}
        await asyncio.gather(*(_close(name, target) for name, target in targets.items()))

    def _now_s(self) -> float:
        return self._host.clock.monotonic_s()

    # ------------------------------------------------------------------ settings that are read again

    async def reload(self, read: Callable[[], LoadedPlan]) -> None:
        """Take up the targets of the settings that `read` returns; wrong ones leave all as it was."""
        async with self._reloading:
            await self._reload(read)

    async def _reload(self, read: Callable[[], LoadedPlan]) -> None:
        name, level = self.loaded.plan.name, logging.WARNING
        try:
            loaded = await asyncio.to_thread(read)
            if self._log_opened is not None:
                _check_partitions(loaded.plan, self._log_opened)
        except PolonaiseError as error:
            self.reload_refused = True
            self.last_reload = f"refused, those before stay in use: {error.text}"
        else:
            self.reload_refused = False
            found = changes(self.loaded.plan, loaded.plan)
            self.last_reload = found.text()
            if not any(found):
                level = logging.INFO
            # Nothing but the targets, in later turns neither: they would change at a moment that nobody has chosen.
            self.loaded = self.loaded.with_targets_of(loaded)
            await self._have_targets()
        _log.log(level, "player %s: the settings were read again: %s", name, self.last_reload)
        self._told(f"settings read again: {self.last_reload}")

    async def _have_targets(self) -> None:
        async with self._changing:
            player = self.player
            if player is None or self.candidacy.state is not CandidateState.ACTIVE:
                return  # it gets them when it starts
            loaded = self.loaded
            found = changes(self._delivered, loaded.plan)
            self._delivered = loaded.plan
            try:
                for name in (*found.removed, *found.moved):
                    await player.remove_target(name)
                    await _close(name, self._targets.pop(name))
                for name in (*found.added, *found.moved):
                    target = self._targets[name] = loaded.target(name, self._tls)
                    player.add_target(name, target, loaded.plan.targets[name].start_after)
            except Closed:
                pass  # the player has ended meanwhile: the next one begins with them


def _check_partitions(plan: PlayerPlan, log: Log) -> None:
    named = {partition for target in plan.targets.values() for partition in target.start_after}
    beyond = {each for each in named.union(plan.partitions or ()) if each >= log.partition_count}
    if beyond:
        raise BadOption(
            f"the settings name partition {min(beyond)}, and this log has partitions 0 to {log.partition_count - 1}: "
            "correct player.partitions, and start_after of targets"
        )


async def _close(name: TargetName, target: DeliveryTarget | DeliveryEndpoint) -> None:
    if hasattr(target, "stream"):
        return
    try:
        await target.close()
    except Exception as error:  # noqa: BLE001 - the others are to be closed all the same
        _log.warning("target %s could not be closed: %s: %s", name, type(error).__name__, redacted(error))
