"""Users' scenarios, what comes out: thinning, shapes, names, ArviZ, pictures.

B24 thin; B26 dims; B27 names of statistics; B28 warm-up apart; B29 to disk and back; B30 deterministic sites;
B31 ArviZ of any version; B32 structural constants; B50 pictures.
"""

import functools

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray
from runs import HMC, RWM, gauss, sample

import chainmesh as cm


@pytest.mark.parametrize("thin, kept", [(3, 33), (7, 14), (100, 1)])
def test_b24_a_thinned_run(thin, kept):
    run = sample(gauss(), kernel=RWM, draws=100, thin=thin, devices=1)
    assert run.posterior["x"].shape == (4, kept, 2) and run.draws == kept * thin and run.thin == thin
    tree = run.to_arviz()
    assert {dict(tree[g].sizes)["draw"] for g in ("posterior", "sample_stats")} == {kept}


def test_b26_shapes_dims_and_coords():
    target = cm.LogDensity(
        lambda p: -0.5 * jnp.sum(p["b"] ** 2) - 0.5 * p["z"] ** 2,
        initial={"b": jnp.zeros((2, 3)), "z": jnp.zeros(())},
    )
    run = sample(
        target,
        kernel=RWM,
        chains=5,
        draws=7,
        dims={"b": ["g", "k"]},
        coords={"g": ["u", "v"], "k": [10, 20, 30]},
    )
    data = run.to_arviz()["posterior"]
    assert data["b"].dims == ("chain", "draw", "g", "k") and data["b"].shape == (5, 7, 2, 3)
    assert data["z"].dims == ("chain", "draw") and list(data["k"].values) == [10, 20, 30]
    np.testing.assert_allclose(data["b"].sel(chain=3, draw=2).values, run.posterior["b"][3, 2])


@pytest.fixture(scope="module")
def tuned():
    """A tuned NUTS run whose warm-up is kept, from a far start."""
    target = cm.LogDensity(lambda x: -0.5 * jnp.sum(x**2), initial=jnp.full(2, 300.0))
    return sample(target, kernel="nuts", adaptation=cm.StanWindows(), tune=150, draws=60, keep_warmup=True)


def test_b27_names_of_statistics(tuned):
    stats = tuned.to_arviz()["sample_stats"]
    need = {"diverging", "acceptance_rate", "energy", "lp", "n_steps", "tree_depth", "step_size", "energy_error",
            "reached_max_treedepth"}  # fmt: skip
    assert need <= set(stats.data_vars)
    assert stats["diverging"].dtype == bool and stats["n_steps"].dtype.kind == "i"
    # lp is the log density of the stored draw, with plus sign; energy is at least what is potential.
    np.testing.assert_allclose(stats["lp"].values, -0.5 * (tuned.posterior["x"] ** 2).sum(-1), rtol=1e-4)
    assert (stats["energy"].values >= -stats["lp"].values - 1e-3).all()
    assert (stats["n_steps"].values <= 2 ** stats["tree_depth"].values).all()
    assert 0 <= stats["acceptance_rate"].min() and stats["acceptance_rate"].max() <= 1 + 1e-5


@pytest.mark.parametrize("kernel, need", [(HMC, {"energy", "diverging", "n_steps"}), (RWM, {"accepted"})])
def test_b27_names_of_other_kernels(kernel, need):
    run = sample(gauss(), kernel=kernel, devices=1)
    assert need | {"lp", "acceptance_rate", "step_size"} <= set(run.to_arviz()["sample_stats"].data_vars)
    np.testing.assert_allclose(
        run.stats["lp"], -0.5 * (run.posterior["x"] ** 2).sum(-1), rtol=1e-3, atol=1e-5
    )


def test_b28_warm_up_kept_apart(tuned):
    tree = tuned.to_arviz()
    assert dict(tree["posterior"].sizes)["draw"] == 60 and dict(tree["warmup_posterior"].sizes)["draw"] == 150
    assert (
        dict(tree["warmup_sample_stats"].sizes)["draw"] == 150 and "diverging" in tree["warmup_sample_stats"]
    )
    early = float(abs(tree["warmup_posterior"]["x"].isel(draw=0)).max())
    assert early > 5 > float(abs(tree["posterior"]["x"]).max())
    assert int(tree["sample_stats"]["diverging"].sum()) == tuned.tally.divergences.sum() == 0
    assert tuned.warmup_tally.divergences.sum() == tuned.warmup_stats["diverging"].sum()
    without = sample(gauss(), kernel=RWM, devices=1)
    tree = without.to_arviz()
    assert without.warmup_posterior is None and not hasattr(tree, "warmup_posterior")
    assert "warmup_posterior" not in getattr(tree, "children", {})  # a DataTree's groups


def test_b28_divergences_while_tuning_are_told_apart():
    wall = cm.LogDensity(lambda x: jnp.where(x > 0, -0.5 * x**2, -jnp.inf).sum(), initial=jnp.full(1, 1.0))
    run = sample(wall, kernel=cm.HMC(step_size=1.5, n_leapfrog=4), tune=50, draws=1, devices=1)
    assert run.warmup_tally.divergences.sum() > 0
    assert f"{run.warmup_tally.divergences.sum()} divergences" in str(run.report())
    assert "diverging" not in run.verdict.codes or run.tally.divergences.sum() > 0


def test_b29_to_disk_and_back(tuned, tmp_path):
    run = sample(gauss(1), kernel=HMC, devices=1)
    for i, tree in enumerate((tuned.to_arviz(), run.to_arviz())):
        file = str(tmp_path / f"{i}.nc")
        tree.to_netcdf(file, engine="h5netcdf")
        with xarray.open_dataset(file, group="sample_stats", engine="h5netcdf") as stats:
            assert stats["diverging"].dtype == bool and stats["n_steps"].dtype.kind == "i"
        with xarray.open_dataset(file, group="posterior", engine="h5netcdf") as back:
            np.testing.assert_array_equal(back["x"], tree["posterior"]["x"])
        assert isinstance(tree["posterior"]["x"].data, np.ndarray)


def test_b29_a_position_without_axes():
    run = sample(cm.LogDensity(lambda x: -(x**2), initial=0.0), kernel=RWM, chains=2, draws=6, devices=1)
    data = run.to_arviz()["posterior"]
    assert data["x"].dims == ("chain", "draw") and data["x"].shape == (2, 6)


def test_b30_deterministic_sites_match_their_draws():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.deterministic("gap", m[1] - m[0])
        numpyro.deterministic("outer", m[:, None] * m)
        numpyro.deterministic("above", m > 0)
        numpyro.sample("y", dist.Normal(m.sum(), 1), obs=y)

    run = sample(model, kernel=HMC, chains=5, devices=2, draws=11, thin=2, args=(np.float32(1.0),))
    m = run.posterior["m"]
    np.testing.assert_allclose(run.posterior["gap"], m[..., 1] - m[..., 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        run.posterior["outer"], m[..., :, None] * m[..., None, :], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(run.posterior["above"], m > 0)
    assert "y" not in run.posterior and run.posterior["above"].dtype == bool
    some = sample(model, kernel=HMC, draws=11, args=(np.float32(1.0),), var_names="gap")
    assert set(some.posterior) == {"gap"}


def test_b31_the_installed_arviz():
    run = sample(gauss(), kernel=RWM, draws=50, devices=1)
    tree = run.to_arviz()
    new = int(arviz.__version__.split(".")[0]) >= 1
    assert type(tree).__name__ == ("DataTree" if new else "InferenceData")
    assert len(arviz.summary(tree)) == len(run.summary()) == 2


def test_b32_structural_constants():
    run = sample(
        lambda: numpyro.sample("L", dist.LKJCholesky(3, 2.0)),
        kernel=cm.HMC(step_size=0.6, n_leapfrog=4),
        draws=300,
    )
    L = run.posterior["L"]
    assert (L[..., 0, 1] == 0).all() and (L[..., 0, 0] == 1).all()
    assert (
        "stuck" not in run.verdict.codes and np.isfinite(run.verdict.max_rhat) and run.verdict.max_rhat < 1.2
    )
    assert set(run.verdict.constant) == {"L[0,0]", "L[0,1]", "L[0,2]", "L[1,2]"}
    assert "nan" not in str(run.verdict).lower()


def test_b50_pictures_of_any_array(capsys):
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    run = sample(gauss(4), kernel=RWM, chains=16, tune=2, draws=3)
    cm.show_sharding(run.on_mesh("x")["x"])
    text = capsys.readouterr().out
    assert all(f"cpu:{d.id}" in text for d in jax.devices()) and "chain" in text
    run.show_sharding()
    text = capsys.readouterr().out
    assert "state.position" in text and "step_size" in text
    show = functools.partial(
        jax.device_put, device=NamedSharding(Mesh(np.array(jax.devices()), ("chain",)), P())
    )
    cm.show_sharding(show(jnp.zeros(())))
    assert "replicated" in capsys.readouterr().out
