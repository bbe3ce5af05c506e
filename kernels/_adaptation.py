"""Warm-up: what every adaptation shares, and Stan's three phases for chains that adapt alone.

An adaptation is apart from the kernel. It turns states into parameters in windows: inside a window each chain tunes its
own step size and collects moments; at a window's end, and only there, it may hear the other chains.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from chainmesh._errors import InputError

from ._base import Info, Params, short_repr
from ._ensemble import Ensemble
from ._moments import Moments, add, no_moments


@dataclasses.dataclass(frozen=True)
class Window:
    """A stretch of warm-up with one metric (host side; its numbers are traced when it runs)."""

    length: int
    max_depth: int = 64
    """Trees double at most this often here (the kernel's own cap holds too)."""
    metric: bool = False
    """Whether draws of this window make the next metric."""
    pool: bool = False
    """Whether chains that move share a step size from this window's end on."""
    hold: bool = False
    """Whether chains that share a step size keep it throughout the window, which judges it."""
    restart: bool = True
    """Whether the step size search starts anew after it, from where it got to."""


class StepSize(NamedTuple):
    """Dual averaging of every chain: BlackJAX's DualAveragingState, one row a chain."""

    log_x: Float[Array, " chains"]
    log_x_avg: Float[Array, " chains"]
    step: Float[Array, " chains"]
    avg_error: Float[Array, " chains"]
    mu: Float[Array, " chains"]


class Chains(NamedTuple):
    """What an adaptation knows of each chain."""

    step_size: StepSize
    x: Moments
    g: Moments
    n: Float[Array, " chains"]
    accept: Float[Array, " chains"]
    """Sum of acceptance rates over the window."""
    lp: Moments
    """Of the log density over the window, as a position of one entry."""
    diverged: Float[Array, " chains"]
    """Divergences in the window."""
    moved: Bool[Array, " chains"]
    """Whether the chain moved in the last window: only then it counts in what is pooled."""
    joined: Bool[Array, " chains"]
    """Whether the chain holds the shared step size in a window that judges it."""
    wary: Bool[Array, " chains"]
    """Whether the shared step size has diverged too often to be raised again."""
    recent: Float[Array, " chains"]
    """Acceptance rate of late: an exponential mean over about five draws."""


class Tuning(NamedTuple):
    """State of an adaptation: rows of chains, parameters in use, and the target. `params` without a chain axis are
    named by `Adaptation.shared`."""  # fmt: skip

    chains: Chains
    params: Params
    target_accept: Float[Array, ""]


_LOG_STEP = 46.0
"""Step sizes stay within exp(-46) to exp(46), about 1e-20 to 1e20: what accepts nothing (or everything) would drive
them to 0 (or infinity), and no later window could bring them back."""


def restarted(log_step: Float[Array, " chains"], boost: float) -> StepSize:
    """Dual averaging that starts at `log_step` and is drawn towards `boost` times it."""
    zero = jnp.zeros_like(log_step)
    log_step = jnp.clip(jnp.nan_to_num(log_step, nan=0.0), -_LOG_STEP, _LOG_STEP)
    return StepSize(log_step, log_step, zero + 1.0, zero, log_step + np.log(boost).astype(log_step.dtype))


@dataclasses.dataclass(frozen=True, repr=False)
class Adaptation:
    """How a warm-up tunes step size and metric. Frozen and hashable; holds static settings only."""

    dense: bool = False

    __repr__ = short_repr

    @property
    def shared(self) -> frozenset[str]:
        """Parameters that all chains have in common."""
        raise NotImplementedError

    def windows(self, tune: int) -> tuple[Window, ...]:
        """The windows of a warm-up of `tune` draws per chain (host side)."""
        raise NotImplementedError

    def default_tune(self, chains: int) -> int:
        """Warm-up draws per chain when the user does not say (host side)."""
        raise NotImplementedError

    def start(
        self, params: Params, target: Float[Array, ""], positions: Float[Array, "chains dim"],
        gradients: Float[Array, "chains dim"] | None, lp: Float[Array, " chains"],
    ) -> Tuning:  # fmt: skip
        """The state before the first window; `params` are the kernel's, for one chain.

        The starts and their gradients count as a window of one draw, so that `close` makes a first metric of them.
        """
        chains, dim = positions.shape
        dtype = positions.dtype
        one = jnp.ones(chains, dtype)
        dense = self.dense and "inverse_mass_matrix" in params
        if dense and params["inverse_mass_matrix"].ndim == 1:
            diagonal = params["inverse_mass_matrix"]
            params = params | {
                "inverse_mass_matrix": jnp.diag(diagonal),
                "inverse_mass_cholesky": jnp.diag(jnp.sqrt(diagonal)),
            }
        params = {
            name: value
            if name in self.shared
            else jax.tree.map(lambda v: jnp.broadcast_to(v, (chains, *jnp.shape(v))), value)
            for name, value in params.items()
        }
        log_step = jnp.log(params["step_size"])
        rows = Chains(
            step_size=restarted(log_step, 10.0),
            x=add(no_moments(chains, dim, dtype, dense), positions, one),
            g=no_moments(chains, dim, dtype, False),
            n=one,
            accept=one,
            lp=add(no_moments(chains, 1, dtype, False), lp[:, None], one),
            diverged=0 * one,
            moved=one > 0,
            joined=one > 0,
            wary=one < 0,
            recent=one,
        )
        if gradients is not None:
            rows = rows._replace(g=add(rows.g, gradients, one))
        return Tuning(rows, params, target)

    def params(self, tuning: Tuning, max_depth: Any) -> Params:
        """Parameters for the next step of a window that caps trees at `max_depth` doublings."""
        params = tuning.params | {"step_size": jnp.exp(tuning.chains.step_size.log_x)}
        if "max_depth" in params:
            params = params | {"max_depth": jnp.minimum(params["max_depth"], max_depth)}
        return params

    def update(
        self, tuning: Tuning, window: dict[str, Array], positions: Float[Array, "chains dim"],
        gradients: Float[Array, "chains dim"] | None, info: Info,
    ) -> Tuning:  # fmt: skip
        """After each step: dual averaging of each chain's own step size, and moments where the window wants them.

        Hoffman and Gelman (2014), JMLR 15, section 3.2, with BlackJAX's implementation and Stan's constants.
        """
        from blackjax.optimizers.dual_averaging import DualAveragingState, dual_averaging

        rows = tuning.chains
        _, search, _ = dual_averaging(t0=10, gamma=0.05, kappa=0.75)
        accept = jnp.nan_to_num(info["acceptance_rate"], nan=0.0)
        step_size = StepSize(*search(DualAveragingState(*rows.step_size), tuning.target_accept - accept))
        step_size = step_size._replace(log_x=jnp.clip(step_size.log_x, -_LOG_STEP, _LOG_STEP))
        one = jnp.ones_like(rows.n)
        moved = window["metric"] * one
        x = add(rows.x, positions, moved)
        g = rows.g if gradients is None else add(rows.g, gradients, moved)
        rows = rows._replace(
            step_size=step_size, x=x, g=g, n=rows.n + 1.0, accept=rows.accept + accept,
            recent=0.8 * rows.recent + 0.2 * accept,
            diverged=rows.diverged + jnp.asarray(info.get("diverging", False), one.dtype),
            lp=add(rows.lp, info["lp"][:, None], one),
        )  # fmt: skip
        return tuning._replace(chains=rows)

    def close(self, ensemble: Ensemble, tuning: Tuning, window: dict[str, Array]) -> Tuning:
        """At a window's end: the next metric and step sizes. The only place where chains hear each other."""
        raise NotImplementedError

    def _next(
        self, tuning: Tuning, params: Params, log_step: Float[Array, " chains"], boost: float
    ) -> Tuning:
        """The state that the next window starts from: nothing collected, the step size search at `log_step`."""
        rows = jax.tree.map(jnp.zeros_like, tuning.chains)
        one = jnp.ones_like(log_step)
        last = tuning.chains
        step_size = restarted(log_step, boost)
        rows = rows._replace(
            step_size=step_size, moved=last.moved, joined=last.joined, wary=last.wary, recent=one
        )
        return tuning._replace(chains=rows, params=params | {"step_size": jnp.exp(rows.step_size.log_x)})


def check_tunable(name: str, params: Params, info: Mapping[str, Any] | None = None) -> None:
    """Whether a kernel can be tuned by acceptance rates, as far as its parameters and a step's info tell.

    Raises:
        InputError: it has no step size, or reports no acceptance rate.
    """
    if (
        "step_size" not in params
        or np.ndim(params["step_size"])
        or not (info is None or {"acceptance_rate", "lp"} <= info.keys())
    ):
        raise InputError(
            f"{name} cannot be tuned: an adaptation needs a kernel with a scalar step_size that reports its "
            "acceptance_rate. Leave adaptation=None and set its parameters by hand."
        )


@dataclasses.dataclass(frozen=True, repr=False)
class StanWindows(Adaptation):
    """Stan's three phases, every chain alone: step size, then metric in doubling windows, then step size.

    Stan Reference Manual, "HMC algorithm parameters": 75 draws, windows from 25 draws on, 50 draws, scaled down when
    `tune` is below 150; metric = n/(n+5) Var + 1e-3 5/(n+5).

    Args:
        dense: a dense metric instead of a diagonal one.
    """

    first: int = 75
    base: int = 25
    last: int = 50

    @property
    def shared(self) -> frozenset[str]:
        """Nothing but the depth cap and what no warm-up touches."""
        return frozenset({"max_depth", "n_leapfrog"})

    def default_tune(self, chains: int) -> int:
        """Stan's 1000."""
        return 1000

    def windows(self, tune: int) -> tuple[Window, ...]:
        """Stan's schedule; below 20 draws only the step size is tuned."""
        if tune < 20:
            return (Window(tune),) if tune else ()
        first, base, last = self.first, self.base, self.last
        if first + base + last > tune:
            first, last = int(0.15 * tune), int(0.1 * tune)
            base = tune - first - last
        windows = [Window(first, restart=False)] if first else []
        left, size = tune - first - last, base
        while left:
            if 3 * size > left:
                size = left
            windows.append(Window(size, metric=True))
            left, size = left - size, 2 * size
        return (*windows, *([Window(last)] if last else []))

    def close(self, ensemble: Ensemble, tuning: Tuning, window: dict[str, Array]) -> Tuning:
        """Regularised variance (or covariance) of each chain's own window."""
        del ensemble
        rows, params = tuning.chains, tuning.params
        if "inverse_mass_matrix" in params:
            n = rows.x.n.reshape(-1, *[1] * (rows.x.m2.ndim - 1))
            ridge = jnp.eye(rows.x.mean.shape[-1], dtype=n.dtype) if rows.x.m2.ndim == 3 else 1.0
            estimate = rows.x.m2 / jnp.maximum(n - 1, 1) * (n / (n + 5)) + 1e-3 * (5 / (n + 5)) * ridge
            ok = (
                (window["metric"] > 0)
                & jnp.isfinite(estimate).all(axis=tuple(range(1, estimate.ndim)))
                & (rows.x.n > 1)
            )
            ok = ok.reshape(-1, *[1] * (estimate.ndim - 1))
            params = params | {"inverse_mass_matrix": jnp.where(ok, estimate, params["inverse_mass_matrix"])}
            if "inverse_mass_cholesky" in params:
                factor = jnp.linalg.cholesky(params["inverse_mass_matrix"])
                ok = jnp.isfinite(factor).all(axis=(1, 2), keepdims=True)
                old = tuning.params
                params = params | {
                    "inverse_mass_matrix": jnp.where(
                        ok, params["inverse_mass_matrix"], old["inverse_mass_matrix"]
                    ),
                    "inverse_mass_cholesky": jnp.where(ok, factor, old["inverse_mass_cholesky"]),
                }
        # A window of starts leaves the step size search as it began.
        step = jnp.where(window["starts"] > 0, rows.step_size.log_x, rows.step_size.log_x_avg)
        return self._next(tuning, params, step, 10.0)
