"""The warm-up loop: steps with the parameters of the moment, adapted after each."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from ._adaptation import Adaptation, Tuning
from ._base import Batching, Carry, Info, Kernel, LogDensityFn, Rows
from ._engine import scan_block


def warmup_block(
    kernel: Kernel,
    adaptation: Adaptation,
    engine: Batching,
    logdensity: LogDensityFn,
    keys: Key[Array, " chains"],
    carry: tuple[Carry, Tuning],
    window: dict[str, Array],
    start: Int[Array, ""],
    n: Int[Array, ""],
    capacity: int,
) -> tuple[tuple[Carry, Tuning], Rows]:
    """Warm-up draws `start` to `start + n` of one window; a row each when `capacity` is not 0, else none."""

    def step(step_keys: Any, carry: tuple[Carry, Tuning]) -> tuple[tuple[Carry, Tuning], Info]:
        inner, tuning = carry
        params = adaptation.params(tuning, window["max_depth"])
        inner, info = kernel.carry_step(step_keys, params, engine, logdensity, inner)
        tuning = adaptation.update(tuning, window, kernel.position(inner), kernel.gradient(inner), info)
        return (inner, tuning), info

    def position(carry: tuple[Carry, Tuning]) -> Array:
        return kernel.position(carry[0])

    one = jnp.asarray(1, n.dtype)
    return scan_block(step, position, keys, carry, start, n, one, capacity)
