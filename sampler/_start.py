"""Start positions: what the user gave, moved into the unconstrained space."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jaxtyping import Bool, Float

from chainmesh._errors import StartError

from ._failures import explain
from ._logdensity import as_float
from ._model import trace_to_unconstrained
from ._sites import TRACE_LOCK, matmul_precision, nearest, show_value
from ._small_programs import run_traced
from ._target import Target


def start_values(
    target: Target, initvals: Any, initial: Any, chains: int, seed_key: Any
) -> tuple[Float[np.ndarray, "chains dim"], Bool[np.ndarray, "chains dim"]]:
    """Start positions as far as they are given; the rest is to be drawn.

    Args:
        target: the target.
        initvals: for a model, a dict of site -> value in the model's own space, any subset of its latent
            sites; or
            one such dict per chain; or a dict whose arrays have a leading chain axis (where that reading and
            the
            site's own shape both fit, the site's own shape wins). For a LogDensity, a position or one per
            chain.
        initial: a LogDensity's start, used where there are no `initvals`; None for the target's own.
        chains: number of chains.
        seed_key: JAX key for a LogDensity whose `initial` is a function; chain c uses `fold_in(seed_key, c)`.

    Returns:
        `(values, fixed)`: unconstrained positions, and which entries of them were given. The others are 0.

    Raises:
        StartError: an unknown site, a wrong shape, or a value outside the support; chain, site and value are
            named.
    """
    if target.spec is not None:
        values = _positions(target, initvals, initial, chains, seed_key)
        return values, np.ones_like(values, bool)
    values = np.zeros((chains, target.dim), target.dtype)
    fixed = np.zeros((chains, target.dim), bool)
    if initvals is None:
        return values, fixed
    rows = _rows(target, initvals, chains)
    groups: dict[tuple[str, ...], list[int]] = {}
    for chain, row in enumerate(rows):
        groups.setdefault(tuple(f.name for f in target.free if f.name in row), []).append(chain)
    for names, members in groups.items():
        if not names:
            continue
        stacked = tuple(np.stack([rows[c][name] for c in members]) for name in names)
        free, inside = _unconstrain(target, names, stacked)
        _check_inside(target, names, members, rows, inside)
        for name, z in zip(names, free, strict=True):
            part = next(f.slice for f in target.free if f.name == name)
            values[members, part] = z.reshape(len(members), -1)
            fixed[members, part] = True
    return values, fixed


def _positions(target: Target, initvals: Any, initial: Any, chains: int, seed_key: Any) -> np.ndarray:
    spec = target.spec
    assert spec is not None
    if initvals is not None:
        return spec.flatten(initvals, chains, "initvals")
    initial = target.initial if initial is None else initial
    if isinstance(initial, np.ndarray) and initial.shape in ((1, target.dim), (chains, target.dim)):
        return np.array(np.broadcast_to(initial, (chains, target.dim)), target.dtype)
    if not callable(initial):
        return spec.flatten(initial, chains, "initial")

    def draw(key, chain):
        position = initial(jax.random.fold_in(key, chain))
        if jax.tree.structure(position) != spec.treedef:
            raise StartError(
                f"`initial` returned another structure than before: {jax.tree.structure(position)}."
            )
        return jnp.concatenate([jnp.ravel(x).astype(target.dtype) for x in jax.tree.leaves(position)])

    with TRACE_LOCK:
        closed = jax.make_jaxpr(draw)(seed_key, np.int32(0))
    return np.array(run_traced(closed, (seed_key, np.arange(chains, dtype=np.int32)), (None, 0))[0])


def _rows(target: Target, initvals: Any, chains: int) -> list[dict[str, np.ndarray]]:
    """One dict of checked values per chain."""
    if isinstance(initvals, Mapping):
        rows: list[dict[str, np.ndarray]] = [{} for _ in range(chains)]
        for name, value in _known(target, initvals, "`initvals`"):
            event = _event(target, name)
            array = as_float(value, f"`initvals[{name!r}]`")
            if array.shape == event:
                array = np.broadcast_to(array, (chains, *event))
            elif array.shape != (chains, *event):
                raise StartError(
                    f"`initvals[{name!r}]` has shape {array.shape}; site {name!r} has shape {event}, and one "
                    "value per chain "
                    f"has {(chains, *event)}."
                )
            for row, x in zip(rows, array, strict=True):
                row[name] = np.asarray(x)
        return rows
    if not isinstance(initvals, Sequence) or not all(
        row is None or isinstance(row, Mapping) for row in initvals
    ):
        raise StartError("`initvals` must be a dict of site -> value, or a list of one such dict per chain.")
    if len(initvals) != chains:
        raise StartError(f"`initvals` has {len(initvals)} entries for {chains} chains.")
    rows = []
    for chain, given in enumerate(initvals):
        rows.append({})
        for name, value in _known(target, given or {}, f"`initvals[{chain}]`"):
            array = as_float(value, f"`initvals[{chain}][{name!r}]`")
            if array.shape != _event(target, name):
                raise StartError(
                    f"`initvals[{chain}][{name!r}]` (chain {chain}) has shape {array.shape}; site {name!r} "
                    "has shape "
                    f"{_event(target, name)}."
                )
            rows[-1][name] = array
    return rows


def _event(target: Target, name: str) -> tuple[int, ...]:
    return next(f.event for f in target.free if f.name == name)


def _known(target: Target, given: Mapping[str, Any], where: str) -> list[tuple[str, Any]]:
    latent = [f.name for f in target.free]
    kinds = target.site_kinds
    for name in given:
        if name in latent:
            continue
        kind = kinds.get(name)
        if kind == "deterministic":
            raise StartError(
                f"{where} has {name!r}, which the model computes from its latent sites: {latent}."
            )
        if kind == "observed":
            raise StartError(f"{where} has {name!r}, which is observed: its value is the data.")
        raise StartError(f"{where} has {name!r}, which is no latent site{nearest(name, latent)}")
    return [(name, value) for name, value in given.items() if value is not None]


def _check_inside(
    target: Target,
    names: Sequence[str],
    chains: Sequence[int],
    rows: Sequence[Mapping],
    inside: Sequence[np.ndarray],
) -> None:
    for name, flags in zip(names, inside, strict=True):
        bad = [chain for chain, flag in zip(chains, flags, strict=True) if not flag]
        if bad:
            support = next(f.support for f in target.free if f.name == name)
            more = f" (and in chains {', '.join(map(str, bad[1:9]))})" if len(bad) > 1 else ""
            raise StartError(
                f"`initvals`: chain {bad[0]}: {name} = {show_value(rows[bad[0]][name])} lies outside the "
                "support of site "
                f"{name!r}, {support}, or on its edge{more}."
            )


def _unconstrain(
    target: Target, names: tuple[str, ...], values: tuple[np.ndarray, ...]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Unconstrained values and support flags of the given sites, one row per chain."""
    others = [f for f in target.free if f.name not in names]

    def chainmesh_unconstrain(given, rest, *leaves):
        args, data = target.inputs.rebuild(leaves)
        placeholders = {f.name: x for f, x in zip(others, rest, strict=True)}
        result = trace_to_unconstrained(
            target.model, args, data, dict(zip(names, given, strict=True)), placeholders
        )
        return [result[name][0] for name in names], [result[name][1] for name in names]

    given_avals = tuple(jax.ShapeDtypeStruct(v.shape[1:], v.dtype) for v in values)
    rest = tuple(np.zeros(f.shape, target.dtype) for f in others)
    leaves = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in target.traced]
    try:
        with TRACE_LOCK, matmul_precision():
            closed = jax.make_jaxpr(chainmesh_unconstrain)(given_avals, rest, *leaves)
    except Exception as error:
        raise explain(error, target.name, target.paths) from error
    _, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    needed = [f.name for f, is_used in zip(others, used[len(names) :], strict=False) if is_used]
    if needed:
        raise StartError(
            f"`initvals` gives {', '.join(map(repr, names))}, whose support depends on "
            f"{', '.join(map(repr, needed))}: give "
            f"{'a value' if len(needed) == 1 else 'values'} of {', '.join(map(repr, needed))} too."
        )
    axes = (0,) * len(names) + (None,) * (len(rest) + len(leaves))
    out = [np.asarray(x) for x in run_traced(closed, (*values, *rest, *target.traced), axes)]
    return out[: len(names)], out[len(names) :]
