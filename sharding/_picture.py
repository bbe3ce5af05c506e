"""What a picture of a sharding knows: arrays, their dimensions, their pieces and who holds them.

The text, the HTML and the matplotlib drawing all take their words, colours and grid from here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

CHAIN = "chain"

# Okabe and Ito (2008), then Paul Tol's "muted" and "light" sets, all made for colour-blind readers. Past 16
# devices the colours repeat, which is why every drawing also writes the device's name.
PALETTE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#332288",
    "#882255", "#44AA99", "#999933", "#AA4499", "#DDCC77", "#661100", "#117733", "#FFAABB",
)  # fmt: skip
HOST_COLOUR = "#8A8A8A"

Bounds = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """One named piece of a larger thing, for `show_sharding`: the draws of a run, its state, its data.

    Args:
        name: how the picture calls it.
        value: an array, or any pytree of arrays.
        dims: what the leading dimensions of each array mean, such as `("chain", "draw", "school")`.
        role: "draws", "state", "data", "parameters", or nothing.
    """

    name: str
    value: Any
    dims: tuple[str, ...] = ()
    role: str = ""


@dataclass(frozen=True)
class DeviceMark:
    """A device as drawings show it: `cpu:0`, its kind, its process and its colour."""

    platform: str
    id: int
    kind: str
    process: int
    colour: str

    @property
    def label(self) -> str:
        """Platform and id, such as `gpu:3`; `host` for the host's memory."""
        return "host" if self.platform == "host" else f"{self.platform}:{self.id}"


HOST = DeviceMark("host", 0, "host memory", 0, HOST_COLOUR)


@dataclass(frozen=True)
class Dim:
    """One dimension of an array: size, meaning, and how it is split."""

    size: int
    name: str
    axes: tuple[str, ...]
    bounds: tuple[Bounds, ...]

    @property
    def ways(self) -> int:
        """Number of distinct slices."""
        return len(self.bounds)

    @property
    def is_chain(self) -> bool:
        """Whether its entries are chains."""
        return self.name == CHAIN

    def sentence(self, number: int) -> str:
        """`dim 0: chain, split 4 ways over mesh axis 'chain', 2 of 8 per shard`."""
        words = [self.name] if self.name else []
        if self.ways > 1:
            words.append(self.split_words())
            per_shard = {stop - start for start, stop in self.bounds}
            words.append(f"{'-'.join(str(n) for n in sorted(per_shard))} of {self.size} per shard")
        else:
            words.append(f"not split, size {self.size}")
        return f"dim {number}: " + ", ".join(words)

    def split_words(self) -> str:
        """`split 4 ways over mesh axis 'chain'`."""
        if not self.axes:
            return f"split {self.ways} ways"
        axes = " and ".join(repr(axis) for axis in self.axes)
        return f"split {self.ways} ways over mesh {'axis' if len(self.axes) == 1 else 'axes'} {axes}"


@dataclass(frozen=True)
class Piece:
    """One shard: which part of the array, and the devices that hold a copy of it."""

    bounds: tuple[Bounds, ...]
    devices: tuple[DeviceMark, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the shard."""
        return tuple(stop - start for start, stop in self.bounds)

    @property
    def processes(self) -> str:
        """Indices of the processes that hold it."""
        return ", ".join(str(p) for p in sorted({device.process for device in self.devices}))


@dataclass(frozen=True)
class Leaf:
    """One array: its name, type, dimensions and pieces."""

    name: str
    part: str
    role: str
    dtype: str
    itemsize: int
    dims: tuple[Dim, ...]
    pieces: tuple[Piece, ...]
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return tuple(dim.size for dim in self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array, counted once."""
        return self.itemsize * math.prod(self.shape)

    def piece_bytes(self, piece: Piece) -> int:
        """Bytes of one copy of one shard."""
        return self.itemsize * math.prod(piece.shape)

    @property
    def split_dims(self) -> tuple[int, ...]:
        """Numbers of the dimensions that are split."""
        return tuple(d for d, dim in enumerate(self.dims) if dim.ways > 1)

    @property
    def chain_dim(self) -> int | None:
        """Number of the dimension whose entries are chains, if any: a split one before an unsplit one."""
        found = [d for d, dim in enumerate(self.dims) if dim.is_chain]
        return min(found, key=lambda d: (self.dims[d].ways == 1, d)) if found else None

    def placement(self) -> tuple[Any, ...]:
        """Equal for two arrays that the same grid describes."""
        chain = self.chain_dim
        return (
            tuple((d, self.dims[d].axes, self.dims[d].is_chain) for d in self.split_dims),
            None if chain is None else self.dims[chain].size,
            tuple((tuple(p.bounds[d] for d in self.split_dims), p.devices) for p in self.pieces),
            self.notes,
        )

    def headline(self) -> str:
        """`theta: float32 (8, 1000, 3), 93.8 KiB`."""
        return f"{self.name}: {self.dtype} {self.shape}, {bytes_words(self.nbytes)}"


@dataclass(frozen=True)
class Group:
    """Arrays that lie alike, and the one grid that shows where."""

    leaves: tuple[Leaf, ...]
    chains: int | None = None
    lead: Leaf = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # The lead stands for the group in the grid; an array whose dimensions have names tells most.
        object.__setattr__(
            self, "lead", max(self.leaves, key=lambda leaf: sum(bool(d.name) for d in leaf.dims))
        )

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The shards, in the order of their position in the array."""
        return self.lead.pieces

    @property
    def devices(self) -> tuple[DeviceMark, ...]:
        """Every device that holds something of this group."""
        return tuple(dict.fromkeys(device for piece in self.pieces for device in piece.devices))

    def piece_bytes(self, number: int) -> int:
        """Bytes of one copy of shard `number`, over all arrays of the group."""
        return sum(leaf.piece_bytes(leaf.pieces[number]) for leaf in self.leaves)

    def where(self) -> str:
        """One phrase: split, replicated, on one device, or on the host."""
        shards, devices = len(self.pieces), len(self.devices)
        if self.devices == (HOST,):
            words = "on the host, not on a device"
        elif shards > 1 and devices > shards:
            copies = sorted({len(piece.devices) for piece in self.pieces})
            words = f"split into {shards} shards, each copied to {'-'.join(map(str, copies))} devices"
        elif shards > 1:
            words = f"split into {shards} shards on {devices} device{'s' * (devices > 1)}"
        elif devices > 1:
            words = f"replicated, a full copy on each of {devices} devices"
        else:
            words = "whole, on one device"
        return ", ".join((words, *self.lead.notes))

    def title(self) -> str:
        """The array's own headline, or how many arrays lie this way."""
        if len(self.leaves) == 1:
            return self.lead.headline()
        total = sum(leaf.nbytes for leaf in self.leaves)
        return f"{len(self.leaves)} arrays, {bytes_words(total)}"

    def sentences(self) -> list[str]:
        """What each dimension means (one array), or what the shared split dimensions mean (several)."""
        if len(self.leaves) == 1:
            lines = [dim.sentence(d) for d, dim in enumerate(self.lead.dims)] or ["scalar, no dimensions"]
        else:
            lines = []
            for d in self.lead.split_dims:
                dim = self.lead.dims[d]
                lines.append(f"dim {d}: " + (f"{dim.name}, " if dim.name else "") + dim.split_words())
        if padding := self.padding():
            lines.append(
                f"{self.chains} chains and {padding} padding {'chain' if padding == 1 else 'chains'}"
            )
        return lines

    def padding(self) -> int:
        """How many entries of the chain dimension are padding."""
        chain = self.lead.chain_dim
        if chain is None or self.chains is None:
            return 0
        return max(0, self.lead.dims[chain].size - self.chains)

    def chain_bounds(self, piece: Piece) -> tuple[Bounds, Bounds] | None:
        """Real chains and padding chains of a shard, each as (start, stop) of global chain numbers."""
        chain = self.lead.chain_dim
        if chain is None:
            return None
        start, stop = piece.bounds[chain]
        last = stop if self.chains is None else min(max(self.chains, start), stop)
        return (start, last), (last, stop)

    def chain_words(self, piece: Piece) -> str:
        """`chains 0-3`, `chain 4, padding 5`, `padding 6-7`, or nothing where no dimension counts chains."""
        bounds = self.chain_bounds(piece)
        if bounds is None:
            return ""
        (start, last), (first_pad, stop) = bounds
        words = []
        if last > start:
            words.append(f"chain{'s' * (last - start > 1)} {span_words(start, last)}")
        if stop > first_pad:
            words.append(f"padding {span_words(first_pad, stop)}")
        return ", ".join(words) or "no chains"

    def slice_words(self, piece: Piece) -> str:
        """The shard in index notation; several arrays share the split dimensions only."""
        split = self.lead.split_dims
        if not split:
            return "all"
        if len(self.leaves) == 1:
            entries = [span_slice(b) if d in split else ":" for d, b in enumerate(piece.bounds)]
        else:
            last = max(split, default=-1)
            entries = [span_slice(piece.bounds[d]) if d in split else ":" for d in range(last + 1)]
            if any(len(leaf.dims) > last + 1 for leaf in self.leaves):
                entries.append("...")
        return f"[{', '.join(entries)}]"

    def grid(self) -> tuple[list[tuple[Bounds, ...]], list[tuple[Bounds, ...]], dict[Any, int]]:
        """Rows (slices of the first split dimension), columns (of the others), shard number of each cell."""
        split = self.lead.split_dims
        rows, columns = split[:1], split[1:]
        cells = {}
        for number, piece in enumerate(self.pieces):
            cells[tuple(piece.bounds[d] for d in rows), tuple(piece.bounds[d] for d in columns)] = number
        return sorted({row for row, _ in cells}), sorted({column for _, column in cells}), cells

    def dim_label(self, d: int) -> str:
        """`chain` or, for a dimension without a name, `dim 0`."""
        return self.lead.dims[d].name or f"dim {d}"


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a background `#rrggbb` (relative luminance of WCAG 2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def span_words(start: int, stop: int) -> str:
    """`4` or `4-7`."""
    return str(start) if stop - start == 1 else f"{start}-{stop - 1}"


def span_slice(bounds: Bounds) -> str:
    """`0:4`."""
    return f"{bounds[0]}:{bounds[1]}"


def bytes_words(count: int) -> str:
    """Bytes in binary units, three significant digits."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{count} B" if units[0] == "B" else f"{size:.3g} {units[0]}"
