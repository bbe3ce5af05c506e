"""The zoo itself: samplers, densities and written answers of its targets agree with each other.

Seeds are fixed, so no test here flickers; the false-alarm rates say how surprising a failure under another
seed would be.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model, log_density, potential_energy, unconstrain_fn
from zoo_exact import CONSTRAINED, EXACT, ks_pvalues, p_bound, z_bound, z_scores
from zoo_figures import FIGURES
from zoo_posteriors import CASES, compare, log_lotka_volterra, references
from zoo_speed import SPEED

ALPHA = 1e-6  # false alarm of one target's whole set of comparisons
N = 20_000


def stein(score, x):
    """z-scores of Stein's identity, E[f' + f score] = 0 for f = 1, x and a wave, in each coordinate."""
    scale = np.quantile(x, 0.75, axis=0) - np.quantile(x, 0.25, axis=0)
    out = {}
    for i, s in enumerate(scale):
        wave = x[:, i] / s + 1.0
        out[f"one {i}"] = score[:, i]
        out[f"linear {i}"] = 1.0 + x[:, i] * score[:, i]
        out[f"wave {i}"] = np.cos(wave) / s + np.sin(wave) * score[:, i]
    return {k: float(v.mean() / (v.std() / np.sqrt(len(v)))) for k, v in out.items()}


@pytest.mark.parametrize("name", EXACT)
def test_exact_sampler_gives_the_written_answers(name):
    target = EXACT[name]
    x = target.sample(np.random.default_rng(1), N)
    assert x.shape == (N, target.dim)
    z, p = z_scores(target.functionals, x[:, None]), ks_pvalues(target.cdfs, x)
    assert max(map(abs, z.values())) < z_bound(len(z), ALPHA), z
    assert min(p.values()) > p_bound(len(p), ALPHA), p


@pytest.mark.parametrize("name", EXACT)
def test_exact_density_is_that_of_the_sampler(name):
    target = EXACT[name]
    x = target.sample(np.random.default_rng(2), N)
    with jax.enable_x64(True):
        score = np.asarray(jax.jit(jax.vmap(jax.grad(target.logdensity)))(jnp.asarray(x)))
    z = stein(score, x)
    assert max(map(abs, z.values())) < z_bound(len(z), ALPHA), z


@pytest.mark.parametrize("name", CONSTRAINED)
def test_constrained_sampler_gives_the_written_answers(name):
    case = CONSTRAINED[name]
    sites = case.sample(np.random.default_rng(3), N)
    z = z_scores(case.functionals, {k: v[:, None] for k, v in sites.items()})
    p = ks_pvalues(case.cdfs, sites)
    assert max(map(abs, z.values())) < z_bound(len(z), ALPHA), z
    assert min(p.values()) > p_bound(len(p), ALPHA), p


@pytest.mark.parametrize("name", CONSTRAINED)
def test_constrained_model_is_that_of_the_sampler(name):
    case = CONSTRAINED[name]
    sites = case.sample(np.random.default_rng(4), N)
    with jax.enable_x64(True):

        @jax.jit
        @jax.vmap
        def moved(sites):
            x, unravel = ravel_pytree(unconstrain_fn(case.model, (), {}, sites))
            return x, jax.grad(lambda x: -potential_energy(case.model, (), {}, unravel(x)))(x)

        x, score = map(np.asarray, moved({k: jnp.asarray(v, jnp.float64) for k, v in sites.items()}))
    z = stein(score, x)
    assert max(map(abs, z.values())) < z_bound(len(z), ALPHA), z


def test_the_oracle_finds_small_faults():
    target = EXACT["gaussian_ar1"]
    x = target.sample(np.random.default_rng(5), N)
    bound = z_bound(len(target.functionals), ALPHA)
    assert abs(z_scores(target.functionals, 1.02 * x[:, None])["q"]) > bound  # 2 % too wide: a step size bias
    assert abs(z_scores(target.functionals, x[:, None] + 0.05)["x0"]) > bound
    assert ks_pvalues(target.cdfs, x + 0.05)["x0"] < p_bound(len(target.cdfs), ALPHA)
    # a density that forgets its Jacobian
    half_normal = EXACT["half_normal"].sample(np.random.default_rng(6), N)
    forgot = stein(1.0 - np.exp(2 * half_normal) - 1.0, half_normal)
    assert max(map(abs, forgot.values())) > z_bound(len(forgot), ALPHA)


def test_z_scores_judge_by_the_spread_between_chains():
    """1,000 sets of 8 sticky chains with the right law; errors of independent draws would be far too small."""
    rng = np.random.default_rng(7)
    means = rng.standard_normal((1000, 8, 1, 1))  # each chain sits near one point of N(0, 1) all along
    draws = means + 0.01 * rng.standard_normal((1000, 8, 50, 1))
    z = np.array([z_scores({"x": (lambda x: x[..., 0], 0.0)}, d)["x"] for d in draws])
    assert np.mean(np.abs(z) > 3.29) < 0.008  # 8 or more of 1,000 by chance: 1e-5
    assert np.mean(np.abs(z) > 1.96) > 0.025  # and not timid either; 50 are expected
    frozen = np.zeros((8, 50, 1))
    assert z_scores({"x": (lambda x: x[..., 0], 0.0)}, frozen)["x"] == np.inf
    with pytest.raises(ValueError, match="needs 8"):
        z_scores({}, np.zeros((4, 50, 1)))


# Posteriors --------------------------------------------------------------------------------------------------


def _row(*values):
    return np.array(values)


# Sites in constrained space, and the log densities there (prior and likelihood, no Jacobian), computed in
# float64 by code that shares nothing with the models: loops over the data with SciPy's densities, and an
# adaptive Runge-Kutta at tolerance 1e-11.
POINTS = {
    "eight_schools_noncentered": {"mu": 4.0, "tau": 3.0, "z": np.linspace(-1, 1, 8)},
    "eight_schools_centered": {"mu": 4.0, "tau": 3.0, "theta": np.linspace(1, 7, 8)},
    "arK": {"alpha": 0.01, "beta": _row(0.7, 0.4, 0.1, -0.1, -0.2), "sigma": 0.16},
    "dogs": {"beta": _row(2.0, -0.4, -0.2)},
    "nes_logit": {"alpha": -1.4, "beta": 0.3},
    "logmesquite_logvas": {"beta": _row(4.8, 0.2, 1.1, 0.4, 0.4, 0.1, -0.5), "sigma": 0.35},
    "sblri": {"beta": _row(1.0, 1.001, 0.999, 1.0, 1.0), "sigma": 1.1},
    "nes1980": {"beta": _row(1.5, 0.6, -1.2, -0.2, -0.1, 0.5, 0.3, 0.0, 0.2), "sigma": 1.9},
    "kidscore_interaction": {"beta": _row(-10.0, 50.0, 0.95, -0.5), "sigma": 18.0},
    "logearn_height_male": {"beta": _row(7.0, 0.04, 0.3), "sigma": 0.9},
    "kilpisjarvi": {"alpha": -58.0, "beta": 0.017, "sigma": 1.15},
    "german_credit_logistic": {"weights": np.linspace(-0.6, 0.4, 25)},
    "radon_mn_contextual": {
        "county_effect_mean": 1.4,
        "county_effect_scale": 0.2,
        "log_radon_scale": 0.8,
        "weight": _row(0.7, -0.6, 0.3),
        "z": np.linspace(-2, 2, 85),
    },
    "brownian_unknown_scales": {
        "innovation_noise_scale": 0.1,
        "observation_noise_scale": 0.15,
        "locs": 0.3 * np.sin(np.arange(30) / 5),
    },
    "garch11": {"mu": 5.0, "alpha0": 1.4, "alpha1": 0.5, "beta1": 0.3},
    "hmm_example": {"theta1": _row(0.7, 0.3), "theta2": _row(0.1, 0.9), "mu": _row(3.1, 8.8)},
    "lotka_volterra": {
        "theta": _row(0.55, 0.028, 0.8, 0.024),
        "z_init": _row(33.0, 6.0),
        "sigma": _row(0.25, 0.3),
    },
    "gp_pois_regr": {"rho": 6.0, "alpha": 3.0, "z": np.linspace(1, -1, 11)},
    "low_dim_gauss_mix": {"mu": _row(-2.7, 2.9), "sigma": _row(1.0, 1.1), "theta": 0.6},
}

LOG_DENSITIES = {
    "eight_schools_noncentered": -44.52375114,
    "eight_schools_centered": -53.31264945,
    "arK": 73.19667687,
    "dogs": -301.56799543,
    "nes_logit": -779.44239175,
    "logmesquite_logvas": -51.39658399,
    "sblri": -158.35670270,
    "nes1980": -1439.61410094,
    "kidscore_interaction": -1878.86577614,
    "logearn_height_male": -1547.33935734,
    "kilpisjarvi": -100.53777749,
    "german_credit_logistic": -1035.15281785,
    "radon_mn_contextual": -1267.00457357,
    "brownian_unknown_scales": -41.82551331,
    "garch11": -447.44039049,
    "hmm_example": -167.61587285,
    "lotka_volterra": -129.34998099,
    "gp_pois_regr": -670.14392455,
    "low_dim_gauss_mix": -2106.96961894,
}


def _model_density(case, data, point):
    with jax.enable_x64(True):
        sites = {k: np.asarray(v, np.float64) for k, v in point.items()}
        return float(jax.jit(lambda sites: log_density(case.model, (), data, sites)[0])(sites))


@pytest.mark.parametrize("name", FIGURES)
def test_log_density_equals_an_independent_computation(name):
    case = CASES[name]
    got = _model_density(case, case.load(FIGURES[name]["data"]), POINTS[name])
    assert got == pytest.approx(LOG_DENSITIES[name], abs=2e-5)


@pytest.mark.parametrize("name", sorted(set(LOG_DENSITIES) - set(FIGURES)))
def test_log_density_of_the_larger_references(name):
    everything = references()
    case = CASES[name]
    if case.reference not in everything:
        pytest.skip("needs the folder of references beside the repository")
    got = _model_density(case, case.load(everything[case.reference]["data"]), POINTS[name])
    assert got == pytest.approx(LOG_DENSITIES[name], abs=2e-5)


def _raw_regression_data(rng, n=40):
    iq = rng.normal(100, 15, n)
    hs = rng.integers(0, 2, n)
    return {
        "mom_iq": iq,
        "mom_hs": hs,
        "kid_score": rng.normal(85, 20, n),
        "height": rng.normal(66, 4, n),
        "male": hs,
        "earn": np.exp(rng.normal(10, 1, n)),
        "x": np.arange(4000.0, 4000.0 + n),
        "y": rng.normal(9, 1, n),
        "pmualpha": 9.3,
        "psalpha": 100,
        "pmubeta": 0,
        "psbeta": 1 / 30,
    }


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("kidscore_interaction", "kidscore_interaction_qr"),
        ("logearn_height_male", "logearn_height_male_qr"),
        ("kilpisjarvi", "kilpisjarvi_centred"),
    ],
)
def test_a_change_of_parameters_keeps_the_posterior(name, variant):
    rng = np.random.default_rng(8)
    raw = _raw_regression_data(rng)
    plain, changed = CASES[name], CASES[variant]
    data, changed_data = plain.load(raw), changed.load(raw)
    gaps = []
    for _ in range(3):
        if variant.endswith("_qr"):
            new = {"b": rng.standard_normal(changed_data["Q"].shape[1]) + 3.0}
            old = {"beta": changed_data["R_inverse"] @ new["b"]}
        else:
            new = {"level": 9.0 + rng.standard_normal(), "slope": rng.standard_normal()}
            beta = new["slope"] / changed_data["x_sd"]
            old = {"alpha": new["level"] - beta * changed_data["x_mean"], "beta": beta}
        sigma = {"sigma": 1.0 + rng.random()}
        gaps.append(
            _model_density(changed, changed_data, new | sigma) - _model_density(plain, data, old | sigma)
        )
    assert np.ptp(gaps) < 1e-6  # the determinant is constant


def test_lotka_volterra_steps_are_small_enough():
    theta, start = np.array([0.55, 0.028, 0.8, 0.024]), np.log([33.0, 6.0])
    with jax.enable_x64(True):
        coarse = log_lotka_volterra(theta, start, np.ones(20))
        fine = log_lotka_volterra(theta, start, np.ones(20), substeps=96)
    assert np.abs(np.asarray(coarse) - np.asarray(fine)).max() < 2e-5


def test_compare_finds_what_is_wrong():
    reference = FIGURES["dogs"]
    rng = np.random.default_rng(9)
    mean, sd = (
        np.array([reference["parameters"][f"beta[{i}]"][f"exact_{what}"] for i in (1, 2, 3)])
        for what in ("mean", "sd")
    )
    good = mean + sd * rng.standard_normal((4, 1000, 3))
    assert compare(reference, {"beta": good}) == {}
    assert "beta[2]" in compare(reference, {"beta": good + sd * np.array([0.0, 0.15, 0.0])})
    assert set(compare(reference, {"beta": mean + 1.5 * (good - mean)})) == {"beta[1]", "beta[2]", "beta[3]"}
    stuck = good.copy()
    stuck[0, :, 1] = mean[1] + 3 * sd[1]
    assert "effective" in compare(reference, {"beta": stuck})["beta[2]"]
    broken = good.copy()
    broken[0, 0, 0] = np.nan
    assert compare(reference, {"beta": broken}) == {"beta[1]": "not finite"}


# Speed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPEED)
def test_speed_models(name):
    speed = SPEED[name]
    data, fresh = speed.data(0), speed.data(1)
    assert {k: np.shape(v) for k, v in data.items()} == {k: np.shape(v) for k, v in fresh.items()}
    assert all(np.asarray(v).dtype == np.asarray(fresh[k]).dtype for k, v in data.items())
    shapes = jax.eval_shape(
        lambda key: initialize_model(key, speed.model, model_kwargs=data).param_info.z, jax.random.key(0)
    )
    rng = np.random.default_rng(10)
    sites = {k: (0.3 * rng.standard_normal((2, *v.shape))).astype(np.float32) for k, v in shapes.items()}
    assert sum(v[0].size for v in sites.values()) == speed.dim

    def posterior(sites):
        return -potential_energy(speed.model, (), data, sites)

    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(posterior)))(sites)
    assert np.isfinite(value).all() and all(np.isfinite(g).all() for g in gradient.values())
    if speed.logdensity is not None:

        def flat(sites):
            return np.concatenate(
                [np.reshape(sites[k], (2, -1)) for k in sorted(sites, key=("v", "y", "beta").index)], 1
            )

        own = jax.jit(jax.vmap(jax.grad(lambda x: speed.logdensity(x, **data))))(flat(sites))
        np.testing.assert_allclose(own, flat(gradient), rtol=2e-4, atol=2e-3)
