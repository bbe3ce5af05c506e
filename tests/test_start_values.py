"""Starts: values in the model's own space, and messages that name chain, site, value and the term at fault."""

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan

from chainmesh._errors import DataError, StartError
from chainmesh.sampler._logdensity import LogDensity
from chainmesh.sampler._start import start_values
from chainmesh.sampler._start_checks import check_starts
from chainmesh.sampler._target import make_target

KEY = jax.random.key(0)


def several(y):
    s = numpyro.sample("s", dist.HalfNormal(5.0))
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    m = numpyro.sample("m", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.deterministic("total", m.sum() + s)
    with numpyro.plate("i", 4):
        numpyro.sample("y", dist.Normal(m.sum() + p[0], s), obs=y)


Y4 = np.array([1.0, 2, 3, 4], np.float32)


@pytest.fixture(scope="module")
def target():
    return make_target(several, (), dict(y=Y4))


def starts(target, initvals, chains=4, initial=None):
    return start_values(target, initvals, initial, chains, KEY)


def constrained(target, values):
    return target.evaluate_sites(values)


def test_without_initvals_everything_is_free(target):
    values, fixed = starts(target, None)
    assert values.shape == fixed.shape == (4, target.dim) and not fixed.any()
    assert values.dtype == target.dtype and not values.any()


def test_values_per_chain_in_the_models_space(target):
    s0 = np.array([0.1, 1.0, 5.0, 9.0])
    p0 = np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2], [0.3, 0.3, 0.4]])
    values, fixed = starts(target, {"s": s0, "p": jnp.asarray(p0)})
    back = constrained(target, values)
    np.testing.assert_allclose(back["s"], s0, rtol=1e-5)
    np.testing.assert_allclose(back["p"], p0, atol=1e-5)
    assert fixed.sum(axis=1).tolist() == [3] * 4  # 1 for s, 2 for p; m stays free
    again, _ = starts(target, [{"s": s, "p": p} for s, p in zip(s0, p0, strict=True)])
    np.testing.assert_array_equal(values, again)


def test_one_value_for_all_and_subsets_per_chain(target):
    values, fixed = starts(target, {"m": [1, 2], "s": 3})  # integers are promoted
    back = constrained(target, values)
    assert back["m"].tolist() == [[1, 2]] * 4 and np.allclose(back["s"], 3)
    values, fixed = starts(target, [{"s": 1.0}, {}, None, {"m": np.zeros(2), "s": 2.0}])
    assert fixed.sum(axis=1).tolist() == [1, 0, 0, 3]
    assert constrained(target, values)["s"][[0, 3]].tolist() == pytest.approx([1, 2])


def test_a_sites_own_shape_wins_over_one_value_per_chain(target):
    values, _ = starts(target, {"m": [5.0, 6.0]}, chains=2)
    assert constrained(target, values)["m"].tolist() == [[5, 6], [5, 6]]


@pytest.mark.parametrize(
    "initvals, words",
    [
        ({"ss": 1.0}, ["'ss'", "did you mean 's'"]),
        ({"total": 1.0}, ["'total'", "computes"]),
        ({"y": Y4}, ["'y'", "observed"]),
        ({"m": np.zeros(3)}, ["'m'", "(3,)", "(2,)", "(4, 2)"]),
        ({"m": np.zeros((3, 2))}, ["(3, 2)", "(4, 2)"]),
        ({"s": -1.0}, ["chain 0", "s = -1", "Positive"]),
        ({"s": [1.0, 2.0, -3.0, 0.0]}, ["chain 2", "s = -3", "chains 3"]),
        ({"s": np.nan}, ["s = nan"]),
        ({"p": [0.5, 0.6, 0.2]}, ["'p'", "Simplex", "0.6"]),
        ({"s": "one"}, ["'s'", "dtype"]),
        ([{"s": 1.0}] * 3, ["3 entries", "4 chains"]),
        ([{"s": 1.0}, {}, {"s": [1.0, 2.0]}, {}], ["chain 2", "(2,)"]),
        ([{}, {}, {}, {"q": 1}], ["initvals[3]", "'q'"]),
        (7.0, ["dict"]),
    ],
)
def test_bad_initvals(target, initvals, words):
    with pytest.raises(StartError) as caught:
        starts(target, initvals)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_supports_that_depend_on_other_sites():
    def model():
        a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
        numpyro.sample("x", dist.Uniform(0, a))
        numpyro.sample("free", dist.Normal(a, 1))

    target = make_target(model)
    values, _ = starts(target, {"a": [1.0, 2.0], "x": [0.5, 1.5], "free": 0.0}, chains=2)
    back = constrained(target, values)
    np.testing.assert_allclose(back["x"], [0.5, 1.5], rtol=1e-5)
    with pytest.raises(StartError, match=r"chain 0: x = 1\.5"):
        starts(target, {"a": [1.0, 2.0], "x": [1.5, 1.5]}, chains=2)
    with pytest.raises(StartError, match=r"'x'.*depends on 'a'"):
        starts(target, {"x": 0.5}, chains=2)
    starts(target, {"free": 0.5}, chains=2)  # its support does not depend on a


def test_scanned_sites():
    def model(y):
        def step(previous, now):
            x = numpyro.sample("x", dist.LogNormal(previous, 1.0))
            numpyro.sample("y", dist.Normal(x, 1), obs=now)
            return x, x

        scan(step, 0.0, y)

    target = make_target(model, (), dict(y=Y4))
    values, fixed = starts(target, {"x": Y4}, chains=2)
    assert fixed.all()
    np.testing.assert_allclose(constrained(target, values)["x"], [Y4, Y4], rtol=1e-5)


def test_the_second_call_compiles_nothing(target):
    compiled = []

    def count(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    starts(target, {"s": 1.0, "m": [0, 0]})
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        fresh = make_target(lambda y: several(y), (), dict(y=Y4 + 1))
        values, _ = starts(fresh, {"s": [1.0, 2.0, 3.0, 4.0], "m": [1, 1]})
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert not compiled
    assert constrained(target, values)["s"].tolist() == pytest.approx([1, 2, 3, 4])


# --- log densities


def pair(p):
    return -(p["a"] ** 2) - (p["b"] ** 2).sum()


def test_positions_of_a_log_density():
    target = make_target(LogDensity(pair, initial={"a": 0, "b": np.array([1, 2])}), chains=4)
    values, fixed = starts(target, None)
    assert fixed.all() and values.tolist() == [[0, 1, 2]] * 4 and values.dtype == target.dtype
    values, _ = starts(target, {"a": [1, 2, 3, 4], "b": np.zeros((4, 2))})
    assert values[:, 0].tolist() == [1, 2, 3, 4]
    values, _ = starts(target, [{"a": i, "b": [i, i]} for i in range(4)])
    assert values.tolist() == [[i, i, i] for i in range(4)]
    for bad, words in (({"a": 0}, "structure"), ({"a": 0, "b": np.zeros(3)}, r"'b' has shape \(3,\)"),
                       ([{"a": 0, "b": [0, 0]}], "1 positions for 4"), ({"a": "u", "b": [0, 0]}, "'a'")):  # fmt: skip
        with pytest.raises(StartError, match=words):
            starts(target, bad)


def test_drawn_and_per_chain_positions():
    target = make_target(
        LogDensity(lambda x: -(x**2).sum(), initial=lambda key: jax.random.normal(key, (3,)))
    )
    four, fixed = starts(target, None)
    eight, _ = starts(target, None, chains=8)
    assert fixed.all() and len(np.unique(four)) == 12
    np.testing.assert_array_equal(four, eight[:4])
    x0 = np.arange(12.0).reshape(4, 3)
    target = make_target(LogDensity(lambda x: -(x**2).sum(), initial=x0), chains=4)
    np.testing.assert_array_equal(starts(target, None)[0], x0)


# --- checks


def check(target, positions, tries=1, fixed=True):
    """What the start program computes, and the check of it."""
    z = np.asarray(positions, target.dtype)

    def value(z):
        out = jex.jaxpr_as_fun(target.density)(z, *target.traced)
        return out[0], out[1:]

    (total, terms), gradient = jax.jit(jax.vmap(jax.value_and_grad(value, has_aux=True)))(z)
    n = len(z)
    check_starts(
        target,
        z,
        np.asarray(total),
        np.stack([np.asarray(t, np.float64) for t in terms], axis=1) if terms else np.zeros((n, 0)),
        np.asarray(gradient),
        np.full(n, tries),
        np.full(z.shape, fixed),
    )


def refuse(error, words, *args, **settings):
    with pytest.raises(error) as caught:
        check(*args, **settings)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return str(caught.value)


def test_good_starts_pass_silently(target):
    check(target, np.zeros((4, target.dim)))


def test_the_prior_is_named():
    def model():
        numpyro.sample("m", dist.Normal(0, 1))
        numpyro.sample("s", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.sample("h", dist.Normal(0, 1e-20))

    target = make_target(model)
    z = np.zeros((4, 3))
    z[2, 2] = 5.0
    text = refuse(StartError, ["chain 2", "prior of 'h'", "-inf", "h = 5"], target, z)
    assert "chain 0" not in text
    z[1, 0] = np.nan
    refuse(StartError, ["2 of 4", "chain 1", "prior of 'm'", "nan"], target, z)


def test_the_constraint_is_named(target):
    z = np.zeros((3, target.dim))
    z[1, target.free[0].slice] = np.inf
    refuse(StartError, ["chain 1", "constraint", "'s'", "s = inf"], target, z)


def test_the_likelihood_is_named(target):
    z = np.zeros((3, target.dim))
    z[0, target.free[0].slice] = -80.0
    refuse(StartError, ["chain 0", "likelihood of 'y'", "s = "], target, z)


def test_the_factor_is_named():
    def model():
        numpyro.sample("m", dist.Normal(0, 1))
        numpyro.factor("penalty", -jnp.inf)

    refuse(StartError, ["factor 'penalty'"], make_target(model), np.zeros((1, 1)))


def test_a_gradient_that_is_not_finite_is_named():
    def model():
        numpyro.sample("fine", dist.Normal(0, 1))
        x = numpyro.sample("x", dist.Normal(0, 1))
        numpyro.factor("f", -jnp.sqrt(jnp.abs(x)))

    text = refuse(StartError, ["gradient", "'x'", "chain 0"], make_target(model), np.zeros((2, 2)))
    assert "'fine'" not in text


def test_no_start_at_all_suggests_initvals():
    def model():
        x = numpyro.sample("x", dist.Normal(0, 1))
        numpyro.factor("far", jnp.where(x > 50, 0.0, -jnp.inf))

    target = make_target(model)
    refuse(
        StartError,
        ["100", "uniform(-2, 2)", "initvals", "'far'"],
        target,
        np.ones((8, 1)),
        tries=100,
        fixed=False,
    )


def test_a_chain_of_a_log_density_is_named():
    def fn(p):
        return jnp.where(p["s"] > 0, -p["s"], -jnp.inf) - (p["m"] ** 2).sum()

    target = make_target(LogDensity(fn, initial={"s": np.ones(4), "m": np.zeros(4)}), chains=4)
    z, _ = starts(target, {"s": np.array([1.0, 2.0, -1.0, 1.0]), "m": np.zeros(4)})
    refuse(StartError, ["chain 2", "-inf", "s = -1"], target, z)


def test_data_outside_the_support_are_named():
    def counts(y, rate):
        r = numpyro.sample("r", dist.Gamma(2, rate))
        with numpyro.plate("i", 4):
            numpyro.sample("y", dist.Poisson(r), obs=y)

    target = make_target(counts, (), dict(y=np.array([1, 2, -1, -5]), rate=1.0))
    refuse(DataError, ["2 of 4", "'y'", "y[2] = -1", "IntegerNonnegative"], target, np.zeros((3, 1)))
    target = make_target(counts, (), dict(y=np.array([1, 2, 3, 4.5]), rate=1.0))
    refuse(DataError, ["1 of 4", "y[3] = 4.5"], target, np.zeros((3, 1)))

    def missing(y, mask):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with numpyro.plate("i", 4), numpyro.handlers.mask(mask=mask):
            numpyro.sample("y", dist.Normal(m, 1), obs=y)

    y = np.array([1, np.nan, 2, 3], np.float32)
    refuse(
        DataError,
        ["y[1] = nan", "handlers.mask"],
        make_target(missing, (), dict(y=y, mask=True)),
        np.zeros((1, 1)),
    )
    masked = make_target(missing, (), dict(y=np.nan_to_num(y, nan=0), mask=~np.isnan(y)))
    check(masked, np.zeros((1, 1)))

    def vectors(y):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("i", 2):
            numpyro.sample("y", dist.Dirichlet(p), obs=y)

    y = np.array([[0.2, 0.3, 0.5], [0.5, 0.6, 0.2]], np.float32)
    refuse(
        DataError,
        ["1 of 2", "y[1] = [0.5, 0.6, 0.2]", "Simplex"],
        make_target(vectors, (), dict(y=y)),
        np.zeros((1, 2)),
    )


def test_data_outside_count_even_where_the_density_is_finite():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        numpyro.sample("y", dist.Exponential(jnp.exp(m), validate_args=False), obs=y)

    refuse(DataError, ["y = -1", "Positive"], make_target(model, (), dict(y=-1.0)), np.zeros((2, 1)))


def test_a_moving_support_that_holds_no_chain():
    def model(y, check_values):
        top = numpyro.sample("top", dist.HalfNormal(10.0))
        numpyro.sample("y", dist.Uniform(0, top, validate_args=check_values), obs=y)

    y = np.array([0.5, 2.0, 3.0], np.float32)
    z = np.array([[2.0], [0.0]])  # top = 7.4 and 1
    checked = make_target(model, (), dict(y=y, check_values=True))
    refuse(StartError, ["chain 1", "likelihood of 'y'", "2 values lie outside", "top = 1"], checked, z)
    unchecked = make_target(model, (), dict(y=y, check_values=False))
    refuse(StartError, ["chain 1", "validate_args=True"], unchecked, z)
    check(checked, z[:1])
    check(unchecked, z[:1])
