"""Which part of `data` and `args` is traced, and which part belongs to the program.

Arrays with at least one axis and floats are traced: new values reuse the compiled program. Everything that
can
change what the model does in Python (ints, bools, strings, None, enums, functions) is static, by value.
"""

import dataclasses
import enum
import hashlib
import sys
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from chainmesh._errors import DataError

from ._rounding import rounding_losses
from ._sites import default_float, default_int
from ._tables import Axis, from_pandas


@dataclass(frozen=True, eq=False)
class static:
    """Marks an entry of `data` or `args` as static: part of the program, by value, and concrete in the model.

    Arrays arrive in the model as NumPy arrays, so that `np.unique(x)` or `int(x.max())` work there. Another
    value
    means another program, hence a new compilation.

    Args:
        value: anything hashable, an array, or a container of such.
    """

    value: Any


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """The arguments of a model, split into traced arrays and a static rest.

    Attributes:
        traced: host NumPy or JAX arrays, in a fixed order, with strong canonical dtypes.
        paths: a readable path for each, such as `data['county']` or `args[0]['y'][1]`.
        static_key: hashable; equal when structure and all static values are equal.
        labels: for traced pandas objects, path -> one (axis name, labels) per axis.
    """

    traced: tuple[Any, ...]
    paths: tuple[str, ...]
    static_key: Hashable
    labels: dict[str, tuple[tuple[str | None, np.ndarray], ...]]
    _treedefs: tuple[Any, Any] = dataclasses.field(repr=False)
    _leaves: tuple[Any, ...] = dataclasses.field(
        repr=False
    )  # static values, and _HOLE where a traced one goes

    def rebuild(self, values: Sequence[Any]) -> tuple[tuple, dict[str, Any]]:
        """Puts traced values (or tracers) back where they came from.

        Args:
            values: one for each of `traced`, in that order.

        Returns:
            `(args, data)`, as the model is called: `model(*args, **data)`.
        """
        rest = iter(values)
        leaves = [next(rest) if leaf is _HOLE else leaf for leaf in self._leaves]
        args_tree, data_tree = self._treedefs
        n = args_tree.num_leaves
        return (
            jax.tree_util.tree_unflatten(args_tree, leaves[:n]),
            jax.tree_util.tree_unflatten(data_tree, leaves[n:]),
        )


class _Hole:
    def __repr__(self) -> str:
        return "<traced>"


_HOLE = _Hole()
_LEAVES = (str, bytes, bool, int, float, complex, enum.Enum, type, np.dtype, range)


def split_data(args: Any = (), data: Any = None) -> ModelInputs:
    """Splits a model's arguments into traced arrays and static values. Nothing of the user's is changed.

    Args:
        args: tuple of positional arguments, any nesting of containers.
        data: dict of keyword arguments, or None.

    Raises:
        DataError: an entry is of no use to a compiled model, or cannot be represented; its path is named.
    """
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise DataError(
            f"`args` must be a tuple of positional arguments, not {type(args).__name__}: write args=(x,)."
        )
    if data is not None and not isinstance(data, Mapping):
        raise DataError(f"`data` must be a dict of argument name -> value, not {type(data).__name__}.")
    for key in data or {}:
        if not isinstance(key, str):
            raise DataError(f"the keys of `data` must be names of the model's arguments; got {key!r}.")
    traced: list[Any] = []
    paths: list[str] = []
    leaves: list[Any] = []
    keys: list[Hashable] = []
    labels: dict[str, tuple] = {}
    losses: list[str] = []
    trees = []
    for root, tree in (("args", tuple(args)), ("data", dict(data or {}))):
        try:
            found, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_leaf)
        except (TypeError, ValueError) as error:
            raise DataError(f"`{root}` holds a container that cannot be taken apart: {error}") from error
        trees.append(treedef)
        for keypath, leaf in found:
            path = root + jax.tree_util.keystr(keypath)
            value, is_traced, axes = _classify(leaf, path, losses)
            if is_traced:
                traced.append(value)
                paths.append(path)
                if axes:
                    labels[path] = axes
                leaves.append(_HOLE)
                keys.append(_HOLE)
            else:
                leaves.append(value)
                keys.append(_static_key(value, path))
    if losses:
        warnings.warn(
            f"{', '.join(losses)}: float64 values that differ become equal in float32. Subtract an origin or "
            "rescale "
            "before sampling, or set jax_enable_x64.",
            UserWarning,
            stacklevel=3,
        )
    key = (*trees, *keys)
    try:
        hash(key)
    except TypeError as error:
        raise DataError(f"a container in `args` or `data` has unhashable settings: {error}") from error
    return ModelInputs(tuple(traced), tuple(paths), key, labels, (trees[0], trees[1]), tuple(leaves))


def _is_leaf(x: Any) -> bool:
    return x is None or isinstance(x, static) or isinstance(x, _LEAVES)


def _classify(x: Any, path: str, losses: list[str]) -> tuple[Any, bool, tuple[Axis, ...]]:
    """(value, traced?, axis labels)."""
    if isinstance(x, static):
        return _concrete(x.value, path), False, ()
    if x is None or isinstance(x, (enum.Enum, str, bytes, type, np.dtype, range)):
        return x, False, ()
    if isinstance(x, (bool, np.bool_)):
        return bool(x), False, ()
    if isinstance(x, (int, np.integer)):
        return int(x), False, ()
    if isinstance(x, (float, np.floating)):
        return np.asarray(x, default_float()), True, ()
    if isinstance(x, (complex, np.complexfloating)):
        raise DataError(f"{path} is complex: pass its real and imaginary parts as two arrays.")
    if isinstance(x, jax.core.Tracer):
        raise DataError(
            f"{path} is a traced JAX value: sampling starts programs of its own and cannot run inside jit."
        )
    if isinstance(x, jax.Array):
        return *_from_jax(x, path), ()
    if isinstance(x, np.ndarray):
        if x.ndim == 0 and x.dtype.kind in "biu":
            return x.item(), False, ()
        value = _from_numpy(x, path, losses)
        return (value.astype(default_float()) if x.ndim == 0 else value), True, ()
    if "pandas" in sys.modules and type(x).__module__.partition(".")[0] == "pandas":
        value, axes = from_pandas(x, path, lambda array, name: _from_numpy(array, name, losses))
        return value, True, axes
    if callable(x):
        return x, False, ()
    raise DataError(
        f"{path} is a {type(x).__module__}.{type(x).__qualname__}, which can be neither traced nor compared "
        "by value. "
        "Pass arrays (np.asarray), numbers or dicts of such, or cm.static(x) when it is hashable and part "
        "of the model."
    )


def _from_jax(x: jax.Array, path: str) -> tuple[Any, bool]:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise DataError(
            f"{path} is an array of {x.dtype}: pass jax.random.key_data(...) and wrap it in the model."
        )
    if x.is_deleted():
        raise DataError(f"{path} was deleted or donated to a jitted function: pass a copy made before.")
    if x.dtype.kind == "c":
        raise DataError(f"{path} is complex: pass its real and imaginary parts as two arrays.")
    if x.ndim == 0:
        if x.dtype.kind in "biu":
            return x.item(), False
        return np.asarray(x, default_float()), True
    return (np.asarray(x) if x.weak_type else x), True


def _from_numpy(x: np.ndarray, path: str, losses: list[str]) -> np.ndarray:
    """Canonical strong dtype, on the host, without a copy where none is needed."""
    if isinstance(x, np.ma.MaskedArray):
        raise DataError(
            f"{path} is a masked array: pass x.filled(...) and the mask as a boolean array of its own."
        )
    kind = x.dtype.kind
    if x.dtype.names or (kind in "OSUVMm" and not _is_small_float(x.dtype)):
        hint = {
            "M": "turn times into floats, such as days since a start",
            "m": "divide by a np.timedelta64 unit",
        }
        advice = hint.get(
            kind, "turn labels into integer codes (np.unique(x, return_inverse=True)), numbers into floats"
        )
        raise DataError(f"{path} has dtype {x.dtype}, which JAX cannot hold: {advice}.")
    if kind == "c":
        raise DataError(f"{path} is complex: pass its real and imaginary parts as two arrays.")
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    x = x.view(np.ndarray)
    if kind in "iu" and x.dtype.itemsize == 8 and default_int().itemsize == 4:
        small = np.dtype(np.int32 if kind == "i" else np.uint32)
        info = np.iinfo(small)
        if x.size and (x.max() > info.max or x.min() < info.min):
            worst = x.max() if x.max() > info.max else x.min()
            raise DataError(
                f"{path} holds {worst}, which does not fit {small} (JAX's default integer): subtract an "
                "origin, use "
                "codes 0, 1, ..., or set jax_enable_x64."
            )
        return x.astype(small)
    if kind == "f" and x.dtype.itemsize >= 8 and x.dtype != default_float():
        return _round_floats(x, path, losses)
    return x


def _round_floats(x: np.ndarray, path: str, losses: list[str]) -> np.ndarray:
    target = default_float()
    with np.errstate(over="ignore"):
        rounded = x.astype(target)
    if x.dtype.itemsize == 8 and x.ndim:
        infinite = np.isinf(rounded)
        overflow = infinite & np.isfinite(x) if infinite.any() else infinite
        if overflow.any():
            raise DataError(
                f"{path} holds {x[overflow][0]:.6g}, which float32 cannot hold: rescale, or set "
                "jax_enable_x64."
            )
        losses.extend(rounding_losses(x, rounded, path))
    return rounded


def _is_small_float(dtype: np.dtype) -> bool:
    """bfloat16 and float8 are of NumPy kind V."""
    return jax.dtypes.issubdtype(dtype, np.floating)


def _concrete(value: Any, path: str) -> Any:
    """A static value with its JAX arrays turned into read-only NumPy copies."""

    def convert(x: Any) -> Any:
        if isinstance(x, (np.ndarray, jax.Array)):
            array = np.array(x)
            if array.dtype.kind == "O":
                raise DataError(f"{path}: cm.static cannot hold an array of objects.")
            array.flags.writeable = False
            return array
        return x

    return jax.tree.map(convert, value, is_leaf=lambda x: x is None)


def _static_key(value: Any, path: str) -> Hashable:
    leaves, treedef = jax.tree_util.tree_flatten(value, is_leaf=lambda x: x is None)
    keys: list[Hashable] = []
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            keys.append(("array", str(leaf.dtype), leaf.shape, hashlib.sha256(leaf.tobytes()).digest()))
            continue
        try:
            hash(leaf)
        except TypeError as error:
            raise DataError(
                f"{path} is static, so it must be hashable, but {type(leaf).__qualname__} is not: pass "
                "arrays, numbers, "
                "strings or tuples of such, or give the class __hash__ and __eq__."
            ) from error
        # 1, 1.0 and True are equal in Python, but not to a model.
        keys.append((type(leaf), repr(leaf) if isinstance(leaf, float) else leaf))
    return (treedef, tuple(keys)) if len(keys) != 1 or leaves[0] is not value else keys[0]
