"""The picture as text: tables made with rich, coloured for a terminal or plain."""

from __future__ import annotations

import io
from collections import Counter
from typing import TYPE_CHECKING, Literal

from ._picture import HOST, DeviceMark, Group, bytes_words

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

GAP = 3  # columns between two columns of a table: a blank, the place of a rule, a blank

ColourSystem = Literal["auto", "standard", "256", "truecolor", "windows"]


def summary_lines(groups: tuple[Group, ...]) -> list[str]:
    """What the whole picture holds: how many arrays, how many bytes, on which devices."""
    leaves = [leaf for group in groups for leaf in group.leaves]
    if not leaves:
        return ["nothing to show: no arrays"]
    held: Counter[DeviceMark] = Counter()
    for group in groups:
        for number, piece in enumerate(group.pieces):
            for device in piece.devices:
                held[device] += group.piece_bytes(number)
    devices = sorted((d for d in held if d != HOST), key=lambda d: (d.process, d.platform, d.id))
    lines = []
    if len(leaves) > 1:
        once, copies = sum(leaf.nbytes for leaf in leaves), sum(held.values())
        extra = f" ({bytes_words(copies)} with every copy)" if copies > once else ""
        lines.append(f"{len(leaves)} arrays, {bytes_words(once)}{extra}")
    if devices:
        kinds = sorted({device.kind for device in devices})
        processes = len({device.process for device in devices})
        load = sorted({held[device] for device in devices})
        each = bytes_words(load[0]) + (f" to {bytes_words(load[-1])}" if len(load) > 1 else "")
        lines.append(
            f"{len(devices)} device{'s' * (len(devices) > 1)} ({', '.join(kinds)}) in "
            f"{processes} process{'es' * (processes > 1)}, {each} on {'each' if len(devices) > 1 else 'it'}"
        )
    return lines


def render_text(groups: tuple[Group, ...], width: int, colours: ColourSystem | None) -> str:
    """Render all groups at a width in columns; without colours the result is plain text."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        color_system=colours,
        force_terminal=colours is not None,
        force_jupyter=False,
        no_color=False,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for line in summary_lines(groups):
        console.print(Text(line, style="dim"))
    for group in groups:
        console.print()
        console.print(Text(group.title(), style="bold"))
        console.print(Padding(Text(group.where()), (0, 0, 0, 2)))
        for sentence in group.sentences():
            console.print(Padding(Text(sentence), (0, 0, 0, 2)))
        if len(group.leaves) > 1:
            console.print(Padding(_table(*_leaf_rows(group), width - 2), (1, 0, 0, 2)))
        console.print(Padding(_table(*_shard_rows(group, colours is not None), width - 2), (1, 0, 0, 2)))
    lines = out.getvalue().splitlines()
    if colours is None:
        lines = [line.rstrip() for line in lines]
    return "\n".join(lines).strip("\n")


def _table(headings: list[str], rows: list[list[Text]], width: int) -> RenderableType:
    """A table that breaks lines between words only, or one line for each row where that cannot fit."""
    from rich import box
    from rich.console import Group as Stack
    from rich.table import Table
    from rich.text import Text

    columns = [[heading, *(row[c].plain for row in rows)] for c, heading in enumerate(headings)]
    natural = [max(map(len, cells)) for cells in columns]
    least = [max(len(word) for cell in cells for word in cell.split() or [""]) for cells in columns]
    if sum(least) + GAP * (len(columns) - 1) > width:
        return Stack(
            *(
                Text("; ").join(
                    cell
                    if heading in ("array", "device", "chains")
                    else Text(f"{heading} ").append_text(cell)
                    for heading, cell in zip(headings, row, strict=True)
                    if cell.plain
                )
                for row in rows
            )
        )
    widths = list(natural)
    while sum(widths) + GAP * (len(columns) - 1) > width:
        slack = [wide - small for wide, small in zip(widths, least, strict=True)]
        widths[slack.index(max(slack))] -= 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for heading, wide in zip(headings, widths, strict=True):
        justify: Literal["left", "right"] = "right" if heading.startswith("bytes") else "left"
        table.add_column(Text(heading), justify=justify, width=wide, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _leaf_rows(group: Group) -> tuple[list[str], list[list[Text]]]:
    """Headings, and a row for each array of a group."""
    from rich.text import Text

    headings, rows = leaf_cells(group)
    return headings, [[Text(cell) for cell in row] for row in rows]


def leaf_cells(group: Group) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the table of a group's arrays; columns that would be empty are left out."""
    roles = any(leaf.role and leaf.role != leaf.part for leaf in group.leaves)
    meanings = any(dim.name for leaf in group.leaves for dim in leaf.dims)
    split = len(group.pieces) > 1
    headings = [
        "array",
        *(["role"] if roles else []),
        "dtype",
        "shape",
        *(["dims"] if meanings else []),
        "bytes",
    ]
    headings += ["shape per shard", "bytes per shard"] if split else []
    rows = []
    for leaf in group.leaves:
        cells = [leaf.name, *([leaf.role] if roles else []), leaf.dtype, str(leaf.shape)]
        cells += [", ".join(dim.name or "?" for dim in leaf.dims)] if meanings else []
        cells += [bytes_words(leaf.nbytes)]
        if split:
            cells += [str(leaf.pieces[0].shape), bytes_words(leaf.piece_bytes(leaf.pieces[0]))]
        rows.append(cells)
    return headings, rows


def _shard_rows(group: Group, coloured: bool) -> tuple[list[str], list[list[Text]]]:
    """Headings, and a row for each shard: who holds it, and what it is."""
    from rich.text import Text

    alone = len(group.leaves) == 1
    chains = group.lead.chain_dim is not None
    headings = [
        "device",
        "process",
        *(["chains"] if chains else []),
        "slice",
        *(["shape"] if alone else []),
        "bytes",
    ]
    rows = []
    for number, piece in enumerate(group.pieces):
        holders = Text()
        for device in piece.devices:
            if holders:
                holders.append(", ")
            if coloured:
                holders.append("\u25a0 ", style=device.colour)
            holders.append(device.label)
        row = [holders, Text("-" if piece.devices == (HOST,) else piece.processes)]
        if chains:
            real, comma, pad = group.chain_words(piece).partition(", ")
            words = Text(real, style="italic dim" if real.startswith("padding") else "")
            row.append(words.append(comma).append(pad, style="italic dim"))
        row.append(Text(group.slice_words(piece)))
        if alone:
            row.append(Text(str(piece.shape)))
        row.append(Text(bytes_words(group.piece_bytes(number))))
        rows.append(row)
    return headings, rows
