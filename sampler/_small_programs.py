"""Small compiled programs beside the run's own: start values, observed values that a model computes, messages."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex

from ._fingerprint import program_key
from ._jaxprs import without_consts

_PROGRAMS: OrderedDict[Any, Callable] = OrderedDict()
_LOCK = threading.Lock()
_CAPACITY = 16


def run_traced(
    closed: jex.ClosedJaxpr, values: Sequence[Any], in_axes: tuple[int | None, ...] | None = None
) -> Sequence[Any]:
    """Runs a traced function, compiled once for all functions with the same trace and shapes.

    Args:
        closed: the function; its constants become arguments.
        values: its arguments.
        in_axes: axes to map over, as in `jax.vmap`; None for a single evaluation.
    """
    key = (program_key(closed), in_axes)
    with _LOCK:
        program = _PROGRAMS.pop(key, None)
        if program is None:
            program = _build(without_consts(closed), in_axes)
        _PROGRAMS[key] = program
        if len(_PROGRAMS) > _CAPACITY:
            _PROGRAMS.popitem(last=False)
    return program(list(closed.consts), *values)


def _build(jaxpr: Any, in_axes: tuple[int | None, ...] | None) -> Callable:
    def evaluate(consts, *xs):
        return jax.core.eval_jaxpr(jaxpr, consts, *xs)

    return jax.jit(evaluate if in_axes is None else jax.vmap(evaluate, in_axes=(None, *in_axes)))


def clear_small_programs() -> None:
    """Forgets them all."""
    with _LOCK:
        _PROGRAMS.clear()
