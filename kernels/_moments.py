"""Running means and sums of squares of every chain, and how they are pooled."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._ensemble import Ensemble


class Moments(NamedTuple):
    """Per chain: number of values, their mean, and the sum of squared (or outer products of) deviations."""

    n: Float[Array, " chains"]
    mean: Float[Array, "chains dim"]
    m2: Float[Array, "chains ..."]


def no_moments(chains: int, dim: int, dtype: np.dtype, dense: bool) -> Moments:
    """Moments of nothing."""
    shape = (chains, dim, dim) if dense else (chains, dim)
    return Moments(jnp.zeros(chains, dtype), jnp.zeros((chains, dim), dtype), jnp.zeros(shape, dtype))


def add(moments: Moments, x: Float[Array, "chains dim"], weight: Float[Array, " chains"]) -> Moments:
    """Welford's update (1962) with one value per chain, of weight 0 or 1; values of weight 0 may be anything."""
    n = moments.n + weight
    use = (weight > 0)[:, None]
    before = jnp.where(use, x - moments.mean, 0.0)
    mean = moments.mean + before / jnp.maximum(n, 1.0)[:, None]
    after = jnp.where(use, x - mean, 0.0)
    dense = moments.m2.ndim == 3
    square = before[:, :, None] * after[:, None, :] if dense else before * after
    return Moments(n, mean, moments.m2 + square)


def pool(
    ensemble: Ensemble, moments: Moments, use: Bool[Array, " all_chains"]
) -> tuple[Float[Array, ""], Float[Array, " dim"], Float[Array, "..."]]:
    """Number, mean and sum of squared deviations over the chains in `use`, reduced in chain order.

    Chan, Golub and LeVeque (1983), The American Statistician 37: the sum over chains of m2 + n (mean - pooled mean)^2.
    Padding chains are not part of it.
    """
    n = jnp.where(use, ensemble.gather(moments.n), 0.0)
    chain_mean = jnp.where(use[:, None], ensemble.gather(moments.mean), 0.0)
    gathered = ensemble.gather(moments.m2)
    m2 = jnp.where(use.reshape(-1, *[1] * (gathered.ndim - 1)), gathered, 0.0)
    total = jnp.sum(n)
    mean = jnp.sum(n[:, None] * chain_mean, axis=0) / jnp.maximum(total, 1.0)
    shift = jnp.where(use[:, None], chain_mean - mean, 0.0)
    weighted = n[:, None] * shift
    between = jnp.einsum("ci,cj->ij", weighted, shift) if m2.ndim == 3 else jnp.sum(weighted * shift, axis=0)
    return total, mean, jnp.sum(m2, axis=0) + between
