"""Results as ArviZ's container: InferenceData under ArviZ 0.23, a DataTree under 1.x.

Nothing else in the package knows the difference. The datasets are built here, with xarray, and not by ArviZ's
`from_dict`, which differs between the two, guesses axes, and drops the warm-up unless told otherwise.

What netCDF or xarray cannot hold is changed, and written down in the attributes `site_names` and
`dim_names` (JSON, new name to old name): "/" and other characters that netCDF forbids in names become ".";
a site called "chain" or "draw" gets the ending "_site"; a dimension that has the name of a site, or "chain"
or "draw", the ending "_dim". bfloat16 and float16 become float32, complex sites two sites "_real" and
"_imag".
"""

import datetime
import importlib.metadata
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from chainmesh._errors import InputError

from ._json import json_text

SAMPLE_DIMS = ("chain", "draw")


def to_arviz(
    *,
    posterior: Mapping[str, Any],
    sample_stats: Mapping[str, Any] | None = None,
    observed_data: Mapping[str, Any] | None = None,
    constant_data: Mapping[str, Any] | None = None,
    warmup_posterior: Mapping[str, Any] | None = None,
    warmup_sample_stats: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[str | None]] | None = None,
    coords: Mapping[str, Any] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """Draws, statistics and data as the container of the ArviZ that is installed.

    Args:
        posterior: draws by site, (chain, draw, *event).
        sample_stats: statistics by ArviZ's names, (chain, draw, *event).
        observed_data: observed values by site.
        constant_data: other data by name.
        warmup_posterior: draws of the warm-up, where they were kept.
        warmup_sample_stats: statistics of the warm-up, where they were kept.
        dims: names of the event axes of each site or data array; axes without a name, or None, are called
            `{site}_dim_{i}`.
        coords: labels along dimensions. Dimensions without any are numbered from 0.
        attrs: attributes of the run; dicts, lists and what netCDF cannot hold are written as JSON.

    Returns:
        an `arviz.InferenceData` (ArviZ 0.23) or an `xarray.DataTree` (ArviZ 1.x); groups without a variable
        are left out. All of it is plain NumPy.

    Raises:
        InputError: more names than axes, labels of another number than the axis is long, one dimension of two
            lengths, or draws without a chain and a draw axis.
    """
    groups: dict[str, dict[str, np.ndarray]] = {
        "posterior": _arrays(posterior),
        "sample_stats": _arrays(sample_stats),
        "observed_data": _arrays(observed_data),
        "constant_data": _arrays(constant_data),
        "warmup_posterior": _arrays(warmup_posterior),
        "warmup_sample_stats": _arrays(warmup_sample_stats),
    }
    sites = _unique(dict.fromkeys(name for group in groups.values() for name in group), _site_name)
    given = dict(dims or {})
    for name in [name for name in given if name not in sites]:
        given |= {f"{name}_real": given[name], f"{name}_imag": given[name]}  # a complex site is two
    named = {name: _dims(name, new, groups, given.get(name, ())) for name, new in sites.items()}
    # a dimension may not be called like a variable: xarray would take the variable for its labels
    taken = {*SAMPLE_DIMS, *sites.values()}
    every = dict.fromkeys(dim for each in named.values() for dim in each)
    renamed = _unique(every, lambda dim: _dim_name(dim, taken))
    labels = {renamed[dim]: _labels(dim, value) for dim, value in (coords or {}).items() if dim in renamed}
    about = _attributes(attrs, sites, renamed)
    datasets = {
        group: _dataset(group, arrays, sites, named, renamed, labels, about)
        for group, arrays in groups.items()
        if arrays
    }
    return _container(datasets, about)


def _container(datasets: dict[str, Any], attrs: dict[str, Any]) -> Any:
    """The one place that knows which ArviZ is installed."""
    import arviz

    if int(arviz.__version__.split(".")[0]) == 0:
        return arviz.InferenceData(attrs=attrs, **datasets)
    import xarray

    tree = xarray.DataTree.from_dict(datasets)
    tree.attrs = dict(attrs)
    return tree


def _arrays(values: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    """Plain NumPy arrays of dtypes that netCDF can hold; entries that are None are left out."""
    out: dict[str, np.ndarray] = {}
    for name, value in (values or {}).items():
        if value is None:
            continue
        array = np.ma.filled(np.ma.asarray(value, float), np.nan) if np.ma.isMA(value) else np.asarray(value)
        if array.dtype.kind == "V" or array.dtype == np.float16:  # bfloat16 and its like
            array = array.astype(np.float32)
        elif array.dtype == np.longdouble and array.dtype != np.float64:
            array = array.astype(np.float64)
        elif array.dtype.kind == "O":
            array = np.asarray([str(each) for each in array.ravel()]).reshape(array.shape)
        if array.dtype.kind == "c":
            out[f"{name}_real"], out[f"{name}_imag"] = array.real, array.imag
        else:
            out[name] = array
    return out


def _unique(names: Iterable[str], rename: Any) -> dict[str, str]:
    """New names by old ones, no two alike; names that need no change keep theirs."""
    names = list(names)
    out = {name: name for name in names if rename(name) == name}
    used = set(out.values())
    for name in names:
        if name not in out:
            new = wanted = rename(name)
            number = 1
            while new in used:
                new, number = f"{wanted}_{number}", number + 1
            out[name] = new
            used.add(new)
    return {name: out[name] for name in names}


def _site_name(name: str) -> str:
    legal = _legal(name)
    return f"{legal}_site" if legal in SAMPLE_DIMS else legal


def _dim_name(name: str, taken: set[str]) -> str:
    legal = _legal(name)
    return f"{legal}_dim" if legal in taken else legal


def _legal(name: str) -> str:
    """A name that netCDF accepts: no "/" or control characters, first a letter, digit or "_", no blank last."""
    legal = re.sub(r"[/\x00-\x1f\x7f]", ".", str(name)).rstrip()
    return legal if legal and (legal[0].isalnum() or legal[0] == "_") else f"_{legal.lstrip()}"


def _dims(
    name: str, new: str, groups: Mapping[str, Mapping[str, np.ndarray]], given: Sequence[str | None]
) -> list[str]:
    """Names of the event axes of a site."""
    given = [given] if isinstance(given, str) else list(given)
    for group, arrays in groups.items():
        if name not in arrays:
            continue
        skip = 0 if group.endswith("data") else len(SAMPLE_DIMS)
        ndim = arrays[name].ndim - skip
        if ndim < 0:
            shape = arrays[name].shape
            raise InputError(f"{name!r} in {group} has shape {shape}: draws need a chain and a draw axis.")
        if len(given) > ndim:
            raise InputError(
                f"`dims` names {len(given)} axes of {name!r} ({', '.join(map(str, given))}), which has "
                f"{ndim} in {group}."
            )
    widest = max(
        arrays[name].ndim - (0 if group.endswith("data") else len(SAMPLE_DIMS))
        for group, arrays in groups.items()
        if name in arrays
    )
    given += [None] * (widest - len(given))
    return [f"{new}_dim_{i}" if dim is None else str(dim) for i, dim in enumerate(given)]


def _labels(dim: str, values: Any) -> np.ndarray:
    """Labels along a dimension as an array that netCDF can hold: numbers, dates, or strings."""
    labels = np.asarray(values)
    if labels.dtype.kind == "O" or labels.ndim > 1:  # mixed or missing labels, and pandas' tuples
        labels = np.asarray([str(each) for each in list(values)], dtype=str)
    if labels.ndim != 1:
        raise InputError(f"`coords` of {dim!r} is no list of labels: {values!r}.")
    return labels


def _dataset(
    group: str,
    arrays: Mapping[str, np.ndarray],
    sites: Mapping[str, str],
    named: Mapping[str, list[str]],
    renamed: Mapping[str, str],
    labels: Mapping[str, np.ndarray],
    attrs: Mapping[str, Any],
) -> Any:
    import xarray

    sampled = not group.endswith("data")
    lengths: dict[str, tuple[int, str]] = {}
    variables = {}
    for name, array in arrays.items():
        event = [renamed[dim] for dim in named[name]][: array.ndim - (len(SAMPLE_DIMS) if sampled else 0)]
        axes = [*(SAMPLE_DIMS if sampled else ()), *event]
        if len(set(axes)) < len(axes):
            raise InputError(f"`dims` of {name!r} uses one name for two axes: {', '.join(axes)}.")
        for axis, length in zip(axes, array.shape, strict=True):
            known, other = lengths.setdefault(axis, (length, name))
            if known != length:
                raise InputError(
                    f"Dimension {axis!r} is {known} long in {other!r} and {length} long in {name!r} "
                    f"({group}): give them different names in `dims`."
                )
        variables[sites[name]] = (axes, array)
    coords = {}
    for axis, (length, name) in lengths.items():
        along = labels.get(axis, np.arange(length))
        if len(along) != length:
            raise InputError(
                f"`coords` of {axis!r} has {len(along)} labels, where {name!r} is {length} long."
            )
        coords[axis] = along
    return xarray.Dataset(variables, coords=coords, attrs=dict(attrs))


def _attributes(
    attrs: Mapping[str, Any] | None, sites: Mapping[str, str], dims: Mapping[str, str]
) -> dict[str, Any]:
    """Attributes that netCDF can hold: strings and plain numbers; all else as JSON."""
    try:
        version = importlib.metadata.version("chainmesh")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    out: dict[str, Any] = {
        "inference_library": "chainmesh",
        "inference_library_version": version,
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(),
        **(attrs or {}),
    }
    for key, mapping in (("site_names", sites), ("dim_names", dims)):
        changed = {new: old for old, new in mapping.items() if new != old}
        if changed:
            out[key] = changed
    return {str(key).replace("/", "."): _attribute(value) for key, value in out.items()}


def _attribute(value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, int | np.integer) and -(2**63) <= int(value) < 2**63:
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    return json_text(value)
