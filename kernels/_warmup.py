"""The loop of a tuned run: steps with the parameters of the moment, adapted after each during warm-up."""

from typing import Any

import jax
from jaxtyping import Array, Int, Key

from ._adaptation import Adaptation, Tuning, check_tunable
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
    thin: Int[Array, ""],
    capacity: int,
) -> tuple[tuple[Carry, Tuning], Rows]:
    """Kept draws `start` to `start + n` of one window, or of the draws after it where `window["adapt"]` is 0.

    Warm-up and draws are one program, because compiling a second one would cost more than sampling most models does.
    """

    def step(step_keys: Any, carry: tuple[Carry, Tuning]) -> tuple[tuple[Carry, Tuning], Info]:
        inner, tuning = carry
        params = adaptation.params(tuning, window["max_depth"])
        inner, info = kernel.carry_step(step_keys, params, engine, logdensity, inner)
        check_tunable(kernel.name, {"step_size": 0.0}, info)

        def adapted() -> Tuning:
            return adaptation.update(tuning, window, kernel.position(inner), kernel.gradient(inner), info)

        return (inner, jax.lax.cond(window["adapt"] > 0, adapted, lambda: tuning)), info

    def position(carry: tuple[Carry, Tuning]) -> Array:
        return kernel.position(carry[0])

    return scan_block(step, position, keys, carry, start, n, thin, capacity)
