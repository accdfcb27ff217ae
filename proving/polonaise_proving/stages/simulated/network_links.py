"""The links of the simulated network: the way from one machine to another, in one direction.

Everything random about a link comes from its own generator.
"""

from __future__ import annotations

from polonaise_proving.record.faultcounts import FaultCounts
from polonaise_proving.stages.simulated.configuration import NetworkConfiguration
from polonaise_proving.stages.simulated.environment import Environment


class Partition:
    """One cut through the network, counted as a fault once it holds something back."""

    def __init__(self, name: str, faults: FaultCounts) -> None:
        self._name = name
        self._faults = faults
        self.felt = False
        """Whether the cut has held something back. A cut that never did has tested nothing."""

    def hold_back(self) -> None:
        """Note that the cut holds something back."""
        if not self.felt:
            self.felt = True
            self._faults.count(self._name)


class Link:
    """The way from one machine to another, in one direction."""

    def __init__(self, environment: Environment, configuration: NetworkConfiguration, source: str, target: str) -> None:
        self.name = f"{source}->{target}"
        self.source, self.target = source, target
        self.configuration = configuration
        self.blocked: Partition | None = None
        """The cut that lets nothing through; None while the link carries."""
        self.extra_s = 0.0
        """Seconds by which everything is delayed; set by `SimulatedNetwork.delay`."""
        self.flips = configuration.flip_chance > 0.0
        """Whether this link may ever flip a bit; False spares a test for each chunk."""
        self.flips_due = 0
        """The number of next chunks that arrive with one bit wrong; raised by `SimulatedNetwork.flip_byte`."""
        self._faults = environment.faults
        self.draw = environment.random(f"link/{self.name}").random
        local = source == target
        self._base_s = configuration.loopback_s if local else configuration.latency_s
        self._jitter_s = configuration.loopback_s if local else configuration.jitter_s

    def latency_s(self) -> float:
        """Draw the seconds that the next chunk or packet travels."""
        delay = self._base_s + self._jitter_s * self.draw() + self.extra_s
        if self.extra_s:
            self._faults.count("delay")
        if self.strikes(self.configuration.delay_chance):
            self._faults.count("delay")
            delay += self.configuration.delay_s * self.draw()
        return delay

    def retransmit_s(self) -> float:
        """Draw the seconds after which held-back bytes arrive once the link carries again.

        TCP sends again after growing pauses, so the next try comes a while after the healing.
        """
        return self.latency_s() + 0.2 * self.draw()

    def strikes(self, chance: float) -> bool:
        """Draw whether something with this chance happens now. A chance of 0 takes nothing from the generator."""
        return chance > 0.0 and self.draw() < chance

    def flip(self, data: bytes) -> bytes:
        """Return the data, with one bit wrong if that is due or drawn."""
        if self.flips_due:
            self.flips_due -= 1
        elif not self.strikes(self.configuration.flip_chance):
            return data
        damaged = bytearray(data)
        damaged[int(self.draw() * len(damaged))] ^= 1 << int(self.draw() * 8)
        self._faults.count("byte_flip")
        return bytes(damaged)
