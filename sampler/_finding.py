"""A finding of the verdict, and the words it is made of."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a run.

    Attributes:
        code: rhat, ess, diverging, max_depth, energy, stuck, duplicate, far, nan, step_size,
            concentrated, or a caller's own.
        text: what, where, and what to do.
        chains: numbers of the chains concerned; empty where it concerns all alike.
        sites: names of the scalars concerned, the worst first; empty where it is no matter of sites.
    """

    code: str
    text: str
    chains: tuple[int, ...] = ()
    sites: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


def name_chains(chains: Collection[int]) -> str:
    """Words such as "chain 3", "chains 0 and 2", "chains 0-5, 9 and 11"; long lists are cut."""
    runs: list[list[int]] = []
    for number in sorted(chains):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts: list[str] = []
    for low, high in runs:
        parts += [f"{low}-{high}"] if high > low + 1 else [str(number) for number in range(low, high + 1)]
    if len(parts) > 8:
        return f"chains {', '.join(parts[:8])}, ... ({len(chains)} chains)"
    return f"chain{'s' if len(chains) > 1 else ''} {join(parts)}"


def name_sites(sites: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    return join(sites) if len(sites) <= 3 else f"{', '.join(sites[:3])} and {len(sites) - 3} more"


def join(parts: Sequence[str]) -> str:
    """Words such as "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def count(number: int, thing: str) -> str:
    """Words such as "1 chain" or "4 chains"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def sentence(text: str) -> str:
    """The text with a capital first letter and all others as they are."""
    return text[:1].upper() + text[1:]
