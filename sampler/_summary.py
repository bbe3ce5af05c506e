"""The table of a run: one row per scalar."""

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from chainmesh._errors import InputError

from ._diagnostics import Diagnostics, diagnose

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from rich.console import Console

COLUMNS = ("mean", "sd", "q05", "q50", "q95", "ess_bulk", "ess_tail", "r_hat")


def summary(
    posterior: Mapping[str, Shaped[np.ndarray, "chains draws ..."]],
    *,
    var_names: Sequence[str] | str | None = None,
    round_to: int | None = None,
    dims: Mapping[str, Sequence[str | None]] | None = None,
    coords: Mapping[str, Any] | None = None,
    diagnostics: Diagnostics | None = None,
) -> "pd.DataFrame":
    """Mean, standard deviation, quantiles, effective sample sizes and R-hat of every scalar.

    Args:
        posterior: draws by site, (chain, draw, *event).
        var_names: the sites to show; None for all.
        round_to: decimals to round to; None leaves the numbers as they are.
        dims: names of each site's event axes.
        coords: labels along the axes so named; scalars are then called by them, as in "theta[Choate]".
        diagnostics: the same posterior's diagnostics, where they are at hand; they are computed otherwise.

    Returns:
        a frame with the columns mean, sd, q05, q50, q95, ess_bulk, ess_tail, r_hat and one row per scalar.

    Raises:
        InputError: `var_names` has a site that the posterior lacks.
    """
    import pandas as pd  # type: ignore[import-untyped]

    names = [var_names] if isinstance(var_names, str) else list(posterior if var_names is None else var_names)
    for name in names:
        if name not in posterior:
            near = difflib.get_close_matches(name, list(posterior), 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(posterior)}."
            raise InputError(f"`var_names` has {name!r}, which is no site of the posterior{hint}")
    if diagnostics is None:
        diagnostics = diagnose({name: posterior[name] for name in names})
    shapes = dict(diagnostics.sites)
    labels: list[str] = []
    columns: dict[str, list[np.ndarray]] = {column: [] for column in COLUMNS}
    for name in names:
        labels += scalar_labels(name, shapes[name], (dims or {}).get(name, ()), coords or {})
        of_site = diagnostics.of(name)
        for column in COLUMNS:
            columns[column].append(of_site["rhat" if column == "r_hat" else column].ravel())
    frame = pd.DataFrame(
        {column: np.concatenate(parts) if parts else np.zeros(0) for column, parts in columns.items()},
        index=pd.Index(labels, dtype=object),
    )
    return frame if round_to is None else frame.round(round_to)


def scalar_labels(
    site: str, shape: Sequence[int], dims: Sequence[str | None], coords: Mapping[str, Any]
) -> list[str]:
    """Names of a site's scalars: by coordinates where its axes have them, else by index from 0."""
    if not len(shape):
        return [site]
    axes: list[list[str]] = []
    for axis, length in enumerate(shape):
        dim = dims[axis] if axis < len(dims) else None
        labels = np.asarray(coords[dim]) if dim is not None and dim in coords else np.arange(length)
        axes.append(
            [str(label) for label in labels] if len(labels) == length else [str(i) for i in range(length)]
        )
    return [f"{site}[{','.join(axes[k][i] for k, i in enumerate(index))}]" for index in np.ndindex(*shape)]


def print_summary(
    frame: "pd.DataFrame",
    console: "Console | None" = None,
    *,
    file: Any = None,
    max_rows: int = 40,
) -> None:
    """Prints a summary as a table; R-hat above 1.01 and constants stand out.

    Args:
        frame: what `summary` returns.
        console: the rich console to print to; None makes one.
        file: the text stream a console made here writes to; None for standard output.
        max_rows: rows shown; a line says how many more there are.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")
    for column in frame.columns:
        table.add_column(str(column), justify="right", no_wrap=True)
    shown = frame.iloc[:max_rows]
    for label, values in zip(shown.index, shown.itertuples(index=False), strict=True):
        row = zip(frame.columns, values, strict=True)
        table.add_row(Text(str(label)), *(_cell(str(column), float(value)) for column, value in row))
    console = console or Console(file=file)
    if not console.is_terminal:  # a log has no width: numbers and names stay whole
        wide = console.options.update(max_width=10_000)
        console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)
    if len(frame) > len(shown):
        console.print(f"... and {len(frame) - len(shown)} more rows.", style="dim")


def _cell(column: str, value: float) -> Any:
    from rich.text import Text

    if np.isnan(value):
        return Text("-", style="dim")
    if column.startswith("ess"):
        return Text(f"{value:.0f}")
    if column == "r_hat":
        return Text(f"{value:.3f}", style="bold red" if value > 1.01 else "")
    return Text(f"{value:.3f}" if 1e-2 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}")
