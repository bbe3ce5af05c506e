"""The target of a run: two traced functions of a flat position, and all that is known about them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jaxtyping import Float

from chainmesh._errors import InputError, ModelError, OptionError

from ._data import ModelInputs, split_data
from ._dims import Dims, plate_dims, resolve_dims
from ._failures import explain
from ._logdensity import LogDensity, PositionSpec, checked_evaluate, leaf_names, position_spec
from ._model import Discovery, check_arguments, discover, replay
from ._sites import TRACE_LOCK as TRACE_LOCK
from ._sites import FreeSite, Site, Term, default_float, matmul_precision, nearest
from ._small_programs import run_traced


@dataclass(frozen=True, eq=False)
class Target:
    """A log density over flat unconstrained positions, traced.

    Attributes:
        name: of the model or function.
        dim: length of a position `z`.
        dtype: of positions and log densities.
        free: the latent sites' parts of `z`.
        terms: what outputs 1, 2, ... of `density` are; empty for a LogDensity.
        sites: what the outputs of `constrain` are.
        density: `(z, *traced) -> [total, *terms]`; total is differentiable.
        constrain: `(z, *traced) -> sites`.
        inputs: arguments of the model.
        dims: axis names of every site, observed and constant array.
        coords: labels by axis name.
        model: the NumPyro model, or the LogDensity.
        spec: structure of a LogDensity's positions; None for a model.
        initial: a LogDensity's start positions, (1, dim) or (chains, dim), or its function from a key.
    """

    name: str
    dim: int
    dtype: np.dtype
    free: tuple[FreeSite, ...]
    terms: tuple[Term, ...]
    sites: tuple[Site, ...]
    density: jex.ClosedJaxpr = field(repr=False)
    constrain: jex.ClosedJaxpr = field(repr=False)
    inputs: ModelInputs = field(repr=False)
    dims: dict[str, tuple[str, ...]] = field(repr=False)
    coords: dict[str, np.ndarray] = field(repr=False)
    model: Any = field(repr=False)
    spec: PositionSpec | None = field(repr=False)
    initial: Any = field(repr=False)
    _full: "_Full" = field(repr=False)

    @property
    def traced(self) -> tuple[Any, ...]:
        """Traced arguments: host NumPy or JAX arrays, the user's own where no cast was needed."""
        return self.inputs.traced

    @property
    def paths(self) -> tuple[str, ...]:
        """A readable path for each traced argument."""
        return self.inputs.paths

    @property
    def static_key(self) -> Any:
        """Hashable identity of the static arguments."""
        return self.inputs.static_key

    def unflatten(self, z: Any) -> Any:
        """Positions by site (a model) or as the user's pytree (a LogDensity), in the unconstrained space.

        Args:
            z: array (..., dim), of NumPy or JAX.
        """
        if self.spec is not None:
            return self.spec.unflatten(z)
        return {f.name: z[..., f.slice].reshape((*z.shape[:-1], *f.shape)) for f in self.free}

    def flatten(self, position: Any) -> Any:
        """The flat vector of one unconstrained position; the inverse of `unflatten`."""
        leaves = jax.tree.leaves(position) if self.spec is not None else [position[f.name] for f in self.free]
        xp: Any = jnp if any(isinstance(x, jax.Array) for x in leaves) else np
        return xp.concatenate([xp.ravel(x) for x in leaves]).astype(self.dtype)

    def observed(self) -> dict[str, np.ndarray]:
        """Host values of the observed sites. Compiles, once, for values that the model computes from data."""
        return self._full.values(self._full.observed, self.traced)

    def constants(self) -> dict[str, np.ndarray]:
        """Traced arguments that are not the value of an observed site, by their names."""
        observed = self._full.observed_arguments
        named = enumerate(zip(self._full.argument_names, self.traced, strict=True))
        return {name: np.asarray(x) for i, (name, x) in named if i not in observed}

    @property
    def site_kinds(self) -> dict[str, str]:
        """`latent`, `deterministic` or `observed`, for every site of the model."""
        return {**self._full.kinds, **dict.fromkeys(self._full.observed, "observed")}

    def evaluate_sites(self, z: Float[np.ndarray, "n dim"]) -> dict[str, np.ndarray]:
        """All latent and deterministic sites at some positions. Compiles: for messages, not for runs."""
        full = self._full
        program = project(full.closed, list(full.sites.values()))
        axes = (0, *[None] * len(self.traced))
        out = run_traced(program, (np.asarray(z, self.dtype), *self.traced), axes)
        return {name: np.asarray(x) for name, x in zip(full.sites, out, strict=True)}


@dataclass(frozen=True, eq=False)
class _Full:
    """One trace of everything; `density` and `constrain` are cut out of it."""

    closed: jex.ClosedJaxpr
    terms: tuple[Term, ...]
    sites: dict[str, int]  # output number by name
    kinds: dict[str, str]
    observed: dict[str, int]
    argument_names: tuple[str, ...]

    @property
    def observed_arguments(self) -> set[int]:
        """Which traced arguments are the value of an observed site."""
        jaxpr = self.closed.jaxpr
        outs = {id(jaxpr.outvars[i]) for i in self.observed.values()}
        return {i for i, v in enumerate(jaxpr.invars[1:]) if id(v) in outs}

    def values(self, outputs: Mapping[str, int], traced: Sequence[Any]) -> dict[str, np.ndarray]:
        """Host values of outputs that do not depend on the position."""
        jaxpr = self.closed.jaxpr
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, self.closed.consts, strict=True))
        known.update(zip(jaxpr.invars[1:], traced, strict=True))
        moving = moving_vars(jaxpr)
        result, computed = {}, {}
        for name, i in outputs.items():
            v = jaxpr.outvars[i]
            if isinstance(v, jex.Literal):
                result[name] = np.asarray(v.val)
            elif v in known:
                result[name] = np.asarray(known[v])
            elif v not in moving:
                computed[name] = i
        if computed:
            program = project(self.closed, list(computed.values()))
            z = np.zeros(jaxpr.invars[0].aval.shape, jaxpr.invars[0].aval.dtype)
            out = run_traced(program, (z, *traced))
            result.update({name: np.asarray(x) for name, x in zip(computed, out, strict=True)})
        return {name: result[name] for name in outputs if name in result}


def make_target(
    target: Any,
    args: Any = (),
    data: Any = None,
    *,
    dims: Dims | None = None,
    coords: Mapping[str, Any] | None = None,
    var_names: Sequence[str] | str | None = None,
    chains: int | None = None,
) -> Target:
    """Traces a NumPyro model or a LogDensity. Compiles nothing.

    Args:
        target: a NumPyro model, called as `model(*args, **data)`, or a LogDensity.
        args: positional arguments.
        data: keyword arguments.
        dims: names of axes by site; they win over the names of plates.
        coords: labels by axis name.
        var_names: which sites to keep; None for all.
        chains: number of chains, to know whether a LogDensity's `initial` holds one position for each.

    Raises:
        DataError: `args` or `data` do not fit, or cannot be represented.
        ModelError: the model cannot be sampled as it is written.
        InputError: `dims`, `coords` or `var_names` do not fit the model.
    """
    if not isinstance(target, LogDensity) and not callable(target):
        raise ModelError(
            f"the target must be a NumPyro model or a cm.LogDensity, not {type(target).__name__}."
        )
    inputs = split_data(args, data)
    is_density = isinstance(target, LogDensity)
    check_arguments(target.fn if is_density else target, len(args), data or {}, skip=int(is_density))
    avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs.traced]
    with TRACE_LOCK, matmul_precision():
        if is_density:
            name, free, full, spec, initial = _trace_log_density(target, inputs, avals, chains)
            plates: dict[str, tuple[str | None, ...]] = {}
            dims = {**(target.dims or {}), **(dims or {})}
            coords = {**(target.coords or {}), **(coords or {})}
        else:
            spec, initial = None, None
            name, free, full, plates = _trace_model(target, inputs, avals, len(args))
    avals_out = full.closed.out_avals
    shapes = {n: avals_out[i].shape for n, i in (full.sites | full.observed).items()}
    arguments = {n: x.shape for n, x in zip(full.argument_names, inputs.traced, strict=True)}
    by_name = dict(zip(inputs.paths, full.argument_names, strict=True))
    labels = {by_name[path]: axes for path, axes in inputs.labels.items()}
    all_dims, all_coords = resolve_dims({**arguments, **shapes}, plates, dims, coords, labels)
    kept = _chosen(full.sites, var_names, full)
    sites = tuple(
        Site(n, avals_out[i].shape, np.dtype(avals_out[i].dtype), cast(Any, full.kinds[n]), all_dims[n])
        for n, i in kept.items()
    )
    density = project(full.closed, range(1 + len(full.terms)))
    return Target(
        name, free[-1].slice.stop, default_float(), free, full.terms, sites, density,
        project(full.closed, list(kept.values())), inputs, all_dims, all_coords, target, spec, initial, full,
    )  # fmt: skip


def _trace_model(
    model: Callable, inputs: ModelInputs, avals: Sequence[Any], n_args: int
) -> tuple[str, tuple[FreeSite, ...], _Full, dict[str, tuple[str | None, ...]]]:
    name = getattr(model, "__name__", type(model).__name__)
    found: list[Any] = []

    def chainmesh_discover(z, *leaves):
        args, data = inputs.rebuild(leaves)
        found.append(discover(model, name, args, data, z))
        return z

    def chainmesh_trace(z, *leaves):
        args, data = inputs.rebuild(leaves)
        position = {f.name: z[f.slice].reshape(f.shape) for f in discovery.free}
        found.append(replay(model, args, data, position))
        result = found[-1]
        values = [value for _, value in result.sites.values()] + list(result.observed.values())
        return [result.total, *(value for _, value in result.terms), *map(jnp.asarray, values)]

    dtype = default_float()
    try:
        jax.eval_shape(chainmesh_discover, jax.ShapeDtypeStruct((), dtype), *avals)
        discovery: Discovery = found[-1]
        closed = jax.make_jaxpr(chainmesh_trace)(jax.ShapeDtypeStruct((discovery.dim,), dtype), *avals)
    except Exception as error:
        raise explain(error, name, inputs.paths) from (
            error.__cause__ if isinstance(error, ModelError) else error
        )
    result = found[-1]
    moving = moving_vars(closed.jaxpr)
    outvars = closed.jaxpr.outvars
    terms = tuple(
        replace(term, moving=not isinstance(v, jex.Literal) and v in moving)
        for (term, _), v in zip(result.terms, outvars[1:], strict=False)
    )
    first = 1 + len(terms)
    sites = {n: first + i for i, n in enumerate(result.sites)}
    observed = {n: first + len(sites) + i for i, n in enumerate(result.observed)}
    kinds = {n: kind for n, (kind, _) in result.sites.items()}
    names = argument_names(inputs.paths, model, 0)
    plates = plate_dims(discovery.sites)
    return name, discovery.free, _Full(closed, terms, sites, kinds, observed, names), plates


def _trace_log_density(
    target: LogDensity, inputs: ModelInputs, avals: Sequence[Any], chains: int | None
) -> tuple[str, tuple[FreeSite, ...], _Full, PositionSpec, Any]:
    spec, start = position_spec(target, avals, inputs.rebuild, chains)
    names: list[str] = []

    def chainmesh_trace(z, *leaves):
        total = checked_evaluate(target, spec, z, inputs.rebuild(leaves), inputs.paths)
        position = spec.unflatten(z)
        if target.constrain is not None:
            args, data = inputs.rebuild(leaves)
            try:
                position = target.constrain(position, *args, **data)
            except Exception as error:
                raise explain(error, "constrain", inputs.paths, "function") from error
        found, values, _ = leaf_names(position)
        names[:] = found
        return [total, *map(jnp.asarray, values)]

    closed = jax.make_jaxpr(chainmesh_trace)(jax.ShapeDtypeStruct((spec.dim,), default_float()), *avals)
    if not names or len(set(names)) < len(names):
        raise ModelError(
            f"`constrain` of {target!r} must return a dict of arrays with names of their own; got {names}."
        )
    latent = {f.name: f.shape for f in spec.free}
    sites = {n: 1 + i for i, n in enumerate(names)}
    kinds = {
        n: "latent" if latent.get(n) == closed.out_avals[i].shape else "deterministic"
        for n, i in sites.items()
    }
    full = _Full(closed, (), sites, kinds, {}, argument_names(inputs.paths, target.fn, 1))
    initial = target.initial if start is None else start
    return target.name, spec.free, full, spec, initial


def _chosen(sites: Mapping[str, int], var_names: Sequence[str] | str | None, full: _Full) -> dict[str, int]:
    if var_names is not None and not (
        isinstance(var_names, Sequence) and all(isinstance(n, str) for n in var_names)
    ):
        raise InputError(f"`var_names` must be a name or a sequence of names, got {var_names!r}.")
    if var_names is None:
        return dict(sites)
    wanted = [var_names] if isinstance(var_names, str) else list(var_names)
    for name in wanted:
        if name in full.observed:
            raise InputError(f"`var_names` has {name!r}, which is observed: it is data, not a draw.")
        if name not in sites:
            raise InputError(f"`var_names` has {name!r}, which is no site{nearest(name, sites)}")
    if not wanted:
        raise OptionError("`var_names` is empty: name at least one site, or leave it out to keep all.")
    return {name: i for name, i in sites.items() if name in wanted}


def argument_names(paths: Sequence[str], fn: Callable, skip: int) -> tuple[str, ...]:
    """Flat names of traced arguments: `data['a']['b']` is "a.b"; `args[0]` takes its parameter's name."""
    try:
        parameters = [
            p.name
            for p in inspect.signature(fn).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ][skip:]
    except (TypeError, ValueError):
        parameters = []
    names = []
    for path in paths:
        parts = [part.strip("'\"") for part in path.replace("]", "").replace(".", "[").split("[")]
        if parts[0] == "args":
            number = int(parts[1])
            parts[1] = parameters[number] if number < len(parameters) else f"arg{number}"
        names.append(".".join(parts[1:]))
    return tuple(path if names.count(name) > 1 else name for name, path in zip(names, paths, strict=True))


def moving_vars(jaxpr: Any) -> set[Any]:
    """The variables that may depend on the first input; inner computations count as a whole."""
    moving = {jaxpr.invars[0]}
    for eqn in jaxpr.eqns:
        if any(not isinstance(v, jex.Literal) and v in moving for v in eqn.invars):
            moving.update(eqn.outvars)
    return moving


def project(closed: jex.ClosedJaxpr, outputs: Sequence[int]) -> jex.ClosedJaxpr:
    """The same computation with some outputs only, all inputs, and nothing that those outputs do not need."""
    wanted = set(outputs)
    keep = [i in wanted for i in range(len(closed.jaxpr.outvars))]
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, keep, True)
    read = {v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, jex.Literal)}
    read.update(v for v in jaxpr.outvars if not isinstance(v, jex.Literal))
    consts = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in read]
    return jex.ClosedJaxpr(jaxpr.replace(constvars=[v for v, _ in consts]), [c for _, c in consts])
