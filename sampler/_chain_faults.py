"""Chains that are at fault one by one: frozen ones, equal ones, and ones that sample another place."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ._diagnostics import Diagnostics

CHANCE = 1e-2  # a chain is stuck where a good sampler leaves fewer chains a run than this unmoved so long
FAR = 3.0  # gap between neighbouring chain means, in standard deviations within them
MIN_DRAWS_FAR = 20
WINDOW = 10  # draws at either end whose equality makes two chains duplicates


class Far(NamedTuple):
    """Groups of chains that sample different places; the main one first."""

    groups: tuple[tuple[int, ...], ...]
    sites: tuple[str, ...]  # scalars that tell them apart, the clearest first
    gap: float  # of the clearest one, in standard deviations within chains
    lower: float | None  # mean log density of the main group less that of the second one

    @property
    def chains(self) -> tuple[int, ...]:
        """The chains outside the main group; all, where each of three or more is in a place of its own."""
        first = 0 if self.scattered else 1
        return tuple(sorted(chain for group in self.groups[first:] for chain in group))

    @property
    def scattered(self) -> bool:
        """Whether no two chains sample one place, of three chains or more."""
        return len(self.groups) > 2 and all(len(group) == 1 for group in self.groups)


def moves(arrays: Mapping[str, np.ndarray], table: Diagnostics, lp: np.ndarray | None) -> np.ndarray | None:
    """Whether each chain moved at each step, (chain, draw - 1); None where that cannot be told.

    The log density tells it for most; the draws are compared only in chains where it stood still often.
    Draws of integers alone cannot tell.
    """
    if table.n_draws < 2 or not arrays:
        return None
    if lp is None and not any(value.dtype.kind == "f" and value.size for value in arrays.values()):
        return None
    moved = np.zeros((table.n_chains, table.n_draws - 1), bool)
    if lp is not None:
        moved |= _changes(lp)
    for value in arrays.values():
        doubtful = np.flatnonzero(moved.mean(axis=1) < 0.9)
        if not len(doubtful):
            break
        if value.size:
            moved[doubtful] |= _changes(value[doubtful].reshape(len(doubtful), table.n_draws, -1)).any(axis=2)
    return moved


def _changes(value: np.ndarray) -> np.ndarray:
    later, earlier = value[:, 1:], value[:, :-1]
    changed = later != earlier
    return changed if value.dtype.kind != "f" else changed & ~(np.isnan(later) & np.isnan(earlier))


def stuck_chains(moved: np.ndarray, table: Diagnostics) -> dict[int, str]:
    """Chains that hardly move, and words for how.

    1. A chain moves in at most 1 % of its steps. A sampler that moves as often as the median chain, and in
       a fifth of its steps at least, would make so few moves in less than one chain in a hundred runs.
    2. A chain moves, yet its standard deviation is below a hundredth of the median chain's in every scalar.
    3. A chain stood still for 20 draws and a tenth of the run on end, which its rate of moves does not
    explain.
    """
    from scipy.special import bdtr  # type: ignore[import-untyped]

    n_chains, n_steps = moved.shape
    rate = moved.mean(axis=1)
    found: dict[int, str] = {}
    still = np.flatnonzero(rate <= 0.01)
    if len(still) and n_steps >= 9:
        chance = bdtr(int(moved[still].sum(axis=1).max()), n_steps, max(0.2, float(np.median(rate))))
        if chance * n_chains < CHANCE or (
            len(still) > 1 and chance ** len(still) * 2.0 ** min(n_chains, 99) < CHANCE
        ):
            for chain in still.tolist():
                count = int(moved[chain].sum())
                found[chain] = "never moved" if count == 0 else f"moved in {count} of {n_steps} steps"

    informative = table.finite & ~table.constant
    if n_chains > 1 and n_steps >= 9 and informative.any():
        spread = table.chain_sd[informative]
        typical = np.median(spread, axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(typical > 0, spread / typical, np.where(spread > 0, np.inf, 0.0)).max(axis=0)
        for chain in np.flatnonzero((relative < 0.01) & (moved.sum(axis=1) >= 9)).tolist():
            found.setdefault(
                chain, f"moves, but {1 / max(relative[chain], 1e-99):.0f} times less than the others"
            )

    longest = max(20, n_steps // 10)
    usual = float(np.median(np.delete(rate, list(found)))) if len(found) < n_chains else 0.0
    for chain in np.flatnonzero(rate <= 1 - longest / n_steps).tolist():
        if chain in found:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate([[True], moved[chain], [True]]).astype(np.int8)))
        if not len(edges):
            continue
        starts, ends = edges[::2], edges[1::2]
        which = int(np.argmax(ends - starts))
        start, end = int(starts[which]), int(ends[which])
        length = end - start
        own = float(moved[chain].sum()) / max(n_steps - length, 1)
        often = min(max(usual, own), 0.999999)
        if length >= longest and n_steps * n_chains * (1 - often) ** length < CHANCE:
            found[chain] = (
                f"has not moved since draw {start}"
                if end == n_steps
                else f"stood still from draw {start} to {end}"
            )
    return dict(sorted(found.items()))


def duplicates(
    arrays: Mapping[str, np.ndarray], moved: np.ndarray | None, leave_out: set[int]
) -> list[tuple[int, ...]]:
    """Groups of chains whose first or last 10 draws are equal though they move, as never by chance.

    Chains that share a key, or that met and went on together, are found; frozen chains are another matter.
    Draws of integers alone do not tell.
    """
    floats = [value for value in arrays.values() if value.dtype.kind == "f" and value.size]
    if not floats or moved is None:
        return []
    n_chains, n_draws = floats[0].shape[:2]
    window = min(WINDOW, n_draws)
    groups: set[tuple[int, ...]] = set()
    for part in (slice(0, window), slice(n_draws - window, n_draws)):
        seen: dict[bytes, list[int]] = {}
        for chain in range(n_chains):
            if chain in leave_out or not any(
                _changes(value[chain : chain + 1, part]).any() for value in floats
            ):
                continue
            key = b"".join(np.ascontiguousarray(value[chain, part]).tobytes() for value in floats)
            seen.setdefault(key, []).append(chain)
        groups |= {tuple(chains) for chains in seen.values() if len(chains) > 1}
    return sorted(group for group in groups if not any(set(group) < set(other) for other in groups))


def far_chains(table: Diagnostics, lp: np.ndarray | None, leave_out: set[int]) -> Far | None:
    """Groups of chains that sample different places; None where all sample one.

    Along each scalar, and the log density, chains are sorted by their means. Two neighbours belong to
    different places where the gap between them is over three times the standard deviation within either
    one, and the distance between the means of either one's halves: chains that drift have not settled
    anywhere.
    """
    chains = np.array([chain for chain in range(table.n_chains) if chain not in leave_out])
    if len(chains) < 2 or table.n_draws < MIN_DRAWS_FAR:
        return None
    names = np.flatnonzero(table.finite & ~table.constant)
    mean, spread = table.chain_mean[names], np.maximum(table.chain_sd, table.chain_shift)[names]
    level = None
    if lp is not None and np.isfinite(lp[chains]).all():
        density = lp.astype(np.float64)
        half = table.n_draws // 2
        level = density.mean(axis=1)
        shift = np.abs(density[:, :half].mean(axis=1) - density[:, -half:].mean(axis=1))
        mean = np.concatenate([mean, level[None]])
        spread = np.concatenate([spread, np.maximum(density.std(axis=1), shift)[None]])
    if not len(mean):
        return None
    mean, spread = mean[:, chains], spread[:, chains]
    order = np.argsort(mean, axis=1)
    ranked, width = np.take_along_axis(mean, order, 1), np.take_along_axis(spread, order, 1)
    step, scale = np.diff(ranked, axis=1), np.maximum(width[:, 1:], width[:, :-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = np.where(step > 0, step / scale, 0.0)
    clearest = np.argsort(-gaps.max(axis=1), kind="stable")[:64]
    clearest = clearest[gaps.max(axis=1)[clearest] > FAR]
    if not len(clearest):
        return None
    labels = np.zeros((len(chains), len(clearest)), np.int64)
    for column, scalar in enumerate(clearest):
        labels[order[scalar], column] = np.concatenate([[0], np.cumsum(gaps[scalar] > FAR)])
    _, group_of = np.unique(labels, axis=0, return_inverse=True)
    group_of = group_of.ravel()
    groups = [chains[group_of == group] for group in range(int(group_of.max()) + 1)]
    height = [0.0 if level is None else float(level[group].mean()) for group in groups]
    ranking = sorted(range(len(groups)), key=lambda i: (-len(groups[i]), -height[i], groups[i][0]))
    return Far(
        groups=tuple(tuple(groups[i].tolist()) for i in ranking),
        sites=tuple("lp" if i >= len(names) else table.name(int(names[i])) for i in clearest),
        gap=float(gaps[clearest[0]].max()),
        lower=None if level is None else height[ranking[0]] - height[ranking[1]],
    )
