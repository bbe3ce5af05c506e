"""The picture in matplotlib: a panel for each part, a rectangle for each copy of a shard, padding hatched."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._picture import HOST, DeviceMark, Group, bytes_words, ink_on, span_slice

if TYPE_CHECKING:
    import matplotlib.axes

MAX_TICKS = 16  # ticks and labels on one side of a panel before they are thinned
MAX_LEGEND = 32  # devices in the legend
SMALLEST_FONT = 5.0  # points; a label that does not fit at this size is left to the legend


@dataclass(frozen=True)
class Box:
    """A rectangle of a panel in the panel's own coordinates."""

    x: float
    y: float
    width: float
    height: float


def draw(groups: tuple[Group, ...], ax: matplotlib.axes.Axes | None) -> matplotlib.axes.Axes:
    """Draw on `ax`, panels one below the other, or on a new figure."""
    panels = _panels(groups)
    heights = [_body_height(panel) for panel in panels]
    if ax is None:
        import matplotlib.pyplot as plt

        legend = 0.45 + 0.17 * min(len(_devices(panels)) + 1, MAX_LEGEND + 2)
        total = sum(height + 0.95 for height in heights)
        _, axes = plt.subplots(
            max(len(panels), 1),
            1,
            figsize=(8.5, max(total, legend)),
            height_ratios=heights or None,
            layout="constrained",
            squeeze=False,
        )
        targets, host = list(axes[:, 0]), axes[0, 0]
        widths, font = [6.6] * len(panels), 9.0
        heights = [height * max(total, legend) / total for height in heights]
    else:
        host = ax
        font = 9.0 if len(panels) <= 3 else 7.0
        boxes, widths, heights = _stack(ax, panels, heights, font)
        targets = [ax.inset_axes(box) for box in boxes]
        ax.set_axis_off()
    if not panels:
        host.set_axis_off()
        host.text(0.5, 0.5, "nothing to show: no arrays", ha="center", va="center", transform=host.transAxes)
        return host
    for target, panel, width, height in zip(targets, panels, widths, heights, strict=True):
        _draw_panel(target, panel, width, height, font)
    _legend(host, panels, None if ax is None else boxes[0][2])
    return host


def _panels(groups: tuple[Group, ...]) -> list[Group]:
    """One panel for each part, or for each placement in it: a picture has no room for one for each array."""
    found: dict[tuple[str, int], list[Any]] = {}
    for number, group in enumerate(groups):
        for leaf in group.leaves:
            found.setdefault((leaf.part, number), []).append(leaf)
    order = list(dict.fromkeys(part for part, _ in found))
    keys = sorted(found, key=lambda key: (order.index(key[0]), key[1]))
    return [Group(tuple(found[key]), groups[key[1]].chains) for key in keys]


def _devices(panels: list[Group]) -> list[DeviceMark]:
    devices = dict.fromkeys(device for panel in panels for device in panel.devices)
    return sorted(devices, key=lambda d: (d.process, d.platform, d.id))


def _body_height(panel: Group) -> float:
    """Inches for the rectangles, without title and labels."""
    rows, columns, _ = panel.grid()
    lines = 2 if any(len(piece.devices) > 8 for piece in panel.pieces) or len(columns) > 4 else 1
    # arrays that lie whole need no height; padding makes slim strips that must still hold a label
    least = 0.45 if rows == [()] else 0.9
    return min(max((0.42 if panel.padding() else 0.3) * len(rows) * lines, least), 6.5)


def _stack(
    ax: matplotlib.axes.Axes, panels: list[Group], heights: list[float], font: float
) -> tuple[list[tuple[float, float, float, float]], list[float], list[float]]:
    """Boxes for the panels inside `ax`, first panel on top, room for the legend at the right.

    Returns:
        The boxes as fractions of `ax`, then the widths and the heights in inches.
    """
    frame = ax.get_window_extent()
    width, height = frame.width / ax.figure.dpi, frame.height / ax.figure.dpi
    wide = max(1.0 - 1.35 / width, 0.5)
    # Between two panels: tick labels and the label below the upper one, the title of the lower one.
    lines = [1 + _title(panel, wide * width, font).count("\n") for panel in panels[1:]]
    gaps = [0.045 * font + 0.018 * font * count for count in lines]
    crowd = min(1.0, 0.7 * height / max(sum(gaps), 1e-6))
    scale = (height - crowd * sum(gaps)) / max(sum(heights), 1e-6)
    boxes, top = [], height
    for inches, gap in zip(heights, [0.0, *gaps], strict=True) if panels else ():
        top -= crowd * gap + scale * inches
        boxes.append((0.0, top / height, wide, scale * inches / height))
    return boxes, [wide * width] * len(panels), [scale * inches for inches in heights]


def _draw_panel(ax: matplotlib.axes.Axes, panel: Group, width: float, height: float, font: float) -> None:
    """Draw one group: first split dimension (or the chains) downwards, the others across.

    Args:
        ax: where.
        panel: the arrays.
        width: inches of the axes, to decide which labels fit.
        height: inches of the axes.
        font: points of the title.
    """
    lead, split = panel.lead, panel.lead.split_dims
    rows, columns, cells = panel.grid()
    down = split[0] if split else lead.chain_dim if lead.chain_dim is not None else 0 if lead.dims else None
    across = split[1] if len(split) == 2 else None
    size = max(lead.dims[down].size, 1) if down is not None else 1
    if across is not None:
        total = max(lead.dims[across].size, 1)
        spans = [(column[0][0] / total, column[0][1] / total) for column in columns]
    else:
        spans = [(c / len(columns), (c + 1) / len(columns)) for c in range(len(columns))]

    for row in rows:
        start, stop = row[0] if row else (0, size)
        for column, (left, right) in zip(columns, spans, strict=True):
            number = cells.get((row, column))
            if number is None:
                continue
            piece = panel.pieces[number]
            step = (right - left) / len(piece.devices)
            for copy, device in enumerate(piece.devices):
                box = Box(left + copy * step, start, step, stop - start)
                _draw_copy(ax, panel, number, device, box, down, across, (width, height / size))

    ax.set_xlim(0, 1)
    ax.set_ylim(size, 0)
    _label_axes(ax, panel, down, across, spans, height)
    ax.set_title(_title(panel, width, font), fontsize=font, loc="left")
    ax.tick_params(labelsize=7, length=2)


def _draw_copy(
    ax: matplotlib.axes.Axes,
    panel: Group,
    number: int,
    device: DeviceMark,
    box: Box,
    down: int | None,
    across: int | None,
    scale: tuple[float, float],
) -> None:
    """One copy of one shard: its real part filled, its padding part hatched, a label where it fits."""
    from matplotlib.patches import Rectangle

    piece = panel.pieces[number]
    ax.add_patch(
        Rectangle(
            (box.x, box.y), box.width, box.height, facecolor=device.colour, edgecolor="white", linewidth=1.0
        )
    )
    padding = _padding_box(panel, number, box, down, across)
    label_box, label_ink = box, ink_on(device.colour)
    if padding is not None:
        ax.add_patch(
            Rectangle(
                (padding.x, padding.y),
                padding.width,
                padding.height,
                facecolor="white",
                edgecolor=device.colour,
                linewidth=1.0,
                hatch="////",
                label="padding",
            )
        )
        if padding.height < box.height:
            label_box = Box(box.x, box.y, box.width, padding.y - box.y)
        elif padding.width < box.width:
            label_box = Box(box.x, box.y, padding.x - box.x, box.height)
        else:
            label_ink = "#000000"
    chains = panel.chain_words(piece)
    real, _, pad = chains.partition(", ")
    if real.startswith("padding"):
        real, pad = "", real
    if padding is None or label_box is not box:
        _write(ax, label_box, [device.label, *([real] if real else [])], label_ink, scale)
        if pad and padding is not None:
            _write(ax, padding, [pad], "#000000", scale)
    else:
        _write(ax, box, [device.label, pad], label_ink, scale)


def _padding_box(panel: Group, number: int, box: Box, down: int | None, across: int | None) -> Box | None:
    """The part of a shard's rectangle that holds padding chains."""
    piece, chain = panel.pieces[number], panel.lead.chain_dim
    bounds = panel.chain_bounds(piece)
    if bounds is None or chain is None or bounds[1][0] == bounds[1][1]:
        return None
    start, stop = piece.bounds[chain]
    share = (bounds[1][1] - bounds[1][0]) / (stop - start)
    if chain == down:
        return Box(box.x, box.y + box.height * (1 - share), box.width, box.height * share)
    if chain == across:
        return Box(box.x + box.width * (1 - share), box.y, box.width * share, box.height)
    return box if share == 1 else Box(box.x + box.width * (1 - share), box.y, box.width * share, box.height)


def _write(
    ax: matplotlib.axes.Axes, box: Box, words: list[str], ink: str, scale: tuple[float, float]
) -> None:
    """Write the words as large as fits, up to 8 points: in one line, stacked, turned, or the first alone."""
    wide, tall = box.width * scale[0] * 72, box.height * scale[1] * 72
    best: tuple[float, str, float] = (0.0, "", 0.0)
    for kept in (words, words[:1]) if len(words) > 1 else (words,):
        for text in ("  ".join(kept), "\n".join(kept)):
            lines = text.split("\n")
            for room_wide, room_tall, angle in ((wide, tall, 0.0), (tall, wide, 90.0)):
                # a letter of DejaVu Sans is about 0.62 of its size wide, a line 1.25 tall
                fit = min(
                    8.0,
                    room_wide * 0.94 / (0.62 * max(map(len, lines))),
                    room_tall * 0.94 / (1.25 * len(lines)),
                )
                if fit > best[0] + 0.5 * (best[0] > 0):
                    best = (fit, text, angle)
        if best[0] >= SMALLEST_FONT + 1:
            break
    fit, text, angle = best
    if fit < SMALLEST_FONT:
        return
    # black words over hatching need a quiet ground
    ground = (
        {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9} if "padding" in text else None
    )
    ax.text(
        box.x + box.width / 2,
        box.y + box.height / 2,
        text,
        fontsize=fit,
        rotation=angle,
        color=ink,
        ha="center",
        va="center",
        clip_on=True,
        bbox=ground,
    )


def _label_axes(
    ax: matplotlib.axes.Axes,
    panel: Group,
    down: int | None,
    across: int | None,
    spans: list[tuple[float, float]],
    height: float,
) -> None:
    lead, split = panel.lead, panel.lead.split_dims
    if down is None or len({leaf.shape[down : down + 1] for leaf in panel.leaves}) > 1:
        ax.set_yticks([])  # a scalar, or arrays of several sizes that lie whole
    else:
        dim = lead.dims[down]
        ax.set_yticks(_thinned(sorted({edge for bounds in dim.bounds for edge in bounds})))
        words = [f"dim {down}" + (f": {dim.name}" if dim.name else "")]
        if dim.ways > 1:
            words.append(f"split {dim.ways} ways")
            words += [f"over {' x '.join(map(repr, dim.axes))}"] if dim.axes else []
        if max(map(len, words)) * 0.065 > height + 0.3:
            words = [panel.dim_label(down)]
        ax.set_ylabel("\n".join(words), fontsize=7.5)

    ax.set_xticks([])
    notes = []
    for d in split[1:]:
        dim = lead.dims[d]
        notes.append(f"dim {d}: " + (f"{dim.name}, " if dim.name else "") + dim.split_words())
    if across is not None:
        stops = _thinned(list(range(len(spans) + 1)))
        positions = [*(left for left, _ in spans), spans[-1][1]]
        values = [*(start for start, _ in lead.dims[across].bounds), lead.dims[across].size]
        ax.set_xticks([positions[i] for i in stops], [str(values[i]) for i in stops])
    elif len(split) > 2:
        columns = panel.grid()[1]
        stops = _thinned(list(range(len(columns))))
        ax.set_xticks(
            [sum(spans[i]) / 2 for i in stops], [", ".join(map(span_slice, columns[i])) for i in stops]
        )
    whole = [d for d in range(len(lead.dims)) if d != down and d not in split]
    if len(panel.leaves) == 1 and whole:
        notes.append(", ".join(f"{panel.dim_label(d)} ({lead.dims[d].size})" for d in whole) + " not split")
    copies = max(len(piece.devices) for piece in panel.pieces)
    if copies > 1:
        notes.append(f"{copies} full copies of {'each shard' if split else 'the array'}, side by side")
    ax.set_xlabel("; ".join(notes), fontsize=7.5)


def _title(panel: Group, width: float, font: float) -> str:
    if len(panel.leaves) == 1:
        dims = (
            ", ".join(dim.name or "?" for dim in panel.lead.dims)
            if any(d.name for d in panel.lead.dims)
            else ""
        )
        words = panel.title() + (f", dims: {dims}" if dims else "")
    else:
        named = [leaf.name for leaf in panel.leaves]
        shown = ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")
        words = f"{shown}: {panel.title()}"
    per_shard = sorted({panel.piece_bytes(number) for number in range(len(panel.pieces))})
    each = f", {' or '.join(bytes_words(n) for n in per_shard)} a shard" if len(panel.pieces) > 1 else ""
    room = max(int(width * 72 / (0.57 * font)), 20)  # letters that fit
    return "\n".join((*textwrap.wrap(words, room), *textwrap.wrap(panel.where() + each, room)))


def _thinned(values: list[int]) -> list[int]:
    """At most about `MAX_TICKS` of the values, evenly, the last one kept."""
    step = -(-len(values) // (MAX_TICKS + 1))
    kept = values[::step]
    if kept and kept[-1] != values[-1]:
        kept[-1] = values[-1]
    return kept


def _legend(host: matplotlib.axes.Axes, panels: list[Group], beside: float | None) -> None:
    """One entry for each device: outside the axes, or inside `host` at the right of `beside` (a fraction)."""
    from matplotlib.patches import Patch

    ordered = _devices(panels)
    processes = len({device.process for device in ordered if device != HOST}) > 1
    handles = [
        Patch(
            facecolor=d.colour, label=d.label + (f", process {d.process}" if processes and d != HOST else "")
        )
        for d in ordered[:MAX_LEGEND]
    ]
    if len(ordered) > MAX_LEGEND:
        handles.append(Patch(facecolor="none", label=f"and {len(ordered) - MAX_LEGEND} more devices"))
    if any(panel.padding() for panel in panels):
        handles.append(Patch(facecolor="white", edgecolor="#444444", hatch="////", label="padding chains"))
    kinds = ", ".join(sorted({device.kind for device in ordered}))
    options: dict[str, Any] = {"handles": handles, "title": kinds, "fontsize": 7, "title_fontsize": 7.5}
    if beside is None:
        host.figure.legend(loc="outside right upper", frameon=False, **options)
    else:
        anchor = (beside + 0.01, 1.0)
        host.legend(loc="upper left", bbox_to_anchor=anchor, borderaxespad=0.0, frameon=False, **options)
