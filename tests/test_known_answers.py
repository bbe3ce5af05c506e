"""Whole runs against known answers: start, warm-up, draws, constrained sites, verdict.

A z-test compares the mean over chains with the exact value by the spread between chains (Student's t); with a bound of
1e-4 a target (Bonferroni over its functionals) a false alarm comes in under 1 of 1000 runs of this file, and a shift of
0.2 sd is found at the sizes used.
"""

import numpy as np
import pytest
import zoo_exact
import zoo_posteriors
from runs import SCHOOLS, schools
from zoo_figures import FIGURES

import chainmesh as cm

SETTINGS = {"seed": 1, "devices": 2, "progress": lambda snapshot: None}


def from_uniform(dim):
    import jax

    return lambda key: jax.random.uniform(key, (dim,), minval=-2.0, maxval=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian_scales", "gaussian_rotated", "log_exponential", "funnel_mild"])
def test_exact_targets(name):
    exact = zoo_exact.EXACT[name]
    target = cm.LogDensity(exact.logdensity, initial=from_uniform(exact.dim))
    run = cm.sample(target, chains=32, draws=500, **SETTINGS)
    scores = zoo_exact.z_scores(exact.functionals, run.posterior["x"])
    bound = zoo_exact.z_bound(len(scores), 1e-4)
    assert max(map(abs, scores.values())) < bound, scores
    assert run.verdict.max_rhat < 1.05


@pytest.mark.slow
@pytest.mark.parametrize("name", list(zoo_exact.CONSTRAINED))
def test_exact_constrained_sites(name):
    exact = zoo_exact.CONSTRAINED[name]
    run = cm.sample(exact.model, chains=32, draws=500, **SETTINGS)
    scores = zoo_exact.z_scores(exact.functionals, run.posterior)
    bound = zoo_exact.z_bound(len(scores), 1e-4)
    assert max(map(abs, scores.values())) < bound, scores


POSTERIORS = [
    n for n in ("eight_schools_noncentered", "arK", "garch11", "hmm_example", "dogs") if n in FIGURES
]


@pytest.mark.slow
@pytest.mark.parametrize("name", POSTERIORS)
def test_reference_posteriors(name):
    """Means within five standard errors of both sides, sds within 15 %, by the references' own figures."""
    case, reference = zoo_posteriors.CASES[name], zoo_posteriors.references()[name]
    run = cm.sample(
        case.model, data=case.load(reference["data"]), chains=16, draws=500, target_accept=0.9, **SETTINGS
    )
    assert zoo_posteriors.compare(reference, case.report(run.posterior)) == {}
    assert not set(run.verdict.codes) & {"stuck", "far", "nan", "duplicate", "apart"}


def test_ten_clean_runs_are_found_clean():
    for seed in range(10):
        run = cm.sample(
            schools, data=SCHOOLS, chains=4, draws=1000, target_accept=0.95, **SETTINGS | {"seed": seed}
        )
        found = [f for f in run.verdict.findings if f.code != "diverging"]  # the model has a mild funnel
        assert not found, (seed, run.verdict)


def test_chains_in_other_modes_are_named():
    exact = zoo_exact.EXACT["bimodal"]
    starts = np.array([[-4.0], [4.0], [4.1], [3.9]])
    run = cm.sample(cm.LogDensity(exact.logdensity, initial=starts), chains=4, draws=500, **SETTINGS)
    assert run.verdict.chains_with("far") == [0]
    assert "rhat" in run.verdict.codes


def test_equal_chains_are_named():
    target = cm.LogDensity(lambda x: -0.5 * (x**2).sum(), initial=np.ones(2))
    run = cm.sample(target, chains=4, draws=300, tune=0, kernel=cm.NUTS(step_size=0.5), **SETTINGS)
    copies = {k: np.concatenate([v[:2], v[:1], v[3:]]) for k, v in run.posterior.items()}
    run.posterior.update(copies)  # chain 2 becomes a copy of chain 0
    run.__dict__.pop("verdict")
    assert run.verdict.chains_with("duplicate") == [0, 2]


@pytest.mark.slow
def test_a_funnels_divergences_are_found():
    exact = zoo_exact.EXACT["funnel"]
    run = cm.sample(
        cm.LogDensity(exact.logdensity, initial=from_uniform(exact.dim)), chains=8, draws=500, **SETTINGS
    )
    assert run.tally.divergences.sum() > 0 and "diverging" in run.verdict.codes
    assert not run.verdict.ok
