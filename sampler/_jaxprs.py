"""Traced computations without their data."""

from typing import Any

import jax.extend.core as jex


def without_consts(closed: jex.ClosedJaxpr) -> Any:
    """The computation alone, for `jax.core.eval_jaxpr(jaxpr, consts, *args)`.

    From JAX 0.12 on a jaxpr itself carries its constants, and what a cache holds must not keep a user's data alive.
    """
    jaxpr: Any = closed.jaxpr
    return jaxpr.with_consts(()) if hasattr(jaxpr, "with_consts") else jaxpr
