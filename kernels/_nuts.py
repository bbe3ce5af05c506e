"""The No-U-Turn sampler, assembled from BlackJAX's integrator, trajectory and termination."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from chainmesh._errors import InputError

from ._base import Info, Kernel, LogDensityFn, Params, setting
from ._metric import euclidean, metric_params


def positive(name: str, value: Any, dtype: np.dtype) -> np.ndarray:
    """A positive finite scalar setting as an array.

    Raises:
        InputError: it is not one.
    """
    try:
        number = np.asarray(value, dtype)
    except (TypeError, ValueError):
        number = np.asarray(np.nan, dtype)
    if number.ndim or not np.isfinite(number) or number <= 0:
        raise InputError(f"{name} must be a positive number, got {value!r}.")
    return number


@dataclasses.dataclass(frozen=True, repr=False)
class NUTS(Kernel):
    """No-U-Turn sampler: multinomial, biased progressive sampling, iterative doubling.

    Hoffman and Gelman (2014), JMLR 15; Betancourt (2017), arXiv:1701.02434, appendix A; Phan, Pradhan and Jankowiak
    (2019), arXiv:1912.11554, for the iterative form.

    Args:
        max_depth: trees double at most this often, so a draw takes at most 2**max_depth - 1 leapfrog steps.
        divergence_threshold: a step whose energy exceeds the first one's by more is a divergence (nats).
        step_size: leapfrog step in units of the metric; given without an adaptation it stays as it is, and nothing is
            tuned.
        inverse_mass_matrix: metric to start from, (dim,) or (dim, dim), in unconstrained space.
    """

    target_accept_default: ClassVar[float] = 0.8

    max_depth: int = 10
    divergence_threshold: float = 1000.0
    step_size: Any = setting()
    inverse_mass_matrix: Any = setting()

    def __post_init__(self) -> None:
        if (
            isinstance(self.max_depth, bool)
            or not isinstance(self.max_depth, int)
            or not 1 <= self.max_depth <= 24
        ):
            raise InputError(f"max_depth must be an integer from 1 to 24, got {self.max_depth!r}.")
        positive("divergence_threshold", self.divergence_threshold, np.dtype(float))

    @property
    def fixed(self) -> bool:
        """Whether the step size is the user's."""
        return self.step_size is not None

    @property
    def max_tree_depth(self) -> int:
        """Depth at which trees saturate."""
        return self.max_depth

    def params(self, dim: int, dtype: np.dtype) -> Params:
        """Step size, metric, and the depth cap, which a warm-up lowers while the metric is still rough."""
        step = positive("step_size", 1.0 if self.step_size is None else self.step_size, dtype)
        cap = np.asarray(self.max_depth, np.int32)
        return {"step_size": step, "max_depth": cap, **metric_params(self.inverse_mass_matrix, dim, dtype)}

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
        """One trajectory and the draw taken from it."""
        from blackjax.mcmc import hmc, proposal, termination, trajectory
        from blackjax.mcmc.integrators import IntegratorState, velocity_verlet

        metric = euclidean(params)
        new_criterion, update_criterion, is_met = termination.iterative_uturn_numpyro(metric.check_turning)
        integrate = trajectory.dynamic_progressive_integration(
            velocity_verlet(logdensity, metric.kinetic_energy),
            metric.kinetic_energy,
            update_criterion,
            is_met,
            self.divergence_threshold,
        )
        # The cap is traced; only the size of the checkpoint arrays is static.
        cap = jnp.minimum(params["max_depth"], self.max_depth)
        expand = trajectory.dynamic_multiplicative_expansion(integrate, metric.check_turning, cap)

        key_momentum, key_tree = jax.random.split(key)
        momentum = metric.sample_momentum(key_momentum, state.position)
        start = IntegratorState(state.position, momentum, state.logdensity, state.logdensity_grad)
        energy = -state.logdensity + metric.kinetic_energy(momentum)
        first = trajectory.DynamicExpansionState(
            0,
            proposal.Proposal(start, energy, 0.0, -np.inf),
            trajectory.Trajectory(start, start, momentum, 0),
            new_criterion(start, self.max_depth),
        )
        end, (diverging, turning) = expand(key_tree, first, energy, params["step_size"])
        drawn, tree = end.proposal, end.trajectory
        info = {
            "lp": drawn.state.logdensity,
            "acceptance_rate": jnp.minimum(jnp.exp(drawn.sum_log_p_accept) / tree.num_states, 1.0),
            "step_size": params["step_size"],
            "tree_depth": jnp.asarray(end.step, jnp.int32),
            "n_steps": jnp.asarray(tree.num_states, jnp.int32),
            "diverging": diverging,
            "energy": drawn.energy,
            "energy_error": drawn.energy - energy,
            "reached_max_treedepth": (end.step >= cap) & ~diverging & ~turning,
        }
        return hmc.HMCState(drawn.state.position, drawn.state.logdensity, drawn.state.logdensity_grad), info
