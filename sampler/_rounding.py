"""Does rounding float64 data to float32 merge values that differ?"""

from collections.abc import Sequence

import numpy as np

_SAMPLE = 16384  # values looked at per array: the check must cost milliseconds for data of any size
_MERGED = 0.01  # share of the gaps between neighbouring values that may vanish by chance


def rounding_losses(
    x: np.ndarray, rounded: np.ndarray, path: str, columns: Sequence[str] | None = None
) -> list[str]:
    """Names the columns (last axis) whose distinct values merge when rounded.

    Values 1e9 + k / 4 (times, identifiers) lose most of their differences; a large sample of a continuous
    variable merges a few by chance, and differences of the last bits of float64 mean nothing. So the share
    of vanished gaps among those wider than 1e-12 of the largest value must pass 1 %.

    Args:
        x: float64 values, any shape.
        rounded: the same in float32.
        path: the array's name.
        columns: names along the last axis, where it has them.
    """
    if x.size < 2:
        return []
    wide = x.ndim >= 2 and x.shape[-1] <= _SAMPLE // 64
    n_columns = x.shape[-1] if wide else 1
    rows, small = x.reshape(-1, n_columns), rounded.reshape(-1, n_columns)
    # Neighbours in the file show the finest steps of sorted data, the strided rows show the whole range.
    head, step = max(2, _SAMPLE // n_columns), max(1, 2 * rows.shape[0] * n_columns // _SAMPLE)
    exact = np.sort(np.concatenate([rows[:head], rows[::step]]), axis=0)
    single = np.sort(np.concatenate([small[:head], small[::step]]), axis=0)
    with np.errstate(invalid="ignore"):
        scale = np.nanmax(np.abs(np.where(np.isfinite(exact), exact, 0.0)), axis=0)
        gaps = np.diff(exact, axis=0) > 1e-12 * scale
        merged = gaps & (np.diff(single, axis=0) == 0)
    bad = merged.sum(axis=0) > _MERGED * np.maximum(gaps.sum(axis=0), 1)
    if not bad.any():
        return []
    if not wide:
        return [path]
    names = columns if columns is not None else range(n_columns)
    return [f"column {name!r} of {path}" for name, is_bad in zip(names, bad, strict=True) if is_bad]
