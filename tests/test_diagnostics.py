"""The diagnostics against ArviZ's own, against NumPy, and on what has no diagnostics."""

import logging

import arviz as az
import ml_dtypes
import numpy as np
import pytest
from scipy.signal import lfilter

from chainmesh.sampler._diagnostics import bfmi, diagnose

OLD = int(az.__version__.split(".")[0]) == 0
logging.getLogger("arviz").setLevel(logging.ERROR)
logging.getLogger("arviz_stats").setLevel(logging.ERROR)


def autoregressive(rng, chains, draws, rho, scalars=None):
    shape = (chains, draws) if scalars is None else (chains, draws, scalars)
    noise = rng.normal(size=shape)
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise, axis=1)


def arviz_numbers(x):
    """R-hat, effective sample sizes and Monte Carlo error of (chain, draw) by the ArviZ that is installed."""
    with np.errstate(all="ignore"):
        if OLD:
            out = {"rhat": az.rhat(x), "mcse_mean": az.mcse(x, method="mean")}
            ess = {method: az.ess(x, method=method) for method in ("bulk", "tail", "mean")}
        else:
            from arviz_stats.base import array_stats

            at = {"chain_axis": 0, "draw_axis": 1}
            out = {"rhat": array_stats.rhat(x, **at), "mcse_mean": array_stats.mcse(x, method="mean", **at)}
            ess = {method: array_stats.ess(x, method=method, **at) for method in ("bulk", "mean")}
            ess["tail"] = array_stats.ess(x, method="tail", prob=(0.05, 0.95), **at)
    return {key: float(value) for key, value in out.items()} | {f"ess_{key}": float(ess[key]) for key in ess}


def assert_as_arviz(x, rtol=1e-6):
    got = diagnose(x)
    for key, want in arviz_numbers(np.asarray(x, np.float64)).items():
        np.testing.assert_allclose(getattr(got, key)[0], want, rtol=rtol, err_msg=key)


KINDS = {
    "normal": lambda x: x,
    "heavy": lambda x: np.tan(1.5 * np.tanh(x)) ** 3,
    "ties": np.round,
    "indicator": lambda x: (x > 1.0).astype(float),
    "disagree": lambda x: x + np.arange(len(x))[:, None],
    "offset": lambda x: 1e-3 * x + 1e3,
    "funnel": lambda x: x * np.exp(np.linspace(-2, 2, len(x)))[:, None],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.6, 0.98])
def test_numbers_are_arvizs(kind, rho):
    rng = np.random.default_rng(7)
    # the number of draws less one is no multiple of 20: there the 5 % quantile is a draw itself, and ArviZ 0.23
    # leaves that draw out or in by rounding
    for chains, draws in ((4, 250), (3, 101), (1, 163), (2, 37), (8, 24), (5, 12)):
        assert_as_arviz(KINDS[kind](autoregressive(rng, chains, draws, rho)))


@pytest.mark.parametrize("draws", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
def test_few_draws(draws):
    x = np.random.default_rng(draws).normal(size=(4, draws))
    assert_as_arviz(x)
    assert np.isnan(diagnose(x).rhat[0]) == (draws < 4)
    np.testing.assert_allclose(diagnose(x).q50, np.median(x))


def test_float32_draws_and_slow_chains():
    rng = np.random.default_rng(3)
    for rho in (0.3, 0.9, 0.995):
        assert_as_arviz(autoregressive(rng, 4, 1000, rho).astype(np.float32))
    stuck = np.repeat(rng.normal(size=(4, 1)), 60, axis=1)  # no variance within chains
    assert diagnose(stuck).rhat[0] == np.inf and diagnose(stuck).ess_bulk[0] < 5


def test_random_shapes():
    rng = np.random.default_rng(11)
    for _ in range(60):
        chains, draws = int(rng.integers(1, 9)), int(rng.integers(4, 300))
        if (chains * draws - 1) % 20 == 0:
            continue
        x = autoregressive(rng, chains, draws, rng.choice([-0.7, 0.0, 0.5, 0.9]))
        assert_as_arviz(x if rng.random() < 0.7 else np.round(x, 1))


def test_many_sites_at_once_are_the_same_as_one_by_one():
    rng = np.random.default_rng(5)
    draws = {
        "a": autoregressive(rng, 4, 501, 0.5).astype(np.float32),
        "b": autoregressive(rng, 4, 501, 0.5, 40).reshape(4, 501, 8, 5),
        "empty": np.zeros((4, 501, 0)),
        "n": rng.integers(0, 5, size=(4, 501, 3)),
        "flag": rng.random((4, 501)) > 0.5,
        "c": autoregressive(rng, 4, 501, 0.9, 600).astype(
            np.float32
        ),  # beyond the size from which threads work
    }
    before = {site: value.copy() for site, value in draws.items()}
    got = diagnose(draws)
    assert got.names[:3] == ("a", "b[0,0]", "b[0,1]") and got.names[-1] == "c[599]" and len(got.names) == 645
    assert got.of("b")["rhat"].shape == (8, 5) and got.of("empty")["rhat"].shape == (0,)
    for scalar in (0, 1, 17, 40, 41, 43, 44, 45, 300, 644):
        site = got.name(scalar).split("[")[0]
        index = np.unravel_index(scalar - got.offsets[list(draws).index(site)], draws[site].shape[2:] or (1,))
        alone = diagnose(
            draws[site][(slice(None), slice(None), *index)] if draws[site].ndim > 2 else draws[site]
        )
        for key in (
            "rhat",
            "ess_bulk",
            "ess_tail",
            "ess_mean",
            "mcse_mean",
            "mean",
            "sd",
            "q05",
            "q95",
            "tau",
        ):
            np.testing.assert_allclose(
                getattr(got, key)[scalar], getattr(alone, key)[0], rtol=1e-6, err_msg=key
            )
    for site, value in draws.items():
        np.testing.assert_array_equal(value, before[site])


def test_moments_quantiles_and_chains():
    x = autoregressive(np.random.default_rng(1), 3, 41, 0.4, 2)
    got = diagnose(x)
    np.testing.assert_allclose(got.mean, x.mean(axis=(0, 1)))
    np.testing.assert_allclose(got.sd, x.reshape(-1, 2).std(axis=0, ddof=1))
    for key, p in (("q05", 0.05), ("q25", 0.25), ("q50", 0.5), ("q75", 0.75), ("q95", 0.95)):
        np.testing.assert_allclose(getattr(got, key), np.quantile(x, p, axis=(0, 1)))
    np.testing.assert_allclose(got.chain_mean, x.mean(axis=1).T)
    np.testing.assert_allclose(got.chain_sd, x.std(axis=1, ddof=1).T)
    np.testing.assert_allclose(got.chain_shift, np.abs(x[:, :20].mean(axis=1) - x[:, 21:].mean(axis=1)).T)


def test_constants_are_told_from_bad_numbers():
    x = autoregressive(np.random.default_rng(2), 4, 60, 0.2, 5).astype(np.float32)
    x[..., 0], x[2, 7, 1], x[0, 0, 2] = 1.5, np.nan, np.inf
    x[..., 3] *= 1e-30  # tiny, yet no constant
    got = diagnose({"x": x})
    assert got.constant.tolist() == [True, False, False, False, False]
    assert got.finite.tolist() == [True, False, False, True, True]
    assert np.isnan(got.rhat).tolist() == [True, True, True, False, False]
    assert np.isnan(got.ess_bulk[1:3]).all() and np.isnan(got.mean[1:3]).all()
    assert got.mean[0] == 1.5 and got.sd[0] == 0
    assert got.name(1) == "x[1]"
    assert diagnose({"s": np.float64([[1, 2], [3, 4]])}).names == ("s",)


def test_signed_zeros_are_ties_and_huge_numbers_pass():
    x = np.float32([[0.0, -0.0, 1.0, 0.0, -0.0, 2.0, 3.0, -1.0]] * 2)
    np.testing.assert_allclose(diagnose(x).ess_bulk, diagnose(np.abs(x) * np.sign(x) + 0.0).ess_bulk)
    huge = diagnose(np.random.default_rng(0).normal(size=(4, 50)) * 1e300)
    assert huge.finite[0] and np.isfinite(huge.rhat[0])


def test_other_dtypes():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 40, 2)).astype(ml_dtypes.bfloat16)
    np.testing.assert_allclose(diagnose(x).rhat, diagnose(x.astype(np.float32)).rhat)
    z = rng.normal(size=(2, 40)) + 1j * rng.normal(size=(2, 40))
    got = diagnose({"z": z})
    assert got.names == ("z[0]", "z[1]")
    np.testing.assert_allclose(got.mean, [z.real.mean(), z.imag.mean()])


def test_nothing_to_diagnose():
    assert diagnose({}).names == ()
    assert np.isnan(diagnose({"x": np.zeros((4, 0, 3))}).mean).all()


def test_time_within_chains_is_blind_to_disagreement():
    x = autoregressive(np.random.default_rng(4), 8, 2000, 0.8)
    apart = x + 50.0 * np.arange(8)[:, None]
    assert diagnose(x).tau[0] == pytest.approx(9, rel=0.2)  # (1 + rho) / (1 - rho)
    assert diagnose(apart).tau[0] == pytest.approx(9, rel=0.2)
    assert diagnose(apart).ess_bulk[0] < 20


def test_bfmi():
    rng = np.random.default_rng(6)
    energy = autoregressive(rng, 4, 300, 0.9)
    with np.errstate(all="ignore"):
        want = az.bfmi(energy) if OLD else [_array_bfmi(each) for each in energy]
    np.testing.assert_allclose(bfmi(energy), want)
    assert np.isnan(bfmi(np.ones((2, 5)))).all() and np.isnan(bfmi(np.ones((2, 1)))).all()


def _array_bfmi(energy):
    from arviz_stats.base import array_stats

    return float(np.squeeze(array_stats.bfmi(energy[None], chain_axis=0, draw_axis=1)))
