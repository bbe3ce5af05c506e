"""NumPyro models of reference posteriors: real data, known answers.

A case knows its model, how a reference file's data become the model's arguments, and how draws become the
reference's parameters:

    case = CASES["arK"]
    data = case.load(reference["data"])
    ... draw from case.model(**data) ...
    assert not compare(reference, case.report(posterior))

A reference is a dict with the keys data and parameters; zoo_figures.py carries a few, a folder of JSON
files the rest. The densities are those of the references, term by term; constants in the parameters may
differ. Nothing here draws.

Every case but one gives the reference in float32 too; needs_x64 marks the one that cannot.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from zoo_figures import FIGURES


@dataclass(frozen=True)
class Case:
    """A posterior with a reference.

    Attributes:
        name: of the case; the reference's own, with a suffix for another parametrisation of it.
        model: NumPyro model, called as model(**data).
        load: reference["data"] -> data, a dict of NumPy arrays, floats and (static) ints.
        names: the sites that the reference reports.
        reference: the reference's name.
        hard: plain NUTS at target acceptance 0.8 is known to struggle; a failure informs, it does not accuse.
        needs_x64: the density cannot be computed in float32.
        note: what to expect.
    """

    name: str
    model: Callable[..., None]
    load: Callable[[Mapping[str, Any]], dict[str, Any]]
    names: tuple[str, ...]
    reference: str
    hard: bool = False
    needs_x64: bool = False
    note: str = ""

    def report(self, posterior: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Draws of the reference's parameters, (chain, draw, ...), float64."""
        return {k: np.asarray(posterior[k], np.float64) for k in self.names}


def _flat(dim: int) -> dist.Distribution:
    return dist.ImproperUniform(constraints.real_vector, (), (dim,))


def _flat_scale() -> dist.Distribution:
    return dist.ImproperUniform(constraints.positive, (), ())


def _array(values: Any) -> np.ndarray:
    return np.asarray(values, np.float64)


# Hierarchical ------------------------------------------------------------------------------------


def eight_schools_centered(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", y.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_noncentered(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", y.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def _load_eight_schools(data):
    return {"y": _array(data["y"]), "sigma": _array(data["sigma"])}


def radon(county, log_uranium, floor, floor_by_county, log_radon, n_counties):
    mean = numpyro.sample("county_effect_mean", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("county_effect_scale", dist.HalfNormal(1.0))
    noise = numpyro.sample("log_radon_scale", dist.HalfNormal(1.0))
    weight = numpyro.sample("weight", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("county", n_counties):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        effect = numpyro.deterministic("county_effect", mean + scale * z)
    location = effect[county] + weight[0] * log_uranium + weight[1] * floor + weight[2] * floor_by_county
    with numpyro.plate("house", log_radon.shape[0]):
        numpyro.sample("log_radon", dist.Normal(location, noise), obs=log_radon)


def _load_radon(data):
    county, floor = np.asarray(data["county"], np.int32), _array(data["floor"])
    houses = np.bincount(county, minlength=data["num_counties"])
    by_county = np.bincount(county, weights=floor, minlength=data["num_counties"]) / houses
    return {
        "county": county,
        "log_uranium": _array(data["log_uranium"]),
        "floor": floor,
        "floor_by_county": by_county[county],
        "log_radon": _array(data["log_radon"]),
        "n_counties": int(data["num_counties"]),
    }


# Linear and logistic regression ------------------------------------------------------------------


def linear_flat(X, y):
    beta = numpyro.sample("beta", _flat(X.shape[1]))
    sigma = numpyro.sample("sigma", _flat_scale())
    numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def linear_flat_qr(Q, R_inverse, y):
    # beta is flat and beta = R_inverse b is linear: b is flat as well, the posterior of beta the same.
    b = numpyro.sample("b", _flat(Q.shape[1]))
    numpyro.deterministic("beta", R_inverse @ b)
    sigma = numpyro.sample("sigma", _flat_scale())
    numpyro.sample("y", dist.Normal(Q @ b, sigma), obs=y)


def linear_cauchy(X, y):
    beta = numpyro.sample("beta", _flat(X.shape[1]))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def linear_cauchy_qr(Q, R_inverse, y):
    b = numpyro.sample("b", _flat(Q.shape[1]))
    numpyro.deterministic("beta", R_inverse @ b)
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    numpyro.sample("y", dist.Normal(Q @ b, sigma), obs=y)


def sblri(X, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10.0))
    numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def kilpisjarvi(x, y, alpha_mean, alpha_sd, beta_mean, beta_sd):
    alpha = numpyro.sample("alpha", dist.Normal(alpha_mean, alpha_sd))
    beta = numpyro.sample("beta", dist.Normal(beta_mean, beta_sd))
    sigma = numpyro.sample("sigma", _flat_scale())
    numpyro.sample("y", dist.Normal(alpha + beta * x, sigma), obs=y)


def kilpisjarvi_centred(u, y, x_mean, x_sd, alpha_mean, alpha_sd, beta_mean, beta_sd):
    # (level, slope) -> (alpha, beta) is linear, its determinant constant: the priors enter as they are.
    level = numpyro.sample("level", dist.ImproperUniform(constraints.real, (), ()))
    slope = numpyro.sample("slope", dist.ImproperUniform(constraints.real, (), ()))
    beta = numpyro.deterministic("beta", slope / x_sd)
    alpha = numpyro.deterministic("alpha", level - beta * x_mean)
    numpyro.factor("alpha_prior", dist.Normal(alpha_mean, alpha_sd).log_prob(alpha))
    numpyro.factor("beta_prior", dist.Normal(beta_mean, beta_sd).log_prob(beta))
    sigma = numpyro.sample("sigma", _flat_scale())
    numpyro.sample("y", dist.Normal(level + slope * u, sigma), obs=y)


def autoregression(lags, y):
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([lags.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    numpyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y)


def nes_logit(income, vote):
    alpha = numpyro.sample("alpha", dist.ImproperUniform(constraints.real, (), ()))
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real, (), ()))
    numpyro.sample("vote", dist.Bernoulli(logits=alpha + beta * income), obs=vote)


def german_credit(X, y):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ weights), obs=y)


def dogs(avoided, shocked, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 100.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=beta[0] + beta[1] * avoided + beta[2] * shocked), obs=y)


def _design_kidscore(data):
    hs, iq = _array(data["mom_hs"]), _array(data["mom_iq"])
    return np.stack([np.ones_like(hs), hs, iq, hs * iq], 1), _array(data["kid_score"])


def _design_logearn(data):
    height, male = _array(data["height"]), _array(data["male"])
    return np.stack([np.ones_like(height), height, male], 1), np.log(_array(data["earn"]))


def _design_logmesquite(data):
    d1, d2, canopy = _array(data["diam1"]), _array(data["diam2"]), _array(data["canopy_height"])
    columns = [
        np.ones_like(d1),
        np.log(d1 * d2 * canopy),
        np.log(d1 * d2),
        np.log(d1 / d2),
        np.log(_array(data["total_height"])),
        np.log(_array(data["density"])),
        _array(data["group"]),
    ]
    return np.stack(columns, 1), np.log(_array(data["weight"]))


def _design_nes(data):
    age = np.asarray(data["age_discrete"])
    columns = [np.ones(len(age)), data["real_ideo"], data["race_adj"]]
    columns += [age == 2, age == 3, age == 4, data["educ1"], data["gender"], data["income"]]
    return np.stack([_array(c) for c in columns], 1), _array(data["partyid7"])


def _load_design(design):
    return lambda data: dict(zip(("X", "y"), design(data), strict=True))


def _load_qr(design):
    def load(data):
        X, y = design(data)
        Q, R = np.linalg.qr(X)
        root = np.sqrt(len(y))  # columns of Q of size one, so that b and sigma are of one order
        return {"Q": Q * root, "R_inverse": np.linalg.inv(R) * root, "y": y}

    return load


def _load_sblri(data):
    return {"X": _array(data["X"]), "y": _array(data["y"])}


def _load_kilpisjarvi(data):
    prior = {"alpha_mean": "pmualpha", "alpha_sd": "psalpha", "beta_mean": "pmubeta", "beta_sd": "psbeta"}
    return {"x": _array(data["x"]), "y": _array(data["y"])} | {k: float(data[v]) for k, v in prior.items()}


def _load_kilpisjarvi_centred(data):
    loaded = _load_kilpisjarvi(data)
    x = loaded.pop("x")
    return loaded | {"u": (x - x.mean()) / x.std(), "x_mean": float(x.mean()), "x_sd": float(x.std())}


def _load_autoregression(data):
    y, order = _array(data["y"]), data["K"]
    return {"lags": np.stack([y[order - k : len(y) - k] for k in range(1, order + 1)], 1), "y": y[order:]}


def _load_nes_logit(data):
    return {"income": _array(data["income"]), "vote": np.asarray(data["vote"], np.int32)}


def _load_german_credit(data):
    raw = _array(data["features"])
    X = np.concatenate([(raw - raw.mean(0)) / raw.std(0), np.ones((len(raw), 1))], 1)
    return {"X": X, "y": np.asarray(data["label"], np.int32)}


def _load_dogs(data):
    y = np.asarray(data["y"], np.int32)
    shocked = np.cumsum(y, 1) - y
    return {"avoided": _array(np.arange(y.shape[1]) - shocked), "shocked": _array(shocked), "y": y}


# Time series -------------------------------------------------------------------------------------


def brownian_unknown_scales(observed, times, n_times):
    innovation = numpyro.sample("innovation_noise_scale", dist.LogNormal(0.0, 2.0))
    noise = numpyro.sample("observation_noise_scale", dist.LogNormal(0.0, 2.0))
    locs = numpyro.sample("locs", dist.GaussianRandomWalk(innovation, num_steps=n_times))
    numpyro.sample("observed", dist.Normal(locs[times], noise), obs=observed)


def _load_brownian(data):
    times = [t for t, value in enumerate(data["observed_locs"]) if value is not None]
    observed = [data["observed_locs"][t] for t in times]
    return {
        "observed": _array(observed),
        "times": np.asarray(times, np.int32),
        "n_times": len(data["observed_locs"]),
    }


def garch11(y, first_sd):
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
    alpha0 = numpyro.sample("alpha0", _flat_scale())
    alpha1 = numpyro.sample("alpha1", dist.Uniform(0.0, 1.0))
    # The prior is flat over the triangle; Uniform divides by its length, which is taken back.
    beta1 = numpyro.sample("beta1", dist.Uniform(0.0, 1.0 - alpha1))
    numpyro.factor("flat_triangle", jnp.log1p(-alpha1))

    def step(variance, shock):
        new = alpha0 + alpha1 * shock + beta1 * variance
        return new, new

    first = jnp.asarray(first_sd**2, alpha0.dtype)
    _, rest = jax.lax.scan(step, first, (y[:-1] - mu) ** 2)
    sd = jnp.sqrt(jnp.concatenate([first[None], rest]))
    numpyro.sample("y", dist.Normal(mu, sd), obs=y)


def _load_garch(data):
    return {"y": _array(data["y"]), "first_sd": float(data["sigma1"])}


def hmm_example(y):
    theta1 = numpyro.sample("theta1", dist.Dirichlet(jnp.ones(2)))
    theta2 = numpyro.sample("theta2", dist.Dirichlet(jnp.ones(2)))
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.positive_ordered_vector, (), (2,)))
    numpyro.factor("mu_prior", dist.Normal(jnp.array([3.0, 10.0]), 1.0).log_prob(mu).sum())
    log_theta = jnp.log(jnp.stack([theta1, theta2]))
    emission = dist.Normal(mu, 1.0).log_prob(y[:, None])

    def forward(log_a, log_p):
        return log_p + jax.nn.logsumexp(log_a[:, None] + log_theta, axis=0), None

    log_a, _ = jax.lax.scan(forward, emission[0], emission[1:])
    numpyro.factor("likelihood", jax.nn.logsumexp(log_a))


def _load_y(data):
    return {"y": _array(data["y"])}


def log_lotka_volterra(theta, log_start, spans, substeps=12):
    """Logarithms of prey and predator after each span of time, by RK4 with fixed steps of the logarithms.

    The logarithms keep both positive, and their equations are milder:
    (log u)' = t1 - t2 v, (log v)' = -t3 + t4 u.

    Args:
        theta: the four rates, all positive.
        log_start: logarithms of the state at time 0, shape (2,).
        spans: lengths of the intervals between the times wanted, shape (n,).
        substeps: RK4 steps in each span.

    Returns:
        Logarithms of the states, shape (n, 2).
    """
    theta, log_start = jnp.asarray(theta), jnp.asarray(log_start)
    growth = jnp.stack([theta[0], -theta[2]])
    coupling = jnp.stack([-theta[1], theta[3]])

    def slope(q):
        return growth + coupling * jnp.exp(q[::-1])

    def rk4(q, h):
        k1 = slope(q)
        k2 = slope(q + 0.5 * h * k1)
        k3 = slope(q + 0.5 * h * k2)
        k4 = slope(q + h * k3)
        q = q + h / 6.0 * (k1 + 2.0 * (k2 + k3) + k4)
        return q, q

    # One flat loop: unrolled steps in a row make XLA's CPU compiler run out of memory.
    steps = jnp.repeat(jnp.asarray(spans, log_start.dtype) / substeps, substeps)
    return jax.lax.scan(rk4, log_start, steps)[1][substeps - 1 :: substeps]


def lotka_volterra(spans, y_init, y):
    rates = dist.TruncatedNormal(
        jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05]), low=0.0
    )
    theta = numpyro.sample("theta", rates.to_event(1))
    z_init = numpyro.sample("z_init", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    log_start = jnp.log(z_init)
    numpyro.sample("y_init", dist.LogNormal(log_start, sigma), obs=y_init)
    numpyro.sample("y", dist.LogNormal(log_lotka_volterra(theta, log_start, spans), sigma), obs=y)


def _load_lotka_volterra(data):
    spans = np.diff(_array(data["ts"]), prepend=0.0)
    return {"spans": spans, "y_init": _array(data["y_init"]), "y": _array(data["y"])}


# Other -------------------------------------------------------------------------------------------


def gp_pois_regr(x, k):
    rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[0]]).to_event(1))
    covariance = alpha**2 * jnp.exp(-0.5 * ((x[:, None] - x) / rho) ** 2) + 1e-10 * jnp.eye(x.shape[0])
    f = numpyro.deterministic("f", jnp.linalg.cholesky(covariance) @ z)
    numpyro.sample("k", dist.Poisson(jnp.exp(f)), obs=k)


def _load_gp(data):
    return {"x": _array(data["x"]), "k": np.asarray(data["k"], np.int32)}


def low_dim_gauss_mix(y):
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    numpyro.factor("mu_prior", dist.Normal(0.0, 2.0).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    weights = dist.Categorical(probs=jnp.stack([theta, 1.0 - theta]))
    numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)


# The cases ---------------------------------------------------------------------------------------

_SCHOOLS = ("theta", "mu", "tau")
_LINEAR = ("beta", "sigma")
_KILPISJARVI = ("alpha", "beta", "sigma")
_RADON = ("county_effect_scale", "log_radon_scale", "weight", "county_effect", "county_effect_mean")
_BROWNIAN = ("innovation_noise_scale", "observation_noise_scale", "locs")


def _case(name, model, load, names, *, variant="", **flags) -> Case:
    return Case(name + variant, model, load, names, reference=name, **flags)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        _case("eight_schools_noncentered", eight_schools_noncentered, _load_eight_schools, _SCHOOLS),
        _case(
            "eight_schools_centered",
            eight_schools_centered,
            _load_eight_schools,
            _SCHOOLS,
            hard=True,
            note="a funnel: divergences, low ESS of tau",
        ),
        _case("arK", autoregression, _load_autoregression, ("alpha", "beta", "sigma")),
        _case("dogs", dogs, _load_dogs, ("beta",)),
        _case("nes_logit", nes_logit, _load_nes_logit, ("alpha", "beta")),
        _case("logmesquite_logvas", linear_flat, _load_design(_design_logmesquite), _LINEAR),
        _case("logmesquite_logvas", linear_flat_qr, _load_qr(_design_logmesquite), _LINEAR, variant="_qr"),
        _case(
            "sblri",
            sblri,
            _load_sblri,
            _LINEAR,
            note="float32 resolves beta to 1e-4 of its sd; starts have |log density| 1e5 to 1e8, rounded to 32",
        ),
        _case("nes1980", linear_flat, _load_design(_design_nes), _LINEAR),
        _case("nes1980", linear_flat_qr, _load_qr(_design_nes), _LINEAR, variant="_qr"),
        _case(
            "kidscore_interaction",
            linear_cauchy,
            _load_design(_design_kidscore),
            _LINEAR,
            note="correlations near 1: 90 leapfrogs a draw with a diagonal metric; float32 holds",
        ),
        _case("kidscore_interaction", linear_cauchy_qr, _load_qr(_design_kidscore), _LINEAR, variant="_qr"),
        _case(
            "logearn_height_male",
            linear_flat,
            _load_design(_design_logearn),
            _LINEAR,
            note="correlations near 1: 100 leapfrogs a draw with a diagonal metric; float32 holds",
        ),
        _case("logearn_height_male", linear_flat_qr, _load_qr(_design_logearn), _LINEAR, variant="_qr"),
        _case(
            "kilpisjarvi",
            kilpisjarvi,
            _load_kilpisjarvi,
            _KILPISJARVI,
            note="correlation -1: 500 leapfrogs a draw with a diagonal metric; float32 holds",
        ),
        _case(
            "kilpisjarvi", kilpisjarvi_centred, _load_kilpisjarvi_centred, _KILPISJARVI, variant="_centred"
        ),
        _case("german_credit_logistic", german_credit, _load_german_credit, ("weights",)),
        _case("radon_mn_contextual", radon, _load_radon, _RADON, note="non-centred"),
        _case(
            "brownian_unknown_scales",
            brownian_unknown_scales,
            _load_brownian,
            _BROWNIAN,
            note="funnel in both scales; 1,000 draws of 4 chains give an ESS of 300 only",
        ),
        _case(
            "garch11",
            garch11,
            _load_garch,
            ("mu", "alpha0", "alpha1", "beta1"),
            note="the support of beta1 depends on alpha1",
        ),
        _case(
            "hmm_example",
            hmm_example,
            _load_y,
            ("theta1", "theta2", "mu"),
            note="the likelihood is a factor: no observed site",
        ),
        _case(
            "lotka_volterra",
            lotka_volterra,
            _load_lotka_volterra,
            ("theta", "z_init", "sigma"),
            note="dear; a chain may need 500 warm-up draws to leave a poor region",
        ),
        _case(
            "gp_pois_regr",
            gp_pois_regr,
            _load_gp,
            ("rho", "alpha", "f"),
            needs_x64=True,
            note="in float32 the Cholesky factor is NaN for many rho above 5; 240 leapfrogs a draw",
        ),
        _case(
            "low_dim_gauss_mix",
            low_dim_gauss_mix,
            _load_y,
            ("mu", "sigma", "theta"),
            note="ordered means: one mode",
        ),
    )
}


def references() -> dict[str, dict[str, Any]]:
    """References by name: those of zoo_figures.py, and the JSON files of shared/posteriors where it is there."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "posteriors"
    return FIGURES | {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


# Judging -----------------------------------------------------------------------------------------


def compare(
    reference: Mapping[str, Any],
    draws: Mapping[str, np.ndarray],
    *,
    z_max: float = 5.0,
    sd_range: tuple[float, float] = (0.85, 1.15),
    min_ess: float = 200.0,
) -> dict[str, str]:
    """What disagrees with the reference: parameter -> why; empty when all agree.

    A mean may be off by z_max standard errors of both sides: for a correct sampler, a false alarm of 6e-7 a
    parameter at 5. The sd may leave its range by three of its own standard errors. Too small an effective
    sample is reported too: a stuck chain must not pass on its huge error.

    Args:
        reference: dict with parameters, name[i,j] -> {mean, sd, mcse_mean, exact_mean, exact_sd, ...};
            exact figures win. Indices from 1.
        draws: what Case.report gives, (chain, draw, ...).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz as az

    wrong = {}
    for name, known in reference["parameters"].items():
        site, _, index = name.partition("[")
        at = tuple(int(i) - 1 for i in index[:-1].split(",")) if index else ()
        x = np.asarray(draws[site], np.float64)[(slice(None), slice(None), *at)]
        if not np.isfinite(x).all():
            wrong[name] = "not finite"
            continue
        exact = known.get("exact_mean") is not None
        mean, sd = (known["exact_mean"], known["exact_sd"]) if exact else (known["mean"], known["sd"])
        ess = float(az.ess(x, method="mean"))
        z = (x.mean() - mean) / np.hypot(x.std() / np.sqrt(ess), 0.0 if exact else known["mcse_mean"])
        ratio, slack = x.std() / sd, 3.0 * float(az.mcse(x, method="sd")) / sd
        if not ess >= min_ess:
            wrong[name] = f"effective sample of {ess:.0f}"
        elif abs(z) > z_max:
            wrong[name] = f"mean {x.mean():.5g}, reference {mean:.5g}: {z:.1f} standard errors"
        elif not sd_range[0] - slack < ratio < sd_range[1] + slack:
            wrong[name] = f"sd is {ratio:.3f} times the reference's"
    return wrong
