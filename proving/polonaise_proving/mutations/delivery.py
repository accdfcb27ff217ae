"""Mutations of the delivery to targets: of the player, of its transport, and of the target's side.

What an application's target has to do is in `simulatedtarget`, and is mutated there.
"""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

_PLAYER: Final = "polonaise.player.protocol.activeplayer"
_RECEPTION: Final = "polonaise.player.protocol.reception"
_QUEUE: Final = "polonaise.player.protocol.targetqueue"
_DELIVERY: Final = "polonaise.player.delivery"
_LINK: Final = "polonaise.player.linkendpoint"
_SERVER: Final = "polonaise.player.linkserver"
_SESSION: Final = "polonaise.player.targetsession"
_TARGET: Final = "polonaise_proving.work.simulatedtarget"

DELIVERY_MUTATIONS: Final[dict[str, Mutation]] = {
    "fence-not-checked-by-the-target": Mutation(
        _RECEPTION,
        "        if kept != self.fence:\n            return Verdict.FENCED\n",
        "",
        "P8: a target applies what a player sends that was replaced",
        seed=38,
        model="player",
    ),
    "any-fence-accepted": Mutation(
        _RECEPTION,
        "        return offered > kept\n",
        "        return True\n",
        "P8: a target goes back to an older player, and applies what that sends",
        seed=38,
        model="player",
    ),
    "previous-not-compared": Mutation(
        _RECEPTION,
        "        if batch.previous == applied:\n",
        "        if batch.previous == applied or batch.partition not in self._refused:\n",
        "P8: a target applies a batch although entries before it are missing, or were applied already",
        seed=38,
    ),
    "behind-a-refusal-applied": Mutation(
        _RECEPTION,
        "        return Verdict.PASS_OVER if",
        "        return Verdict.APPLY if",
        "P8: a target applies what was sent behind an entry that it has refused",
        seed=17,
    ),
    "fence-kept-after-the-answer": Mutation(
        _TARGET,
        "        acceptance: Acceptance = await self._step(decide)\n",
        "        acceptance: Acceptance = decide(self._memory)[1]\n"
        "        late = asyncio.get_running_loop().create_future()\n"
        '        self._host.spawn(self._make(decide, late), "late")\n',
        "P8: a target answers before its fence is durable, and an older player goes on",
        seed=17,
    ),
    "effect-before-the-id": Mutation(
        _TARGET,
        "            return [StepTaken(partition, last, effects)], ",
        "            before = StepTaken(partition, memory.last(partition), effects)\n"
        "            return [before, StepTaken(partition, last, [])], ",
        "P8: a target keeps what it has applied and the id in two steps, and dies between them",
        seed=17,
    ),
    "applied-before-the-sync": Mutation(
        _TARGET,
        "            await file.write(end, [raw], sync=True)\n",
        "            await file.write(end, [raw])\n",
        "P8: a target acknowledges what is not durable, and a loss of power takes it",
        seed=17,
    ),
    "recovery-begins-one-too-late": Mutation(
        _QUEUE,
        "RecoveryRead(number, self.covered + 1, last)",
        "RecoveryRead(number, min(self.covered + 2, last), last)",
        "P8: a target that comes back is not sent the first entry that it lacks",
        seed=17,
    ),
    "recovery-ends-one-too-early": Mutation(
        _QUEUE,
        "        last = current if self._joined_at is None else self._joined_at\n",
        "        last = current if self._joined_at is None else self._joined_at - 1\n",
        "P8: neither a read nor the main stream brings an entry to a target that joins",
        seed=17,
        model="player",
    ),
    "read-numbers-begin-anew-with-a-target": Mutation(
        _PLAYER,
        "            read = queue.next_read(current, self._reads + 1)\n",
        "            self._reads = getattr(pair, 'reads', 0)\n"
        "            read = queue.next_read(current, self._reads + 1)\n"
        "            pair.reads = self._reads + (read is not None)\n",
        "P8: a target that was moved takes what was read for its earlier place, and is never sent its first entries",
        seed=464,
    ),
    "overflow-forgets-what-it-drops": Mutation(
        _QUEUE,
        "            self.covered = self._normal[0].id - 1\n",
        "            self.covered = self._normal[-1].id - 1\n",
        "P8: what is dropped from a queue that is too long is never read again",
        seed=17,
    ),
    "epoch-not-raised": Mutation(
        "polonaise.player.player",
        "ActivePlayer(producer.epoch, partitions",
        "ActivePlayer(1, partitions",
        "P8: two players are active for ever, and each shuts the other one out",
        seed=17,
    ),
    "damaged-on-the-way-stops-the-partition": Mutation(
        "polonaise.player.logreading",
        "error.retry is not Retry.NEVER or isinstance(error, _MENDED)",
        "error.retry is not Retry.NEVER",
        "P8: a bit that is flipped on its way to a player, or in the archive, ends the delivery for good",
        test="tests/player/test_player.py::test_what_is_damaged_is_read_again",
    ),
    "log-put-back-goes-on": Mutation(
        _PLAYER,
        "        if mark < known:\n",
        "        if mark < NO_TRANSACTION:\n",
        "P8: a log that was put back is delivered on once it has outgrown the targets; what it has below is left out",
        test="tests/player/test_active_player.py"
        "::test_a_log_that_ends_below_what_it_had_is_delivered_no_more_however_far_it_grows",
    ),
    "followed-from-another-batch": Mutation(
        "polonaise.player.logreading",
        "                    place.follows(batch)  # which no reader knows that has just begun\n",
        "",
        "P8: a log that was put back is delivered on, if it has outgrown what was read while nobody answered",
        test="tests/player/test_hindered_targets.py"
        "::test_a_main_stream_does_not_go_on_from_another_log_after_a_time_without_answers",
    ),
    "kept-epochs-not-looked-at": Mutation(
        "polonaise.player.player",
        "for name, higher in kept.items() if higher > epoch}\n",
        "for name, higher in kept.items() if higher > epoch + (1 << 62)}\n",
        "P8: a log that was put back is delivered once its player was started often enough",
        test="tests/player/test_player.py"
        "::test_a_player_whose_log_is_behind_what_a_target_keeps_is_refused_however_often_it_begins",
    ),
    "written-not-told": Mutation(
        _LINK,
        "        if connection.writable:\n            return True\n",
        "        if connection.writable:\n            return False\n",
        "P8: a stream takes one lot of batches and no more",
        seed=17,
    ),
    "hanging-stream-not-closed": Mutation(
        "polonaise.player.protocol.patience",
        "        self._least_s = settings.progress_s_max\n",
        "        self._least_s = 1e9\n",
        "P8, P11: nobody notices that a target hangs",
        seed=280,
    ),
    "hindered-and-well": Mutation(
        _DELIVERY,
        'each["state"] != "up" or each["hindered"] or each["slow"] for each',
        'each["state"] != "up" for each',
        "P11: health counts a target as well that refuses what it is sent",
        seed=206,
    ),
    "connection-left-open": Mutation(
        _LINK,
        "        if self._connection is not None:\n            self._connection.abort",
        "        if self._connection is None:\n            self._connection.abort",
        "P11: a player that is closed leaves its connections open",
        seed=17,
    ),
    "acknowledged-once": Mutation(
        _SERVER,
        "        unsent, self._unsent = self._unsent, {}\n",
        "        unsent = self._unsent\n",
        "P8: a stream acknowledges what was applied in its first millisecond, and nothing after that",
        seed=17,
    ),
    "lane-not-woken": Mutation(
        _SESSION,
        "        lane.batches.append((batch, held_bytes))\n        lane.wake()\n",
        "        lane.batches.append((batch, held_bytes))\n",
        "P8: the task of a partition that waits for more is not told that there is more",
        seed=58,
    ),
    "tasks-not-waited-for": Mutation(
        _DELIVERY,
        "        if self._tasks:\n            await asyncio.wait(list(self._tasks))\n",
        "",
        "P11: a player that is closed leaves tasks behind",
        seed=17,
    ),
}
