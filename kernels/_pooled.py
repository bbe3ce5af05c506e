"""Pooled warm-up: the metric from all chains, the step size shared by the chains that move."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._adaptation import Adaptation, Tuning, Window
from ._base import Info
from ._ensemble import Ensemble
from ._moments import pool


@dataclasses.dataclass(frozen=True, repr=False)
class PooledWindows(Adaptation):
    """Short windows whose metric comes from the draws and gradients of all chains.

    Metric: sqrt(Var x / Var g), exact for a Gaussian from few draws, wherever they are (nutpie; Seyboldt, Carlson and
    Carpenter 2026, arXiv:2603.18845). The first one comes from the starts alone. While it is rough, trees are capped.

    Step size: each chain searches its own through four windows. Then chains that move join: they take the geometric
    mean of theirs (of those within a factor of two of the median) and hold it through the next window, whose acceptance
    over all of them corrects it (`_corrected`), and so on to the end. Where more than 1 in 400 of their draws diverge
    it is halved and never raised again. A chain that needs less than half of it keeps its own, and one
    whose acceptance breaks down at it leaves at once.

    Who counts: a chain moves when its acceptance over the window is at least a third of the target and its log density
    lies in the range of the others (`_moves`). One that does not stays out of metric and step size until it does.

    Args:
        dense: a dense metric: the pooled covariance, drawn towards the diagonal metric while draws are few.
    """

    own: tuple[int, ...] = (15, 15, 20, 30)
    depths: tuple[int, ...] = (6, 7, 8)
    growth: float = 1.5
    last: float = 0.15

    @property
    def shared(self) -> frozenset[str]:
        """The metric, the depth cap and what no warm-up touches."""
        return frozenset({"inverse_mass_matrix", "inverse_mass_cholesky", "max_depth", "n_leapfrog"})

    def default_tune(self, chains: int) -> int:
        """More chains need fewer draws each; docs/warmup.md has the evidence."""
        return 300 if chains < 16 else 200 if chains < 64 else 150

    def windows(self, tune: int) -> tuple[Window, ...]:
        """Own windows, then windows growing by half, then a step-size window; below 20 draws only the step size."""
        if tune < 20:
            return (Window(tune),) if tune else ()
        last = max(round(self.last * tune), 5)
        left = tune - last
        scale = min(1.0, left / (1.5 * sum(self.own)))
        lengths = [max(round(scale * n), 3) for n in self.own]
        while (next_length := round(self.growth * lengths[-1])) + sum(lengths) <= left:
            lengths.append(next_length)
        if sum(lengths) <= left:
            lengths[-1] += left - sum(lengths)
        else:  # tiny warm-ups: as many windows as fit
            while sum(lengths) > left:
                lengths.pop()
            lengths[-1] += left - sum(lengths)
        caps = [*self.depths, *[64] * len(lengths)]
        own = len(self.own)
        windows = [
            Window(n, max_depth=caps[i], metric=True, pool=i + 1 >= own, hold=i >= own)
            for i, n in enumerate(lengths)
        ]
        return (*windows, Window(last, pool=True, hold=len(lengths) >= own))

    def close(self, ensemble: Ensemble, tuning: Tuning, window: dict[str, Array]) -> Tuning:
        """Gather every chain's window, judge who moves, make the metric, hand out step sizes."""
        rows, params = tuning.chains, tuning.params
        starts = window["starts"] > 0
        moves = jnp.where(starts, jnp.ones(ensemble.chains, bool), _moves(ensemble, tuning))
        if "inverse_mass_matrix" in params:
            params = params | self._metric(ensemble, tuning, moves, window)
        own, shared, fits, wary = self._step_sizes(ensemble, tuning, moves, window)
        step = jnp.where((window["pool"] > 0) & fits, shared, own)
        wary = jnp.broadcast_to(wary, fits.shape)
        tuning = tuning._replace(chains=rows._replace(moved=ensemble.mine(moves), joined=fits, wary=wary))
        return self._next(tuning, params, step, 1.5)

    def _step_sizes(
        self, ensemble: Ensemble, tuning: Tuning, moves: Bool[Array, " all_chains"], window: dict[str, Array]
    ) -> tuple[Float[Array, " chains"], Float[Array, ""], Bool[Array, " chains"], Bool[Array, ""]]:
        """Logs of each chain's own step size and of the shared one, who takes the latter, and whether it has diverged
        too often to be raised again."""  # fmt: skip
        rows, target = tuning.chains, tuning.target_accept
        n = jnp.maximum(rows.n, 1.0)
        mine = rows.accept / n
        held = rows.joined & (window["hold"] > 0)
        own = jnp.where(window["starts"] > 0, rows.step_size.log_x, rows.step_size.log_x_avg)
        # A chain for which the shared step size is far too large goes its own way, at a smaller one.
        misfit = held & (mine < target / 2)
        own = jnp.where(misfit, own + _corrected(mine, target), own)
        log_steps, judges = ensemble.gather(own), moves & ensemble.gather(held & ~misfit)
        # Too large a step freezes chains, too small a one only costs time: it is lowered at once, raised as far as the
        # number of draws is worth it; where draws diverge it is halved and never raised again.
        correction = _corrected(_mean(ensemble.gather(mine), judges), target)
        diverging = _mean(ensemble.gather(rows.diverged / n), judges) > 0.0025
        wary = diverging | ensemble.gather(rows.wary).any()
        seen = jnp.sum(jnp.where(judges, ensemble.gather(n), 0.0))
        upward = jnp.where(wary, 0.0, seen / (seen + 500.0))
        correction = jnp.where(correction > 0, upward * correction, correction)
        correction = jnp.where(diverging, jnp.minimum(correction, -np.log(2.0)), correction)
        shared = jnp.where(judges.any(), _mean(log_steps, judges) + correction, _middle(log_steps, moves))
        fits = moves & ~ensemble.gather(misfit) & (log_steps >= shared - np.log(2.0))
        fits = jnp.where(judges.any(), fits | judges, fits)
        return own, shared, ensemble.mine(fits), wary

    def update(
        self, tuning: Tuning, window: dict[str, Array], positions: Float[Array, "chains dim"],
        gradients: Float[Array, "chains dim"] | None, info: Info,
    ) -> Tuning:  # fmt: skip
        """As every adaptation; but chains that share a step size hold it while they accept now and then."""
        before = tuning.chains
        tuning = super().update(tuning, window, positions, gradients, info)
        rows = tuning.chains
        joined = before.joined & ((window["hold"] <= 0) | (rows.recent >= tuning.target_accept / 4))
        hold = joined & (window["hold"] > 0)
        step_size = jax.tree.map(lambda old, new: jnp.where(hold, old, new), before.step_size, rows.step_size)
        return tuning._replace(chains=rows._replace(step_size=step_size, joined=joined))

    def _metric(
        self, ensemble: Ensemble, tuning: Tuning, moves: Bool[Array, " all_chains"], window: dict[str, Array]
    ) -> dict[str, Array]:
        rows, old = tuning.chains, tuning.params["inverse_mass_matrix"]
        n, _, x2 = pool(ensemble, rows.x, moves)
        _, g_mean, g2 = pool(ensemble, rows.g, moves)
        var_x = (jnp.diagonal(x2) if x2.ndim == 2 else x2) / jnp.maximum(n - 1, 1)
        var_g = g2 / jnp.maximum(n - 1, 1)
        # Two roots: the quotient of the variances leaves the range of float32 where the sds do not.
        diagonal = jnp.sqrt(var_x) / jnp.sqrt(var_g)
        starts = window["starts"] > 0
        # Two or three starts say nothing about a variance: the size of the gradient stands in for it, at scale 1. Where
        # all chains start alike it may be small because they start at a mode, so it only ever shortens.
        slope = jnp.sqrt(var_g + g_mean**2)
        alike = _alike(ensemble.gather(rows.x.mean)) | _alike(ensemble.gather(rows.g.mean))
        diagonal = jnp.where(starts & (n < 4), 1.0 / slope, diagonal)
        diagonal = jnp.where(starts & alike, 1.0 / jnp.maximum(slope, 1.0), diagonal)
        old_diagonal = jnp.diagonal(old) if old.ndim == 2 else old
        usable = jnp.isfinite(diagonal) & (diagonal > 0) & (window["metric"] > 0) & (n > 0)
        diagonal = jnp.where(usable, diagonal, old_diagonal)
        if old.ndim == 1:
            return {"inverse_mass_matrix": diagonal}
        weight = jnp.where(starts, 0.0, n / (n + diagonal.shape[0]))
        # A direction without a scale of its own (a flat one) keeps the old one, and is apart from the others.
        both = usable[:, None] & usable[None, :] & jnp.isfinite(x2)
        dense = jnp.where(both, weight * x2 / jnp.maximum(n - 1, 1), jnp.diag(weight * diagonal))
        dense = dense + (1 - weight) * jnp.diag(diagonal)
        factor = jnp.linalg.cholesky(dense)
        keep = (window["metric"] > 0) & (n > 0) & jnp.isfinite(factor).all()
        return {
            "inverse_mass_matrix": jnp.where(keep, dense, old),
            "inverse_mass_cholesky": jnp.where(keep, factor, tuning.params["inverse_mass_cholesky"]),
        }


def _mean(x: Float[Array, " all_chains"], use: Bool[Array, " all_chains"]) -> Float[Array, ""]:
    return jnp.sum(jnp.where(use, x, 0.0)) / jnp.maximum(jnp.sum(use), 1)


def _middle(x: Float[Array, " all_chains"], use: Bool[Array, " all_chains"]) -> Float[Array, ""]:
    """Mean over the chains in `use` that lie within a factor of two (of the logs' exponentials) of their median."""
    median = jnp.sort(jnp.where(use, x, jnp.inf))[jnp.maximum(jnp.sum(use) - 1, 0) // 2]
    return _mean(x, use & (jnp.abs(x - median) <= np.log(2.0)))


def _corrected(accept: Float[Array, "*rows"], target: Float[Array, ""]) -> Float[Array, "*rows"]:
    """What to add to the log of a step size that was accepted at a rate `accept`; at most a factor of two.

    The acceptance rate of HMC is 2 Phi(-s / 2), and s, the sd of the energy error, goes with the square of the step
    size (Beskos et al. 2013, Bernoulli 19, theorem 3.6).
    """
    sd = lambda rate: -2 * jax.scipy.special.ndtri(jnp.clip(rate, 0.01, 0.995) / 2)  # noqa: E731
    return jnp.clip(0.5 * jnp.log(sd(target) / sd(accept)), -np.log(2.0), np.log(2.0))


def _alike(x: Float[Array, "all_chains dim"]) -> Bool[Array, " dim"]:
    """Entries that all chains share but for rounding."""
    high, low = jnp.max(x, axis=0), jnp.min(x, axis=0)
    return high - low <= 4 * jnp.finfo(x.dtype).eps * jnp.maximum(jnp.abs(high), jnp.abs(low))


def _moves(ensemble: Ensemble, tuning: Tuning) -> Bool[Array, " all_chains"]:
    """Which chains moved in the window: accepting, and in the others' range of log densities.

    The range is that of the middle one of the accepting chains (with two, the better one), give or take five times: the
    median deviation from it, plus its own sd within the window or the sd sqrt(dim / 2) that the log density of a
    Gaussian has, whichever is larger. Above the range are chains in a spike, below it chains in a tail.
    """
    rows = tuning.chains
    n = jnp.maximum(rows.n, 1.0)
    accept = ensemble.gather(rows.accept / n)
    lp: Float[Array, " all_chains"] = ensemble.gather(rows.lp.mean[:, 0])
    own_sd = ensemble.gather(jnp.sqrt(rows.lp.m2[:, 0] / n))
    accepting = (accept >= tuning.target_accept / 3) & jnp.isfinite(lp)
    count = jnp.sum(accepting)
    middle = jnp.argsort(jnp.where(accepting, lp, jnp.inf))[count // 2 % ensemble.chains]
    distance = jnp.where(accepting, jnp.abs(lp - lp[middle]), jnp.inf)
    deviation = jnp.sort(distance)[jnp.maximum(count - 1, 0) // 2]
    gaussian_sd = float(rows.x.mean.shape[-1] / 2) ** 0.5
    return accepting & (
        distance <= 5 * (deviation + jnp.maximum(jnp.nan_to_num(own_sd[middle]), gaussian_sd))
    )
