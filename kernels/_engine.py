"""The default engine: a loop of steps that writes the kept draws into buffers of fixed capacity."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from ._base import Carry, Info, Rows

_TOTALLED = ("diverging", "n_steps")


def _chain_buffer(shape: tuple[int, ...], dtype: Any, capacity: int) -> Array:
    return jnp.zeros((shape[0], capacity, *shape[1:]), dtype)


def _write(buffer: Array, row: Any, value: Array) -> Array:
    if buffer.shape[1] == 0:
        return buffer
    return jax.lax.dynamic_update_index_in_dim(buffer, value, row, axis=1)


def scan_block(
    step: Callable[[Key[Array, " chains"], Carry], tuple[Carry, Info]],
    position: Callable[[Carry], Array],
    keys: Key[Array, " chains"],
    carry: Carry,
    start: Int[Array, ""],
    n: Int[Array, ""],
    thin: Int[Array, ""],
    capacity: int,
) -> tuple[Carry, Rows]:
    """Run `n * thin` steps and keep the last of every `thin`; all but `capacity` are traced. Capacity 0 keeps none.

    Step s of the phase uses `fold_in(key of the chain, s)`, so a draw does not depend on the block it falls into.
    """
    first = start * thin
    # Traced once: its shapes make the buffers, and the loop runs the jaxpr.
    closed, (_, steps) = jax.make_jaxpr(step, return_shape=True)(keys, carry)
    tree = jax.tree.structure((carry, steps))
    x = jax.eval_shape(position, carry)
    rows = Rows(
        position=_chain_buffer(x.shape, x.dtype, capacity),
        info={name: _chain_buffer(s.shape, s.dtype, capacity) for name, s in steps.items()},
        totals={name: jnp.zeros(steps[name].shape, jnp.int32) for name in _TOTALLED if name in steps},
    )

    def body(i: Any, loop: tuple[Carry, Rows]) -> tuple[Carry, Rows]:
        carry, rows = loop
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, first + i)
        flat = jax.tree.leaves((step_keys, carry))
        carry, info = jax.tree.unflatten(tree, jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *flat))
        row = i // thin
        return carry, Rows(
            position=_write(rows.position, row, position(carry)),
            info={name: _write(rows.info[name], row, value) for name, value in info.items()},
            totals={name: total + info[name].astype(jnp.int32) for name, total in rows.totals.items()},
        )

    return jax.lax.fori_loop(0, n * thin, body, (carry, rows))
