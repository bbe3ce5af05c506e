"""Which chain lives on which device."""

import dataclasses
import math

from jax.sharding import Mesh

from ._mesh import CHAIN


@dataclasses.dataclass(frozen=True)
class ChainLayout:
    """`chains` chains in order over `devices` places along the chain axis; what is left over is padding.

    Every place holds `per_device` slots, slot s carries chain s, and slots from `chains` on are padding chains:
    they run (shards are of equal size), are never shown, and never enter pooled statistics.
    """

    chains: int
    devices: int

    @classmethod
    def on(cls, mesh: Mesh, chains: int) -> "ChainLayout":
        """The layout of `chains` chains on the chain axis of `mesh`."""
        return cls(chains, mesh.shape[CHAIN])

    @property
    def per_device(self) -> int:
        """Slots at each place: the load of the busiest device."""
        return math.ceil(self.chains / self.devices)

    @property
    def slots(self) -> int:
        """Chains that run, padding included."""
        return self.per_device * self.devices

    @property
    def padding(self) -> int:
        """Padding chains."""
        return self.slots - self.chains

    def place_of(self, chain: int) -> int:
        """The place along the chain axis where `chain` lives.

        Raises:
            IndexError: there is no such chain.
        """
        if not 0 <= chain < self.chains:
            raise IndexError(f"chain {chain} of {self.chains}")
        return chain // self.per_device

    def chains_at(self, place: int) -> range:
        """The chains, without padding, that live at `place`.

        Raises:
            IndexError: there is no such place.
        """
        if not 0 <= place < self.devices:
            raise IndexError(f"place {place} of {self.devices}")
        first = place * self.per_device
        return range(min(first, self.chains), min(first + self.per_device, self.chains))
