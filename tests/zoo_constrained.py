"""NumPyro models without unknown answers, one for each kind of constraint; zoo_exact re-exports them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from scipy import special, stats


@dataclass(frozen=True)
class Constrained:
    """A NumPyro model with known answers, one for each kind of constraint.

    As Exact, but draws are dicts of (n, ...) arrays by site, in constrained space; model takes no arguments.
    """

    name: str
    model: Callable[[], None]
    sample: Callable[[np.random.Generator, int], dict[str, np.ndarray]]
    functionals: Mapping[str, tuple[Callable[[Mapping[str, np.ndarray]], np.ndarray], float]]
    cdfs: Mapping[
        str, tuple[Callable[[Mapping[str, np.ndarray]], np.ndarray], Callable[[np.ndarray], np.ndarray]]
    ]


def _site(name: str, *index: int) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    return lambda sites: sites[name][(slice(None), *index)]


def _laws(laws: Mapping[str, tuple[Callable, Any]]) -> tuple[dict, dict]:
    """Mean, variance and CDF of functions of the sites, from their scipy laws."""
    functionals, cdfs = {}, {}
    for name, (fn, law) in laws.items():
        mean, var = float(law.mean()), float(law.var())
        functionals[f"mean {name}"] = (fn, mean)
        functionals[f"var {name}"] = (lambda s, fn=fn, mean=mean: (fn(s) - mean) ** 2, var)
        cdfs[name] = (fn, law.cdf)
    return functionals, cdfs


def _scalars(name: str, sites: Mapping[str, tuple[Callable[[], dist.Distribution], Any]]) -> Constrained:
    """Independent scalar sites, each a NumPyro distribution beside the same law in scipy."""

    def model():
        for site, (make, _) in sites.items():
            numpyro.sample(site, make())

    def sample(rng, n):
        return {site: law.rvs(size=n, random_state=rng) for site, (_, law) in sites.items()}

    return Constrained(
        name, model, sample, *_laws({site: (_site(site), law) for site, (_, law) in sites.items()})
    )


def _ordered() -> Constrained:
    """Order statistics of three standard normals."""

    def model():
        x = numpyro.sample("x", dist.ImproperUniform(constraints.ordered_vector, (), (3,)))
        numpyro.factor("prior", dist.Normal(0.0, 1.0).log_prob(x).sum())

    return Constrained(
        "ordered",
        model,
        lambda rng, n: {"x": np.sort(rng.standard_normal((n, 3)), -1)},
        {
            "bottom": (_site("x", 0), -1.5 / np.sqrt(np.pi)),
            "middle": (_site("x", 1), 0.0),
            "middle^2": (lambda s: s["x"][:, 1] ** 2, 1.0 - np.sqrt(3.0) / np.pi),
            "top": (_site("x", 2), 1.5 / np.sqrt(np.pi)),
            "all^2": (lambda s: (s["x"] ** 2).sum(-1), 3.0),
        },
        {
            "bottom": (_site("x", 0), lambda v: 1.0 - special.ndtr(-v) ** 3),
            "middle": (_site("x", 1), lambda v: special.ndtr(v) ** 2 * (3.0 - 2.0 * special.ndtr(v))),
            "top": (_site("x", 2), lambda v: special.ndtr(v) ** 3),
        },
    )


def _simplex() -> Constrained:
    uneven, even = np.array([1.0, 2.0, 3.0]), np.ones(4)

    def model():
        numpyro.sample("share", dist.Dirichlet(uneven))
        numpyro.sample("flat", dist.Dirichlet(even))

    functionals, cdfs = _laws(
        {f"share {i}": (_site("share", i), stats.beta(i + 1.0, 5.0 - i)) for i in range(3)}
        | {f"flat {i}": (_site("flat", i), stats.beta(1.0, 3.0)) for i in (0, 3)}
    )
    functionals["cov"] = (lambda s: (s["share"][:, 0] - 1 / 6) * (s["share"][:, 1] - 1 / 3), -2.0 / 252.0)
    functionals["log share 0"] = (
        lambda s: np.log(s["share"][:, 0]),
        float(special.digamma(1) - special.digamma(6)),
    )
    return Constrained(
        "simplex",
        model,
        lambda rng, n: {"share": rng.dirichlet(uneven, n), "flat": rng.dirichlet(even, n)},
        functionals,
        cdfs,
    )


def _correlation() -> Constrained:
    """LKJ: each correlation r has (r + 1) / 2 ~ Beta(a, a) with a = eta - 1 + d / 2."""

    def law(eta, d=3):
        return stats.beta(eta - 1.0 + d / 2.0, eta - 1.0 + d / 2.0, loc=-1.0, scale=2.0)

    def model():
        numpyro.sample("corr", dist.LKJ(3, 2.0))
        numpyro.sample("cholesky", dist.LKJCholesky(3, 1.0))

    def vine(rng, n, eta):
        # Lewandowski, Kurowicka and Joe (2009): partial correlations of a vine are independent, 2 Beta - 1
        first, second, partial = (2 * rng.beta(a, a, n) - 1 for a in (eta + 0.5, eta + 0.5, eta))
        third = first * second + partial * np.sqrt((1 - first**2) * (1 - second**2))
        corr = np.tile(np.eye(3), (n, 1, 1))
        for (i, j), r in {(0, 1): first, (0, 2): second, (1, 2): third}.items():
            corr[:, i, j] = corr[:, j, i] = r
        return corr

    def sample(rng, n):
        return {"corr": vine(rng, n, 2.0), "cholesky": np.linalg.cholesky(vine(rng, n, 1.0))}

    return Constrained(
        "correlation",
        model,
        sample,
        *_laws(
            {
                "corr 0 1": (_site("corr", 0, 1), law(2.0)),
                "corr 1 2": (_site("corr", 1, 2), law(2.0)),
                "cholesky 0 1": (_site("cholesky", 1, 0), law(1.0)),
            }
        ),
    )


def _flat_scale() -> Constrained:
    """Gaussian data that hardly vary, prior 1 / sigma.

    (mu - mean) sqrt(n) / s ~ t(n - 1) and (n - 1) s^2 / sigma^2 ~ chi-squared(n - 1).
    """
    y = np.array([100.2, 99.9, 100.1, 100.4, 99.8, 100.3, 100.0, 100.1])
    n, mean, sd = len(y), y.mean(), y.std(ddof=1)

    def model():
        mu = numpyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
        sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
        numpyro.factor("one_over_sigma", -jnp.log(sigma))
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    def sample(rng, size):
        sigma = sd * np.sqrt((n - 1) / rng.chisquare(n - 1, size))
        return {"mu": mean + sigma / np.sqrt(n) * rng.standard_normal(size), "sigma": sigma}

    def t(s):
        return (s["mu"] - mean) * np.sqrt(n) / sd

    mean_ratio = np.sqrt((n - 1) / 2) * np.exp(special.gammaln((n - 2) / 2) - special.gammaln((n - 1) / 2))
    return Constrained(
        "flat_scale",
        model,
        sample,
        {
            "t": (t, 0.0),
            "P(|t| < 1)": (lambda s: np.abs(t(s)) < 1.0, float(2 * stats.t.cdf(1.0, n - 1) - 1)),
            "sigma / s": (lambda s: s["sigma"] / sd, float(mean_ratio)),
        },
        {
            "t": (t, lambda v: stats.t.cdf(v, n - 1)),
            "sigma / s": (lambda s: s["sigma"] / sd, lambda v: stats.chi2.sf((n - 1) / v**2, n - 1)),
        },
    )


CONSTRAINED: dict[str, Constrained] = {
    case.name: case
    for case in (
        _scalars(
            "positive",
            {
                "half_normal": (lambda: dist.HalfNormal(1.0), stats.halfnorm()),
                "exponential": (lambda: dist.Exponential(2.0), stats.expon(scale=0.5)),
                "gamma": (lambda: dist.Gamma(3.0, 2.0), stats.gamma(3.0, scale=0.5)),
                "log_normal": (lambda: dist.LogNormal(0.5, 0.5), stats.lognorm(0.5, scale=np.exp(0.5))),
            },
        ),
        _scalars(
            "interval",
            {
                "truncated": (
                    lambda: dist.TruncatedNormal(0.0, 1.0, low=1.0, high=3.0),
                    stats.truncnorm(1.0, 3.0),
                ),
                "beta": (lambda: dist.Beta(2.0, 3.0), stats.beta(2.0, 3.0)),
                "arcsine": (lambda: dist.Beta(0.5, 0.5), stats.beta(0.5, 0.5)),
                "uniform": (lambda: dist.Uniform(-2.0, 5.0), stats.uniform(-2.0, 7.0)),
            },
        ),
        _ordered(),
        _simplex(),
        _correlation(),
        _flat_scale(),
    )
}
