"""pandas in, arrays out."""

from collections.abc import Callable
from typing import Any

import numpy as np

from chainmesh._errors import DataError

Axis = tuple[str | None, np.ndarray]


def from_pandas(
    x: Any, path: str, canonical: Callable[[np.ndarray, str], np.ndarray]
) -> tuple[np.ndarray, tuple[Axis, ...]]:
    """The values of a Series, Index or DataFrame, and the labels of its axes.

    Args:
        x: the pandas object.
        path: its name, for messages.
        canonical: makes an array's dtype canonical; the second argument names it.

    Returns:
        `(array, axes)`, one `(name, labels)` per axis.

    Raises:
        DataError: a column is not numeric, or an integer column has missing values.
    """
    import pandas as pd

    if isinstance(x, pd.DataFrame):
        names = [f"column {name!r} of {path}" for name in x.columns]
        columns = [_column(x.iloc[:, i], name) for i, name in enumerate(names)]
        if any(column.dtype.kind == "f" for column in columns):
            columns = [
                column if column.dtype.kind == "f" else column.astype(np.float64) for column in columns
            ]
        canonical_columns = [canonical(column, name) for column, name in zip(columns, names, strict=True)]
        values = np.stack(canonical_columns, axis=1) if columns else np.zeros((len(x), 0), np.float32)
        return values, (_axis(x.index), _axis(x.columns))
    if isinstance(x, pd.Series):
        return canonical(_column(x, path), path), (_axis(x.index),)
    if isinstance(x, pd.Index):
        return canonical(_column(x.to_series(), path), path), ()
    if isinstance(x, pd.api.extensions.ExtensionArray):
        return canonical(_column(pd.Series(x), path), path), ()
    raise DataError(f"{path} is a pandas {type(x).__name__}: pass a Series, a DataFrame or an array.")


def _axis(index: Any) -> Axis:
    return (None if index.name is None else str(index.name)), np.asarray(index)


def _column(series: Any, name: str) -> np.ndarray:
    import pandas as pd

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        raise DataError(f"{name} is categorical: pass its integer codes, x.cat.codes.")
    if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        return series.to_numpy()
    if pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype):
        numpy_dtype = getattr(dtype, "numpy_dtype", None)
        if pd.api.types.is_complex_dtype(dtype):
            raise DataError(f"{name} is complex: pass its real and imaginary parts as two columns.")
        if not series.isna().any():
            return series.to_numpy(dtype=numpy_dtype) if numpy_dtype is not None else series.to_numpy()
        if pd.api.types.is_float_dtype(dtype):
            return series.to_numpy(dtype=np.float64, na_value=np.nan)
        raise DataError(
            f"{name} has missing values, which {dtype} cannot carry into JAX: fill them, or pass floats."
        )
    if pd.api.types.is_datetime64_any_dtype(dtype):
        raise DataError(f"{name} has dtype {dtype}: turn times into floats, such as days since a start.")
    raise DataError(
        f"{name} has dtype {dtype}, not numbers: turn labels into integer codes (pd.factorize(x)[0]), "
        "numbers into floats."
    )
