"""Targets whose answers are known exactly: log densities, iid samplers, functionals with their means, CDFs.

    target = EXACT["funnel_mild"]
    z = z_scores(target.functionals, draws)  # draws (chain, draw, dim), the chains independent
    assert max(abs(v) for v in z.values()) < z_bound(len(z), 1e-6)

Where moments are large or infinite the functionals are bounded. No effective sample size enters: the error
of a mean comes from the spread of the chains' own means, so the oracle cannot be fooled by a sampler that
misjudges its autocorrelation. Two designs of test use this: iid starts from the target moved K steps (each
start a chain of one draw; exact p-values), or long runs of at least eight chains.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats
from zoo_constrained import CONSTRAINED as CONSTRAINED
from zoo_constrained import Constrained as Constrained

Functional = tuple[Callable[[np.ndarray], np.ndarray], float]
Cdf = tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]


@dataclass(frozen=True)
class Exact:
    """A distribution on R^dim that is known through and through.

    Attributes:
        name: of the target.
        logdensity: (dim,) -> scalar, unnormalised, pure JAX.
        dim: number of coordinates.
        sample: (NumPy generator, n) -> (n, dim) independent draws.
        functionals: name -> (function (n, dim) -> (n,), its exact mean); each has a finite variance.
        cdfs: name -> (function (n, dim) -> (n,), the exact CDF of its law).
        hard: plain NUTS or HMC is not expected to get it right; a failure should show in diagnostics.
    """

    name: str
    logdensity: Callable[[jax.Array], jax.Array]
    dim: int
    sample: Callable[[np.random.Generator, int], np.ndarray]
    functionals: Mapping[str, Functional]
    cdfs: Mapping[str, Cdf] = field(default_factory=dict)
    hard: bool = False


# Judging -----------------------------------------------------------------------------------------


def z_scores(functionals: Mapping[str, tuple[Callable, float]], draws: Any) -> dict[str, float]:
    """How many standard errors each functional's mean is off.

    The standard error is that of independent chain means, so with few chains the ratio has Student's law;
    it is mapped to the normal score of the same tail, and is standard normal for a correct sampler (nearly
    so where a functional is skewed and chains x draws is small).

    Args:
        functionals: name -> (function, exact mean).
        draws: (chain, draw, dim), or a dict of (chain, draw, ...) by site; independent chains, at least 8.
            For n iid draws: (n, 1, dim).

    Returns:
        Name -> score.
    """
    shape = np.shape(next(iter(draws.values())) if isinstance(draws, Mapping) else draws)
    chains, per_chain = shape[:2]
    if chains < 8:
        raise ValueError(f"z_scores judges by the spread between chains and needs 8 of them, got {chains}")

    def flat(a):
        a = np.asarray(a, np.float64)
        return a.reshape(chains * per_chain, *a.shape[2:])

    points = {k: flat(v) for k, v in draws.items()} if isinstance(draws, Mapping) else flat(draws)
    scores = {}
    for name, (fn, mean) in functionals.items():
        values = np.asarray(fn(points), np.float64).reshape(chains, per_chain).mean(1)
        spread = values.std(ddof=1)
        if not np.isfinite(spread) or spread == 0.0:
            scores[name] = np.inf  # chains that are all alike, or not finite, are no evidence of anything
            continue
        t = (values.mean() - mean) / (spread / np.sqrt(chains))
        tail = max(stats.t.sf(abs(t), chains - 1), 1e-300)
        scores[name] = float(-np.sign(t) * special.ndtri(tail))
    return scores


def ks_pvalues(cdfs: Mapping[str, tuple[Callable, Callable]], draws: Any) -> dict[str, float]:
    """Kolmogorov-Smirnov p-values, one for each CDF.

    Args:
        cdfs: name -> (function, exact CDF).
        draws: (n, dim) or a dict of (n, ...) by site; independent of each other, so one of each chain.
    """
    if isinstance(draws, Mapping):
        points = {k: np.asarray(v, np.float64) for k, v in draws.items()}
    else:
        points = np.asarray(draws, np.float64)
    return {name: float(stats.kstest(fn(points), cdf).pvalue) for name, (fn, cdf) in cdfs.items()}


def z_bound(tests: int, alpha: float) -> float:
    """Bonferroni: by chance, some |z| of so many tests passes this bound with probability alpha at most."""
    return float(-special.ndtri(alpha / (2 * tests)))


def p_bound(tests: int, alpha: float) -> float:
    """Bonferroni: by chance, some p of so many tests is below this with probability alpha at most."""
    return alpha / tests


# Building blocks ---------------------------------------------------------------------------------


def _x(i: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: x[..., i]


def _below(quantiles: Mapping[float, float]) -> dict[str, Functional]:
    return {f"P(x < q{p})": (lambda x, v=v: x[..., 0] < v, p) for p, v in quantiles.items()}


def _squared(fn: Callable, centre: float = 0.0) -> Callable:
    return lambda x: (fn(x) - centre) ** 2


def _gaussian(name: str, covariance: np.ndarray) -> Exact:
    """Zero-mean Gaussian; its Mahalanobis square q (chi-squared) is the number most sensitive to errors."""
    d = len(covariance)
    precision, root, sd = (
        np.linalg.inv(covariance),
        np.linalg.cholesky(covariance),
        np.sqrt(np.diag(covariance)),
    )
    _, vectors = np.linalg.eigh(covariance)
    top, bottom = vectors[:, -1], vectors[:, 0]

    def q(x):
        return np.sum((x @ precision) * x, -1)

    functionals = {f"x{i}": (_x(i), 0.0) for i in (0, d - 1)}
    functionals |= {f"var x{i}": (_squared(_x(i)), float(sd[i] ** 2)) for i in (0, d - 1)}
    functionals |= {
        "cov": (lambda x: x[..., 0] * x[..., 1] / (sd[0] * sd[1]), float(covariance[0, 1] / (sd[0] * sd[1]))),
        "q": (q, float(d)),
        "q squared": (lambda x: q(x) ** 2, float(d * (d + 2))),
        "top": (lambda x: (x @ top) ** 2, float(top @ covariance @ top)),
        "bottom": (lambda x: (x @ bottom) ** 2, float(bottom @ covariance @ bottom)),
    }
    cdfs = {"q": (q, lambda v: stats.chi2.cdf(v, d))}
    cdfs |= {f"x{i}": (_x(i), lambda v, s=float(sd[i]): special.ndtr(v / s)) for i in (0, d - 1)}
    return Exact(
        name,
        lambda x: -0.5 * jnp.dot(x, jnp.asarray(precision, x.dtype) @ x),
        d,
        lambda rng, n: rng.standard_normal((n, d)) @ root.T,
        functionals,
        cdfs,
    )


def _rotation(d: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(20).standard_normal((d, d)))[0]


def _rotated(d: int) -> np.ndarray:
    turn = _rotation(d)
    covariance = (turn * np.logspace(-2, 0, d)) @ turn.T
    return 0.5 * (covariance + covariance.T)


def _independent(name, one, dim, law, *, moments=True, functionals=None, hard=False) -> Exact:
    """Independent coordinates of one scipy law; moments=False for heavy tails, where a z-test of x^2 lies."""
    quantiles = _below({p: law.ppf(p) for p in (0.05, 0.5, 0.95)})
    functionals = quantiles | (functionals or {})
    if moments:
        centre = float(law.mean())
        functionals["mean"] = (lambda x: x.mean(-1), centre)
        functionals["var"] = (lambda x: ((x - centre) ** 2).mean(-1), float(law.var()))
    return Exact(
        name,
        lambda x: jnp.sum(one(x)),
        dim,
        lambda rng, n: law.rvs(size=(n, dim), random_state=rng),
        functionals,
        {f"x{i}": (_x(i), law.cdf) for i in range(dim)},
        hard,
    )


def _mean_abs_t(nu: float) -> float:
    return float(2 * np.sqrt(nu) / ((nu - 1) * special.beta(nu / 2, 0.5)))


def _multivariate_t(d: int, nu: float) -> Exact:
    """||x||^2 / d has Fisher's law F(d, nu)."""

    def sample(rng, n):
        return rng.standard_normal((n, d)) / np.sqrt(rng.chisquare(nu, (n, 1)) / nu)

    def size(x):
        return np.sum(x**2, -1) / d

    return Exact(
        "student_t_multivariate",
        lambda x: -0.5 * (nu + d) * jnp.log1p(jnp.dot(x, x) / nu),
        d,
        sample,
        {
            "x0": (_x(0), 0.0),
            "|x0|": (lambda x: np.abs(x[..., 0]), _mean_abs_t(nu)),
            "P(size < 1)": (lambda x: size(x) < 1.0, float(stats.f.cdf(1.0, d, nu))),
            "P(size < 5)": (lambda x: size(x) < 5.0, float(stats.f.cdf(5.0, d, nu))),
        },
        {"size": (size, lambda v: stats.f.cdf(v, d, nu)), "x0": (_x(0), lambda v: stats.t.cdf(v, nu))},
    )


def _funnel(name: str, sd: float, ys: int, *, hard: bool) -> Exact:
    """Neal's funnel: v ~ N(0, sd^2), y_i | v ~ N(0, exp(v)). Moments of y are useless for tests."""
    v, weight = _normal_grid(sd)
    inside = float(np.sum(weight * (2 * special.ndtr(np.exp(-v / 2)) - 1)))

    def logdensity(x):
        v, y = x[0], x[1:]
        return -0.5 * (v / sd) ** 2 - 0.5 * jnp.exp(-v) * jnp.dot(y, y) - 0.5 * ys * v

    def sample(rng, n):
        v = sd * rng.standard_normal((n, 1))
        return np.concatenate([v, np.exp(v / 2) * rng.standard_normal((n, ys))], 1)

    return Exact(
        name,
        logdensity,
        1 + ys,
        sample,
        {
            "v": (_x(0), 0.0),
            "var v": (_squared(_x(0)), sd**2),
            "P(v < -sd)": (lambda x: x[..., 0] < -sd, float(special.ndtr(-1.0))),
            "P(v > sd)": (lambda x: x[..., 0] > sd, float(special.ndtr(-1.0))),
            "P(|y| < 1)": (lambda x: (np.abs(x[..., 1:]) < 1).mean(-1), inside),
            "log y^2": (lambda x: np.log(x[..., 1:] ** 2).mean(-1), float(special.digamma(0.5) + np.log(2))),
            "(y / sd y)^2": (lambda x: (x[..., 1:] ** 2 * np.exp(-x[..., :1])).mean(-1), 1.0),
        },
        {
            "v": (_x(0), lambda v: special.ndtr(v / sd)),
            "y / sd y": (lambda x: x[..., 1] * np.exp(-x[..., 0] / 2), special.ndtr),
        },
        hard,
    )


def _normal_grid(sd: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for means under N(0, sd^2); for smooth functions the trapezium rule is exact."""
    v = np.linspace(-12 * sd, 12 * sd, 20001)
    weight = np.exp(-0.5 * (v / sd) ** 2)
    return v, weight / weight.sum()


def _rosenbrock() -> Exact:
    """exp(-(x1 - 1)^2 / 20 - 5 (x2 - x1^2)^2): x1 ~ N(1, 10), x2 | x1 ~ N(x1^2, 0.1)."""

    def sample(rng, n):
        first = 1.0 + np.sqrt(10.0) * rng.standard_normal(n)
        return np.stack([first, first**2 + np.sqrt(0.1) * rng.standard_normal(n)], 1)

    def ridge(x):
        return (x[..., 1] - x[..., 0] ** 2) / np.sqrt(0.1)

    def along(v):
        return special.ndtr((v - 1.0) / np.sqrt(10.0))

    return Exact(
        "rosenbrock",
        lambda x: -((x[0] - 1.0) ** 2) / 20.0 - 5.0 * (x[1] - x[0] ** 2) ** 2,
        2,
        sample,
        {
            "x0": (_x(0), 1.0),
            "var x0": (_squared(_x(0), 1.0), 10.0),
            "x1": (_x(1), 11.0),
            "ridge": (ridge, 0.0),
            "ridge^2": (_squared(ridge), 1.0),
            "P(|x0| < 1)": (lambda x: np.abs(x[..., 0]) < 1, float(along(1.0) - along(-1.0))),
        },
        {"x0": (_x(0), along), "ridge": (ridge, special.ndtr)},
        hard=True,
    )


def _banana() -> Exact:
    """x1 ~ N(0, 100), x2 | x1 ~ N(0.03 (x1^2 - 100), 1)."""

    def bend(x):
        return x[..., 1] - 0.03 * (x[..., 0] ** 2 - 100.0)

    def sample(rng, n):
        first = 10.0 * rng.standard_normal(n)
        return np.stack([first, 0.03 * (first**2 - 100.0) + rng.standard_normal(n)], 1)

    return Exact(
        "banana",
        lambda x: -0.5 * (x[0] / 10.0) ** 2 - 0.5 * (x[1] - 0.03 * (x[0] ** 2 - 100.0)) ** 2,
        2,
        sample,
        {
            "x0": (_x(0), 0.0),
            "var x0": (_squared(_x(0)), 100.0),
            "x1": (_x(1), 0.0),
            "var x1": (_squared(_x(1)), 19.0),
            "bend^2": (_squared(bend), 1.0),
            "P(|x0| < 5)": (lambda x: np.abs(x[..., 0]) < 5, float(2 * special.ndtr(0.5) - 1)),
        },
        {"x0": (_x(0), lambda v: special.ndtr(v / 10.0)), "bend": (bend, special.ndtr)},
    )


def _bimodal() -> Exact:
    """0.3 N(-4, 1) + 0.7 N(4, 0.5^2): HMC does not cross, and its diagnostics ought to say so."""

    def cdf(v):
        return 0.3 * special.ndtr(v + 4.0) + 0.7 * special.ndtr((v - 4.0) / 0.5)

    def logdensity(x):
        left = jnp.log(0.3) - 0.5 * (x[0] + 4.0) ** 2
        right = jnp.log(1.4) - 0.5 * ((x[0] - 4.0) / 0.5) ** 2
        return jnp.logaddexp(left, right)

    def sample(rng, n):
        left = rng.random(n) < 0.3
        return np.where(left, -4.0, 4.0)[:, None] + np.where(left, 1.0, 0.5)[:, None] * rng.standard_normal(
            (n, 1)
        )

    return Exact(
        "bimodal",
        logdensity,
        1,
        sample,
        {
            "mean": (_x(0), 1.6),
            "var": (_squared(_x(0), 1.6), 13.915),
            "P(x < 0)": (lambda x: x[..., 0] < 0, float(cdf(0.0))),
        },
        {"x0": (_x(0), cdf)},
        hard=True,
    )


def _transformed(name, one, law, forward, backward) -> Exact:
    """One coordinate x = backward(value), value of a scipy law; the log density carries the Jacobian."""
    quantiles = _below({p: backward(law.ppf(p)) for p in (0.05, 0.5, 0.95)})
    return Exact(
        name,
        lambda x: one(x[0]),
        1,
        lambda rng, n: backward(law.rvs(size=(n, 1), random_state=rng)),
        quantiles
        | {
            "mean": (lambda x: forward(x[..., 0]), float(law.mean())),
            "var": (lambda x: (forward(x[..., 0]) - law.mean()) ** 2, float(law.var())),
        },
        {"x0": (_x(0), lambda x: law.cdf(forward(x)))},
    )


def _truncated_normal_on_1_3(x: jax.Array) -> jax.Array:
    value = 1.0 + 2.0 * jax.nn.sigmoid(x)
    return -0.5 * value**2 + jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x)


def _dirichlet() -> Exact:
    """Dirichlet(1, 2, 3) through two broken sticks: s1 ~ Beta(1, 5), s2 ~ Beta(2, 3), coordinates logit s."""
    a, b = np.array([1.0, 2.0]), np.array([5.0, 3.0])

    def simplex(x):
        s = special.expit(x)
        first, second = s[..., 0], (1 - s[..., 0]) * s[..., 1]
        return np.stack([first, second, 1 - first - second], -1)

    means = np.array([1.0, 2.0, 3.0]) / 6.0
    return Exact(
        "dirichlet",
        lambda x: jnp.sum(a * jax.nn.log_sigmoid(x) + b * jax.nn.log_sigmoid(-x)),
        2,
        lambda rng, n: special.logit(rng.beta(a, b, (n, 2))),
        {f"share {i}": (lambda x, i=i: simplex(x)[..., i], float(means[i])) for i in range(3)}
        | {
            "cov 0 1": (lambda x: np.prod(simplex(x)[..., :2] - means[:2], -1), -2.0 / 252.0),
            "log share 0": (
                lambda x: np.log(simplex(x)[..., 0]),
                float(special.digamma(1) - special.digamma(6)),
            ),
        },
        {
            "share 0": (lambda x: special.expit(x[..., 0]), lambda v: stats.beta.cdf(v, 1, 5)),
            "share 2": (lambda x: simplex(x)[..., 2], lambda v: stats.beta.cdf(v, 3, 3)),
        },
    )


def _ar1(d: int, rho: float) -> np.ndarray:
    return rho ** np.abs(np.subtract.outer(np.arange(d), np.arange(d))).astype(np.float64)


def _logistic_one(x: jax.Array) -> jax.Array:
    return jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x)


EXACT: dict[str, Exact] = {
    target.name: target
    for target in (
        _gaussian("gaussian", np.eye(5)),
        _gaussian("gaussian_scales", np.diag(np.logspace(-6, 0, 10))),
        _gaussian("gaussian_ar1", _ar1(20, 0.9)),
        _gaussian("gaussian_equicorrelated", 0.1 * np.eye(10) + 0.9),
        _gaussian("gaussian_rotated", _rotated(10)),
        _independent(
            "student_t",
            lambda x: -3.0 * jnp.log1p(x**2 / 5.0),
            2,
            stats.t(5),
            moments=False,
            functionals={"|x|": (lambda x: np.abs(x).mean(-1), _mean_abs_t(5.0))},
        ),
        _multivariate_t(4, 5.0),
        _independent("cauchy", lambda x: -jnp.log1p(x**2), 1, stats.cauchy(), moments=False, hard=True),
        _independent("log_exponential", lambda x: x - jnp.exp(x), 3, stats.loggamma(1.0)),
        _independent("logistic", _logistic_one, 3, stats.logistic()),
        _independent("laplace", lambda x: -jnp.abs(x), 3, stats.laplace()),
        _funnel("funnel_mild", 1.0, 4, hard=False),
        _funnel("funnel", 3.0, 9, hard=True),
        _rosenbrock(),
        _banana(),
        _bimodal(),
        _transformed("half_normal", lambda x: -0.5 * jnp.exp(2 * x) + x, stats.halfnorm(), np.exp, np.log),
        _transformed(
            "gamma", lambda x: 3.0 * x - 2.0 * jnp.exp(x), stats.gamma(3.0, scale=0.5), np.exp, np.log
        ),
        _transformed(
            "beta",
            lambda x: 2.0 * jax.nn.log_sigmoid(x) + 3.0 * jax.nn.log_sigmoid(-x),
            stats.beta(2.0, 3.0),
            special.expit,
            special.logit,
        ),
        _transformed(
            "truncated_normal",
            _truncated_normal_on_1_3,
            stats.truncnorm(1.0, 3.0),
            lambda x: 1.0 + 2.0 * special.expit(x),
            lambda v: special.logit((v - 1.0) / 2.0),
        ),
        _dirichlet(),
    )
}
