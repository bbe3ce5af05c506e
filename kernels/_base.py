"""The kernel form: what every method provides, written for one chain.

The default engine (`_engine.py`) maps it over the chains of a device and scans it; a kernel that can do better fills
`carry_init` and `draw_block` itself.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

Params = dict[str, Any]
"""Every number that a user or a warm-up may vary, by name. Always traced."""

Info = dict[str, Array]
"""Scalars of one step under ArviZ's sample_stats names."""

LogDensityFn = Callable[[Float[Array, " dim"]], Float[Array, ""]]
"""Log density of a flat position in unconstrained space, up to a constant."""

Carry: TypeAlias = Any


def setting(default: Any = None) -> Any:
    """A field whose value is traced: it varies without a new program, so it does not count for equality or hash."""
    return dataclasses.field(default=default, compare=False)


def short_repr(self: Any) -> str:
    """A dataclass with those fields that are not their defaults."""
    given = [(f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self)]
    shown = [f"{name}={short(value)}" for name, value, default in given if value is not default]
    return f"{type(self).__name__}({', '.join(shown)})"


def short(value: Any) -> str:
    """A setting in few characters."""
    return repr(value) if np.ndim(value) == 0 or isinstance(value, tuple) else f"<array {np.shape(value)}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Kernel:
    """A Markov kernel: a frozen, hashable dataclass of static settings.

    Fields made with `setting` are numbers that may vary; they only enter through `params`, so kernels that differ in
    nothing else share their compiled programs. Methods below `params` run inside compiled programs and must not
    read them.
    """

    target_accept_default: ClassVar[float] = 0.8

    __repr__ = short_repr

    @property
    def needs_gradient(self) -> bool:
        """Whether the log density must have a finite gradient at the start."""
        return True

    @property
    def name(self) -> str:
        """How reports call the kernel."""
        return type(self).__name__

    @property
    def fixed(self) -> bool:
        """Whether the user fixed what a warm-up would tune, so that nothing is tuned unless asked for."""
        raise NotImplementedError

    @property
    def max_tree_depth(self) -> int | None:
        """Depth at which trees saturate; None for kernels without trees."""
        return None

    def params(self, dim: int, dtype: np.dtype) -> Params:
        """The parameters before any tuning, as NumPy arrays for one chain (host side).

        Raises:
            InputError: a setting does not fit a position of `dim` entries.
        """
        raise NotImplementedError

    def init(
        self, key: Key[Array, ""], params: Params, logdensity: LogDensityFn, position: Float[Array, " dim"]
    ) -> Any:
        """The state at a start position: what the next step needs."""
        raise NotImplementedError

    def resume(
        self, key: Key[Array, ""], params: Params, logdensity: LogDensityFn, position: Float[Array, " dim"],
        value: Float[Array, ""], gradient: Float[Array, " dim"],
    ) -> Any:  # fmt: skip
        """`init` where log density and gradient at the position are known already."""
        del value, gradient
        return self.init(key, params, logdensity, position)

    def step(
        self, key: Key[Array, ""], params: Params, logdensity: LogDensityFn, state: Any
    ) -> tuple[Any, Info]:
        """One draw: the next state, and what diagnostics need."""
        raise NotImplementedError

    def position(self, state: Any) -> Float[Array, "... dim"]:
        """The position in a state (of one chain or of many)."""
        return state.position

    def gradient(self, state: Any) -> Float[Array, "... dim"] | None:
        """The gradient of the log density at the position, where the state has it."""
        return getattr(state, "logdensity_grad", None)

    # The door for speed. The defaults map one chain over all chains of a device.

    def carry_init(self, keys: Key[Array, " chains"], params: Params, engine: "Batching", logdensity: LogDensityFn,
                   positions: Float[Array, "chains dim"], values: Float[Array, " chains"],
                   gradients: Float[Array, "chains dim"]) -> Carry:  # fmt: skip
        """What a block starts from, one row a chain; log densities and gradients there are known."""
        one = lambda key, p, x, v, g: self.resume(key, p, logdensity, x, v, g)  # noqa: E731
        return engine.map(one, (0, engine.param_axes(params), 0, 0, 0))(
            keys, params, positions, values, gradients
        )

    def carry_step(self, keys: Key[Array, " chains"], params: Params, engine: "Batching", logdensity: LogDensityFn,
                   carry: Carry) -> tuple[Carry, Info]:  # fmt: skip
        """One draw of every chain."""
        one = lambda key, p, s: self.step(key, p, logdensity, s)  # noqa: E731
        return engine.map(one, (0, engine.param_axes(params), 0))(keys, params, carry)

    def draw_block(self, keys: Key[Array, " chains"], params: Params, engine: "Batching", logdensity: LogDensityFn,
                   carry: Carry, start: Int[Array, ""], n: Int[Array, ""], thin: Int[Array, ""], capacity: int
                   ) -> "tuple[Carry, Rows]":  # fmt: skip
        """Kept draws `start` to `start + n` of every chain, in buffers of `capacity` rows."""
        from ._engine import scan_block

        def step(keys: Any, carry: Carry) -> tuple[Carry, Info]:
            return self.carry_step(keys, params, engine, logdensity, carry)

        return scan_block(step, self.position, keys, carry, start, n, thin, capacity)


@dataclasses.dataclass(frozen=True)
class Rows:
    """What a block returns for the chains of one device; rows beyond the wanted number are undefined."""

    position: Float[Array, "chains capacity dim"]
    info: dict[str, Array]
    totals: dict[str, Int[Array, " chains"]]
    """Sums over every step of the block, thinned ones included, of `diverging` and `n_steps`."""


jax.tree_util.register_dataclass(Rows, data_fields=["position", "info", "totals"], meta_fields=[])


@dataclasses.dataclass(frozen=True)
class Batching:
    """How a function of one chain becomes one of all chains of a device.

    `shared` names the parameters that have no chain axis. With `count` (a traced number of chains) chains are
    evaluated one at a time instead of side by side: slower, but the arithmetic of a chain then does not depend on
    how many share its device.
    """

    shared: frozenset[str] = frozenset()
    count: Int[Array, ""] | None = None

    def param_axes(self, params: Params) -> dict[str, int | None]:
        """The axes of `params` to map over."""
        return {name: None if name in self.shared else 0 for name in params}

    def map(self, fn: Callable[..., Any], in_axes: tuple[Any, ...]) -> Callable[..., Any]:
        """`vmap`, or a loop over chains with a trip count that the compiler does not know."""
        if self.count is None:
            return jax.vmap(fn, in_axes=in_axes)
        count = self.count

        def one_by_one(*args: Any) -> Any:
            def pick(i: Any) -> tuple[Any, ...]:
                def part(arg: Any, axis: Any) -> Any:
                    if isinstance(axis, dict):
                        return {name: part(arg[name], axis[name]) for name in arg}
                    if axis is None:
                        return arg
                    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), arg)

                return tuple(part(arg, axis) for arg, axis in zip(args, in_axes, strict=True))

            def mapped(arg: Any, axis: Any) -> list[Any]:
                if isinstance(axis, dict):
                    return [x for name in arg for x in mapped(arg[name], axis[name])]
                return [] if axis is None else jax.tree.leaves(arg)

            chains = next(
                x.shape[0] for arg, axis in zip(args, in_axes, strict=True) for x in mapped(arg, axis)
            )
            shapes = jax.eval_shape(lambda: fn(*pick(0)))
            out = jax.tree.map(lambda s: jnp.zeros((chains, *s.shape), s.dtype), shapes)

            def body(i: Any, out: Any) -> Any:
                new = fn(*pick(i))
                return jax.tree.map(lambda o, x: jax.lax.dynamic_update_index_in_dim(o, x, i, 0), out, new)

            return jax.lax.fori_loop(0, count, body, out)

        return one_by_one
