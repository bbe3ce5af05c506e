"""A NumPyro model as a log density: its free sites, and one replay that gives every term of it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints
from numpyro.handlers import substitute, trace

from chainmesh._errors import DataError, ModelError

from ._sites import FreeSite, Term, default_float, nearest

Message = dict[str, Any]


def check_arguments(fn: Callable, n_args: int, data: Mapping[str, Any], skip: int = 0) -> None:
    """Compares args and data with a function's signature.

    Args:
        fn: the model, or a log density.
        n_args: how many positional arguments there are.
        data: keyword arguments.
        skip: leading parameters that are not the user's (a log density's position).

    Raises:
        DataError: an argument is missing, unknown, given twice, or there are too many.
    """
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return
    kinds = inspect.Parameter
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)][
        skip:
    ]
    name = getattr(fn, "__name__", type(fn).__name__)
    if n_args > len(positional) and not any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        raise DataError(
            f"`args` has {n_args} entries, but {name!r} takes {len(positional)} positional arguments."
        )
    taken = positional[:n_args]
    twice = [p.name for p in taken if p.name in data and p.kind is not kinds.POSITIONAL_ONLY]
    if twice:
        raise DataError(f"{name!r} gets {twice[0]!r} twice, in `args` and in `data`: leave one out.")
    by_name = {
        p.name for p in parameters[skip:] if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    }
    if not any(p.kind is kinds.VAR_KEYWORD for p in parameters):
        for key in data:
            if key not in by_name:
                hint = nearest(key, by_name - data.keys())
                raise DataError(f"`data` has {key!r}, which is no argument of {name!r}{hint}")
    wanted = [*positional[n_args:], *(p for p in parameters if p.kind is kinds.KEYWORD_ONLY)]
    missing = [p.name for p in wanted if p.default is kinds.empty and p.name not in data]
    if missing:
        extra = "" if skip or data or n_args else " (a log density of one's own goes into cm.LogDensity)"
        raise DataError(
            f"{name!r} needs {', '.join(map(repr, missing))}: give it in `data` or `args`{extra}."
        )


class _Fill(substitute):
    """Gives every latent site a value; notes what a sampler of one fixed density cannot handle."""

    def __init__(self, fn: Callable, value: Callable[[Message], Any]):
        super().__init__(fn, substitute_fn=self.look)
        self.value = value
        self.discrete: list[str] = []
        self.problems: list[str] = []

    def process_message(self, msg: Message) -> None:
        if msg["type"] == "prng_key" and msg["value"] is None:
            self.problems.append(
                "it draws random numbers with numpyro.prng_key(), so its density would change with each "
                "evaluation: "
                "make them a sample site, or pass them in `data`"
            )
            msg["value"] = jax.random.key(0)
        super().process_message(msg)

    def look(self, site: Message) -> Any:
        name, kind = site.get("name"), site["type"]
        if kind == "plate":
            size, subsample = site["args"]
            if site["value"] is not None:
                return None
            self.problems.append(
                f"plate {name!r} takes a random subsample ({subsample} of {size}), so its density would "
                "change with "
                "each evaluation: use the whole plate, or numpyro.infer.HMCECS"
            )
            return jnp.arange(subsample)
        if kind in ("param", "mutable"):
            self.problems.append(
                f"site {name!r} is a numpyro.{kind}, which no sampler moves: give it a prior with "
                "numpyro.sample, or pass "
                "its value in `data`"
            )
            return None
        if kind != "sample" or site["is_observed"]:
            return None
        fn = site["fn"]
        if isinstance(bare(fn), dist.Delta):
            self.problems.append(f"site {name!r} has a Delta distribution: make it a numpyro.deterministic")
            return jnp.broadcast_to(bare(fn).v, full_shape(site))
        if fn.support is not None and fn.support.is_discrete:
            self.discrete.append(str(name))
            return jnp.zeros(full_shape(site), jnp.result_type(int))
        return self.value(site)

    def raise_problems(self, model_name: str) -> None:
        if self.discrete:
            one = len(self.discrete) == 1
            raise ModelError(
                f"model {model_name!r} has {'a discrete latent site' if one else 'discrete latent sites'}, "
                f"{', '.join(map(repr, dict.fromkeys(self.discrete)))}: gradient-based kernels cannot move "
                f"{'it' if one else 'them'}. Kernels that can: DiscreteHMCGibbs and MixedHMC, in "
                "numpyro.infer.MCMC; or sum them out in the model (a mixture distribution), or pass data for "
                f"{'it' if one else 'them'} (obs=...)."
            )
        if self.problems:
            raise ModelError(
                f"model {model_name!r} cannot be sampled: {'; '.join(dict.fromkeys(self.problems))}."
            )


def bare(fn: Any) -> Any:
    """The distribution under masks, expansions and reinterpreted dimensions."""
    while isinstance(fn, (dist.MaskedDistribution, dist.ExpandedDistribution, dist.Independent)):
        fn = fn.base_dist
    return fn


def full_shape(site: Message) -> tuple[int, ...]:
    return tuple(site["fn"].shape(site["kwargs"].get("sample_shape", ())))


def bijection(site: Message) -> Any:
    """The map from the unconstrained space onto the prior's support."""
    support = site["fn"].support
    try:
        return biject_to(support)
    except NotImplementedError as error:
        hint = ""
        if "sphere" in repr(support).lower():
            hint = " Use dist.ProjectedNormal with numpyro.infer.reparam.ProjectedNormalReparam."
        raise ModelError(
            f"site {site['name']!r} has the support {describe(support)}, onto which no map from an "
            "unconstrained space is "
            f"known.{hint}"
        ) from error


def describe(support: Any) -> str:
    """A support in words, without the numbers that are only traced."""
    extra = ""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    bounds = [getattr(support, name, None) for name in ("lower_bound", "upper_bound")]
    kind = type(support).__name__.lstrip("_")
    if any(b is not None for b in bounds):
        shown = [f"{b:g}" if isinstance(b, (int, float)) else "..." for b in bounds if b is not None]
        extra = f"({', '.join(shown)})"
    return kind + extra


@dataclass
class Discovery:
    """What one look at a model finds.

    Attributes:
        free: its latent sites, in model order.
        sites: name -> message of every sample and deterministic site (values are dead tracers: shapes only).
    """

    free: tuple[FreeSite, ...]
    sites: dict[str, Message] = field(repr=False)

    @property
    def dim(self) -> int:
        return sum(int(np.prod(f.shape)) for f in self.free)


def discover(model: Callable, name: str, args: tuple, data: Mapping[str, Any], zero: Any) -> Discovery:
    """Finds a model's free sites. To be called while tracing.

    Args:
        model: the model.
        name: its name, for messages.
        args: positional arguments, arrays traced.
        data: keyword arguments, arrays traced.
        zero: a traced scalar that stands for the position, so that values which depend on it are known as
            such.

    Raises:
        ModelError: for everything that cannot be sampled.
    """

    def fill_in(site: Message) -> Any:
        transform = bijection(site)
        return transform(jnp.broadcast_to(zero, transform.inverse_shape(full_shape(site))))

    fill = _Fill(model, fill_in)
    try:
        sites = dict(trace(fill).get_trace(*args, **data))
    except Exception:
        if fill.discrete:  # the placeholder for it may be what failed
            fill.raise_problems(name)
        raise
    fill.raise_problems(name)
    free, start = [], 0
    for site_name, site in sites.items():
        if site["type"] == "sample" and not site["is_observed"]:
            event = jnp.shape(site["value"])
            shape = tuple(bijection(site).inverse_shape(event))
            stop = start + int(np.prod(shape))
            support = describe(site["fn"].support)
            free.append(FreeSite(site_name, shape, slice(start, stop), event, support))
            start = stop
    if not free:
        why = (
            "all of its sample sites are observed"
            if any(s["type"] == "sample" for s in sites.values())
            else "it has no sample sites. A function that returns a log density goes into "
            "cm.LogDensity(fn, initial=...)"
        )
        raise ModelError(f"model {name!r} has nothing to sample: {why}.")
    return Discovery(tuple(free), sites)


@dataclass
class Replay:
    """Every value of one evaluation of the model, as tracers."""

    total: Any
    terms: list[tuple[Term, Any]]
    sites: dict[str, tuple[str, Any]]
    observed: dict[str, Any]


def replay(model: Callable, args: tuple, data: Mapping[str, Any], position: Mapping[str, Any]) -> Replay:
    """Evaluates a model's log density, term by term, at an unconstrained position.

    The Jacobians are factor sites at the place of their latent site, as in
    `numpyro.infer.util.potential_energy`, so that
    scale and mask handlers and scans act on them as they do there; the total is its negative.
    """
    jacobians: dict[str, str] = {}

    def constrained(site: Message) -> Any:
        name = site["name"]
        u, transform = position[name], bijection(site)
        step = site["infer"].get("_scan_current_index")
        if step is not None and jnp.ndim(u) > len(transform.inverse_shape(full_shape(site))):
            u = u[step]
        x = transform(u)
        if not _is_real(site["fn"].support):
            log_det = transform.log_abs_det_jacobian(u, x)
            extra = jnp.ndim(log_det) - (jnp.ndim(x) - site["fn"].event_dim)
            if extra > 0:
                log_det = jnp.sum(log_det, axis=tuple(range(-extra, 0)))
            jacobians[f"_{name}_log_det"] = name
            numpyro.factor(f"_{name}_log_det", log_det)
        return x

    messages = trace(_Fill(model, constrained)).get_trace(*args, **data)
    dtype = default_float()
    result = Replay(jnp.zeros((), dtype), [], {}, {})
    for name, site in messages.items():
        if site["type"] == "deterministic":
            result.sites[name] = ("deterministic", site["value"])
        if site["type"] != "sample":
            continue
        value = jax.lax.convert_element_type(_site_log_prob(site), dtype)
        result.total = result.total + value
        if name in jacobians:
            result.terms.append((Term(jacobians[name], "jacobian"), value))
        elif not site["is_observed"]:
            result.terms.append((Term(name, "prior"), value))
            result.sites[name] = ("latent", site["value"])
        elif isinstance(bare(site["fn"]), dist.Unit):
            result.terms.append((Term(name, "factor"), value))
        else:
            result.terms.append((Term(name, "likelihood"), value))
            result.terms.extend(_support_terms(name, site))
            result.observed[name] = site["value"]
    return result


def _site_log_prob(site: Message) -> Any:
    value = site["fn"].log_prob(site["value"])
    if site["scale"] is not None:
        value = site["scale"] * value
    return jnp.sum(value)


def _is_real(support: Any) -> bool:
    return support is constraints.real or (
        isinstance(support, constraints.independent) and support.base_constraint is constraints.real
    )


def _support_terms(name: str, site: Message) -> Sequence[tuple[Term, Any]]:
    """How many observed values lie outside the likelihood's support, and where the first is."""
    fn, value = site["fn"], site["value"]
    if isinstance(bare(fn), dist.Delta):
        return ()
    try:
        inside = _inside(fn, value)
        # A site inside a scan, or a value with more batch dimensions than its distribution.
        outside = jnp.logical_not(inside)
    except Exception:  # an optional check: supports that cannot be asked are left out
        return ()
    words = describe(fn.support)
    count = jnp.sum(outside, dtype=jnp.int32)
    first = jnp.argmax(outside.ravel()).astype(jnp.int32) if outside.size else jnp.zeros((), jnp.int32)
    shape = outside.shape
    return (
        (Term(name, "outside", words, shape=shape), count),
        (Term(name, "first_outside", words, shape=shape), first),
    )


def _inside(fn: Any, value: Any) -> Any:
    """Support check per batch element, where masked elements count as inside."""
    if isinstance(fn, dist.Independent):
        inside = _inside(fn.base_dist, value)
        n = fn.reinterpreted_batch_ndims
        return jnp.all(inside, axis=tuple(range(-n, 0))) if n else inside
    if isinstance(fn, dist.ExpandedDistribution):
        inside = _inside(fn.base_dist, value)
        return jnp.broadcast_to(inside, jnp.broadcast_shapes(fn.batch_shape, jnp.shape(inside)))
    if isinstance(fn, dist.MaskedDistribution):
        if fn._mask is False:
            return jnp.ones(fn.batch_shape, bool)
        inside = _inside(fn.base_dist, value)
        return inside if fn._mask is True else inside | jnp.logical_not(fn._mask)
    inside = fn.support(value)
    return jnp.broadcast_to(inside, jnp.broadcast_shapes(fn.batch_shape, jnp.shape(inside)))


def trace_to_unconstrained(
    model: Callable, args: tuple, data: Mapping[str, Any], given: Mapping[str, Any], others: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Maps constrained values of some latent sites into the unconstrained space. To be called while tracing.

    Args:
        model: the model.
        args: positional arguments.
        data: keyword arguments.
        given: constrained values by site.
        others: unconstrained values of the remaining latent sites, on which supports may depend.

    Returns:
        site -> (unconstrained value, whether the value lies in the support).
    """

    def constrained(site: Message) -> Any:
        name = site["name"]
        return given[name] if name in given else bijection(site)(others[name])

    messages = trace(_Fill(model, constrained)).get_trace(*args, **data)
    result = {}
    for name, value in given.items():
        site = messages[name]
        transform = bijection(site)
        free = transform.inv(value)
        # Sums of simplexes and norms of correlation matrices may miss the support by rounding: what comes
        # back
        # unchanged from the unconstrained space is inside.
        close = jnp.all(jnp.abs(transform(free) - value) <= 1e-4 * (1 + jnp.abs(value)))
        inside = jnp.all(jnp.isfinite(free)) & (jnp.all(site["fn"].support(value)) | close)
        result[name] = (free, inside)
    return result
