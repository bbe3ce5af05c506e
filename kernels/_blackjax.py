"""BlackJAX algorithms as kernels: their `init` and `build_kernel`, with settings traced."""

import dataclasses
import difflib
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from chainmesh._errors import InputError, OptionError

from ._base import Info, Kernel, LogDensityFn, Params, setting, short

_NAMES = {
    "is_divergent": "diverging",
    "is_accepted": "accepted",
    "num_integration_steps": "n_steps",
    "num_trajectory_expansions": "tree_depth",
    "energy_change": "energy_error",
    "acceptance_rate": "acceptance_rate",
    "energy": "energy",
    "subiter": "n_steps",
}
_ALIASES = {"random_walk": "additive_step_random_walk", "rwm": "additive_step_random_walk"}
_TARGETS = {"mala": 0.574, "additive_step_random_walk": 0.234, "barker": 0.4, "barker_proposal": 0.4}
_GRADIENT_FREE = (
    "additive_step_random_walk",
    "rmh",
    "irmh",
    "elliptical_slice",
    "slice_sampling",
    "coordinate_slice",
)
_FLOATS = ("step_size", "L", "alpha", "delta")
"""Numbers even where an int is given; other ints may be static in BlackJAX, such as a number of steps."""
_INIT = 0x696E6974
_GIVEN = ("rng_key", "state", "logdensity_fn")


def _parameters(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(fn).parameters)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | int | str | None) or callable(value):
        return False
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(x, float | np.ndarray | np.floating | jax.Array) for x in leaves)


@dataclasses.dataclass(frozen=True, repr=False)
class FromBlackjax(Kernel):
    """A BlackJAX algorithm. Made by `from_blackjax`, which checks the settings."""

    label: str
    init_fn: Callable[..., Any]
    build_fn: Callable[..., Any]
    static: tuple[tuple[str, Any], ...]
    traced: tuple[str, ...]
    numbers: Any = setting()

    target_accept_default: ClassVar[float] = 0.8

    @property
    def name(self) -> str:
        """The algorithm's name in BlackJAX."""
        return f"blackjax.{self.label}"

    @property
    def target_accept(self) -> float:
        """The acceptance rate that theory recommends for the algorithm."""
        return _TARGETS.get(self.label, self.target_accept_default)

    def __repr__(self) -> str:
        given = {**dict(self.static), **(self.numbers or {})}
        return (
            f"from_blackjax({', '.join([repr(self.label), *(f'{k}={short(v)}' for k, v in given.items())])})"
        )

    @property
    def needs_gradient(self) -> bool:
        """False for BlackJAX's random walks and slice samplers."""
        return self.label not in _GRADIENT_FREE

    @property
    def fixed(self) -> bool:
        """Settings are the user's, always."""
        return True

    def params(self, dim: int, dtype: np.dtype) -> Params:
        """The settings as arrays of the position's dtype."""
        del dim

        def array(x: Any) -> np.ndarray:
            x = np.asarray(x)
            return x.astype(dtype if np.issubdtype(x.dtype, np.floating) else x.dtype)

        return {name: jax.tree.map(array, self.numbers[name]) for name in self.traced}

    def _kernel(self, params: Params) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The algorithm's kernel, and what it takes beyond key, state and log density."""
        settings = {**dict(self.static), **params}
        if self.label == "additive_step_random_walk" and "step_size" in settings:
            scale = settings.pop("step_size")
            settings["random_step"] = lambda key, x: scale * jax.random.normal(key, x.shape, x.dtype)
        build = {name: settings.pop(name) for name in _parameters(self.build_fn) if name in settings}
        kernel = self.build_fn(**build)
        return kernel, {name: settings[name] for name in _parameters(kernel) if name in settings}

    def init(
        self, key: Key[Array, ""], params: Params, logdensity: LogDensityFn, position: Float[Array, " dim"]
    ) -> Any:
        """The algorithm's own state."""
        wanted = _parameters(self.init_fn)
        # Start positions come from small numbers folded into this key, as do the keys that algorithms split off it.
        key = jax.random.fold_in(key, _INIT)
        more: dict[str, Any] = {name: key for name in ("rng_key", "random_generator_arg") if name in wanted}
        settings = {**dict(self.static), **params}
        more |= {name: settings[name] for name in wanted if name in settings}
        return self.init_fn(position, logdensity, **more)

    def step(
        self, key: Key[Array, ""], params: Params, logdensity: LogDensityFn, state: Any
    ) -> tuple[Any, Info]:
        """One step; scalars of its info under ArviZ's names."""
        kernel, settings = self._kernel(params)
        if not self.needs_gradient:
            # BlackJAX's slice samplers stop shrinking at a NaN, and would take it for inside.
            given = logdensity
            logdensity = lambda x: jnp.where(jnp.isnan(value := given(x)), -jnp.inf, value)  # noqa: E731
        new, out = kernel(key, state, logdensity, **settings)
        if hasattr(new, "slice") and "delta" in settings:
            # GHMC, BlackJAX 1.7: a rejected proposal whose energy error overflows makes the slice NaN, after which
            # nothing is accepted ever again. Rejected, it keeps its place.
            kept = (state.slice + 1.0 + settings["delta"]) % 2 - 1.0
            new = new._replace(slice=jnp.where(jnp.isnan(new.slice), kept, new.slice))
        fields = out._asdict() if hasattr(out, "_asdict") else {}
        info = {
            _NAMES[name]: jnp.asarray(value)
            for name, value in fields.items()
            if name in _NAMES and jnp.ndim(value) == 0
        }
        if "accepted" in info:
            info.pop("energy", None)  # the proposal's, which for a rejected one is not where the chain is
        if "n_steps" in info:
            info["n_steps"] = info["n_steps"].astype(jnp.int32)
        if "nonans" in fields:
            info["diverging"] = ~fields["nonans"]
        if hasattr(new, "logdensity"):
            info["lp"] = new.logdensity
        if "step_size" in params and jnp.ndim(params["step_size"]) == 0:
            info["step_size"] = params["step_size"]
        return new, info


def from_blackjax(algorithm: Any, **settings: Any) -> FromBlackjax:
    """A BlackJAX algorithm with `init` and `build_kernel` as a kernel, for `sample(kernel=...)`.

    Floats and arrays among the settings are traced: other values reuse the compiled program. Ints (but for step
    sizes and the like), strings and functions are static. Nothing is tuned unless an adaptation is given. Positions
    are flat arrays in unconstrained space. Of elliptical_slice, the log density must be the likelihood alone: its
    Gaussian prior is in the settings.

    Args:
        algorithm: a name ("mala", "random_walk", "ghmc", "mclmc", "barker", "elliptical_slice", ...) or the BlackJAX
            object itself (`blackjax.mala`), not yet bound to a log density.
        **settings: what the algorithm's kernel takes, e.g. step_size=0.1. For "random_walk", step_size is the sd of
            the normal step, a number or one per entry.

    Raises:
        InputError: there is no such algorithm, or it cannot be used.
        OptionError: an unknown setting, or one that is missing.
    """
    import blackjax

    label = algorithm
    if isinstance(algorithm, str):
        label = _ALIASES.get(algorithm, algorithm)
        algorithm = getattr(blackjax, label, None)
        if not (hasattr(algorithm, "init") and hasattr(algorithm, "build_kernel")):
            names = [
                n for n in dir(blackjax) if n[0] != "_" and hasattr(getattr(blackjax, n), "build_kernel")
            ] + list(_ALIASES)
            near = difflib.get_close_matches(label, names, n=1)
            raise InputError(
                f"BlackJAX has no algorithm {label!r} with init and build_kernel."
                + (f" Did you mean {near[0]!r}?" if near else f" It has {', '.join(sorted(names))}.")
            )
    elif hasattr(algorithm, "init") and hasattr(algorithm, "step") and not hasattr(algorithm, "build_kernel"):
        raise InputError(
            "this BlackJAX algorithm is already bound to a log density; pass the algorithm and its settings instead, "
            "e.g. from_blackjax(blackjax.mala, step_size=0.1)."
        )
    elif not (hasattr(algorithm, "init") and hasattr(algorithm, "build_kernel")):
        raise InputError(f"{algorithm!r} is not a BlackJAX algorithm with init and build_kernel.")
    else:
        found = [n for n in dir(blackjax) if n[0] != "_" and getattr(blackjax, n) is algorithm]
        label = (
            found[0] if found else getattr(algorithm, "__name__", type(algorithm).__name__).rsplit(".", 1)[-1]
        )

    for name in settings.keys() & set(_FLOATS):
        if isinstance(settings[name], int | np.integer) and not isinstance(settings[name], bool):
            settings[name] = float(settings[name])
        if not _is_number(settings[name]):
            raise OptionError(
                f"from_blackjax: {name}={settings[name]!r} is not a number or an array of them."
            )
    traced = {name: value for name, value in settings.items() if _is_number(value)}
    static = {name: value for name, value in settings.items() if name not in traced}
    for name, value in static.items():
        try:
            hash(value)
        except TypeError:
            raise OptionError(
                f"from_blackjax: {name}={value!r} is neither a number, an array nor hashable."
            ) from None
    kernel = FromBlackjax(
        label,
        algorithm.init,
        algorithm.build_kernel,
        tuple(sorted(static.items())),
        tuple(sorted(traced)),
        traced,
    )
    _check_settings(kernel, settings)
    return kernel


def _check_settings(kernel: FromBlackjax, settings: dict[str, Any]) -> None:
    build = _parameters(kernel.build_fn)
    inner: dict[str, inspect.Parameter] = {}
    missing = [n for n, p in build.items() if p.default is p.empty and n not in settings]
    if not missing:
        keep: list[Any] = []
        # Only the signature is wanted: nothing is computed.
        numbers = {name: kernel.numbers[name] for name in kernel.traced}
        jax.eval_shape(lambda p: keep.append(kernel._kernel(p)[0]), numbers)
        inner = {n: p for n, p in _parameters(keep[0]).items() if n not in _GIVEN}
        step_is_scale = kernel.label == "additive_step_random_walk" and "step_size" in settings
        missing = [
            n
            for n, p in inner.items()
            if p.default is p.empty and n not in settings and not (step_is_scale and n == "random_step")
        ]
    known = [*build, *inner, *(n for n in _parameters(kernel.init_fn) if n not in ("position", *_GIVEN))]
    if kernel.label == "additive_step_random_walk":
        known.append("step_size")
    if missing:
        raise OptionError(
            f"blackjax.{kernel.label} needs {', '.join(missing)}: from_blackjax(..., {missing[0]}=...)."
        )
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" It takes {', '.join(sorted(set(known)))}."
            raise OptionError(f"blackjax.{kernel.label} has no setting {name}.{hint}")
