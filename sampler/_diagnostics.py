"""Convergence diagnostics of all scalars of a run in one vectorised pass.

R-hat and the effective sample sizes are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner,
"Rank-normalization, folding, and localization: an improved R-hat" (Bayesian Analysis 16, 2021), with Geyer's
initial monotone sequence (1992) for the autocorrelation time; the numbers are ArviZ's. The way there differs:

- One sort of a scalar's draws gives its ranks, its folded ranks (two sorted runs, merged), quantiles and
  ties.
- Ranks are a permutation, so that the normal scores are one table, looked up.
- Geyer's sequence stops after a few lags for most scalars: lags are computed one by one as dot products of
  the half-chains, laid out in one row with gaps of zeros, until every sequence has ended. Only where one
  has not ended at the width of the gap is its whole autocovariance computed, by FFT.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from ._half_chains import Layout, argsort, autocorrelation, level_rows, make_layout, quantile, rank

CHUNK_VALUES = 1 << 15  # draws worked on at once: four series of them in float64 stay in a core's cache
BLOCK_SCALARS = 16  # scalars copied out of the draws at once: neighbours share cache lines
THREAD_VALUES = 1 << 20  # from this many draws on, chunks are shared out to threads
MIN_DRAWS = 4  # ArviZ gives NaN below


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostics of every scalar of a posterior: one entry per scalar, sites in order, elements in C order.

    Attributes:
        sites: name and event shape of each site.
        n_chains: number of chains.
        n_draws: number of draws per chain.
        mean: posterior mean.
        sd: posterior standard deviation (divisor n - 1).
        q05: 5 % quantile (type 7, as NumPy's default); likewise q25, q50, q75, q95.
        ess_bulk: bulk effective sample size; ess_tail: the smaller one of those of the 5 % and 95 % quantile.
        ess_mean: effective sample size of the mean.
        mcse_mean: Monte Carlo standard error of the mean, sd / sqrt(ess_mean).
        rhat: rank-normalised split R-hat, the larger one of bulk and folded; NaN for one chain and for
            constants.
        tau: autocorrelation time of the rank-normalised draws within chains, in draws: unlike that in
            `ess_bulk`, it does not depend on whether the chains agree.
        constant: equal in all chains and draws.
        finite: no NaN and no infinity among the draws; where False the numbers above are NaN.
        chain_mean: mean of each chain.
        chain_sd: standard deviation of each chain.
        chain_shift: distance between the means of a chain's halves.
    """

    sites: tuple[tuple[str, tuple[int, ...]], ...]
    n_chains: int
    n_draws: int
    mean: Float[np.ndarray, " scalars"]
    sd: Float[np.ndarray, " scalars"]
    q05: Float[np.ndarray, " scalars"]
    q25: Float[np.ndarray, " scalars"]
    q50: Float[np.ndarray, " scalars"]
    q75: Float[np.ndarray, " scalars"]
    q95: Float[np.ndarray, " scalars"]
    ess_bulk: Float[np.ndarray, " scalars"]
    ess_tail: Float[np.ndarray, " scalars"]
    ess_mean: Float[np.ndarray, " scalars"]
    mcse_mean: Float[np.ndarray, " scalars"]
    rhat: Float[np.ndarray, " scalars"]
    tau: Float[np.ndarray, " scalars"]
    constant: Shaped[np.ndarray, " scalars"]
    finite: Shaped[np.ndarray, " scalars"]
    chain_mean: Float[np.ndarray, "scalars chains"]
    chain_sd: Float[np.ndarray, "scalars chains"]
    chain_shift: Float[np.ndarray, "scalars chains"]

    @cached_property
    def offsets(self) -> np.ndarray:
        """Index of each site's first scalar, and the number of scalars at the end."""
        return np.cumsum([0, *(int(np.prod(shape)) for _, shape in self.sites)])

    def name(self, scalar: int) -> str:
        """Name of a scalar by its index, such as "theta[3]" or "L[0,1]"."""
        site = int(np.searchsorted(self.offsets, scalar, side="right")) - 1
        name, shape = self.sites[site]
        if not shape:
            return name
        where = np.unravel_index(scalar - int(self.offsets[site]), shape)
        return f"{name}[{','.join(str(int(i)) for i in where)}]"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all scalars."""
        return tuple(self.name(scalar) for scalar in range(int(self.offsets[-1])))

    def of(self, site: str) -> dict[str, np.ndarray]:
        """Every per-scalar number of one site, in the site's event shape.

        Args:
            site: name of a site of the posterior.

        Returns:
            a dict from "mean", "sd", "q05", ..., "rhat" to arrays of the event shape.

        Raises:
            KeyError: there is no such site.
        """
        for (name, shape), low, high in zip(self.sites, self.offsets, self.offsets[1:], strict=False):
            if name == site:
                return {key: getattr(self, key)[low:high].reshape(shape) for key in _PER_SCALAR}
        raise KeyError(site)


_NUMBERS = (
    *("mean", "sd", "q05", "q25", "q50", "q75", "q95", "ess_bulk", "ess_tail"),
    *("ess_mean", "mcse_mean", "rhat", "tau"),
)
_PER_SCALAR = (*_NUMBERS, "constant", "finite")
_QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}


def diagnose(draws: Mapping[str, Shaped[np.ndarray, "chains draws ..."]] | np.ndarray) -> Diagnostics:
    """R-hat, effective sample sizes, moments and quantiles of every scalar.

    Args:
        draws: posterior draws by site, each (chain, draw, *event); or one array, taken as a site "x".
            Integers and bools are taken as numbers; arrays are not changed.

    Returns:
        the diagnostics. Fewer than 4 draws give NaN for R-hat and effective sample sizes, one chain for
        R-hat.
    """
    by_site = dict(draws) if isinstance(draws, Mapping) else {"x": draws}
    arrays = {site: numeric(np.asarray(value)) for site, value in by_site.items()}
    first = next(iter(arrays.values()), np.zeros((0, 0)))
    n_chains, n_draws = first.shape[:2]
    sites = tuple((site, value.shape[2:]) for site, value in arrays.items())
    # one row of columns per site; a reshape of contiguous draws copies nothing
    columns = [_as_float(value).reshape(n_chains * n_draws, -1) for value in arrays.values() if value.size]
    n_scalars = sum(int(np.prod(shape)) for _, shape in sites)
    out = _Results(
        {key: np.full(n_scalars, np.nan) for key in _NUMBERS},
        constant=np.zeros(n_scalars, bool),
        finite=np.ones(n_scalars, bool),
        chains={key: np.full((n_scalars, n_chains), np.nan) for key in ("mean", "sd", "shift")},
    )
    if n_chains * n_draws and n_scalars:
        _fill(columns, n_chains, n_draws, out)
    return Diagnostics(
        sites=sites,
        n_chains=n_chains,
        n_draws=n_draws,
        **out.numbers,
        constant=out.constant,
        finite=out.finite,
        chain_mean=out.chains["mean"],
        chain_sd=out.chains["sd"],
        chain_shift=out.chains["shift"],
    )


def numeric(value: np.ndarray) -> np.ndarray:
    """Draws as plain real numbers: bfloat16 and its like as float32, complex ones as a last axis of two."""
    if value.dtype.kind == "V":
        return value.astype(np.float32)
    if value.dtype.kind == "c":
        return np.stack([value.real, value.imag], axis=-1)
    return value


def bfmi(energy: Shaped[np.ndarray, "chains draws"]) -> Float[np.ndarray, " chains"]:
    """Estimated Bayesian fraction of missing information of each chain (Betancourt, arXiv:1604.00695).

    Args:
        energy: total energy (the Hamiltonian) at each draw.

    Returns:
        mean squared change of the energy over its variance, per chain; below 0.3 the momentum draws explore
        the energies too slowly. NaN where the energy is constant or not finite, or with fewer than 2 draws.
    """
    energy = np.asarray(energy, np.float64)
    if energy.shape[1] < 2:
        return np.full(energy.shape[0], np.nan)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        change = np.square(np.diff(energy, axis=1)).mean(axis=1)
        return change / np.where((spread := energy.var(axis=1, ddof=1)) > 0, spread, np.nan)


class _Results(NamedTuple):
    numbers: dict[str, np.ndarray]
    constant: np.ndarray
    finite: np.ndarray
    chains: dict[str, np.ndarray]


def _as_float(value: np.ndarray) -> np.ndarray:
    """Float32 and float64 as they are; what else there is, without loss in all ordinary cases, as float64."""
    return value if value.dtype in (np.float32, np.float64) else value.astype(np.float64)


def _fill(columns: list[np.ndarray], n_chains: int, n_draws: int, out: _Results) -> None:
    """Works through the scalars in chunks and writes their numbers into `out`."""
    size = n_chains * n_draws
    layout = make_layout(n_chains, n_draws) if n_draws >= MIN_DRAWS else None
    starts = np.cumsum([0, *(column.shape[1] for column in columns)])
    n_scalars = int(starts[-1])
    chunk = max(1, CHUNK_VALUES // size)
    block = max(chunk, min(BLOCK_SCALARS, (64 << 20) // size))

    def work(low: int) -> None:
        high = min(low + block, n_scalars)
        pieces = [
            column[:, max(low - start, 0) : max(high - start, 0)]
            for column, start in zip(columns, starts, strict=False)
            if start < high and low < start + column.shape[1]
        ]
        rows = np.empty((high - low, size), np.result_type(*pieces))
        at = 0
        for piece in pieces:
            rows[at : at + piece.shape[1]] = piece.T
            at += piece.shape[1]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # huge draws give inf or NaN
            for first in range(0, len(rows), chunk):
                part = rows[first : first + chunk]
                _diagnose_chunk(part, n_chains, layout, out, slice(low + first, low + first + len(part)))

    lows = range(0, n_scalars, block)
    workers = min(os.cpu_count() or 1, 8, len(lows))
    if size * n_scalars < THREAD_VALUES or workers < 2:
        for low in lows:
            work(low)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, lows))


def _diagnose_chunk(
    draws: np.ndarray, n_chains: int, layout: Layout | None, out: _Results, where: slice
) -> None:
    """Numbers of a few scalars, whose draws (scalar, chain * draw) are floats, and ours to change."""
    finite = np.isfinite(draws).all(axis=1)
    if not finite.all():
        draws[~finite] = 0.0
    values = draws.astype(np.float64, copy=False).reshape(len(draws), n_chains, -1)
    n_draws, size = values.shape[2], draws.shape[1]
    numbers = {key: np.full(len(draws), np.nan) for key in _NUMBERS}

    chain_mean = values.mean(axis=2)
    numbers["mean"] = chain_mean.mean(axis=1)
    centred = values - chain_mean[..., None]
    chain_squares = np.vecdot(centred, centred)
    between = np.square(chain_mean - numbers["mean"][:, None]).sum(axis=1) * n_draws
    if size > 1:
        numbers["sd"] = np.sqrt((chain_squares.sum(axis=1) + between) / (size - 1))
    chain_sd = np.sqrt(chain_squares / max(n_draws - 1, 1))
    half = max(n_draws // 2, 1)
    shift = np.abs(values[:, :, :half].mean(axis=2) - values[:, :, n_draws - half :].mean(axis=2))

    orders = [argsort(each) for each in draws]
    ranked = [each.ravel()[order] for each, order in zip(values, orders, strict=True)]
    constant = np.array([each[0] == each[-1] for each in ranked])
    for key, probability in _QUANTILES.items():
        numbers[key] = np.array([quantile(each, probability) for each in ranked])
    if layout is not None:
        numbers |= _mixing(values, orders, ranked, constant, numbers["q05"], numbers["q95"], layout)
        numbers["mcse_mean"] = numbers["sd"] / np.sqrt(numbers["ess_mean"])

    for key in _NUMBERS:
        out.numbers[key][where] = np.where(finite, numbers[key], np.nan)
    out.finite[where] = finite
    out.constant[where] = constant & finite
    for key, each in (("mean", chain_mean), ("sd", chain_sd), ("shift", shift)):
        out.chains[key][where] = np.where(finite[:, None], each, np.nan)


def _mixing(
    values: np.ndarray,
    orders: list[np.ndarray],
    ranked: list[np.ndarray],
    constant: np.ndarray,
    q05: np.ndarray,
    q95: np.ndarray,
    layout: Layout,
) -> dict[str, np.ndarray]:
    """Effective sample sizes, autocorrelation times and R-hat of a few scalars."""
    scores = np.zeros((len(values), values[0].size))
    folded = np.full(len(values), np.nan)
    level = np.zeros((4, len(values)), bool)  # series that never change
    for row, (order, each) in enumerate(zip(orders, ranked, strict=True)):
        level[0, row], folded[row] = rank(order, each, layout, scores[row])
    series = np.zeros((4, len(values), layout.width))
    layout.put(series[0], scores.reshape(values.shape))
    layout.put(series[1], values)
    layout.put(series[2], values <= q05[:, None, None])
    layout.put(series[3], values <= q95[:, None, None])
    level[1:] = constant, level_rows(layout.halves(series[2])), level_rows(layout.halves(series[3]))
    effective, tau, rhat = autocorrelation(series, folded, layout)
    effective[level] = layout.kept  # ArviZ's convention
    return {
        "ess_bulk": effective[0],
        "ess_mean": effective[1],
        "ess_tail": np.minimum(effective[2], effective[3]),
        "tau": np.where(level[0], np.nan, tau),
        "rhat": np.where(level[0] | (layout.n_chains < 2), np.nan, rhat),
    }
