"""Reading placements: from arrays, pytrees and parts to the groups that a picture draws.

Everything is read from an array's `sharding` on the host. No value is read, nothing moves between devices and
nothing is compiled, so drawing is safe for arrays that are large, donated or spread over several processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from chainmesh._errors import InputError

from ._picture import CHAIN, HOST, PALETTE, Bounds, DeviceMark, Dim, Group, Leaf, Part, Piece


def read_groups(
    obj: Any,
    names: str | Sequence[str] | None = None,
    dims: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    chains: int | None = None,
) -> tuple[Group, ...]:
    """Read where every array of `obj` lies, and put together those that lie alike."""
    leaves = _offset_platforms(list(_leaves(obj, names, dims)))
    grouped: dict[Any, list[Leaf]] = {}
    for leaf in leaves:
        grouped.setdefault(leaf.placement(), []).append(leaf)
    return tuple(Group(tuple(members), chains) for members in grouped.values())


def _leaves(
    obj: Any, names: str | Sequence[str] | None, dims: Sequence[str] | Mapping[str, Sequence[str]] | None
) -> Iterator[Leaf]:
    parts, owner = _parts(obj)
    entries = []  # (part name, role, path inside the part, value, dims of the part)
    for part in parts:
        flat, _ = jax.tree_util.tree_flatten_with_path(part.value)
        if len(flat) == 1 and not flat[0][0] and len(part.dims) > len(getattr(flat[0][1], "shape", ())):
            raise InputError(
                f"part {part.name!r} names {len(part.dims)} dims {part.dims}, but its array has shape "
                f"{tuple(getattr(flat[0][1], 'shape', ()))}: name at most one dim per dimension"
            )
        for path, value in flat:
            key = jax.tree_util.keystr(path, simple=True, separator=".")
            entries.append((part, key, value))

    titles = [".".join(word for word in (part.name, key) if word) or "array" for part, key, _ in entries]
    if names is not None:
        given = [names] if isinstance(names, str) else list(names)
        if len(given) != len(entries):
            raise InputError(f"`names` has {len(given)} names for {len(entries)} arrays: give one per array")
        titles = given
    if isinstance(dims, Mapping):
        unknown = sorted(set(dims) - set(titles) - {part.name for part in parts})
        if unknown:
            raise InputError(f"`dims` names {unknown}, but the arrays are {titles}")

    for title, (part, _, value) in zip(titles, entries, strict=True):
        rank = len(getattr(value, "shape", ()))
        meaning = tuple(part.dims)[:rank]
        if isinstance(dims, Mapping):
            explicit = dims.get(title, dims.get(part.name) if part.name else None)
        else:
            explicit = dims
        if explicit is not None:
            meaning = (explicit,) if isinstance(explicit, str) else tuple(explicit)
            alone = len(entries) == 1 or isinstance(dims, Mapping)
            if len(meaning) > rank and alone:
                raise InputError(
                    f"`dims` names {len(meaning)} dims {meaning} for {title!r}, which has shape "
                    f"{tuple(value.shape) if rank else ()}: name at most one dim per dimension"
                )
        yield read_leaf(value, title, meaning[:rank], part=part.name if owner else "", role=part.role)


def _parts(obj: Any) -> tuple[list[Part], bool]:
    """The parts of `obj`, and whether it came as parts (rather than as a plain pytree)."""
    if isinstance(obj, Part):
        return [obj], True
    if isinstance(obj, list | tuple) and obj and all(isinstance(part, Part) for part in obj):
        return list(obj), True
    if hasattr(obj, "sharding_parts") and not isinstance(obj, type):
        return list(obj.sharding_parts()), True
    return [Part("", obj)], False


def read_leaf(value: Any, name: str, dims: tuple[str, ...] = (), part: str = "", role: str = "") -> Leaf:
    """Read one array (or anything else, which then lies on the host)."""
    if isinstance(value, jax.core.Tracer):
        raise InputError(
            f"{name!r} is traced (inside jit, vmap, grad or scan), so it lies nowhere yet: call "
            "show_sharding on the array outside, or use jax.debug.inspect_array_sharding inside"
        )
    shape = tuple(int(n) for n in getattr(value, "shape", ()))
    whole = tuple((0, n) for n in shape)
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        number = isinstance(value, bool | int | float | complex)
        dtype, itemsize = f"Python {type(value).__name__}", np.asarray(value).nbytes if number else 0
        return Leaf(name, part, role, dtype, itemsize, (), (Piece((), (HOST,)),))
    dtype, itemsize = str(value.dtype), int(value.dtype.itemsize)
    sharding = getattr(value, "sharding", None)
    pieces: tuple[Piece, ...] = (Piece(whole, (HOST,)),)
    axes: tuple[tuple[str, ...], ...] = ((),) * len(shape)
    notes: tuple[str, ...] = ()
    if sharding is not None:
        pieces, axes = _pieces(sharding, shape), _mesh_axes(sharding, len(shape))
        notes = _notes(value, sharding)
    names = list(dims) + [""] * (len(shape) - len(dims))
    for d, over in enumerate(axes):
        # A dimension that nobody named and that is split over the chain axis holds chains, except in data.
        if not names[d] and CHAIN in over and role != "data":
            names[d] = CHAIN
    described = tuple(
        Dim(n, names[d], axes[d], tuple(sorted({piece.bounds[d] for piece in pieces})))
        for d, n in enumerate(shape)
    )
    return Leaf(name, part, role, dtype, itemsize, described, pieces, notes)


def _pieces(sharding: Any, shape: tuple[int, ...]) -> tuple[Piece, ...]:
    """Distinct shards in array order. The map covers all processes, so nothing needs to be addressable."""
    holders: dict[tuple[Bounds, ...], list[DeviceMark]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        bounds = tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
        holders.setdefault(bounds, []).append(_mark(device))
    return tuple(Piece(bounds, tuple(marks)) for bounds, marks in sorted(holders.items()))


def _mark(device: Any) -> DeviceMark:
    # Colour by rank among the client's devices: the same device has the same colour in every picture, and ids
    # that jump from process to process (as on CPU) still get different colours.
    try:
        rank = [d.id for d in device.client.devices()].index(device.id)
    except (AttributeError, ValueError):
        rank = device.id
    return DeviceMark(
        device.platform, device.id, device.device_kind, device.process_index, PALETTE[rank % len(PALETTE)]
    )


def _offset_platforms(leaves: list[Leaf]) -> list[Leaf]:
    """Give the devices of a second platform (CPU beside GPU) other colours than those of the first."""
    marks = [mark for leaf in leaves for piece in leaf.pieces for mark in piece.devices if mark != HOST]
    platforms = sorted({mark.platform for mark in marks}, key=lambda platform: (platform == "cpu", platform))
    if len(platforms) < 2:
        return leaves

    def shifted(mark: DeviceMark) -> DeviceMark:
        if mark == HOST or mark.platform == platforms[0]:
            return mark
        return replace(mark, colour=PALETTE[(PALETTE.index(mark.colour) + 8) % len(PALETTE)])

    return [
        replace(leaf, pieces=tuple(replace(p, devices=tuple(map(shifted, p.devices))) for p in leaf.pieces))
        for leaf in leaves
    ]


def _mesh_axes(sharding: Any, rank: int) -> tuple[tuple[str, ...], ...]:
    """Names of the mesh axes that each dimension is split over; empty where no mesh is named."""
    spec = getattr(sharding, "spec", None)
    entries = list(spec) if isinstance(spec, jax.sharding.PartitionSpec) else []
    axes = [(e,) if isinstance(e, str) else tuple(e) if isinstance(e, tuple) else () for e in entries]
    return tuple(axes[:rank]) + ((),) * (rank - len(axes))


def _notes(value: Any, sharding: Any) -> tuple[str, ...]:
    notes = []
    devices = list(sharding.device_set)
    try:
        usual = devices[0].default_memory().kind
    except (AttributeError, RuntimeError, jax.errors.JaxRuntimeError):
        usual = sharding.memory_kind
    if sharding.memory_kind not in (None, usual):
        notes.append(f"in {sharding.memory_kind} memory")
    if unreduced := getattr(getattr(sharding, "spec", None), "unreduced", None):
        notes.append("not yet summed over mesh axis " + ", ".join(repr(axis) for axis in sorted(unreduced)))
    if isinstance(value, jax.Array) and value.is_deleted():
        notes.append("deleted (donated to a program)")
    return tuple(notes)
