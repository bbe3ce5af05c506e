"""Log densities of one's own: structures, starts, and what their functions must return."""

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest

from chainmesh._errors import ModelError
from chainmesh.sampler._logdensity import LogDensity
from chainmesh.sampler._target import make_target

Y8 = np.array([28.0, 8, -3, 7, -1, 1, 18, 12], np.float32)
S8 = np.array([15.0, 10, 16, 11, 9, 11, 10, 18], np.float32)


def run(closed, z, target):
    return jax.jit(jex.jaxpr_as_fun(closed))(z, *target.traced)


def test_log_density_over_a_pytree():
    def fn(p, y, scale=1.0):
        return -0.5 * (((y - p["m"]["loc"]) / scale) ** 2).sum() - (p["w"][0] ** 2).sum() - p["w"][1]

    initial = {"m": {"loc": 0}, "w": [np.zeros(3), 1]}
    target = make_target(LogDensity(fn, initial=initial), (Y8,), dict(scale=2.0))
    assert [(f.name, f.shape) for f in target.free] == [("m.loc", ()), ("w.0", (3,)), ("w.1", ())]
    assert [s.name for s in target.sites] == ["m.loc", "w.0", "w.1"] and target.terms == ()
    z = np.arange(5, dtype=np.float32)
    expected = -0.5 * ((Y8 / 2) ** 2).sum() - 1 - 4 - 9 - 4
    np.testing.assert_allclose(run(target.density, z, target)[0], expected, rtol=1e-6)
    np.testing.assert_array_equal(run(target.constrain, z, target)[1], [1, 2, 3])
    np.testing.assert_array_equal(target.flatten(target.unflatten(z)), z)
    assert list(target.constants()) == ["y", "scale"] and target.observed() == {}


def test_log_density_with_constrain_and_dims():
    target = make_target(
        LogDensity(
            lambda x, y: -((x - y) ** 2).sum(),
            initial=np.zeros(8),
            constrain=lambda x, y: {"x": x, "rate": jnp.exp(x)},
            dims={"rate": ["school"], "x": ["school"]},
        ),
        (),
        dict(y=Y8),
        coords={"school": list("ABCDEFGH")},
        var_names="rate",
    )
    assert [(s.name, s.kind, s.dims) for s in target.sites] == [("rate", "deterministic", ("school",))]
    np.testing.assert_allclose(run(target.constrain, np.zeros(8, np.float32), target)[0], np.ones(8))


def test_initial_is_one_position_or_one_per_chain():
    def total(x):
        return -(x**2).sum()

    def elementwise(p):
        return -(p["s"] ** 2) - (p["m"] ** 2).sum()

    shapes = [
        (total, np.zeros(4), (4,)),
        (total, np.zeros((4, 3)), (3,)),
        (total, np.zeros((5, 3)), (5, 3)),
        (total, lambda key: jax.random.normal(key, (4, 2)), (4, 2)),
        (elementwise, {"s": np.ones(4), "m": np.zeros((4, 2))}, ()),
        (elementwise, {"s": 1, "m": np.zeros(4)}, ()),
        (lambda x: -(x**2), np.zeros(4), ()),
    ]
    for fn, initial, shape in shapes:
        target = make_target(LogDensity(fn, initial=initial), chains=4)
        assert target.free[-1].shape == shape


@pytest.mark.parametrize(
    "fn, words",
    [
        (lambda x: -(x**2), ["shape (3,)", ".sum()"]),
        (lambda x: None, ["None", "return"]),
        (lambda x: jnp.int32(1), ["int32"]),
        (lambda x: (x.sum(), 1), ["tuple"]),
        (lambda x: (x * 1j).sum(), ["complex"]),
        (lambda x: x["a"].sum(), ["'x' (3,)"]),
        (lambda x: x.sum() if x[0] > 0 else 0.0, ["jnp.where"]),
        (lambda x: x.sum() + jnp.ones(2) @ x, ["test_log_density.py"]),
    ],
)
def test_log_densities_that_cannot_be_sampled(fn, words):
    with pytest.raises(ModelError) as caught:
        make_target(LogDensity(fn, initial=np.zeros(3)))
    for word in words:
        assert word in str(caught.value), str(caught.value)
