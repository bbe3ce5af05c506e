"""What is wrong with a start: the chain, the site, its value, and which term of the density is at fault."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from chainmesh._errors import DataError, StartError

from ._sites import show_value
from ._target import Target

_LISTED = 4  # chains explained one by one
_VALUES = 4  # sites whose values are shown
_CULPRITS = {
    "prior": "the prior of",
    "jacobian": "the constraint (log Jacobian) of",
    "likelihood": "the likelihood of",
    "factor": "the factor",
}


def check_starts(
    target: Target,
    positions: Float[np.ndarray, "chains dim"],
    total: Float[np.ndarray, " chains"],
    terms: Shaped[np.ndarray, "chains terms"],
    gradient: Float[np.ndarray, "chains dim"],
    tries: Int[np.ndarray, " chains"],
    fixed: Bool[np.ndarray, "chains dim"],
) -> None:
    """Refuses starts from which no chain can move, and data that the likelihood gives no probability.

    Args:
        target: the target.
        positions: the chains' starts (the last tried, where none was found).
        total: their log densities.
        terms: the values of `target.terms` there.
        gradient: gradients of the log density.
        tries: how many starts each chain tried.
        fixed: which entries were given by the user.

    Raises:
        DataError: observed values lie outside a likelihood's support, wherever the chains are.
        StartError: a log density or a gradient is not finite.
    """
    check_data(target, terms)
    bad = np.flatnonzero(~(np.isfinite(total) & np.isfinite(gradient).all(axis=1)))
    if not bad.size:
        _check_moving_supports(target, terms)
        return
    shown = bad[:_LISTED]
    values = _values(target, positions[shown])
    reasons = []
    for i, chain in enumerate(shown):
        here = {name: value[i] for name, value in values.items()}
        reasons.append(f"chain {chain}: {_reason(target, total[chain], terms[chain], gradient[chain], here)}")
    rest = f"\n  and chains {', '.join(map(str, bad[_LISTED:][:20]))} likewise" if bad.size > _LISTED else ""
    listing = "\n  ".join(reasons) + rest
    if len(bad) == len(total) and not fixed.all() and int(tries.max()) > 1:
        raise StartError(
            f"no start was found for {target.name!r}: in none of the {len(total)} chains did "
            f"{int(tries.max())} draws from "
            "uniform(-2, 2) in the unconstrained space give a finite log density and gradient. The last "
            "tried:\n  "
            f"{listing}\nGive `initvals`, a dict of site -> plausible value, or look at that term of the "
            "model."
        )
    advice = (
        "Change that start."
        if fixed[bad].all()
        else "Give `initvals` for the sites named, or look at that term of the model."
    )
    n = f"{len(bad)} of {len(total)} chains" if len(bad) > 1 else f"chain {bad[0]}"
    raise StartError(f"{n} of {target.name!r} cannot start:\n  {listing}\n{advice}")


def check_data(target: Target, terms: Shaped[np.ndarray, "chains terms"]) -> None:
    """Refuses observed values outside a likelihood's support.

    Args:
        target: the target.
        terms: the values of `target.terms` at any positions.

    Raises:
        DataError: the observed site, the number of such values, the first of them and the support are named.
    """
    problems = []
    for i, term in enumerate(target.terms):
        if term.kind != "outside" or term.moving or not terms.shape[0] or not terms[0, i] > 0:
            continue
        count, first = int(terms[0, i]), int(terms[0, i + 1])
        index = tuple(int(k) for k in np.unravel_index(first, term.shape))
        where = f"[{', '.join(map(str, index))}]" if index else ""
        value = _observed_at(target, term.site, term.shape, index)
        size = int(np.prod(term.shape))
        text = (
            f"{count} of {size} observed values of {term.site!r} lie outside the support of its likelihood, "
            f"{term.support}; the first is {term.site}{where}"
        )
        if value is not None:
            text += f" = {show_value(value)}"
            if np.isnan(np.asarray(value, float)).any():
                text += " (leave missing values out with numpyro.handlers.mask and a finite stand-in)"
        problems.append(text)
    if problems:
        raise DataError("; ".join(problems) + ".")


def _observed_at(
    target: Target, site: str, shape: tuple[int, ...], index: tuple[int, ...]
) -> np.ndarray | None:
    value = target.observed().get(site)
    if value is None:
        return None
    if value.shape[: len(shape)] != shape:
        if value.ndim > len(shape):
            return None
        value = np.broadcast_to(value, shape)
    return np.asarray(value[index])


def _check_moving_supports(target: Target, terms: np.ndarray) -> None:
    """Refuses a support that moves with the position while the density stays finite outside of it."""
    for i, term in enumerate(target.terms):
        if term.kind == "outside" and term.moving and (terms[:, i] > 0).any():
            chain = int(np.flatnonzero(terms[:, i] > 0)[0])
            raise StartError(
                f"chain {chain}: {int(terms[chain, i])} of {int(np.prod(term.shape))} observed values of "
                f"{term.site!r} lie "
                f"outside the support of its likelihood, {term.support}, at the start, yet the log density "
                "is finite: the "
                "distribution does not check its values. Give it validate_args=True."
            )


def _values(target: Target, positions: np.ndarray) -> dict[str, np.ndarray]:
    """Latent sites at some positions, in the model's own space, one row per position."""
    if target.spec is not None:
        return {f.name: positions[:, f.slice].reshape(len(positions), *f.shape) for f in target.free}
    try:
        sites = target.evaluate_sites(positions)
    except Exception:  # the message matters more than its values
        return {}
    return {f.name: sites[f.name] for f in target.free}


def _reason(
    target: Target, total: Any, terms: np.ndarray, gradient: np.ndarray, values: dict[str, Any]
) -> str:
    if not np.isfinite(total):
        culprits = [
            i
            for i, term in enumerate(target.terms)
            if term.kind in _CULPRITS and not np.isfinite(terms[i])
        ]  # fmt: skip
        if not culprits:
            sites = [f.name for f in target.free]
            start = "the log density" if not target.terms else "the sum of finite terms, the log density,"
            return f"{start} is {total}, at {_at(sites, values)}"
        term = target.terms[culprits[0]]
        text = f"{_CULPRITS[term.kind]} {term.site!r} is {terms[culprits[0]]}"
        if term.kind == "likelihood":
            text += _outside(target, culprits[0], terms)
        names = [term.site] if term.kind in ("prior", "jacobian") else [f.name for f in target.free]
        text += f", at {_at(names, values)}"
        others = [f"{_CULPRITS[target.terms[i].kind]} {target.terms[i].site!r}" for i in culprits[1:3]]
        return text + (f" (not finite either: {', '.join(others)})" if others else "")
    names = [f.name for f in target.free if not np.isfinite(gradient[f.slice]).all()]
    return (
        f"the log density is {total:.6g}, but its gradient is not finite in "
        f"{', '.join(map(repr, names[:_VALUES]))}, "
        f"at {_at(names, values)}"
    )


def _outside(target: Target, likelihood: int, terms: np.ndarray) -> str:
    if likelihood + 1 < len(target.terms):
        term = target.terms[likelihood + 1]
        if term.kind == "outside" and terms[likelihood + 1] > 0:
            return f" ({int(terms[likelihood + 1])} values lie outside {term.support})"
    return ""


def _at(names: Sequence[str], values: dict[str, Any]) -> str:
    known = [n for n in names if n in values]
    # Scalars first: they fit on the line, and scales are the usual suspects.
    known.sort(key=lambda n: np.size(values[n]) > 1)
    shown = ", ".join(f"{n} = {show_value(values[n])}" for n in known[:_VALUES])
    return (shown or "the start") + (", ..." if len(known) > _VALUES else "")
