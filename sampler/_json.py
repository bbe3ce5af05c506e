"""Settings and attributes as JSON text."""

import dataclasses
import datetime
import enum
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np


def json_text(value: Any) -> str:
    """JSON of settings that may hold arrays, dataclasses, enums, sets, paths, dtypes or functions.

    Args:
        value: anything; arrays become lists (up to 1000 elements, else their shape and dtype in words), NaN
            and infinities become strings, and what has no JSON form its `str`.

    Returns:
        strict JSON (no NaN literals) with sorted keys, so that equal settings have equal text.
    """
    return json.dumps(_plain(value), sort_keys=True, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(each) for each in value), key=str)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        try:
            array = np.asarray(value)
        except TypeError:  # typed JAX keys
            return str(value)
        if array.size > 1000:
            return f"array of shape {array.shape}, {array.dtype}"
        return _plain(array.tolist() if array.dtype.kind in "biufSUMm" else array.astype(str).tolist())
    return getattr(value, "__name__", None) or str(value)
