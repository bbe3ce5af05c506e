"""Models that benchmarks and scaling tests share; data come from a seed, of the same shapes for every seed.

speed = SPEED["radon"]
run = cm.sample(speed.model, data=speed.data(0), ...)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


@dataclass(frozen=True)
class Speed:
    """A benchmark model.

    Attributes:
        name: of the model.
        model: NumPyro model, called as model(**data).
        data: seed -> the model's arguments, always of the same shapes.
        dim: number of unconstrained parameters.
        logdensity: the same posterior as logdensity(x, **data), x of shape (dim,), or None.
    """

    name: str
    model: Callable[..., None]
    data: Callable[[int], dict[str, Any]]
    dim: int
    logdensity: Callable[..., jax.Array] | None = None


def eight_schools(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", y.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_data(seed: int = 0) -> dict[str, Any]:
    """The eight schools for seed 0; else others like them."""
    sigma = np.array([15.0, 10, 16, 11, 9, 11, 10, 18], np.float32)
    if seed == 0:
        return {"y": np.array([28.0, 8, -3, 7, -1, 1, 18, 12], np.float32), "sigma": sigma}
    rng = np.random.default_rng(seed)
    return {"y": (8.0 + np.hypot(sigma, 5.0) * rng.standard_normal(8)).astype(np.float32), "sigma": sigma}


def logistic(X, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ beta), obs=y)


def logistic_logdensity(x, X, y):
    """The same posterior, as a log density of the weights."""
    logits = X @ x
    return jnp.dot(y.astype(x.dtype), logits) - jnp.sum(jax.nn.softplus(logits)) - 0.5 * jnp.dot(x, x)


def logistic_data(n: int, d: int) -> Callable[[int], dict[str, Any]]:
    """Standard normal columns; weights of size 1 / sqrt(d) each, so that the logits are of order one."""

    def data(seed: int = 0) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((n, d)).astype(np.float32)
        logits = X @ (rng.standard_normal(d) / np.sqrt(d))
        return {"X": X, "y": (rng.random(n) < 1.0 / (1.0 + np.exp(-logits))).astype(np.int32)}

    return data


def radon(county, floor, uranium, y, n_counties):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    weight = numpyro.sample("weight", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("county", n_counties):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        effect = numpyro.deterministic("effect", mu + tau * z)
    with numpyro.plate("house", y.shape[0]):
        location = effect[county] + weight[0] * floor + weight[1] * uranium
        numpyro.sample("y", dist.Normal(location, sigma), obs=y)


def radon_data(seed: int = 0) -> dict[str, Any]:
    """919 houses in 85 counties of very unequal size, as in Minnesota; the sizes are fixed."""
    houses, counties = 919, 85
    layout = np.random.default_rng(85)
    share = layout.dirichlet(np.full(counties, 0.7))
    rest = layout.choice(counties, houses - counties, p=share)
    county = np.sort(np.concatenate([np.arange(counties), rest]))
    rng = np.random.default_rng(seed)
    floor = (rng.random(houses) < 0.17).astype(np.float32)
    uranium = (0.4 * rng.standard_normal(counties)).astype(np.float32)[county]
    effect = 1.4 + 0.15 * rng.standard_normal(counties)
    y = effect[county] - 0.65 * floor + 0.7 * uranium + 0.75 * rng.standard_normal(houses)
    return {
        "county": county.astype(np.int32),
        "floor": floor,
        "uranium": uranium,
        "y": y.astype(np.float32),
        "n_counties": counties,
    }


def funnel(dim):
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    numpyro.sample("y", dist.Normal(0.0, jnp.exp(v / 2)).expand([dim - 1]).to_event(1))


def funnel_logdensity(x, dim):
    """Neal's funnel; dim is the length of x."""
    v, y = x[0], x[1:]
    return -0.5 * (v / 3.0) ** 2 - 0.5 * jnp.exp(-v) * jnp.dot(y, y) - 0.5 * (dim - 1) * v


SPEED: dict[str, Speed] = {
    speed.name: speed
    for speed in (
        Speed("eight_schools", eight_schools, eight_schools_data, 10),
        Speed("logistic", logistic, logistic_data(1000, 25), 25, logistic_logdensity),
        Speed("radon", radon, radon_data, 90),
        Speed("funnel", funnel, lambda seed=0: {"dim": 10}, 10, funnel_logdensity),
        Speed("logistic_large", logistic, logistic_data(20_000, 50), 50, logistic_logdensity),
    )
}
