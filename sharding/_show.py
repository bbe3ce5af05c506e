"""`show_sharding`: where arrays, pytrees and runs live, in a terminal, a notebook or a figure."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chainmesh._errors import InputError

from ._picture import Group
from ._picture_html import render_html
from ._picture_plot import draw
from ._picture_read import read_groups
from ._picture_text import ColourSystem, render_text

if TYPE_CHECKING:
    import matplotlib.axes

PLAIN_WIDTH = 120  # columns, where nothing tells the width: a file, a pipe, a CI log


@dataclass(frozen=True, repr=False)
class ShardingPicture:
    """Where arrays live: their shards, who holds them, and what each dimension means.

    Made by `show_sharding`. It keeps no reference to the arrays.
    """

    groups: tuple[Group, ...]

    def text(self, width: int | None = None, color: bool = False) -> str:
        """The picture as text.

        Args:
            width: columns to use; None takes the terminal's width, or 120 where there is none.
            color: whether to add ANSI colours, one for each device.
        """
        if width is None:
            width = shutil.get_terminal_size(fallback=(PLAIN_WIDTH, 24)).columns
        return render_text(self.groups, max(width, 20), "truecolor" if color else None)

    def html(self) -> str:
        """The picture as one HTML element, without scripts or outside styles."""
        return render_html(self.groups)

    def plot(self, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """The picture in matplotlib.

        Args:
            ax: axes to draw into, all parts one below the other; None makes a figure with one panel for
                each part (for a plain pytree: for each way its arrays lie).

        Returns:
            `ax`, or the first axes of the new figure.
        """
        return draw(self.groups, ax)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        arrays, placements = sum(len(group.leaves) for group in self.groups), len(self.groups)
        devices = sorted(
            {d for group in self.groups for d in group.devices}, key=lambda d: (d.platform, d.id)
        )
        return (
            f"ShardingPicture({arrays} array{'s' * (arrays != 1)}, {placements} placement"
            f"{'s' * (placements != 1)}, on {', '.join(d.label for d in devices) or 'nothing'})"
        )


def show_sharding(
    obj: Any,
    *,
    names: str | Sequence[str] | None = None,
    dims: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    chains: int | None = None,
    ax: matplotlib.axes.Axes | None = None,
) -> ShardingPicture:
    """Show where an array, a pytree or a run lives.

    For every shard: device, process, global chain numbers, slice, shape and bytes; for every array whether
    it is split or replicated; for every dimension what it means and over which mesh axis it is split. Prints
    a table in a terminal (coloured) or a plain stream, shows a grid in a notebook, or draws on `ax` and
    prints nothing. Reads shardings only: no values, no transfers, no compilation.

    Args:
        obj: a JAX array of any rank and sharding, a NumPy array (it lies on the host), any pytree of these, a
            `Part` or a list of them, or an object whose method `sharding_parts()` returns a list of `Part`.
        names: what to call the arrays, one name for each; by default their path in the pytree.
        dims: what the leading dimensions mean, such as `("chain", "draw")`: for every array, or as a mapping
            from an array's name.
        chains: number of real chains. Entries of a chain dimension past it are shown as padding. A chain
            dimension is one called "chain", or one without a name that is split over the mesh axis "chain".
            By default `obj.chains` where `obj` has `sharding_parts`, else every entry is a real chain.
        ax: matplotlib axes to draw on.

    Returns:
        The picture, to be had again as `.text()`, `.html()` or `.plot()`.

    Raises:
        InputError: an array is traced, `names` or `dims` do not fit the arrays, or `chains` is not a positive
            integer.
    """
    if chains is None and hasattr(obj, "sharding_parts"):
        chains = getattr(obj, "chains", None)
    if chains is not None:
        if isinstance(chains, bool) or not hasattr(chains, "__index__") or int(chains) < 1:
            raise InputError(f"`chains` must be a positive integer, got {chains!r}")
        chains = int(chains)
    picture = ShardingPicture(read_groups(obj, names, dims, chains))
    if ax is not None:
        picture.plot(ax)
    elif _in_notebook():
        from IPython.display import HTML, display

        display(HTML(picture.html()))
    else:
        _print(picture)
    return picture


def _in_notebook() -> bool:
    """Whether an IPython kernel runs this code. IPython is never imported for the question."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


def _print(picture: ShardingPicture) -> None:
    from rich.console import Console

    console = Console(file=sys.stdout, force_jupyter=False)
    coloured = console.is_terminal and "NO_COLOR" not in os.environ
    colours: ColourSystem | None = console.color_system if coloured else None  # type: ignore[assignment]
    width = console.width if console.is_terminal else shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    text = render_text(picture.groups, width, colours)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    # A stream that cannot carry the rules of the table gets hyphens instead of an exception.
    plain = text.translate({0x2500: "-", 0x2501: "-", 0x25A0: "#", 0x2014: "-"})
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = plain.encode(encoding, "replace").decode(encoding)
    print(text)
