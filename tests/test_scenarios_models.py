"""Users' scenarios, what goes in: arguments, starts, models, precision.

B11 None, scalars and empty leaves; B14 loops that draw; B20 starts per chain; B21 integers as starts; B33 float64;
B40 simplexes and ordered sites; B41 circular sites; B43 strings, flags and None; B49 pandas.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from runs import HMC, RWM, equal, fresh, gauss, sample

import chainmesh as cm


def test_b11_none_scalars_and_empty_leaves():
    def density(x, data, scale=None):
        s = 1.0 if scale is None else scale
        return -0.5 * jnp.sum(((x - data["y"][0]) / s) ** 2) + 0.0 * data["cfg"]["w"].sum()

    target = cm.LogDensity(density, initial=jnp.zeros(()))
    nested = {"y": (jnp.float32(1.0), None), "cfg": {"w": np.zeros((0,), "f4")}}
    runs = [
        sample(target, kernel=RWM, chains=8, args=(nested,), data=data)
        for data in (
            None,
            {},
            {"scale": None},
            {"scale": jnp.float32(2.0)},
            {"scale": 2.0},
            {"scale": np.array(2.0)},
        )
    ]
    assert all(run.posterior["x"].shape == (8, 10) for run in runs)
    assert equal(runs[0], runs[2]) and equal(runs[3], runs[4]) and equal(runs[4], runs[5])
    assert not equal(runs[0], runs[3])


@pytest.mark.slow
def test_b14_nuts_on_a_model_whose_density_loops():
    def model(y):
        lam = numpyro.sample("lam", dist.Gamma(2.0, 1.0))
        numpyro.sample("y", dist.Poisson(lam), obs=y)

    y = np.array([1, 2, 0])
    run = sample(model, kernel=cm.NUTS(step_size=0.8, max_depth=5), chains=8, draws=250, args=(y,))
    # The posterior is Gamma(5, 4).
    lam = run.posterior["lam"]
    assert abs(lam.mean() - 5 / 4) < 0.1 and abs(lam.std() - 5**0.5 / 4) < 0.1


def test_b20_starts_for_each_chain_in_the_models_space():
    def model():
        numpyro.sample("s", dist.HalfNormal(5.0))
        numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))

    s0 = np.array([0.1, 1.0, 5.0, 9.0])
    p0 = np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2], [0.3, 0.3, 0.4]])
    still = cm.HMC(step_size=1e-6, n_leapfrog=1)
    for initvals in (
        {"s": s0, "p": p0}, {"s": jnp.asarray(s0), "p": jnp.asarray(p0)},
        [{"s": s, "p": p} for s, p in zip(s0, p0, strict=True)],
    ):  # fmt: skip
        run = sample(model, kernel=still, initvals=initvals, tune=0, draws=1)
        np.testing.assert_allclose(run.posterior["s"][:, 0], s0, rtol=1e-3)
        np.testing.assert_allclose(run.posterior["p"][:, 0], p0, atol=1e-3)
    one = sample(model, kernel=still, initvals={"s": 2.5}, tune=0, draws=1)
    np.testing.assert_allclose(one.posterior["s"], 2.5, rtol=1e-3)
    assert len(np.unique(one.posterior["p"][:, 0, 0])) == 4  # what is not given is drawn


@pytest.mark.parametrize("kernel", [HMC, RWM], ids=["HMC", "random walk"])
def test_b21_integers_as_starts(kernel):
    target = cm.LogDensity(
        lambda p: -0.5 * p["a"] ** 2 - 0.5 * jnp.sum(p["b"] ** 2), initial={"a": 0, "b": np.array([1, 2])}
    )
    for initvals in (None, {"a": 3, "b": [1, 2]}, {"a": np.arange(4), "b": np.ones((4, 2), int)}):
        run = sample(target, kernel=kernel, draws=20, initvals=initvals, devices=2)
        a = run.posterior["a"]
        assert a.dtype == np.float32 and not np.allclose(a, a.round())


def test_b33_float64_throughout():
    out = fresh(
        """
        import jax, jax.numpy as jnp, numpy as np
        jax.config.update("jax_enable_x64", True)
        narrow = cm.LogDensity(lambda x: -0.5 * jnp.sum(((x - 1.0) / 1e-9) ** 2), initial=jnp.ones(2))
        run = cm.sample(narrow, seed=0, tune=50, draws=50, kernel=cm.HMC(step_size=5e-10, n_leapfrog=3), progress=False)
        print(run.posterior["x"].dtype, len(np.unique(run.posterior["x"])) > 50)
        target = cm.LogDensity(lambda x: -(x ** 2).sum(), initial=jnp.ones(2))
        for kernel in ("hmc", cm.from_blackjax("random_walk", step_size=0.5)):
            run = cm.sample(target, seed=0, chains=2, tune=30, draws=5, kernel=kernel, progress=False)
            print(run.posterior["x"].dtype, run.stats["lp"].dtype, run.stats["step_size"].dtype)
            print(run.to_arviz()["posterior"]["x"].dtype)
            assert all(v.dtype != np.float32 for v in run.parameters.values())
        assert "float64" in str(run.report())
        """,
        2,
    )
    assert out.split() == ["float64", "True"] + ["float64"] * 8


def test_b40_sites_whose_size_changes_with_the_transform():
    from numpyro.distributions.transforms import OrderedTransform, SimplexToOrderedTransform

    def model():
        numpyro.sample("p", dist.Dirichlet(jnp.ones(4)))
        cut = dist.TransformedDistribution(dist.Dirichlet(jnp.ones(3)), SimplexToOrderedTransform(0.0))
        numpyro.sample("cut", cut)
        normals = dist.Normal(0, 1).expand([3]).to_event(1)
        numpyro.sample("o", dist.TransformedDistribution(normals, OrderedTransform()))

    run = sample(model, kernel=cm.HMC(step_size=0.2, n_leapfrog=4), draws=20)
    np.testing.assert_allclose(run.posterior["p"].sum(-1), 1.0, rtol=1e-5)
    for name, size in (("cut", 2), ("o", 3)):
        value = run.posterior[name]
        assert value.shape == (4, 20, size) and (np.diff(value, axis=-1) > 0).all()


def test_b41_a_circular_site_crosses_the_cut():
    from numpyro.handlers import reparam
    from numpyro.infer.reparam import CircularReparam

    model = reparam(lambda: numpyro.sample("a", dist.VonMises(jnp.pi, 4.0)), config={"a": CircularReparam()})
    run = sample(model, kernel=cm.HMC(step_size=0.3, n_leapfrog=5), tune=200, draws=300)
    a = run.posterior["a"]
    assert (np.abs(a) <= np.pi + 1e-5).all()
    assert ((a > 0).mean(1) > 0.1).all() and ((a < 0).mean(1) > 0.1).all()


def test_b43_strings_flags_and_none():
    def model(x, y=None, link="id", flip=False, n=3):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([n]).to_event(1))
        eta = (-x if flip else x) * b.sum()
        numpyro.sample("y", dist.Normal(jnp.tanh(eta) if link == "tanh" else eta, 1), obs=y)

    x = np.linspace(-1, 1, 5).astype("f4")
    for data in ({"y": x, "link": "tanh", "flip": True}, {"y": x, "n": 2}, {"y": None}):
        run = sample(model, kernel=HMC, draws=5, args=(x,), data=data)
        assert run.posterior["b"].shape == (4, 5, data.get("n", 3))
        assert ("y" in run.posterior) == (data["y"] is None)


def test_b49_pandas_in_arrays_out():
    import pandas as pd

    frame = pd.DataFrame({"x": [0.0, 1.0, 2.0], "g": pd.array([0, 1, 1], dtype="int64")}, index=[7, 8, 9])

    def model(x, g, y):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(b[g] * x, 1), obs=y)

    series = (frame["x"], frame["g"], frame["x"] * 2)
    a = sample(model, kernel=HMC, chains=2, args=series)
    b = sample(model, kernel=HMC, chains=2, args=tuple(np.asarray(s) for s in series))
    assert equal(a, b)
    nullable = frame.assign(g=frame["g"].astype("Int64"))
    assert equal(
        a, sample(model, kernel=HMC, chains=2, args=(nullable["x"], nullable["g"], nullable["x"] * 2))
    )
    assert frame["x"].tolist() == [0.0, 1.0, 2.0]
    shuffled = frame.set_axis([3, 1, 2])
    assert equal(
        a, sample(model, kernel=HMC, chains=2, args=(shuffled["x"], shuffled["g"], shuffled["x"] * 2))
    )


def test_names_for_the_same_thing():
    by_name = sample(gauss(), kernel="hmc", tune=0, devices=1)
    by_object = sample(gauss(), kernel=cm.HMC(), tune=0, devices=1)
    assert equal(by_name, by_object) and equal(by_name, sample(gauss(), kernel="HMC", tune=0, devices=1))
