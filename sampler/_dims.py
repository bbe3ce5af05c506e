"""Names of axes (dims) and their labels (coords), from plates, pandas and the user."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chainmesh._errors import InputError

from ._sites import nearest

Shapes = Mapping[str, tuple[int, ...]]
Dims = Mapping[str, Sequence[str | None] | str]


def plate_dims(messages: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str | None, ...]]:
    """The plate, if any, of each axis of each sample and deterministic site of a NumPyro trace."""
    sizes: dict[str, set[int]] = {}
    for site in messages.values():
        for frame in site.get("cond_indep_stack", ()):
            sizes.setdefault(frame.name, set()).add(frame.size)
    result = {}
    for name, site in messages.items():
        if site["type"] not in ("sample", "deterministic"):
            continue
        shape = np.shape(site["value"])
        frames = [f for f in site["cond_indep_stack"] if len(sizes[f.name]) == 1]
        # Plates count batch axes from the right; a deterministic site does not say how many event axes
        # follow.
        shifts = [site["fn"].event_dim] if site["type"] == "sample" else range(len(shape) + 1)
        for shift in shifts:
            axes = {len(shape) + f.dim - shift: f for f in frames}
            if all(0 <= axis and shape[axis] == f.size for axis, f in axes.items()):
                result[name] = tuple(axes[i].name if i in axes else None for i in range(len(shape)))
                break
        else:
            result[name] = (None,) * len(shape)
    return result


def resolve_dims(
    shapes: Shapes,
    plates: Mapping[str, Sequence[str | None]],
    dims: Dims | None,
    coords: Mapping[str, Any] | None,
    labels: Mapping[str, Sequence[tuple[str | None, np.ndarray]]],
) -> tuple[dict[str, tuple[str, ...]], dict[str, np.ndarray]]:
    """One name per axis of every array, and labels for the names.

    Args:
        shapes: every array of the run by name (sites, observed data, constant data), without chains and
            draws.
        plates: names from the model, weaker than the user's.
        dims: names from the user.
        coords: labels from the user.
        labels: per array of data, pandas' axis names and labels, weaker than the user's.

    Returns:
        `(dims, coords)`; axes without a name are called `site_dim_0` and so on, as in ArviZ.

    Raises:
        InputError: an unknown array or dim is named, or a length does not fit.
    """
    chosen: dict[str, list[str | None]] = {}
    for name, shape in shapes.items():
        own = [axis for axis, _ in labels.get(name, ())]
        given = plates.get(name) or own
        chosen[name] = list(given) if len(given) == len(shape) else [None] * len(shape)
    for name, given in (dims or {}).items():
        if name not in shapes:
            raise InputError(f"`dims` names {name!r}, which is no site{nearest(name, shapes)}")
        named = [given] if isinstance(given, str) else list(given)
        if len(named) != len(shapes[name]):
            raise InputError(
                f"`dims[{name!r}]` has {len(named)} names, but {name!r} has {len(shapes[name])} axes, shape "
                f"{shapes[name]}."
            )
        chosen[name] = [new or old for new, old in zip(named, chosen[name], strict=True)]
    sizes: dict[str, tuple[int, str]] = {}
    # pandas' names are settled last: where one means another length, it gives way.
    strong = [n for n in shapes if n in (dims or {})] + [n for n in shapes if n in plates]
    for name in dict.fromkeys([*strong, *shapes]):
        for i, (dim, size) in enumerate(zip(chosen[name], shapes[name], strict=True)):
            if dim is None:
                continue
            if chosen[name].index(dim) < i:
                if name in (dims or {}):
                    raise InputError(
                        f"`dims[{name!r}]` has {dim!r} twice: each axis needs a name of its own."
                    )
                chosen[name][i] = None
            elif sizes.setdefault(dim, (size, name))[0] != size:
                if name in strong:
                    length, other = sizes[dim]
                    raise InputError(f"dim {dim!r} has length {size} in {name!r}, but {length} in {other!r}.")
                chosen[name][i] = None
    resolved = {
        name: tuple(dim or f"{name}_dim_{i}" for i, dim in enumerate(named)) for name, named in chosen.items()
    }
    known = {
        dim: size for name, named in resolved.items() for dim, size in zip(named, shapes[name], strict=True)
    }
    result: dict[str, np.ndarray] = {}
    for dim, values in (coords or {}).items():
        array = np.asarray(values)
        if dim not in known:
            raise InputError(f"`coords` names {dim!r}, which is no dim{nearest(dim, known)}")
        if array.ndim != 1 or len(array) != known[dim]:
            raise InputError(
                f"`coords[{dim!r}]` has shape {array.shape}, but the dim has length {known[dim]}."
            )
        result[dim] = array
    for axes in labels.values():
        for axis, values in axes:
            if axis is not None and known.get(axis) == len(values):
                result.setdefault(axis, values)
    return resolved, result
