"""The picture as HTML: one element with inline styles, readable on dark and on light pages, no scripts."""

from __future__ import annotations

from html import escape

from ._picture import HOST, DeviceMark, Group, Piece, bytes_words, ink_on, span_slice
from ._picture_text import leaf_cells, summary_lines

# Text and background are the page's own, so that a dark theme stays dark; only device chips bring colours,
# with ink chosen for each. Backgrounds are set on every cell because notebooks stripe table rows.
_FONT = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;color:inherit"
_BASE = f"{_FONT};margin:6px 0;overflow-x:auto"
_LINE = "rgba(128,128,128,0.45)"
_TABLE = "font-size:13px;color:inherit;border-collapse:collapse;border:none"
_TABLE += ";margin:4px 0 10px 0;background:transparent"
_CELL = f"border:1px solid {_LINE};padding:3px 6px;text-align:left;vertical-align:middle"
_HEAD = (
    "border:none;padding:3px 6px;text-align:left;font-weight:600;background:transparent;white-space:nowrap"
)
_ROW = "background:transparent"
_SOFT = "opacity:0.75"


def render_html(groups: tuple[Group, ...]) -> str:
    """All groups in one `div`."""
    lines = "".join(f'<div style="{_SOFT}">{escape(line)}</div>' for line in summary_lines(groups))
    return f'<div class="chainmesh-sharding" style="{_BASE}">{lines}{"".join(map(_group, groups))}</div>'


def _group(group: Group) -> str:
    sentences = "".join(f"<div>{escape(line)}</div>" for line in (group.where(), *group.sentences()))
    leaves = _leaf_table(group) if len(group.leaves) > 1 else ""
    return (
        f'<div style="margin-top:10px"><div style="font-weight:700">{escape(group.title())}</div>'
        f"{sentences}{leaves}{_grid(group)}</div>"
    )


def _leaf_table(group: Group) -> str:
    headings, leaves = leaf_cells(group)
    rows = [f'<tr style="{_ROW}">{"".join(map(_th, headings))}</tr>']
    rows += [f'<tr style="{_ROW}">{"".join(_td(escape(cell)) for cell in cells)}</tr>' for cells in leaves]
    return f'<table style="{_TABLE}"><tbody>{"".join(rows)}</tbody></table>'


def _grid(group: Group) -> str:
    """Cells are shards: the first split dimension runs down, the others across."""
    rows, columns, cells = group.grid()
    split = group.lead.split_dims
    body = []
    if columns != [()]:
        heads = [
            ", ".join(f"{group.dim_label(d)} {span_slice(b)}" for d, b in zip(split[1:], column, strict=True))
            for column in columns
        ]
        body.append(f'<tr style="{_ROW}">{_th("")}{"".join(_th(head) for head in heads)}</tr>')
    for row in rows:
        head = f"{group.dim_label(split[0])} {span_slice(row[0])}" if row else ""
        tds = []
        for column in columns:
            number = cells.get((row, column))
            tds.append(_td("") if number is None else _shard(group, number, len(columns) > 1))
        body.append(f'<tr style="{_ROW}">{_th(head) if head else ""}{"".join(tds)}</tr>')
    return f'<table style="{_TABLE}"><tbody>{"".join(body)}</tbody></table>'


def _shard(group: Group, number: int, stacked: bool) -> str:
    piece = group.pieces[number]
    facts = [group.slice_words(piece)]
    if len(group.leaves) == 1:
        facts.append(str(piece.shape))
    facts.append(bytes_words(group.piece_bytes(number)))
    lines = [
        "".join(_chip(device) for device in piece.devices),
        _chains(group, piece),
        f'<span style="{_SOFT};white-space:nowrap">{escape(" · ".join(facts))}</span>',
    ]
    # One holder: its colour, faint enough for black and for white text, fills the cell.
    tint = f"{piece.devices[0].colour}26" if len(piece.devices) == 1 else "transparent"
    return _td(("<br>" if stacked else " ").join(filter(None, lines)), tint)


def _chip(device: DeviceMark) -> str:
    words = device.label if device == HOST else f"{device.label} · process {device.process}"
    style = f"background:{device.colour};color:{ink_on(device.colour)}"
    style += ";border-radius:3px;padding:1px 6px;margin:1px 4px 1px 0"
    return (
        f'<span title="{escape(device.kind)}" style="{style};display:inline-block;white-space:nowrap">'
        f"{escape(words)}</span>"
    )


def _chains(group: Group, piece: Piece) -> str:
    """Chain numbers; padding lies on stripes of the page's own text colour."""
    spans = []
    for words in filter(None, group.chain_words(piece).split(", ")):
        style = "margin-right:8px;white-space:nowrap"
        if words.startswith("padding"):
            stripes = "rgba(128,128,128,0.45) 0 2px,transparent 2px 6px"
            style += f";padding:1px 6px;border:1px dashed {_LINE};border-radius:3px"
            style += f";background:repeating-linear-gradient(45deg,{stripes})"
        spans.append(f'<span style="{style}">{escape(words)}</span>')
    return "".join(spans)


def _th(words: str) -> str:
    return f'<th style="{_HEAD}">{escape(words)}</th>'


def _td(html: str, background: str = "transparent") -> str:
    return f'<td style="{_CELL};background:{background}">{html}</td>'
