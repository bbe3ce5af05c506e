"""Pooled warm-up: the metric from all chains, the step size shared by the chains that move."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._adaptation import Adaptation, Tuning, Window
from ._ensemble import Ensemble
from ._moments import pool


@dataclasses.dataclass(frozen=True, repr=False)
class PooledWindows(Adaptation):
    """Short windows whose metric comes from the draws and gradients of all chains.

    The diagonal metric is sqrt(Var x / Var g), exact for a Gaussian from few draws, wherever they are (nutpie; Seyboldt,
    Carlson and Carpenter 2026, arXiv:2603.18845). The first one comes from the starts alone. While the metric is rough,
    trees are capped. Each chain searches its own step size; from the fifth window on chains that move restart from the
    geometric mean of theirs. A chain moves when its acceptance over the window is at least a third of the target and
    its log density lies in the range of the others; one that does not keeps its own step size, and its draws stay out
    of the metric until it does.

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
            Window(n, max_depth=caps[i], metric=True, pool=i + 1 >= own) for i, n in enumerate(lengths)
        ]
        return (*windows, Window(last, pool=True))

    def close(self, ensemble: Ensemble, tuning: Tuning, window: dict[str, Array]) -> Tuning:
        """Gather every chain's window, judge who moves, make the metric, hand out step sizes."""
        rows, params = tuning.chains, tuning.params
        starts = window["starts"] > 0
        moves = jnp.where(starts, jnp.ones(ensemble.chains, bool), _moves(ensemble, tuning))
        if "inverse_mass_matrix" in params:
            params = params | self._metric(ensemble, tuning, moves, window)
        own = jnp.where(starts, rows.step_size.log_x, rows.step_size.log_x_avg)
        everyone = ensemble.gather(own)
        shared = jnp.sum(jnp.where(moves, everyone, 0.0)) / jnp.maximum(jnp.sum(moves), 1)
        joined = ensemble.mine(moves)
        step = jnp.where((window["pool"] > 0) & joined, shared, own)
        tuning = tuning._replace(chains=rows._replace(joined=joined))
        return self._next(tuning, params, step, 1.5)

    def _metric(
        self, ensemble: Ensemble, tuning: Tuning, moves: Bool[Array, " all_chains"], window: dict[str, Array]
    ) -> dict[str, Array]:
        rows, old = tuning.chains, tuning.params["inverse_mass_matrix"]
        n, _, x2 = pool(ensemble, rows.x, moves)
        _, g_mean, g2 = pool(ensemble, rows.g, moves)
        var_x = (jnp.diagonal(x2) if x2.ndim == 2 else x2) / jnp.maximum(n - 1, 1)
        var_g = g2 / jnp.maximum(n - 1, 1)
        # Two starts say nothing about a variance: the mean square of the gradients stands in for it.
        few = (window["starts"] > 0) & (n < 4)
        var_g = jnp.where(few, var_g + g_mean**2, var_g)
        var_x = jnp.where((window["starts"] > 0) & ((n < 4) | (var_x <= 0)), 1.0, var_x)
        diagonal = jnp.sqrt(var_x / var_g)
        old_diagonal = jnp.diagonal(old) if old.ndim == 2 else old
        usable = jnp.isfinite(diagonal) & (diagonal > 0) & (window["metric"] > 0) & (n > 0)
        diagonal = jnp.where(usable, diagonal, old_diagonal)
        if old.ndim == 1:
            return {"inverse_mass_matrix": diagonal}
        weight = jnp.where((window["starts"] > 0) | ~usable.all(), 0.0, n / (n + diagonal.shape[0]))
        dense = weight * x2 / jnp.maximum(n - 1, 1) + (1 - weight) * jnp.diag(diagonal)
        factor = jnp.linalg.cholesky(dense)
        keep = (window["metric"] > 0) & jnp.isfinite(factor).all()
        return {
            "inverse_mass_matrix": jnp.where(keep, dense, old),
            "inverse_mass_cholesky": jnp.where(keep, factor, tuning.params["inverse_mass_cholesky"]),
        }


def _moves(ensemble: Ensemble, tuning: Tuning) -> Bool[Array, " all_chains"]:
    """Which chains moved in the window: accepting, finite, and not far below the others in log density.

    The range is five times the median deviation from the middle chain plus the sd sqrt(dim / 2) that the log density
    of a Gaussian has, times five. The middle chain is the upper median: with two chains the better one.
    """
    rows = tuning.chains
    n = jnp.maximum(rows.n, 1.0)
    accept = ensemble.gather(rows.accept / n)
    lp: Float[Array, " all_chains"] = ensemble.gather(rows.lp / n)
    finite = jnp.isfinite(lp)
    middle = jnp.sort(jnp.where(finite, lp, -jnp.inf))[ensemble.chains // 2]
    deviation = jnp.sort(jnp.where(finite, jnp.abs(lp - middle), jnp.inf))[(ensemble.chains - 1) // 2]
    floor = middle - 5 * (jnp.where(jnp.isfinite(deviation), deviation, 0.0) + jnp.sqrt(rows.x.mean.shape[-1] / 2))
    return (accept >= tuning.target_accept / 3) & finite & (lp >= floor)
