"""Convergence diagnostics of all scalars of a run in one vectorised pass.

R-hat and the effective sample sizes are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner,
"Rank-normalization, folding, and localization: an improved R-hat" (Bayesian Analysis 16, 2021), with Geyer's
initial monotone sequence (1992) for the autocorrelation time; the numbers are ArviZ's. The way there differs:

- One sort of a scalar's draws gives its ranks, its folded ranks (two sorted runs, merged), quantiles and ties.
- Ranks are a permutation, so that the normal scores are one table, looked up.
- Geyer's sequence stops after a few lags for most scalars: lags are computed one by one as dot products of the
  half-chains, laid out in one row with gaps of zeros, until every sequence has ended. Only where one has not ended
  at the width of the gap is its whole autocovariance computed, by FFT.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

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
    """Draws as plain real numbers: bfloat16 and its like as float32, complex ones with a last axis (re, im)."""
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


class _Layout(NamedTuple):
    """How the half-chains of one scalar lie in a row: (chain, half, n + gap), zeros in the gaps."""

    n_chains: int
    n_draws: int
    n: int  # draws of a half-chain; with an odd number of draws the middle one is left out
    gap: int
    middle: np.ndarray | None  # with an odd number of draws: whether (chain, draw) is a chain's middle draw
    scores: np.ndarray  # normal scores of the ranks 1, 2, ...
    tied: np.ndarray  # normal score of the mean rank 1 + i / 2, at i

    @property
    def length(self) -> int:
        return 2 * self.n_chains * (self.n + self.gap)

    @property
    def kept(self) -> int:
        return 2 * self.n_chains * self.n

    def split(self, values: np.ndarray) -> np.ndarray:
        """Half-chains (chain, half, n) of values (chain, draw): a view where the number of draws is even."""
        if self.middle is None:
            return values.reshape(self.n_chains, 2, self.n)
        return np.stack([values[:, : self.n], values[:, self.n + 1 :]], axis=1)

    def halves(self, series: np.ndarray) -> np.ndarray:
        """(..., half-chain, n) view of rows (..., length), without the gaps."""
        return series.reshape(*series.shape[:-1], 2 * self.n_chains, self.n + self.gap)[..., : self.n]

    def put(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Lays (k, chain, draw) values out in (k, length) rows."""
        view = rows.reshape(len(rows), self.n_chains, 2, self.n + self.gap)
        view[:, :, 0, : self.n] = values[:, :, : self.n]
        view[:, :, 1, : self.n] = values[:, :, self.n_draws - self.n :]


def _as_float(value: np.ndarray) -> np.ndarray:
    """Float32 and float64 as they are; what else there is, without loss in all ordinary cases, as float64."""
    return value if value.dtype in (np.float32, np.float64) else value.astype(np.float64)


def _fill(columns: list[np.ndarray], n_chains: int, n_draws: int, out: _Results) -> None:
    """Works through the scalars in chunks and writes their numbers into `out`."""
    size = n_chains * n_draws
    layout = _layout(n_chains, n_draws) if n_draws >= MIN_DRAWS else None
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


def _layout(n_chains: int, n_draws: int) -> _Layout:
    from scipy.special import ndtri  # type: ignore[import-untyped]

    n = n_draws // 2
    gap = min(n - 1, max(16, n // 8))
    middle = np.tile(np.arange(n_draws) == n, n_chains) if n_draws % 2 else None
    # Blom's scores of (rank - 3/8) / (N + 1/4), at half steps because tied draws share their mean rank; the upper
    # half mirrors the lower
    total = 2 * n_chains * n
    lower = ndtri((1.0 + np.arange(total) / 2 - 0.375) / (total + 0.25))
    tied = np.concatenate([lower[: total - 1], [0.0], -lower[total - 2 :: -1]])
    return _Layout(n_chains, n_draws, n, gap, middle, tied[::2].copy(), tied)


def _diagnose_chunk(
    draws: np.ndarray, n_chains: int, layout: _Layout | None, out: _Results, where: slice
) -> None:
    """Numbers of a few scalars, whose draws (scalar, chain * draw) in float32 or float64 are ours to change."""
    finite = np.isfinite(draws).all(axis=1)
    if not finite.all():
        draws[~finite] = 0.0
    rows = draws.astype(np.float64, copy=False)
    numbers = {key: np.full(len(rows), np.nan) for key in _NUMBERS}
    values = rows.reshape(len(rows), n_chains, -1)
    n_draws = values.shape[2]

    chain_mean = values.mean(axis=2)
    numbers["mean"] = chain_mean.mean(axis=1)
    centred = values - chain_mean[..., None]
    chain_squares = np.vecdot(centred, centred)
    between = np.square(chain_mean - numbers["mean"][:, None]).sum(axis=1) * n_draws
    if rows.shape[1] > 1:
        numbers["sd"] = np.sqrt((chain_squares.sum(axis=1) + between) / (rows.shape[1] - 1))
    chain_sd = np.sqrt(chain_squares / max(n_draws - 1, 1))
    half = max(n_draws // 2, 1)
    shift = np.abs(values[:, :, :half].mean(axis=2) - values[:, :, n_draws - half :].mean(axis=2))

    constant = np.zeros(len(rows), bool)
    series = None if layout is None else np.zeros((4, len(rows), layout.length))
    scores = np.zeros(rows.shape)
    rhat_folded = np.full(len(rows), np.nan)
    degenerate = np.zeros(len(rows), bool)
    for row in range(len(rows)):
        order = _argsort(draws[row])
        ranked = rows[row][order]
        constant[row] = ranked[0] == ranked[-1]
        for key, probability in _QUANTILES.items():
            numbers[key][row] = _quantile(ranked, probability)
        if series is not None:
            degenerate[row], rhat_folded[row] = _rank(order, ranked, layout, scores[row])

    if series is not None:
        layout.put(series[0], scores.reshape(values.shape))
        layout.put(series[1], values)
        layout.put(series[2], values <= numbers["q05"][:, None, None])
        layout.put(series[3], values <= numbers["q95"][:, None, None])
        level = [degenerate, constant, *(_level(layout.halves(series[k])) for k in (2, 3))]
        effective, tau, rhat_bulk = _autocorrelation(series, layout)
        effective[np.stack(level)] = layout.kept  # ArviZ's convention for what never changes
        numbers["ess_bulk"], numbers["ess_mean"] = effective[0], effective[1]
        numbers["ess_tail"] = np.minimum(effective[2], effective[3])
        numbers["tau"] = np.where(degenerate, np.nan, tau)
        with np.errstate(invalid="ignore"):
            numbers["mcse_mean"] = numbers["sd"] / np.sqrt(numbers["ess_mean"])
        if n_chains > 1:
            numbers["rhat"] = np.where(degenerate, np.nan, np.maximum(rhat_bulk, rhat_folded))

    for key in _NUMBERS:
        out.numbers[key][where] = np.where(finite, numbers[key], np.nan)
    out.finite[where] = finite
    out.constant[where] = constant & finite
    for key, each in (("mean", chain_mean), ("sd", chain_sd), ("shift", shift)):
        out.chains[key][where] = np.where(finite[:, None], each, np.nan)


def _argsort(values: np.ndarray) -> np.ndarray:
    """Ascending order of finite values; for float32 two passes of NumPy's 16-bit radix sort, which are faster."""
    if values.dtype != np.float32:
        return np.argsort(values)
    bits = (values + np.float32(0.0)).view(np.uint32)  # the sum turns -0.0 into 0.0, which it ties with
    keys = bits ^ np.where(bits >> 31, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))
    low = np.argsort(keys.astype(np.uint16), kind="stable")
    return low[np.argsort((keys >> 16).astype(np.uint16)[low], kind="stable")]


def _quantile(ranked: np.ndarray, probability: float) -> float:
    """Type 7 quantile of sorted values, interpolated as numpy.quantile does it."""
    at = probability * (len(ranked) - 1)
    low = int(at)
    below, above = ranked[low], ranked[min(low + 1, len(ranked) - 1)]
    part = at - low
    return above - (above - below) * (1 - part) if part >= 0.5 else below + (above - below) * part


def _rank(order: np.ndarray, ranked: np.ndarray, layout: _Layout, bulk: np.ndarray) -> tuple[bool, float]:
    """Writes a scalar's normal scores into `bulk`; whether all draws are equal, and its folded R-hat."""
    if layout.middle is not None:  # ranks are those among the draws that the split keeps
        kept = ~layout.middle[order]
        order, ranked = order[kept], ranked[kept]
    if ranked[0] == ranked[-1]:
        return True, np.nan
    bulk[order] = _scores(ranked, layout)
    middle = len(ranked) // 2
    distance = np.abs(ranked - (ranked[middle - 1] + ranked[middle]) / 2)
    again = np.argsort(distance, kind="stable")  # two sorted runs: one merge
    folded = np.empty(bulk.shape)
    folded[order[again]] = _scores(distance[again], layout)
    halves = layout.split(folded.reshape(layout.n_chains, layout.n_draws)).reshape(-1, layout.n)
    means = halves.mean(axis=1)
    within = (np.vdot(halves, halves) / len(halves) - layout.n * np.square(means).mean()) / (layout.n - 1)
    # scores are of order one: what is left of a difference of equals is rounding, and no variance
    return False, float(_rhat(means, np.asarray(within if within > 1e-12 else 0.0), layout.n))


def _scores(ranked: np.ndarray, layout: _Layout) -> np.ndarray:
    """Normal scores of sorted values; tied ones get the score of their mean rank."""
    ties = np.flatnonzero(ranked[1:] == ranked[:-1])
    if not len(ties):
        return layout.scores
    out = layout.scores.copy()
    opens = np.concatenate([[True], np.diff(ties) > 1])
    group = np.cumsum(opens) - 1
    first = ties[opens]
    last = ties[np.concatenate([opens[1:], [True]])] + 1
    shared = layout.tied[first + last][group]
    out[ties] = shared
    out[ties + 1] = shared
    return out


def _rhat(means: np.ndarray, within: np.ndarray, n: int) -> np.ndarray:
    """Split R-hat from half-chain means (..., half-chain) and the mean of their variances."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(means.var(axis=-1, ddof=1) / within + (n - 1) / n)


def _level(halves: np.ndarray) -> np.ndarray:
    """Whether indicators (scalar, half-chain, n) are all equal."""
    share = halves.mean(axis=(1, 2))
    return (share == 0) | (share == 1)


def _autocorrelation(series: np.ndarray, layout: _Layout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Effective sample sizes of series (kind, scalar, length); of kind 0, the time within chains and R-hat too.

    The series are centred in place.
    """
    n, rows = layout.n, series.reshape(-1, layout.length)
    halves = layout.halves(rows)
    means = halves.mean(axis=2)
    halves -= means[..., None]  # a view: the gaps stay zero
    at_zero = np.vecdot(rows, rows) / layout.kept
    within = at_zero * n / (n - 1)
    total = at_zero + means.var(axis=1, ddof=1)
    bulk = slice(0, series.shape[1])
    rhat = _rhat(means[bulk], within[bulk], n)

    whole: np.ndarray | None = None

    def covariance(lag: int, running: np.ndarray) -> np.ndarray:
        nonlocal whole
        if lag <= layout.gap:
            return np.vecdot(rows[:, : layout.length - lag], rows[:, lag:]) / layout.kept
        if whole is None:
            whole = np.full((len(rows), n), np.nan)
            whole[running] = _autocovariance(halves[running])
        return whole[:, lag]

    # the rows once more for the bulk within chains: there the between-chain part is left out of the total
    source = np.concatenate([np.arange(len(rows)), np.arange(series.shape[1])])
    total = np.concatenate([total, at_zero[bulk]])
    tau = _geyer(covariance, source, within[source], total, n)
    tau = np.maximum(tau, 1 / np.log10(layout.kept))
    effective = layout.kept / tau[: len(rows)]
    return effective.reshape(series.shape[:2]), tau[len(rows) :], rhat


def _autocovariance(halves: np.ndarray) -> np.ndarray:
    """Autocovariance (row, lag) of centred (row, half-chain, n), averaged over half-chains before the inverse FFT."""
    from scipy import fft  # type: ignore[import-untyped]

    n = halves.shape[2]
    padded = fft.next_fast_len(2 * n, real=True)
    spectrum = np.empty((len(halves), padded // 2 + 1))
    for row, each in enumerate(halves):  # row by row, for the sake of memory
        transformed = fft.rfft(each, n=padded, axis=1)
        spectrum[row] = (np.square(transformed.real) + np.square(transformed.imag)).mean(axis=0)
    return fft.irfft(spectrum, n=padded, axis=1)[:, :n] / n


def _geyer(
    covariance: Callable[[int, np.ndarray], np.ndarray],
    source: np.ndarray,
    within: np.ndarray,
    total: np.ndarray,
    n: int,
) -> np.ndarray:
    """Autocorrelation time of each row by Geyer's initial monotone positive sequence, in draws.

    Pairs P_k = rho_2k + rho_2k+1 are summed while they are positive, each cut to the smallest before it; of the last
    pair only its even half counts, once (as in Stan and ArviZ).

    Args:
        covariance: function of a lag and of the rows that still run, to the autocovariance of the rows.
        source: which of those rows each row here reads.
        within: mean variance within half-chains.
        total: overall variance.
        n: draws in a half-chain.
    """
    running_rows = np.ones(int(source.max()) + 1, bool)

    def correlation(lag: int) -> np.ndarray:
        return 1.0 - (within - covariance(lag, running_rows)[source]) / total

    with np.errstate(divide="ignore", invalid="ignore"):
        pair = 1.0 + correlation(1)
        smallest, whole = pair.copy(), np.zeros(len(source))
        last = np.ones(len(source))  # rho_0
        running = pair > 0
        missing = np.isnan(pair)
        lag = 1
        while lag < n - 3 and running.any():
            running_rows = np.zeros_like(running_rows)
            running_rows[source[running]] = True
            even, odd = correlation(lag + 1), correlation(lag + 2)
            pair = even + odd
            whole = np.where(running, whole + smallest, whole)
            last = np.where(running, np.where((even > 0) | (pair >= 0), even, 0.0), last)
            smallest = np.minimum(smallest, pair)
            running &= pair > 0
            lag += 2
    return np.where(missing, np.nan, -1.0 + 2.0 * whole + last)
