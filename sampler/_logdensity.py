"""Log densities of one's own, and the structure of their positions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainmesh._errors import InputError, ModelError, StartError

from ._failures import explain
from ._sites import TRACE_LOCK, FreeSite, default_float


class LogDensity:
    """A log density over positions in an unconstrained space.

    Attributes are the arguments, unchanged.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        initial: Any,
        constrain: Callable[..., Any] | None = None,
        dims: Mapping[str, Sequence[str | None] | str] | None = None,
        coords: Mapping[str, Any] | None = None,
    ):
        """Describes a target.

        Args:
            fn: `fn(position, *args, **data)`, the log density up to a constant, a scalar. The space is
                unconstrained: where a transform was used, its Jacobian is the function's.
            initial: a position (array, dict or any pytree of arrays), from which all chains start; or one
                position per
                chain, with a leading chain axis on every leaf; or a function from a JAX key to a position.
                Where both
                of the first two readings give a scalar density, leaves with two or more axes are taken as one
                position per chain, and vectors as one position. Integers become floats.
            constrain: `constrain(position, *args, **data)`, a dict of what to keep of each draw. By default
                the
                position itself: a bare array is called "x", a nested leaf "outer.inner".
            dims: names of the axes, by site.
            coords: labels, by axis name.

        Raises:
            InputError: `fn` or `constrain` cannot be called.
        """
        for name, f in (("fn", fn), ("constrain", constrain)):
            if not callable(f) and not (f is None and name != "fn"):
                raise InputError(f"LogDensity: `{name}` must be a function, not {type(f).__name__}.")
        if initial is None:
            raise InputError("LogDensity: give `initial`, a position from which the structure is known.")
        self.fn = fn
        self.initial = initial
        self.constrain = constrain
        self.dims = dims
        self.coords = coords

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def __repr__(self) -> str:
        return f"LogDensity({self.name})"


@dataclass(frozen=True)
class PositionSpec:
    """How a position's pytree lies in the flat vector `z`.

    Attributes:
        treedef: its structure.
        free: its leaves.
    """

    treedef: Any
    free: tuple[FreeSite, ...]

    @property
    def dim(self) -> int:
        """Length of `z`."""
        return self.free[-1].slice.stop if self.free else 0

    def unflatten(self, z: Any) -> Any:
        """A position from a flat vector; leading axes stay in front."""
        leaves = [z[..., f.slice].reshape((*z.shape[:-1], *f.shape)) for f in self.free]
        return jax.tree_util.tree_unflatten(self.treedef, leaves)

    def flatten(self, position: Any, chains: int, what: str) -> np.ndarray:
        """Flat vectors, one per chain, from one position or one per chain (leading axis or a list).

        Args:
            position: what the user gave.
            chains: how many chains there are.
            what: its name, for messages.

        Returns:
            Array (chains, dim).

        Raises:
            StartError: the structure, a shape or a dtype does not fit.
        """
        try:
            leaves = self.treedef.flatten_up_to(position)
        except (TypeError, ValueError) as error:
            if not isinstance(position, (list, tuple)):
                given = jax.tree.structure(position)
                raise StartError(
                    f"`{what}` has the structure {given}; the log density's position has {self.treedef}."
                ) from error
            if len(position) != chains:
                raise StartError(f"`{what}` has {len(position)} positions for {chains} chains.") from error
            return np.concatenate([self.flatten(p, 1, f"{what}[{i}]") for i, p in enumerate(position)])
        columns = []
        for site, leaf in zip(self.free, leaves, strict=True):
            value = as_float(leaf, f"`{what}`, leaf {site.name!r}")
            if value.shape == site.shape:
                value = np.broadcast_to(value, (chains, *site.shape))
            elif value.shape != (chains, *site.shape):
                raise StartError(
                    f"`{what}`: {site.name!r} has shape {value.shape}; expected {site.shape}, or one row per "
                    "chain, "
                    f"{(chains, *site.shape)}."
                )
            columns.append(value.reshape(chains, -1))
        return np.concatenate(columns, axis=1)


def as_float(leaf: Any, name: str) -> np.ndarray:
    """An array of the default float, from numbers of any kind."""
    try:
        value = np.asarray(leaf)
    except (TypeError, ValueError) as error:
        raise StartError(f"{name} is no array of numbers: {error}") from error
    if value.dtype.kind not in "biuf" and not jax.dtypes.issubdtype(value.dtype, np.floating):
        raise StartError(f"{name} has dtype {value.dtype}; positions are real numbers.")
    return value.astype(default_float())


def leaf_names(tree: Any) -> tuple[list[str], list[Any], Any]:
    """(names, leaves, treedef): a bare array is "x", nested keys are joined with dots."""
    found, treedef = jax.tree_util.tree_flatten_with_path(tree)
    names = []
    for path, _ in found:
        parts = [str(next(getattr(k, a) for a in ("key", "name", "idx") if hasattr(k, a))) for k in path]
        if not parts or isinstance(path[0], jax.tree_util.SequenceKey):
            parts = ["x", *parts]
        names.append(".".join(parts))
    return names, [leaf for _, leaf in found], treedef


def position_spec(
    target: LogDensity,
    avals: Sequence[Any],
    rebuild: Callable[[Sequence[Any]], tuple[tuple, dict]],
    chains: int | None,
) -> tuple[PositionSpec, np.ndarray | None]:
    """The structure of a log density's positions, and the start positions, unless they are drawn.

    Args:
        target: the log density.
        avals: shapes and dtypes of the traced arguments.
        rebuild: puts traced arguments into (args, data).
        chains: how many chains `initial` may hold positions for; None when not known.

    Returns:
        `(spec, start)`: start is (1, dim) or (chains, dim), or None where `initial` is a function.
    """
    if callable(target.initial) and not isinstance(target.initial, (np.ndarray, jax.Array)):
        try:
            with TRACE_LOCK:
                shapes = jax.eval_shape(lambda: target.initial(jax.random.key(0)))
        except Exception as error:
            raise StartError(f"`initial` of {target!r} fails: {type(error).__name__}: {error}") from error
        names, leaves, treedef = leaf_names(shapes)
        return _spec(names, [x.shape for x in leaves], treedef), None
    names, leaves, treedef = leaf_names(target.initial)
    values = [as_float(leaf, f"`initial`, leaf {name!r}") for name, leaf in zip(names, leaves, strict=True)]
    whole = _spec(names, [v.shape for v in values], treedef)
    flat = [v.reshape(1, -1) for v in values]
    if chains is None or not all(v.ndim and v.shape[0] == chains for v in values):
        return whole, np.concatenate(flat, axis=1)
    rows = _spec(names, [v.shape[1:] for v in values], treedef)

    def is_scalar(spec: PositionSpec) -> bool:
        try:
            with TRACE_LOCK:
                out = jax.eval_shape(lambda z, *leaves: evaluate(target, spec, z, rebuild(leaves)),
                                     jax.ShapeDtypeStruct((spec.dim,), default_float()), *avals)  # fmt: skip
        except Exception:
            return False
        return isinstance(out, jax.ShapeDtypeStruct) and out.shape == ()

    as_whole, as_rows = is_scalar(whole), is_scalar(rows)
    if as_rows and (not as_whole or any(v.ndim >= 2 for v in values)):
        return rows, np.concatenate([v.reshape(chains, -1) for v in values], axis=1)
    return whole, np.concatenate(flat, axis=1)


def _spec(names: list[str], shapes: Sequence[tuple[int, ...]], treedef: Any) -> PositionSpec:
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise ModelError(
            f"two leaves of the position are called {twice!r} once nested keys are joined: rename one."
        )
    free, start = [], 0
    for name, shape in zip(names, shapes, strict=True):
        stop = start + int(np.prod(shape))
        free.append(FreeSite(name, tuple(shape), slice(start, stop), tuple(shape), "Real"))
        start = stop
    if start == 0:
        raise ModelError("the position of the log density has no numbers in it.")
    return PositionSpec(treedef, tuple(free))


def evaluate(target: LogDensity, spec: PositionSpec, z: Any, inputs: tuple[tuple, dict]) -> Any:
    """The user's function at a flat position, as it returns."""
    args, data = inputs
    return target.fn(spec.unflatten(z), *args, **data)


def checked_evaluate(
    target: LogDensity, spec: PositionSpec, z: Any, inputs: tuple, paths: Sequence[str]
) -> Any:
    """The log density, a scalar of the default float.

    Raises:
        ModelError: the function fails, or what it returns is no log density.
    """
    try:
        out = evaluate(target, spec, z, inputs)
    except Exception as error:
        known = explain(error, target.name, paths, "log density")
        shapes = ", ".join(f"{f.name!r} {f.shape}" for f in spec.free)
        raise ModelError(f"{known} (the position it was given has {shapes})") from error
    who = f"the log density {target.name!r}"
    if out is None:
        raise ModelError(f"{who} returns None: is a `return` missing?")
    if not isinstance(out, (jax.Array, np.ndarray, np.generic, int, float, complex)):
        raise ModelError(f"{who} returns a {type(out).__name__}; it must return a scalar.")
    if jnp.shape(out) != ():
        raise ModelError(
            f"{who} returns an array of shape {jnp.shape(out)}; it must return a scalar: use .sum()?"
        )
    dtype = jnp.result_type(out)
    if not jnp.issubdtype(dtype, np.floating):
        raise ModelError(f"{who} returns {dtype}; it must return a real floating-point number.")
    return jax.lax.convert_element_type(jnp.asarray(out), default_float())
