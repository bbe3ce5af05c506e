"""Turns what goes wrong while a model is traced into a message about the model."""

import os
import re
import traceback
from collections.abc import Sequence

import jax
import numpy as np
import numpyro

from chainmesh._errors import ChainmeshError, ModelError

_CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
_DEPENDS = re.compile(r"depends on the values? of the arguments? ([^\n]*)")
_LEAF = re.compile(r"leaves\[(\d+)\]")
_LIBRARIES = tuple(os.path.dirname(m.__file__) + os.sep for m in (jax, np, numpyro) if m.__file__)
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def explain(error: Exception, name: str, paths: Sequence[str], what: str = "model") -> ChainmeshError:
    """The error to raise (from `error`) for a model or log density that failed while it was traced.

    Args:
        error: what the user's function, or a distribution inside it, raised. The traced arguments must have
            been called `leaves`, and the position anything else, such as `z`.
        name: the model's name.
        paths: readable names of the traced arguments.
        what: "model" or "log density".
    """
    if isinstance(error, ChainmeshError):
        return error
    place = _place(error)
    if isinstance(error, _CONCRETE) or (isinstance(error, TypeError) and "concrete values" in str(error)):
        return ModelError(_concrete_message(error, f"{what} {name!r}", place, paths))
    duplicate = re.search(r"unique names but got `(.*)` duplicated", str(error))
    if duplicate:
        return ModelError(
            f"{what} {name!r} has two sites called {duplicate[1]!r}: give each site a name of its own."
        )
    text = str(error).strip() or "no message"
    first = text.splitlines()[0]
    return ModelError(f"{what} {name!r} fails while it is traced{place}: {type(error).__name__}: {first}")


def _concrete_message(error: Exception, who: str, place: str, paths: Sequence[str]) -> str:
    found = _DEPENDS.search(str(error))
    names = found[1] if found else ""
    culprits = [paths[int(i)] for i in _LEAF.findall(names) if int(i) < len(paths)]
    on_position = bool(_LEAF.sub("", names).strip(" ,.and")) and not _is_inner(error)
    if culprits and not on_position:
        listed = " and ".join(culprits)
        return (
            f"{who} needs a concrete value{place}, computed from {listed}. Arrays and floats are traced, so "
            "that new "
            "data reuse the compiled program. Pass the number itself as a Python int (n_groups=int(...), "
            "computed before "
            f"the call), or cm.static(...) around {culprits[0]} and NumPy instead of jax.numpy for what is "
            "computed from it."
        )
    if on_position:
        return (
            f"{who} needs a concrete value{place}, but it depends on a latent value, which changes with each "
            "step. A "
            "Python `if`, `int()`, `range()` or NumPy call on it cannot be traced: use jnp.where, "
            "jax.lax.cond or "
            "numpyro.handlers.mask, and boolean masks instead of boolean indexing."
        )
    rest = f" The traced arguments are {', '.join(paths)}." if paths else ""
    return (
        f"{who} needs a concrete value{place} where JAX has only a traced one (boolean indexing, int(), a "
        "Python `if`, a "
        f"shape computed with jax.numpy).{rest} Compute sizes and index sets with NumPy before the call and "
        "pass them as Python "
        "ints or cm.static(...); on latent values use jnp.where or numpyro.handlers.mask."
    )


def _is_inner(error: Exception) -> bool:
    """Whether the message names arguments of a function inside the model: a scan body, a jitted helper."""
    return not re.search(r"while tracing the function chainmesh_\w+", str(error))


def _place(error: BaseException) -> str:
    """The site or plate that was being evaluated, and the user's line."""
    site = plate = line = None
    for frame, lineno in traceback.walk_tb(error.__traceback__):
        code, names = frame.f_code, frame.f_locals
        file = os.path.abspath(code.co_filename)
        if code.co_name == "apply_stack" and isinstance(names.get("msg"), dict):
            msg = names["msg"]
            site = msg.get("name", site) if msg.get("type") in ("sample", "deterministic", "plate") else site
        elif code.co_name == "process_message" and isinstance(names.get("self"), numpyro.plate):
            plate = names["self"].name
        elif code.co_name == "_site_log_prob":
            site = names["site"]["name"]
        if not file.startswith((*_LIBRARIES, _HERE)) and not code.co_filename.startswith("<frozen"):
            line = f"{os.path.basename(code.co_filename)}:{lineno}"
    parts = [
        f"site {site!r}" if site else "",
        f"plate {plate!r}" if plate else "",
        f"line {line}" if line else "",
    ]
    shown = ", ".join(filter(None, parts))
    return f" ({shown})" if shown else ""
