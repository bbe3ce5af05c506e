"""Ranks, R-hat and autocorrelation times of half-chains; the sources are named in `_diagnostics`."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

PIECE = 8192  # values per call of BLAS, which would start threads for longer products, and wait for them


class Layout(NamedTuple):
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
    def width(self) -> int:
        """Length of a row with zeros after it, for products with what lies up to a gap further on, in pieces."""
        return -(-self.length // self.pieces) * self.pieces + self.gap

    @property
    def pieces(self) -> int:
        return -(-self.length // PIECE)

    def product(self, rows: np.ndarray, lag: int) -> np.ndarray:
        """Sums of products of rows (k, width) with themselves, `lag` further on."""
        length = self.width - self.gap
        pieces = (len(rows), self.pieces, length // self.pieces)
        return np.vecdot(rows[:, :length].reshape(pieces), rows[:, lag : lag + length].reshape(pieces)).sum(1)

    @property
    def kept(self) -> int:
        return 2 * self.n_chains * self.n

    def split(self, values: np.ndarray) -> np.ndarray:
        """Half-chains (chain, half, n) of values (chain, draw): a view where the number of draws is even."""
        if self.middle is None:
            return values.reshape(self.n_chains, 2, self.n)
        return np.stack([values[:, : self.n], values[:, self.n + 1 :]], axis=1)

    def halves(self, series: np.ndarray) -> np.ndarray:
        """(..., half-chain, n) view of rows (..., width), without the gaps."""
        rows = series[..., : self.length]  # splitting the last axis gives a view
        return rows.reshape(*rows.shape[:-1], 2 * self.n_chains, self.n + self.gap)[..., : self.n]

    def put(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Lays (k, chain, draw) values out in (k, width) rows."""
        view = rows[:, : self.length].reshape(len(rows), self.n_chains, 2, self.n + self.gap)
        view[:, :, 0, : self.n] = values[:, :, : self.n]
        view[:, :, 1, : self.n] = values[:, :, self.n_draws - self.n :]


def make_layout(n_chains: int, n_draws: int) -> Layout:
    from scipy.special import ndtri  # type: ignore[import-untyped]

    n = n_draws // 2
    gap = min(n - 1, max(16, n // 8))
    middle = np.tile(np.arange(n_draws) == n, n_chains) if n_draws % 2 else None
    # Blom's scores of (rank - 3/8) / (N + 1/4), at half steps because tied draws share their mean rank; the
    # upper half mirrors the lower
    total = 2 * n_chains * n
    lower = ndtri((1.0 + np.arange(total) / 2 - 0.375) / (total + 0.25))
    tied = np.concatenate([lower[: total - 1], [0.0], -lower[total - 2 :: -1]])
    return Layout(n_chains, n_draws, n, gap, middle, tied[::2].copy(), tied)


def argsort(values: np.ndarray) -> np.ndarray:
    """Ascending order of finite values; for float32 by two 16-bit radix sorts of NumPy, which are faster."""
    if values.dtype != np.float32:
        return np.argsort(values)
    bits = (values + np.float32(0.0)).view(np.uint32)  # the sum turns -0.0 into 0.0, which it ties with
    keys = bits ^ np.where(bits >> 31, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))
    low = np.argsort(keys.astype(np.uint16), kind="stable")
    return low[np.argsort((keys >> 16).astype(np.uint16)[low], kind="stable")]


def quantile(ranked: np.ndarray, probability: float) -> float:
    """Type 7 quantile of sorted values, interpolated as numpy.quantile does it."""
    at = probability * (len(ranked) - 1)
    low = int(at)
    below, above = ranked[low], ranked[min(low + 1, len(ranked) - 1)]
    part = at - low
    return above - (above - below) * (1 - part) if part >= 0.5 else below + (above - below) * part


def rank(order: np.ndarray, ranked: np.ndarray, layout: Layout, bulk: np.ndarray) -> tuple[bool, float]:
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
    within = (np.vecdot(halves, halves).sum() / len(halves) - layout.n * np.square(means).mean()) / (
        layout.n - 1
    )
    # scores are of order one: what is left of a difference of equals is rounding, and no variance
    return False, float(_rhat(means[None], np.array([within if within > 1e-12 else 0.0]), layout.n)[0])


def _scores(ranked: np.ndarray, layout: Layout) -> np.ndarray:
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


def level_rows(halves: np.ndarray) -> np.ndarray:
    """Whether indicators (scalar, half-chain, n) are all equal."""
    share = halves.mean(axis=(1, 2))
    return (share == 0) | (share == 1)


def autocorrelation(
    series: np.ndarray, rhat_folded: np.ndarray, layout: Layout
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Effective sample sizes (kind, scalar) of series (kind, scalar, width), times within chains, and R-hat.

    The latter two are of kind 0, the rank-normalised draws. The series are centred in place.
    """
    n, rows = layout.n, series.reshape(-1, layout.width)
    halves = layout.halves(rows)
    means = halves.mean(axis=2)
    halves -= means[..., None]  # a view: the gaps stay zero
    at_zero = layout.product(rows, 0) / layout.kept
    within = at_zero * n / (n - 1)
    total = at_zero + means.var(axis=1, ddof=1)
    bulk = np.arange(series.shape[1])
    rhat = np.maximum(_rhat(means[bulk], within[bulk], n), rhat_folded)

    # the bulk once more, within chains: there the variance between chains is left out of the total
    source = np.concatenate([np.arange(len(rows)), bulk])
    total = np.concatenate([total, at_zero[bulk]])
    tau = _geyer(_Covariance(rows, layout), source, within[source], total, n)
    effective = layout.kept / np.maximum(tau[: len(rows)], 1 / np.log10(layout.kept))
    tau = tau[len(rows) :]
    # Centred half-chains lack the variance tau / n of their means, and look less correlated than they are.
    # That is put right where it matters: for the limit of an R-hat above 1.01.
    doubtful = bulk[(rhat > 1.01) & (tau > 0)]
    if len(doubtful):
        missing = 1 - np.minimum(tau[doubtful] / n, 0.5)
        again = _Covariance(rows[doubtful], layout)
        tau[doubtful] = _geyer(
            again, np.arange(len(doubtful)), within[doubtful], at_zero[doubtful] / missing, n
        )
    return effective.reshape(series.shape[:2]), np.maximum(tau, 1 / np.log10(layout.kept)), rhat


class _Covariance:
    """Autocovariance of centred rows at a lag, mean over half-chains; past the width of the gap by FFT."""

    def __init__(self, rows: np.ndarray, layout: Layout):
        self.rows, self.layout = rows, layout
        self.whole: np.ndarray | None = None

    def __call__(self, lag: int, running: np.ndarray) -> np.ndarray:
        if lag <= self.layout.gap:
            return self.layout.product(self.rows, lag) / self.layout.kept
        if self.whole is None:
            self.whole = np.full((len(self.rows), self.layout.n), np.nan)
            self.whole[running] = _autocovariance(self.layout.halves(self.rows[running]))
        return self.whole[:, lag]


def _autocovariance(halves: np.ndarray) -> np.ndarray:
    """Autocovariance (row, lag) of centred (row, half-chain, n), mean over half-chains, by FFT."""
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

    Pairs P_k = rho_2k + rho_2k+1 are summed while they are positive, each cut to the smallest before it; of
    the last pair only its even half counts, once (as in Stan and ArviZ).

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
