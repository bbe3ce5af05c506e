"""Small value types that describe a target, and what all of its builders share."""

import contextlib
import difflib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

# NumPyro's stack of effect handlers is a module global, so two traces at once would mix their sites.
TRACE_LOCK = threading.RLock()

TermKind = Literal["prior", "jacobian", "likelihood", "factor", "outside", "first_outside"]
SiteKind = Literal["latent", "deterministic"]


@dataclass(frozen=True)
class Term:
    """What one of the outputs 1, 2, ... of `Target.density` is.

    Attributes:
        site: name of the model's site (or factor).
        kind: `prior`, `jacobian` (log |det| of the constraining transform), `likelihood`, `factor`: log
            densities; `outside`: how many observed values lie outside the likelihood's support;
            `first_outside`: the flat index, over the batch shape, of the first of them.
        support: the likelihood's support in words (`outside` terms).
        moving: whether an `outside` count depends on the position, as in Uniform(0, theta).
        shape: batch shape that `first_outside` indexes.
    """

    site: str
    kind: TermKind
    support: str = ""
    moving: bool = False
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Site:
    """One output of `Target.constrain`: a latent or deterministic site, in the model's own space."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    kind: SiteKind
    dims: tuple[str, ...]


@dataclass(frozen=True)
class FreeSite:
    """A latent site's part of the flat unconstrained position `z`.

    Attributes:
        name: the site.
        shape: its shape in the unconstrained space.
        slice: where it lies in `z`.
        event: its shape in the model's own space.
        support: the prior's support in words.
    """

    name: str
    shape: tuple[int, ...]
    slice: slice
    event: tuple[int, ...]
    support: str


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint for a misspelt name: `; did you mean 'x'?`, or the names that exist."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    shown = ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")
    return f"; there is {shown}" if names else ""


def matmul_precision() -> contextlib.AbstractContextManager:
    """Trace matrix products at precision "highest" unless the user chose one.

    TF32 and bfloat16 products on accelerators put errors of 1e-3 into log densities, which costs accepted
    steps.
    """
    config: Any = jax.config
    if config.jax_default_matmul_precision is None:
        return jax.default_matmul_precision("highest")
    return contextlib.nullcontext()


def default_float() -> np.dtype:
    """float64 when `jax_enable_x64` is set, float32 otherwise."""
    return np.dtype(jnp.result_type(float))


def default_int() -> np.dtype:
    """int64 when `jax_enable_x64` is set, int32 otherwise."""
    return np.dtype(jnp.result_type(int))


def show_value(value: object) -> str:
    """A number or array in a few words, for messages."""
    array = np.asarray(value)
    if array.ndim == 0:
        return f"{array.item():.6g}" if array.dtype.kind == "f" else str(array.item())
    return np.array2string(array, precision=4, threshold=8, edgeitems=3, separator=", ")
