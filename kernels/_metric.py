"""Euclidean metrics on flat positions, for BlackJAX's integrators and U-turn tests."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from chainmesh._errors import InputError

from ._base import Params


def metric_params(inverse_mass_matrix: Any, dim: int, dtype: np.dtype) -> Params:
    """The metric's parameters from what a user gave: None for the identity, a diagonal, or a dense matrix.

    Raises:
        InputError: no numbers, wrong shape, or not symmetric and positive (definite).
    """
    if inverse_mass_matrix is None:
        return {"inverse_mass_matrix": np.ones(dim, dtype)}
    try:
        matrix = np.asarray(inverse_mass_matrix, dtype)
    except (TypeError, ValueError):
        raise InputError(
            f"inverse_mass_matrix must be an array of numbers, got {inverse_mass_matrix!r}."
        ) from None
    if matrix.shape not in ((dim,), (dim, dim)):
        raise InputError(
            f"inverse_mass_matrix has shape {matrix.shape}; this model has {dim} unconstrained parameters, so it must "
            f"be ({dim},) for a diagonal or ({dim}, {dim}) for a dense metric."
        )
    if matrix.ndim == 1:
        if not (np.isfinite(matrix).all() and (matrix > 0).all()):
            raise InputError(
                "inverse_mass_matrix: every entry of a diagonal metric must be positive and finite."
            )
        return {"inverse_mass_matrix": matrix}
    size = np.abs(matrix).max()
    if not np.isfinite(size) or not np.allclose(matrix, matrix.T, rtol=0, atol=1e-5 * size):
        raise InputError("inverse_mass_matrix is not symmetric and finite.")
    try:
        factor = np.linalg.cholesky(matrix.astype(np.float64)).astype(dtype)
    except np.linalg.LinAlgError:
        raise InputError("inverse_mass_matrix is not positive definite.") from None
    return {"inverse_mass_matrix": matrix, "inverse_mass_cholesky": factor}


def euclidean(params: Params) -> Any:
    """The BlackJAX metric of one chain's parameters.

    The Cholesky factor L of a dense inverse mass matrix comes with the parameters, computed once a window and not once
    a step: a momentum with covariance M = (L L')^-1 is the solution of L' r = z.
    """
    from blackjax.mcmc.metrics import Metric, gaussian_euclidean

    inverse = params["inverse_mass_matrix"]
    if inverse.ndim == 1:
        return gaussian_euclidean(inverse)
    factor = params["inverse_mass_cholesky"]

    def sample_momentum(key: Any, position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        noise = jax.random.normal(key, position.shape, position.dtype)
        return jax.scipy.linalg.solve_triangular(factor, noise, lower=True, trans="T")

    def kinetic_energy(momentum: Float[Array, " dim"], position: Any = None) -> Float[Array, ""]:
        del position
        return 0.5 * jnp.dot(inverse @ momentum, momentum)

    def check_turning(
        left: Array, right: Array, total: Array, position_left: Any = None, position_right: Any = None
    ):
        """Generalised U-turn criterion (Betancourt 2013, arXiv:1304.1920, as Stan applies it)."""
        del position_left, position_right
        rho = inverse @ (total - (left + right) / 2)
        return (jnp.dot(left, rho) <= 0) | (jnp.dot(right, rho) <= 0)

    def scale(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("velocity Verlet does not rescale")

    return Metric(sample_momentum, kinetic_energy, check_turning, scale)
