"""How an adaptation hears the other chains."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """All chains of a run, seen from the chains of one device.

    Values are gathered per chain and reduced in chain order, so that a pooled statistic does not depend on how the
    chains are spread; padding chains are left out. Where there is one device the same code runs on it alone.

    Args:
        chains: number of chains, without padding.
        numbers: global number of each chain of this device; padding chains have numbers from `chains` on.
        collect: local rows -> the rows of all devices in order, padding included.
    """

    chains: int
    numbers: Int[Array, " local"]
    collect: Callable[[Array], Array] = lambda x: x

    def gather(self, x: Shaped[Array, "local ..."]) -> Shaped[Array, "chains ..."]:
        """The values of all chains, in chain order, the same on every device."""
        return self.collect(x)[: self.chains]

    def sum(self, x: Shaped[Array, "local ..."]) -> Shaped[Array, "..."]:
        """Sum over all chains."""
        return jnp.sum(self.gather(x), axis=0)

    def mean(self, x: Shaped[Array, "local ..."]) -> Shaped[Array, "..."]:
        """Mean over all chains."""
        return self.sum(x) / self.chains

    def mine(self, x: Shaped[Array, "chains ..."]) -> Shaped[Array, "local ..."]:
        """This device's rows of a value known for all chains; padding chains get the last chain's."""
        return x[jnp.minimum(self.numbers, self.chains - 1)]
