"""Targets: equal to NumPyro's potential, term by term; what cannot be sampled is refused in clear words."""

import contextlib
import threading

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import constrain_fn, potential_energy

from chainmesh._errors import InputError
from chainmesh.sampler._fingerprint import program_key
from chainmesh.sampler._target import make_target

rng = np.random.default_rng(0)
Y8 = np.array([28.0, 8, -3, 7, -1, 1, 18, 12], np.float32)
S8 = np.array([15.0, 10, 16, 11, 9, 11, 10, 18], np.float32)


def eight_schools(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        z = numpyro.sample("z", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def constrained(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    cuts = numpyro.sample(
        "cuts",
        dist.TransformedDistribution(
            dist.Normal(0, 1).expand([3]).to_event(1), dist.transforms.OrderedTransform()
        ),
    )
    chol = numpyro.sample("chol", dist.LKJCholesky(3, 2.0))
    scale = numpyro.sample("scale", dist.LogNormal(0, 1).expand([3]).to_event(1))
    mean = numpyro.deterministic("mean", p + cuts)
    numpyro.sample("y", dist.MultivariateNormal(mean, scale_tril=scale[:, None] * chol), obs=y)


def moving_support(y):
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    x = numpyro.sample("x", dist.Uniform(0, a))
    with numpyro.plate("i", y.shape[0]):
        numpyro.sample("y", dist.Exponential(1 / (x + 0.1)), obs=y)


def handled(y, mask):
    w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), (2,)))
    s = numpyro.sample("s", dist.ImproperUniform(dist.constraints.positive, (), ()))
    numpyro.factor("flat", -0.1 * (w**2).sum() - s)
    with numpyro.plate("i", y.shape[0]), numpyro.handlers.scale(scale=0.5):
        t = numpyro.sample("t", dist.HalfNormal(1.0))
        with numpyro.handlers.mask(mask=mask):
            numpyro.sample("y", dist.Normal(w.sum() + t, s), obs=y)


def nested(x, y, sizes):
    base = numpyro.sample("base", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("outer", sizes["outer"], dim=-2):
        o = numpyro.sample("o", dist.StudentT(4, 0, 1))
        with numpyro.plate("inner", sizes["inner"], dim=-1):
            b = numpyro.sample("b", dist.Normal(o, 1))
            rows = numpyro.sample("rows", dist.Dirichlet(jnp.ones(4)))
            numpyro.deterministic("gap", b[..., None] * rows)
            numpyro.sample("y", dist.Normal(b * x + base.sum(), 1), obs=y)


def in_scan(y):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))

    def step(previous, now):
        x = numpyro.sample("x", dist.Normal(previous, tau))
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x, s), obs=now)
        return x, x

    scan(step, 0.0, y)


def regression(y):
    a = numpyro.sample("a", dist.Normal(0, 1))
    k = numpyro.sample("k", dist.Gamma(2, 1))
    with numpyro.plate("i", 8):
        u = numpyro.sample("u", dist.Normal(a, k))
        numpyro.sample("y", dist.Poisson(jnp.exp(u)), obs=y)


conditioned = numpyro.handlers.condition(
    numpyro.handlers.reparam(regression, config={"u": LocScaleReparam(0.3)}), {"k": jnp.array(1.5)}
)

SIX = rng.normal(size=6).astype(np.float32)
MODELS = {
    "eight_schools": (eight_schools, dict(y=Y8, sigma=S8)),
    "constrained": (constrained, dict(y=SIX[:3])),
    "moving_support": (moving_support, dict(y=np.abs(SIX))),
    "handled": (handled, dict(y=SIX, mask=np.array([1, 1, 0, 1, 0, 1], bool))),
    "nested": (
        nested,
        dict(
            x=rng.normal(size=(3, 5)).astype(np.float32),
            y=rng.normal(size=(3, 5)).astype(np.float32),
            sizes={"outer": 3, "inner": 5},
        ),
    ),
    "in_scan": (in_scan, dict(y=SIX)),
    "conditioned": (conditioned, dict(y=np.arange(8, dtype=np.int32))),
}


@contextlib.contextmanager
def no_compilation():
    compiled = []

    def count(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert not compiled


def run(closed, z, target):
    return jax.jit(jex.jaxpr_as_fun(closed))(z, *target.traced)


@pytest.mark.parametrize("name", MODELS)
def test_target_equals_numpyros_potential(name):
    model, data = MODELS[name]
    target = make_target(model, (), data)
    z = np.random.default_rng(1).uniform(-1, 1, target.dim).astype(np.float32)

    @jax.jit
    def ours(z):
        out = jax.core.eval_jaxpr(target.density.jaxpr, target.density.consts, z, *target.traced)
        return out[0], out

    @jax.jit
    @jax.value_and_grad
    def theirs(z):
        return -potential_energy(model, (), data, target.unflatten(z))

    (total, outputs), gradient = jax.value_and_grad(ours, has_aux=True)(z)
    expected, expected_gradient = theirs(z)
    assert total.dtype == target.dtype and np.isfinite(expected)
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-4)
    kinds = [t.kind for t in target.terms]
    log_densities = [v for v, k in zip(outputs[1:], kinds, strict=True) if "outside" not in k]
    np.testing.assert_allclose(sum(log_densities), total, rtol=1e-5, atol=1e-5)
    latent = {f.name for f in target.free}
    assert {t.site for t in target.terms if t.kind == "prior"} == latent
    assert all(v == 0 for v, k in zip(outputs[1:], kinds, strict=True) if k == "outside")

    values = dict(zip((s.name for s in target.sites), run(target.constrain, z, target), strict=True))
    position = {k: jnp.asarray(v) for k, v in target.unflatten(z).items()}
    reference = constrain_fn(model, (), data, position, return_deterministic=True)
    assert values.keys() == reference.keys()
    for site in target.sites:
        np.testing.assert_allclose(values[site.name], reference[site.name], rtol=1e-4, atol=1e-5)
        assert values[site.name].shape == site.shape and values[site.name].dtype == site.dtype
        assert len(site.dims) == len(site.shape)
        assert (site.kind == "latent") == (site.name in latent)


def test_terms_are_those_of_numpyro():
    model, data = MODELS["handled"]
    target = make_target(model, (), data)
    z = np.full(target.dim, 0.3, np.float32)
    values = dict(
        zip(((t.site, t.kind) for t in target.terms), run(target.density, z, target)[1:], strict=True)
    )
    assert values["s", "jacobian"] == pytest.approx(0.3)
    assert values["t", "jacobian"] == pytest.approx(0.5 * 6 * 0.3)
    assert values["flat", "factor"] == pytest.approx(-0.1 * 2 * 0.09 - np.exp(0.3), rel=1e-5)
    density = dist.Normal(0.6 + np.exp(0.3), np.exp(0.3)).log_prob(data["y"])
    assert values["y", "likelihood"] == pytest.approx(0.5 * float(density[data["mask"]].sum()), rel=1e-4)


def test_dims_come_from_plates_and_the_user_wins():
    model, data = MODELS["nested"]
    target = make_target(model, (), data)
    dims = {s.name: s.dims for s in target.sites}
    assert dims["b"] == ("outer", "inner") and dims["base"] == ("base_dim_0",)
    assert dims["rows"] == ("outer", "inner", "rows_dim_2") and dims["gap"] == ("outer", "inner", "gap_dim_2")
    assert target.dims["y"] == ("outer", "inner")
    labelled = make_target(
        model, (), data, dims={"base": "coef", "x": ["outer", "inner"]}, coords={"outer": ["a", "b", "c"]}
    )
    assert labelled.dims["base"] == ("coef",) and labelled.dims["x"] == ("outer", "inner")
    assert list(labelled.coords["outer"]) == ["a", "b", "c"]
    for bad, words in (
        (dict(dims={"bas": "k"}), "did you mean 'base'"),
        (dict(dims={"base": ["k", "l"]}), "2 names"),
        (dict(dims={"base": "outer"}), "length"),
        (dict(coords={"outre": [1, 2, 3]}), "did you mean 'outer'"),
        (dict(coords={"outer": [1, 2]}), "length 3"),
        (dict(var_names=["gab"]), "did you mean 'gap'"),
        (dict(var_names=["y"]), "observed"),
    ):
        with pytest.raises(InputError, match=words):
            make_target(model, (), data, **bad)


def test_pandas_labels_become_coords():
    pd = pytest.importorskip("pandas")
    schools = pd.Index(list("ABCDEFGH"), name="school")
    target = make_target(eight_schools, (), dict(y=pd.Series(Y8, schools), sigma=pd.Series(S8, schools)))
    assert list(target.coords["school"]) == list("ABCDEFGH") and target.dims["sigma"] == ("school",)


def test_sites_outside_var_names_are_not_computed():
    target = make_target(eight_schools, (), dict(y=Y8, sigma=S8), var_names=["mu"])
    assert [s.name for s in target.sites] == ["mu"]
    assert not any(e.primitive.name in ("exp", "mul") for e in target.constrain.eqns)


def test_observed_and_constants():
    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        numpyro.sample("half", dist.Normal(b, 1), obs=y[:4])
        numpyro.sample("y", dist.Normal(b * x, 1), obs=y)

    target = make_target(model, (S8,), dict(y=Y8))
    np.testing.assert_array_equal(target.observed()["y"], Y8)
    np.testing.assert_array_equal(target.observed()["half"], Y8[:4])
    with no_compilation():
        again = make_target(lambda x, y: model(x, y), (S8,), dict(y=Y8 + 1))
        np.testing.assert_array_equal(again.observed()["half"], Y8[:4] + 1)
    assert list(target.constants()) == ["x"]
    np.testing.assert_array_equal(target.constants()["x"], S8)


def test_target_names_and_slices():
    target = make_target(constrained, (), dict(y=SIX[:3]))
    assert {f.name: f.shape for f in target.free} == {"p": (2,), "cuts": (3,), "chol": (3,), "scale": (3,)}
    z = np.arange(target.dim, dtype=np.float32)
    np.testing.assert_array_equal(target.flatten(target.unflatten(z)), z)
    assert target.unflatten(np.zeros((4, 5, target.dim)))["p"].shape == (4, 5, 2)


def test_matrix_products_run_at_highest_precision_unless_chosen():
    def model(x):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.factor("f", -((x @ b) ** 2).sum())

    def precision():
        closed = make_target(model, (), dict(x=np.ones((4, 3), np.float32))).density
        return next(e.params["precision"] for e in closed.eqns if e.primitive.name == "dot_general")

    assert "HIGHEST" in str(precision())
    with jax.default_matmul_precision("bfloat16"):
        assert "HIGHEST" not in str(precision())


def test_tracing_compiles_nothing_and_a_fresh_function_has_the_same_key():
    def fresh(scale):
        def model(y):
            m = numpyro.sample("m", dist.Normal(0, scale))
            numpyro.sample("y", dist.Normal(m, jax.nn.softplus(m)), obs=y)

        return model

    with no_compilation():
        targets = [make_target(fresh(s), (), dict(y=Y8 + i)) for i, s in enumerate((1.0, 1.0, 2.0))]
    keys = [program_key(t.density) for t in targets]
    assert keys[0] == keys[1] and hash(keys[0]) == hash(keys[1]) and keys[0] != keys[2]


def test_double_precision():
    with jax.enable_x64(True):
        target = make_target(eight_schools, (), dict(y=Y8.astype(float), sigma=S8.astype(float)))
        assert target.dtype == np.float64 and target.density.out_avals[0].dtype == np.float64
        assert all(s.dtype == np.float64 for s in target.sites)


def test_string_flag_and_none_arguments():
    def model(x, y=None, link="id", flip=False, n=3):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([n]).to_event(1))
        eta = (-x if flip else x) * b.sum()
        numpyro.sample("y", dist.Normal(jnp.tanh(eta) if link == "tanh" else eta, 1), obs=y)

    assert make_target(model, (SIX,), dict(y=SIX, link="tanh", flip=True)).dim == 3
    assert make_target(model, (SIX,), dict(y=SIX, n=2)).dim == 2
    assert make_target(model, (SIX,), dict(y=None)).dim == 9


def test_two_threads_trace_at_once():
    failures = []

    def work(i):
        def model(y):
            m = numpyro.sample(f"m{i}", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(m, 1), obs=y)

        try:
            for _ in range(5):
                assert [f.name for f in make_target(model, (), dict(y=Y8)).free] == [f"m{i}"]
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
