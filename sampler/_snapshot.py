"""How far a run is, and the words for it: durations, rates, a line for a log, HTML for a notebook."""

import html
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Snapshot:
    """How far a run is, as seen at the end of a block.

    Attributes:
        phase: "warm-up" or "sampling".
        chains: chains that the user asked for; padding chains are not counted.
        devices: devices that carry them.
        done: draws per chain finished in this phase.
        total: draws per chain that this phase will make.
        elapsed: seconds since the run started to draw, both phases together.
        rate: draws per second, over all chains.
        eta: seconds left in this phase, or None while unknown.
        divergences: divergent draws of this phase so far, over all chains.
        step_size: the smallest and the largest step size of the chains, or None where the kernel has none.
        message: anything else worth saying, in a few words.
    """

    phase: str
    chains: int
    devices: int
    done: int
    total: int
    elapsed: float
    rate: float
    eta: float | None
    divergences: int
    step_size: tuple[float, float] | None
    message: str = ""

    @property
    def finished(self) -> bool:
        """Whether the phase is complete."""
        return self.done >= self.total


def format_duration(seconds: float | None) -> str:
    """A time for people: "0.4 s", "34 s", "3 min 12 s", "2 h 05 min", "3 d 04 h"; "?" where it is unknown."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def format_rate(rate: float) -> str:
    """A speed for people: "12,300 draws/s", "8.2 draws/s", "3.0 draws/min"; "" where it is unknown."""
    if not math.isfinite(rate) or rate <= 0:
        return ""
    if rate < 0.995:
        return f"{rate * 60:.1f} draws/min"
    return f"{rate:,.0f} draws/s" if rate >= 99.95 else f"{rate:.1f} draws/s"


def format_step_size(step_size: tuple[float, float] | None) -> str:
    """The step sizes of the chains: "step size 0.31 to 0.45", or one number where they agree; "" for None."""
    if step_size is None:
        return ""
    low, high = (f"{value:.3g}" for value in step_size)
    return f"step size {low}" if low == high else f"step size {low} to {high}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def where(snapshot: Snapshot) -> str:
    return f"{plural(snapshot.chains, 'chain')} on {plural(snapshot.devices, 'device')}"


def count(snapshot: Snapshot) -> str:
    return f"{snapshot.done:,} of {snapshot.total:,}"


def sentence(parts: list[str]) -> str:
    return ", ".join(part for part in parts if part)


def facts(*phases: Snapshot) -> list[tuple[str, bool]]:
    """What stands beside the bars, each with whether it is a bad sign: divergences while sampling are."""
    snapshot = phases[-1]
    left = f"{format_duration(snapshot.eta)} left" if snapshot.eta is not None else ""
    after = f"after {format_duration(snapshot.elapsed)}"
    every = [
        (where(snapshot), False),
        (format_rate(snapshot.rate), False),
        (after if snapshot.finished else left, False),
        (
            plural(snapshot.divergences, "divergence"),
            snapshot.divergences > 0 and snapshot.phase == "sampling",
        ),
        (format_step_size(snapshot.step_size), False),
        (snapshot.message, False),
    ]
    return [fact for fact in every if fact[0]]


def line(snapshot: Snapshot) -> str:
    """One line for a log."""
    words = [text for text, _ in facts(snapshot)[1:]]
    return sentence([f"{snapshot.phase} {count(snapshot)}", *words])


def as_html(phases: list[Snapshot], message: str) -> str:
    """The notebook's element: inline styles only, colours that stand on light and on dark pages."""
    rows = []
    for snapshot in phases:
        part = 100.0 * min(snapshot.done / snapshot.total, 1.0) if snapshot.total else 100.0
        colour = "#2e8b57" if snapshot.finished else "#3b7dd8"
        rows.append(
            '<div style="display:flex;align-items:center;gap:.8em">'
            f'<span style="width:5em">{html.escape(snapshot.phase)}</span>'
            f'<div role="progressbar" aria-label="{html.escape(snapshot.phase)}" aria-valuemin="0" '
            f'aria-valuemax="{snapshot.total}" aria-valuenow="{snapshot.done}" '
            'style="flex:1;height:.6em;border-radius:.3em;overflow:hidden;background:rgba(128,128,128,.3)">'
            f'<div style="width:{part:.1f}%;height:100%;background:{colour}"></div></div>'
            f'<span style="min-width:8em;font-variant-numeric:tabular-nums">{count(snapshot)}</span></div>'
        )
    words = [
        f'<span style="color:#d9534f;font-weight:bold">{html.escape(text)}</span>'
        if alarming
        else html.escape(text)
        for text, alarming in (facts(*phases) if phases else [])
    ]
    if words:
        rows.append(f'<div style="margin-top:.2em;opacity:.85">{", ".join(words)}</div>')
    if message:
        rows.append(f'<div style="margin-top:.2em">{html.escape(message)}</div>')
    return '<div style="font-family:sans-serif;font-size:13px;max-width:48em">' + "".join(rows) + "</div>"
