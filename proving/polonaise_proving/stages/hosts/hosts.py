"""The hosts of a smoke test: network namespaces on a bridge of their own, or all nodes on this machine's loopback."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from polonaise_proving.record.faultkinds import LINK_KINDS, PROCESS_KINDS, Fault, FaultKind, NodeGroup, nodes_of
from polonaise_proving.stages.hosts.leftovers import NoNetwork, Notes, remove_namespaces
from polonaise_proving.stages.hosts.leftovers import run_ip as _run

_LOST_S: Final = 0.06
"""Seconds for which all that is sent is lost, on average."""
_SENT_S: Final = 0.14
"""Seconds for which nothing is lost, on average: so 30 % of the time all is lost, and 30 % of an even stream."""
_END_S: Final = 10.0
_NETWORKS: Final = [f"198.{second}.{third}" for second in (18, 19) for third in range(256)]
"""Networks of 256 addresses out of 198.18.0.0/15, which is reserved for tests of networks."""
_BRIDGE: Final = 1
"""The last number of the address at which the namespaces reach this machine."""
_FIRST: Final = 11
"""The last number of the first host's address."""
_NOBODY: Final = "02:00:00:00:00:01"
"""A hardware address that nobody has: what is sent there is lost, without a word to the sender."""
_LINK_DOWN: Final = frozenset({FaultKind.CUT, FaultKind.CUT_LEADER})
"""The kinds that take down the host's link."""
_DEVICE: Final = "eth0"


class PacketLoss:
    """Loses about 30 % of what is sent, in pulses of some hundredths of a second, from its making until `end`."""

    def __init__(self, command: Sequence[str], lose: Sequence[str], pass_on: Sequence[str]) -> None:
        """Begin. `command` is a process that carries out what it reads, line by line: `lose` begins a pulse, and
        `pass_on` ends it. Raises `OSError`.
        """
        self._lose, self._pass_on = ("".join(f"{line}\n" for line in lines) for lines in (lose, pass_on))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,  # Ctrl-C is for the run, which ends this one
        )  # fmt: skip
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pulse, daemon=True)
        self._thread.start()

    def _pulse(self) -> None:
        while not self._ended.is_set():
            self._say(self._lose)
            self._ended.wait(_LOST_S * random.uniform(0.5, 1.5))
            self._say(self._pass_on)
            self._ended.wait(_SENT_S * random.uniform(0.5, 1.5))

    def _say(self, lines: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(lines)
            self._process.stdin.flush()

    def end(self) -> bool:
        """Lose nothing any more. Return whether packets were lost until now: False if what loses them, the process or
        the thread that tells it, had ended by itself.
        """
        pulsed = self._thread.is_alive()
        self._ended.set()
        self._thread.join()
        went_on = self._process.poll() is None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return went_on and pulsed


class Hosts(Protocol):
    """The hosts of one run, by the names of the nodes that run on them."""

    name: str
    """`namespaces` or `loopback`."""
    kinds: Collection[FaultKind]
    """The kinds of faults that are possible here."""
    network: str
    """The first three numbers of the hosts' addresses, from which a resumed run makes the same network; empty on
    loopback."""

    def prefix(self, node: str) -> list[str]:
        """Return the command that runs another one on the host of this node; empty for this machine."""
        ...

    def address(self, node: str) -> str:
        """Return the address of the node's host."""
        ...

    def cut(self, fault: Fault) -> None:
        """Cut links, as a fault of a kind in `LINK_KINDS` says. Raises `NoNetwork`."""
        ...

    def heal(self, fault: Fault) -> None:
        """Mend what `cut` has cut for this fault. Raises `NoNetwork`."""
        ...

    def close(self) -> None:
        """Remove all that was made."""
        ...


class LoopbackHosts:
    """One host for all nodes: this machine. Links can't be cut here; processes can be killed and stopped."""

    name = "loopback"
    network = ""

    def __init__(self) -> None:
        self.kinds: Collection[FaultKind] = PROCESS_KINDS

    def prefix(self, node: str) -> list[str]:
        return []

    def address(self, node: str) -> str:
        return "127.0.0.1"

    def cut(self, fault: Fault) -> None:
        raise NoNetwork(f"{fault} is not possible on loopback")

    def heal(self, fault: Fault) -> None:
        """Do nothing: nothing was cut."""

    def close(self) -> None:
        """Do nothing: nothing was made."""


class NamespaceHosts:
    """A host for each node: a network namespace, whose one link leads to a bridge on this machine."""

    name = "namespaces"

    def __init__(self, prefix: str, nodes: Iterable[str], network: str = "") -> None:
        """Make the bridge, and a namespace and a link for each node; `prefix` begins the names of all of them.

        `network` is that of the run that is resumed; empty for a free one. Raises `NoNetwork`, after which nothing is
        left.
        """
        self.kinds: Collection[FaultKind] = PROCESS_KINDS | LINK_KINDS
        self._prefix = prefix
        self._numbers: Mapping[str, int] = {node: number for number, node in enumerate(nodes, _FIRST)}
        self._bridge = f"{prefix}b"
        self._lost: Counter[tuple[str, str]] = Counter()
        """By way, as `_ways` has it: how many faults want everything on it to be lost. Two of a step may share one."""
        self._losing: dict[str, PacketLoss] = {}
        """By node: the loss of what it sends."""
        self.network = network or _free_network()
        # Outside of what tidies up: if the name is taken, all that bears it is another run's.
        _run("link", "add", self._bridge, "type", "bridge")
        try:
            _run("address", "add", f"{self.machine}/24", "dev", self._bridge)
            _run("link", "set", self._bridge, "up")
            for node in self._numbers:
                self._make(node)
        except BaseException:
            self.close()
            raise

    def _make(self, node: str) -> None:
        space, link = self._space(node), self._link(node)
        _run("netns", "add", space)
        _run("link", "add", link, "type", "veth", "peer", "name", _DEVICE, "netns", space)
        _run("link", "set", link, "master", self._bridge, "up")
        _run("-n", space, "link", "set", "lo", "up")
        _run("-n", space, "address", "add", f"{self.address(node)}/24", "dev", _DEVICE)
        _run("-n", space, "link", "set", _DEVICE, "up")

    @property
    def machine(self) -> str:
        """The address at which the hosts reach this machine."""
        return f"{self.network}.{_BRIDGE}"

    def _space(self, node: str) -> str:
        return f"{self._prefix}-{node}"

    def _link(self, node: str) -> str:
        return f"{self._prefix}v{self._numbers[node]}"

    def prefix(self, node: str) -> list[str]:
        return ["ip", "netns", "exec", self._space(node)]

    def address(self, node: str) -> str:
        return f"{self.network}.{self._numbers[node]}"

    def cut(self, fault: Fault) -> None:
        if fault.kind in _LINK_DOWN:
            _run("link", "set", self._link(fault.node), "down")
        if fault.kind is FaultKind.LOSE:
            self._lose(fault.node)
        for at, to in self._ways(fault):
            if not self._lost[at, to]:
                _run(*self._in(at), *self._losing_to(at, to))
            self._lost[at, to] += 1

    def heal(self, fault: Fault) -> None:
        if fault.kind in _LINK_DOWN:
            _run("link", "set", self._link(fault.node), "up")
        if fault.kind is FaultKind.LOSE and not self._losing.pop(fault.node).end():
            raise NoNetwork(f"{fault}: what loses packets has ended by itself")
        for at, to in self._ways(fault):
            self._lost[at, to] -= 1
            if not self._lost[at, to]:
                _run(*self._in(at), *self._passing_on_to(at, to))

    def _lose(self, node: str) -> None:
        others = [self.address(other) for other in self._numbers if other != node] + [self.machine]
        # Where another fault of the step has cut one of these ways for good, it is cut for a part of the time only.
        self._losing[node] = PacketLoss(
            ["ip", *self._in(node), "-force", "-batch", "-"],
            [" ".join(self._losing_to(node, to)) for to in others],
            [" ".join(self._passing_on_to(node, to)) for to in others],
        )

    def _losing_to(self, at: str, to: str) -> tuple[str, ...]:
        return ("neighbour", "replace", to, "lladdr", _NOBODY, "dev", self._device(at), "nud", "permanent")

    def _passing_on_to(self, at: str, to: str) -> tuple[str, ...]:
        # Whoever sends next asks again for the hardware address. Not `delete`: where there is no entry any more, that
        # fails, and a failure ends `ip -batch`, forced or not.
        return ("neighbour", "replace", to, "dev", self._device(at), "nud", "failed")

    def _ways(self, fault: Fault) -> list[tuple[str, str]]:
        """Return the ways on which everything is lost: from a node (empty for this machine) to an address.

        There are none for what takes down the link itself, or loses only a part.
        """
        node, here = fault.node, self.address(fault.node)
        others = [other for other in self._numbers if other != node]
        if fault.kind is FaultKind.CUT_OUT:
            return [(node, self.address(other)) for other in others] + [(node, self.machine)]
        if fault.kind is FaultKind.CUT_IN:
            return [(other, here) for other in [*others, ""]]
        if fault.kind is FaultKind.CUT_PAIR:
            return [(node, self.address(fault.other)), (fault.other, here)]
        if fault.kind is FaultKind.CUT_STORAGE:
            storage = nodes_of(NodeGroup.STORAGE)
            return [(node, self.address(other)) for other in storage] + [(other, here) for other in storage]
        return []

    def _in(self, node: str) -> list[str]:
        return ["-n", self._space(node)] if node else []

    def _device(self, node: str) -> str:
        return _DEVICE if node else self._bridge

    def close(self) -> None:
        for loss in self._losing.values():
            loss.end()
        self._losing.clear()
        remove_namespaces(self._prefix)


def namespaces_possible() -> str:
    """Return why network namespaces can't be made by this process; empty if they can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None:
        return "there is no `ip` here (Debian: apt-get install iproute2)"
    notes = Notes()  # so that the next run removes what is made here, if this process is killed
    try:
        NamespaceHosts(notes.prefix, ["x"]).close()
    except NoNetwork as error:
        return error.text
    finally:
        notes.tidy()
    return ""


def _free_network() -> str:
    """Return one of `_NETWORKS` in which this machine has no address. Raises `NoNetwork` if there is none."""
    taken = _run("-brief", "address", "show")
    free = [network for network in _NETWORKS if f"{network}." not in taken]
    if not free:
        raise NoNetwork("all networks for tests are in use: remove what is left of earlier runs")
    return secrets.choice(free)
