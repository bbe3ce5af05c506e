"""Users' scenarios, what goes wrong while sampling, and must be said.

B34 NaN gradients; B35 step sizes that collapse; B36 a stuck chain; B38 saturated trees.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import RWM, sample

import chainmesh as cm


@pytest.mark.parametrize("kernel", ["nuts", cm.HMC(step_size=0.5, n_leapfrog=6)], ids=["tuned NUTS", "HMC"])
def test_b34_a_nan_gradient_at_a_finite_value(kernel):
    density = lambda x: jnp.where(x > 2.0, -jnp.sqrt(x - 2.0) - 2.0, -0.5 * x**2).sum()  # noqa: E731
    one = jnp.ones(1)
    assert (
        np.isfinite(density(one)) and np.isnan(jax.grad(density)(one)).all()
    )  # finite value, NaN slope below 2
    run = sample(cm.LogDensity(density, initial=jnp.full(1, 3.0)), kernel=kernel, tune=100, draws=200)
    assert np.isfinite(run.posterior["x"]).all() and np.isfinite(run.stats["step_size"]).all()
    assert np.isfinite(run.stats["acceptance_rate"]).all()
    assert run.stats["diverging"].any() and run.verdict.chains_with("diverging")


@pytest.mark.parametrize("adaptation", [cm.StanWindows(), cm.PooledWindows()], ids=["alone", "pooled"])
def test_b35_a_step_size_that_collapses(adaptation):
    density = lambda x: jnp.where(jnp.abs(x) < 1e-6, 0.0, -jnp.inf).sum() - jnp.sum(jnp.abs(x) * 1e9)  # noqa: E731
    run = sample(
        cm.LogDensity(density, initial=jnp.zeros(1)),
        kernel=cm.HMC(n_leapfrog=4),
        adaptation=adaptation,
        tune=60,
        draws=30,
    )
    step = run.stats["step_size"][:, -1]
    assert np.isfinite(step).all() and (step > 0).all()
    assert np.isfinite(run.posterior["x"]).all()
    # Either the chains are named, or the warm-up was good enough for a density of scale 1e-9: mean |x| is 1e-9.
    if not {"step_size", "stuck"} & set(run.verdict.codes):
        assert 0.5e-9 < np.abs(run.posterior["x"]).mean() < 2e-9


def test_b36_a_stuck_chain_is_named_and_kept():
    needle = lambda x: jnp.where(jnp.abs(x - 100) < 1e-4, 1e6, -0.5 * x**2).sum()  # noqa: E731
    run = sample(
        cm.LogDensity(needle, initial=jnp.zeros(1)), kernel=RWM, tune=50, draws=100,
        initvals=np.array([[0.0], [0.5], [100.0], [-0.5]]),
    )  # fmt: skip
    assert run.verdict.chains_with("stuck") == [2] and run.posterior["x"].shape[0] == 4
    assert "Chain 2" in str(run.verdict) and "never moved" in str(run.verdict)


def test_b38_saturated_trees():
    density = lambda x: -0.5 * jnp.sum((x / jnp.array([1.0, 300.0])) ** 2)  # noqa: E731
    run = sample(
        cm.LogDensity(density, initial=jnp.zeros(2)),
        kernel=cm.NUTS(step_size=0.05, max_depth=4),
        tune=0,
        draws=40,
    )
    assert run.stats["tree_depth"].max() == 4 and run.stats["n_steps"].max() <= 15
    assert run.stats["reached_max_treedepth"].mean() > 0.9
    assert run.verdict.chains_with("max_depth") == [0, 1, 2, 3]
    assert "Give an adaptation" in str(run.verdict)
