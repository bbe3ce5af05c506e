"""Hamiltonian Monte Carlo with a fixed number of leapfrog steps, on BlackJAX's kernel."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from chainmesh._errors import InputError

from ._base import Info, Kernel, LogDensityFn, Params, setting
from ._metric import euclidean, metric_params
from ._nuts import positive


@dataclasses.dataclass(frozen=True, repr=False)
class HMC(Kernel):
    """Hamiltonian Monte Carlo, endpoint proposal (Duane et al. 1987; Neal 2011, arXiv:1206.1901).

    Args:
        n_leapfrog: leapfrog steps of a trajectory.
        divergence_threshold: an energy error above it is a divergence (nats).
        step_size: leapfrog step in units of the metric; given without an adaptation it stays as it is, and nothing is
            tuned.
        inverse_mass_matrix: metric to start from, (dim,) or (dim, dim), in unconstrained space.
    """

    target_accept_default: ClassVar[float] = 0.8

    n_leapfrog: Any = setting(16)
    divergence_threshold: float = 1000.0
    step_size: Any = setting()
    inverse_mass_matrix: Any = setting()

    def __post_init__(self) -> None:
        if (
            isinstance(self.n_leapfrog, bool)
            or not isinstance(self.n_leapfrog, int | np.integer)
            or self.n_leapfrog < 1
        ):
            raise InputError(f"n_leapfrog must be a positive integer, got {self.n_leapfrog!r}.")
        positive("divergence_threshold", self.divergence_threshold, np.dtype(float))

    @property
    def fixed(self) -> bool:
        """Whether the step size is the user's."""
        return self.step_size is not None

    def params(self, dim: int, dtype: np.dtype) -> Params:
        """Step size, number of leapfrog steps, metric."""
        step = positive("step_size", 1.0 if self.step_size is None else self.step_size, dtype)
        steps = np.asarray(self.n_leapfrog, np.int32)
        return {"step_size": step, "n_leapfrog": steps, **metric_params(self.inverse_mass_matrix, dim, dtype)}

    def init(
        self, key: Key[Array, ""], params: Params, logdensity: LogDensityFn, position: Float[Array, " dim"]
    ) -> Any:
        """BlackJAX's HMCState: position, log density, gradient."""
        from blackjax.mcmc import hmc

        del key, params
        return hmc.init(position, logdensity)

    def resume(
        self, key: Key[Array, ""], params: Params, logdensity: LogDensityFn, position: Float[Array, " dim"],
        value: Float[Array, ""], gradient: Float[Array, " dim"],
    ) -> Any:  # fmt: skip
        """The same state from what is known, without another gradient."""
        from blackjax.mcmc import hmc

        del key, params, logdensity
        return hmc.HMCState(position, value, gradient)

    def step(
        self, key: Key[Array, ""], params: Params, logdensity: LogDensityFn, state: Any
    ) -> tuple[Any, Info]:
        """One trajectory, accepted or not."""
        from blackjax.mcmc import hmc

        metric = euclidean(params)
        kernel = hmc.build_kernel(divergence_threshold=self.divergence_threshold)
        new, out = kernel(key, state, logdensity, params["step_size"], metric, params["n_leapfrog"])
        before = -state.logdensity + metric.kinetic_energy(out.momentum)
        info = {
            "lp": new.logdensity,
            "acceptance_rate": out.acceptance_rate,
            "step_size": params["step_size"],
            "n_steps": jnp.asarray(params["n_leapfrog"], jnp.int32),
            "diverging": out.is_divergent,
            # BlackJAX reports the proposal's energy, which for a rejected one is not where the chain is.
            "energy": jnp.where(out.is_accepted, out.energy, before),
            "energy_error": jnp.where(out.is_accepted, out.energy - before, 0.0),
            "accepted": out.is_accepted,
        }
        return new, info
