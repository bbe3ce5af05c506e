"""Models that cannot be sampled as they are written get a message that says why, and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from chainmesh._errors import DataError, ModelError
from chainmesh.sampler._data import static
from chainmesh.sampler._target import make_target

Y8 = np.array([28.0, 8, -3, 7, -1, 1, 18, 12], np.float32)
S8 = np.array([15.0, 10, 16, 11, 9, 11, 10, 18], np.float32)


def bad_discrete(y):
    k = numpyro.sample("k", dist.Poisson(3.0))
    numpyro.sample("which", dist.Categorical(jnp.ones(3) / 3))
    numpyro.sample("y", dist.Normal(jnp.zeros(k), 1), obs=y)  # fails later: the discrete site is the news


def bad_subsample(y):
    m = numpyro.sample("m", dist.Normal(0, 10))
    with numpyro.plate("N", 8, subsample_size=2):
        numpyro.sample("y", dist.Normal(m, 1), obs=numpyro.subsample(y, event_dim=0))


def bad_param(y):
    numpyro.sample(
        "y", dist.Normal(numpyro.param("loc", 0.0) + numpyro.sample("m", dist.Normal(0, 1)), 1), obs=y
    )


def bad_mutable(y):
    numpyro.primitives.mutable("count", {"n": 0})
    numpyro.sample("m", dist.Normal(0, 1))


def bad_key(y):
    numpyro.sample("m", dist.Normal(jax.random.normal(numpyro.prng_key()), 1))


def bad_duplicate(y):
    numpyro.sample("m", dist.Normal(0, 1))
    numpyro.sample("m", dist.Normal(0, 1))


def bad_delta(y):
    numpyro.sample("d", dist.Delta(1.0))


def bad_sphere(y):
    numpyro.sample("direction", dist.ImproperUniform(dist.constraints.sphere, (), (3,)))


def bad_empty(y):
    return -(y**2).sum()


def bad_all_observed(y):
    numpyro.sample("y", dist.Normal(0, 1), obs=y)


def bad_plate_shape(y):
    m = numpyro.sample("m", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("school", 8):
        numpyro.sample("effect", dist.Normal(m, 1))


def bad_likelihood_shape(y):
    m = numpyro.sample("m", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(m, 1), obs=y)


def bad_count(y):
    m = numpyro.sample("m", dist.Normal(0, 1).expand([int(y.max())]).to_event(1))
    numpyro.factor("f", m.sum())


def bad_unique(y):
    numpyro.sample("m", dist.Normal(0, 1).expand([len(np.unique(y))]).to_event(1))


def bad_branch(y):
    m = numpyro.sample("m", dist.Normal(0, 1))
    numpyro.factor("f", y.sum() if m > 0 else 0.0)


def bad_boolean_index(y):
    m = numpyro.sample("m", dist.Normal(0, 1))
    numpyro.factor("f", (m * y[y > 1]).sum())


@pytest.mark.parametrize(
    "model, words",
    [
        (bad_discrete, ["'k'", "'which'", "DiscreteHMCGibbs", "MixedHMC"]),
        (bad_subsample, ["'N'", "subsample", "HMCECS"]),
        (bad_param, ["'loc'", "numpyro.param", "numpyro.sample"]),
        (bad_mutable, ["'count'", "mutable"]),
        (bad_key, ["prng_key"]),
        (bad_duplicate, ["two sites", "'m'"]),
        (bad_delta, ["'d'", "numpyro.deterministic"]),
        (bad_sphere, ["'direction'", "Sphere", "ProjectedNormal"]),
        (bad_empty, ["no sample sites", "cm.LogDensity"]),
        (bad_all_observed, ["observed"]),
        (bad_plate_shape, ["site 'effect'", "plate 'school'", "test_model_refusals.py"]),
        (bad_likelihood_shape, ["site 'y'"]),
        (bad_count, ["data['y']", "cm.static", "Python int"]),
        (bad_unique, ["data['y']", "cm.static"]),
        (bad_branch, ["latent", "jnp.where"]),
        (bad_boolean_index, ["concrete", "boolean", "data['y']"]),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_models_that_cannot_be_sampled(model, words):
    with pytest.raises(ModelError) as caught:
        make_target(model, (), dict(y=Y8))
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_static_lets_a_model_compute_its_sizes():
    def model(y, g):
        n = len(np.unique(g))
        m = numpyro.sample("m", dist.Normal(0, 1).expand([n]).to_event(1))
        numpyro.sample("y", dist.Normal(m[g], 1), obs=y)

    groups = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    assert make_target(model, (), dict(y=Y8, g=static(groups))).dim == 4
    with pytest.raises(ModelError, match=r"data\['g'\]"):
        make_target(model, (), dict(y=Y8, g=groups))


@pytest.mark.parametrize(
    "args, data, words",
    [
        ((), dict(y=Y8), ["'sigma'"]),
        ((), dict(y=Y8, sigmas=S8), ["'sigmas'", "did you mean 'sigma'"]),
        ((Y8,), dict(y=Y8, sigma=S8), ["'y'", "twice"]),
        ((Y8, S8, S8), {}, ["3 entries"]),
        (Y8, {}, ["args=(x,)"]),
    ],
)
def test_arguments_are_compared_with_the_signature(args, data, words):
    with pytest.raises(DataError) as caught:
        make_target(lambda y, sigma: None, args, data)
    for word in words:
        assert word in str(caught.value)
