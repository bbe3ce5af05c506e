"""What the verdict must find, where it must name it, and when it must keep silent."""

import numpy as np
import pytest
from scipy.signal import lfilter

from chainmesh.sampler._finding import Finding, name_chains
from chainmesh.sampler._verdict import judge


def words(verdict):
    return " ".join(str(verdict).split())


def autoregressive(rng, chains, draws, rho, scalars):
    noise = rng.normal(size=(chains, draws, scalars))
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise, axis=1).astype(np.float32)


def run(seed=0, chains=4, draws=1000, rho=0.5, scalars=6):
    """A clean run: stationary chains on a standard normal, with NUTS's statistics."""
    rng = np.random.default_rng(seed)
    x = autoregressive(rng, chains, draws, rho, scalars)
    return {"mu": x[..., 0], "theta": x[..., 1:]}, statistics(rng, x)


def statistics(rng, x):
    chains, draws = x.shape[:2]
    lp = -0.5 * np.square(x).sum(axis=-1)
    return {
        "lp": lp,
        "energy": -lp + 0.5 * rng.chisquare(x.shape[-1], size=lp.shape),
        "diverging": np.zeros((chains, draws), bool),
        "reached_max_treedepth": np.zeros((chains, draws), bool),
        "tree_depth": np.full((chains, draws), 3),
        "step_size": np.repeat(np.exp(0.2 * rng.normal(size=(chains, 1))), draws, axis=1),
        "acceptance_rate": np.full((chains, draws), 0.8),
    }


def changed(posterior, stats, chain, draws, mu):
    """The run with other draws of one chain: mu as given, theta as it was."""
    x = np.concatenate([posterior["mu"][..., None], posterior["theta"]], axis=-1)
    x[chain, draws, 0] = mu
    return {"mu": x[..., 0], "theta": x[..., 1:]}, {**stats, "lp": -0.5 * np.square(x).sum(axis=-1)}


def frozen(posterior, stats, chain, since=0):
    posterior = {site: value.copy() for site, value in posterior.items()}
    for value in posterior.values():
        value[chain, since:] = value[chain, since]
    lp = stats["lp"].copy()
    lp[chain, since:] = lp[chain, since]
    return posterior, {**stats, "lp": lp}


@pytest.mark.parametrize("seed", range(10))
def test_silent_on_clean_runs(seed):
    shape = [(4, 1000, 0.5), (2, 1000, 0.3), (16, 500, 0.3), (64, 300, 0.2), (4, 100, 0.0)][seed % 5]
    verdict = judge(*run(seed, *shape), max_depth=10)
    assert verdict.ok, str(verdict)
    assert str(verdict).startswith("Nothing wrong found")
    assert 1 <= verdict.max_rhat < 1.1 and verdict.min_ess_bulk > 100 and verdict.min_ess_tail > 50
    assert verdict.constant == () and verdict.chains_with("stuck") == []


def test_limit_knows_chains_and_draws():
    """By noise alone R-hat passes 1.01 in these clean runs; a real disagreement of the same runs is still found."""
    for seed, chains, draws, rho in (
        (0, 4, 100, 0.5),
        (1, 64, 100, 0.5),
        (9, 4, 1000, 0.67),
        (3, 16, 150, 0.5),
    ):
        posterior, stats = run(seed, chains, draws, rho)
        verdict = judge(posterior, stats)
        assert verdict.max_rhat > 1.01 and verdict.ok, str(verdict)
        shift = np.linspace(-2, 2, chains, dtype=np.float32)[:, None]
        verdict = judge({**posterior, "mu": posterior["mu"] + shift}, stats)
        assert verdict.codes[0] == "rhat" and verdict.findings[0].sites[0] == "mu", str(verdict)


@pytest.mark.slow
def test_false_alarms():
    """400 clean runs: nominally 0.4 of them are blamed for their R-hat; none for anything else."""
    blamed = [
        judge(*run(seed, *shape)).codes
        for shape in ((4, 400, 0.2), (16, 300, 0.2))
        for seed in range(1000, 1200)
    ]
    assert sum("rhat" in codes for codes in blamed) <= 3  # 0.08 % beyond this at the nominal rate
    assert {code for codes in blamed for code in codes} <= {"rhat"}


def test_frozen_chain():
    verdict = judge(*frozen(*run(), chain=2))
    assert verdict.chains_with("stuck") == [2] and "Chain 2 never moved" in words(verdict)
    assert "rhat" in verdict.codes and "Chain 2, named above" in words(verdict)
    assert not verdict.chains_with("duplicate") and not verdict.chains_with("far")


def test_chain_frozen_in_the_middle_and_one_that_hardly_moves():
    verdict = judge(*frozen(*run(), chain=1, since=700))
    assert verdict.chains_with("stuck") == [1] and "has not moved since draw 700" in words(verdict)
    posterior, stats = run()
    posterior = {site: value.copy() for site, value in posterior.items()}
    for value in posterior.values():
        value[3] *= 1e-5
    assert judge(posterior, stats).chains_with("stuck") == [3]


def test_all_chains_frozen():
    posterior, stats = run(draws=40)
    for chain in range(4):
        posterior, stats = frozen(posterior, stats, chain)
    assert judge(posterior, stats).chains_with("stuck") == [0, 1, 2, 3]
    same = {"x": np.ones((4, 40), np.float32)}
    verdict = judge(same, {})
    assert verdict.chains_with("stuck") == [0, 1, 2, 3] and verdict.constant == ("x",)


def test_low_acceptance_is_not_frozen():
    """A random walk that accepts a fifth of its proposals: runs of equal draws are its nature."""
    rng = np.random.default_rng(3)
    x = autoregressive(rng, 4, 4000, 0.5, 2)
    held = np.maximum.accumulate(np.where(rng.random((4, 4000)) < 0.2, np.arange(4000), 0), axis=1)
    x = np.take_along_axis(x, held[..., None], axis=1)
    verdict = judge({"x": x}, {})
    assert not {"stuck", "duplicate", "far"} & set(verdict.codes), str(verdict)
    short = judge({"x": x[:, :12]}, {})
    assert not {"stuck", "duplicate"} & set(short.codes), str(short)
    flips = {"z": np.zeros((4, 500), int)}
    flips["z"][1, 250:] = 1
    assert not {"stuck", "duplicate"} & set(judge(flips, {}).codes)  # integers alone do not tell


def test_equal_chains():
    posterior, stats = run(chains=6)
    for value in (*posterior.values(), *stats.values()):
        value[4] = value[1]
    verdict = judge(posterior, stats)
    assert verdict.chains_with("duplicate") == [1, 4] and "Chains 1 and 4 are equal" in words(verdict)
    posterior, stats = run(chains=6)
    for value in (*posterior.values(), stats["lp"]):
        value[5, :30] = value[0, :30]  # one key, and rounding that led them apart
    assert judge(posterior, stats).chains_with("duplicate") == [0, 5]


def test_chain_in_another_mode():
    posterior, stats = run()
    verdict = judge(*changed(posterior, stats, 3, slice(None), posterior["mu"][3] + 8))
    assert verdict.chains_with("far") == [3]
    text = next(finding.text for finding in verdict.findings if finding.code == "far")
    assert "Chain 3 samples another place than chains 0-2" in text and "mu" in text and "lower" in text
    assert "rhat" in verdict.codes and not verdict.chains_with("stuck")


def test_two_modes_with_several_chains_each_and_three():
    posterior, stats = run(chains=8)
    posterior["mu"] = posterior["mu"].copy()
    posterior["mu"][[0, 3, 5]] += 10
    verdict = judge(posterior, stats)
    assert verdict.chains_with("far") == [0, 3, 5] and "chains 1, 2, 4, 6 and 7" in words(verdict)
    posterior["mu"][7] -= 10
    assert judge(posterior, stats).chains_with("far") == [0, 3, 5, 7]
    for chain in range(8):
        posterior["mu"][chain] += 100 * chain
    assert judge(posterior, stats).chains_with("far") == list(range(8))
    assert "each of chains 0-7 samples a place of its own" in words(judge(posterior, stats)).lower()


def test_divergences_of_a_funnel_and_of_one_bad_chain():
    posterior, stats = run()
    rng = np.random.default_rng(0)
    stats["diverging"] = rng.random((4, 1000)) < 0.03
    verdict = judge(posterior, stats)
    assert verdict.codes == ("diverging",) and verdict.chains_with("diverging") == [0, 1, 2, 3]
    assert "target_accept" in words(verdict)
    assert "adaptation" in words(judge(posterior, stats, tuned=False))
    stats["diverging"] = np.zeros((4, 1000), bool)
    stats["diverging"][2, :600] = True
    stats["diverging"][0, 5] = True
    verdict = judge(posterior, stats)
    assert verdict.chains_with("concentrated") == [2] and verdict.chains_with("diverging") == [0, 2]
    verdict = judge(*frozen(posterior, stats, 2))
    assert verdict.codes[:3] == (
        "stuck",
        "diverging",
        "concentrated",
    ) and "chain 2 is stuck as well" in words(verdict)


def test_divergences_that_thinning_left_out():
    posterior, stats = run()
    verdict = judge(posterior, stats, divergences=np.array([0, 3, 0, 0]))
    assert verdict.chains_with("diverging") == [1] and "3 divergences after warm-up: 3 in chain 1" in words(
        verdict
    )


def test_saturated_trees():
    posterior, stats = run()
    stats["reached_max_treedepth"][[0, 2], ::10] = True
    verdict = judge(posterior, stats, max_depth=10)
    assert verdict.codes == ("max_depth",) and verdict.chains_with("max_depth") == [0, 2]
    del stats["reached_max_treedepth"]
    assert judge(posterior, stats).ok and judge(posterior, stats, max_depth=3).chains_with("max_depth") == [
        0,
        1,
        2,
        3,
    ]


def test_energy():
    posterior, stats = run()
    stats["energy"] = stats["energy"].astype(np.float64)
    stats["energy"][1] = np.cumsum(np.random.default_rng(0).normal(size=1000))
    verdict = judge(posterior, stats)
    assert verdict.codes == ("energy",) and verdict.chains_with("energy") == [1]
    assert verdict.bfmi is not None and verdict.bfmi[1] < 0.3 < verdict.bfmi[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -0.1, 1e-9, 1e-4])
def test_step_size(value):
    posterior, stats = run()
    stats["step_size"][3] = value
    assert judge(posterior, stats).chains_with("step_size") == [3]


def test_nan_is_named_and_left_out():
    posterior, stats = run()
    posterior["theta"][2, 17, 1] = np.nan
    verdict = judge(posterior, stats)
    assert verdict.codes == ("nan",) and verdict.chains_with("nan") == [2]
    assert verdict.findings[0].sites == ("theta[1]",) and "Chain 2 has NaN" in words(verdict)
    assert np.isfinite(verdict.max_rhat) and np.isfinite(verdict.min_ess_bulk)


def test_slow_mixing():
    verdict = judge(*run(rho=0.97))
    assert "ess" in verdict.codes and not {"far", "stuck"} & set(verdict.codes)
    assert "400 (100 a chain)" in words(verdict)


def test_drifting_chains_are_no_modes():
    posterior, stats = run()
    walk = np.cumsum(np.random.default_rng(1).normal(size=(4, 1000)), axis=1).astype(np.float32)
    verdict = judge({**posterior, "mu": walk}, stats)
    assert {"rhat", "ess"} <= set(verdict.codes) and "far" not in verdict.codes


def test_structural_constants():
    rng = np.random.default_rng(0)
    factor = np.zeros((4, 300, 3, 3), np.float32)
    factor[..., 0, 0] = 1
    for row, column in ((1, 0), (1, 1), (2, 0), (2, 1), (2, 2)):
        factor[..., row, column] = rng.normal(size=(4, 300))
    verdict = judge({"L": factor}, {})
    assert verdict.constant == ("L[0,0]", "L[0,1]", "L[0,2]", "L[1,2]")
    assert verdict.ok and 1 <= verdict.max_rhat < 1.02


def test_few_draws_are_not_judged_and_that_is_said():
    verdict = judge(*run(draws=10))
    assert verdict.ok and len(verdict.notes) == 2 and "note: R-hat is not judged" in words(verdict)
    assert judge(*run(draws=1)).ok and judge(*run(chains=1)).ok
    assert "two chains" in words(judge(*run(chains=1)))
    assert judge({"x": np.zeros((4, 0))}, {}).ok and judge({}, {}).ok


def test_extra_findings_come_first_and_words():
    posterior, stats = run()
    own = Finding("untuned", "The kernel ran untuned.", (0,), ())
    verdict = judge(*frozen(posterior, stats, 1), extra_findings=[own])
    assert verdict.codes[:2] == ("untuned", "stuck") and not verdict.ok
    assert str(verdict).splitlines()[0].startswith("4 findings in 4 chains of 1000 draws (R-hat at most")
    assert name_chains([3]) == "chain 3" and name_chains({0, 1, 2, 5}) == "chains 0-2 and 5"
    assert name_chains([1, 2, 7]) == "chains 1, 2 and 7"
    assert name_chains(range(0, 40, 2)) == "chains 0, 2, 4, 6, 8, 10, 12, 14, ... (20 chains)"
