"""Any number of chains on any number of devices (contracts 3 and 5; bugs B01 to B04, B12, B13, B15, B17, B25)."""

import functools
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from runs import HMC, RWM, SCHOOLS, equal, fresh, gauss, sample, scattered, schools

import chainmesh as cm

D = jax.devices()


def shards(run, name="x"):
    """Device -> chains there."""
    return {s.device: s.data.shape[0] for s in run.on_mesh(name)[name].addressable_shards}


@pytest.mark.parametrize(
    "chains, devices, used",
    [(1, 8, 1), (2, 3, 2), (3, 2, 2), (4, 3, 2), (5, 4, 3), (5, 8, 5), (6, 4, 3),
     (7, 3, 3), (7, 8, 7), (9, 4, 3), (9, 8, 5)],
)  # fmt: skip
def test_any_number_of_chains_on_any_number_of_devices(chains, devices, used):
    """Bugs B01 and B02: padding chains run, and are shown and counted nowhere."""
    run = sample(scattered(1), kernel=RWM, chains=chains, devices=devices, draws=30)
    x = run.posterior["x"]
    assert x.shape == (chains, 30, 1) and run.chains == chains
    assert len(np.unique(x[:, -1].round(5))) == chains
    assert all(stat.shape == (chains, 30) for stat in run.stats.values())
    assert run.tally.divergences.shape == (chains,)
    assert run.mesh.devices.size == used == len(shards(run))
    assert max(shards(run).values()) == -(-chains // devices)  # the busiest device has no more than it must
    assert f"{chains} chains x 30 draws on {used} device" in repr(run)
    padding = used * max(shards(run).values()) - chains
    assert ("padding" in str(run.report())) == bool(padding)
    assert dict(run.to_arviz()["posterior"].sizes)["chain"] == chains


def test_a_users_mesh_is_used_whole():
    """Two chains on a mesh of eight: six padding chains, which no pooled statistic counts."""
    mesh = cm.chain_mesh(8)
    run = sample(scattered(), kernel="hmc", chains=2, mesh=mesh, tune=40)
    assert run.mesh == mesh and run.layout.padding == 6
    alone = sample(scattered(), kernel="hmc", chains=2, devices=2, tune=40)
    for name, value in alone.parameters.items():
        np.testing.assert_allclose(value, run.parameters[name], rtol=1e-3)
        assert value.shape == run.parameters[name].shape
    np.testing.assert_allclose(alone.posterior["x"], run.posterior["x"], rtol=1e-2, atol=1e-2)


def test_sixteen_chains_fill_eight_devices():
    """Bug B01."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = sample(gauss(3), kernel=RWM, chains=16)
    assert len(shards(run)) == 8 and set(shards(run).values()) == {2}


@pytest.mark.parametrize("kernel", [HMC, RWM], ids=["HMC", "random walk"])
def test_one_chain_is_no_special_case(kernel):
    """Bug B03: parameters of other shapes, the chain axis always there."""
    target = cm.LogDensity(
        lambda p: -0.5 * jnp.sum(p["a"] ** 2) - 0.5 * p["b"] ** 2,
        initial={"a": jnp.zeros((2, 3)), "b": jnp.zeros(())},
    )
    for chains in (1, 2):
        run = sample(target, kernel=kernel, chains=chains, draws=25)
        assert run.posterior["a"].shape == (chains, 25, 2, 3) and run.posterior["b"].shape == (chains, 25)
        assert all(stat.shape == (chains, 25) for stat in run.stats.values())
        run.to_arviz(), run.summary(), str(run.report())


def test_four_thousand_chains():
    """Bug B04: no work on the host that grows chain by chain."""
    begun = time.time()
    run = sample(gauss(), kernel=RWM, chains=4096, tune=20, draws=20)
    data = run.to_arviz()["posterior"]
    assert dict(data.sizes)["chain"] == 4096 and abs(float(np.asarray(data["x"]).mean())) < 0.1
    assert time.time() - begun < 60


def test_starts_placed_elsewhere():
    """Bug B12: device order is part of an array's sharding, and no business of the user's."""
    x0 = np.random.default_rng(0).normal(size=(8, 2)).astype("f4")
    a = sample(gauss(), kernel=RWM, chains=8, initvals=x0)
    for devices in (D[::-1], D[:2], D[3:4]):
        placed = jax.device_put(x0, NamedSharding(Mesh(np.array(devices), ("c",)), P("c")))
        assert equal(a, sample(gauss(), kernel=RWM, chains=8, initvals=placed))


def test_meshes_of_every_kind():
    """Bug B13."""
    ours = sample(gauss(), kernel=RWM, chains=8)
    for mesh in (
        jax.make_mesh((8,), ("chain",), axis_types=(AxisType.Explicit,)),
        jax.make_mesh((8,), ("chain",), axis_types=(AxisType.Auto,)),
        Mesh(np.array(D), ("anything",)),
    ):
        run = sample(gauss(), kernel=RWM, chains=8, mesh=mesh)
        assert len(shards(run)) == 8 and equal(ours, run)
    back = sample(gauss(), kernel=RWM, chains=8, mesh=Mesh(np.array(D[::-1]), ("chain",)))
    assert equal(ours, back) and run.mesh != back.mesh  # chain i stays chain i


def test_the_same_seed_on_other_numbers_of_devices():
    """Bug B17: keys hang on the chain number only, so draws agree to rounding."""
    runs = [sample(scattered(3), kernel=HMC, chains=8, devices=n, draws=30) for n in (1, 2, 3, 4, 8)]
    for run in runs[1:]:
        np.testing.assert_allclose(run.posterior["x"], runs[0].posterior["x"], rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("chains", [8, 5])
def test_reproducible_runs_are_equal_bit_for_bit_on_two_devices_or_more(chains):
    """Pooled NUTS of a model, with padding: 8 chains on 3 devices are 9, 5 chains on 2 devices are 6."""
    run = functools.partial(
        sample,
        schools,
        data=SCHOOLS,
        chains=chains,
        tune=60,
        draws=20,
        kernel=cm.NUTS(max_depth=5),
        reproducible=True,
    )
    runs = [run(devices=n) for n in ((2, 3, 8) if chains == 8 else (2, 3))]
    assert all(equal(runs[0], other) for other in runs[1:])
    assert runs[0].reproducible and runs[0].verdict.diagnostics.n_chains == chains


@pytest.mark.slow
def test_without_fused_multiply_add_one_device_gives_the_same_bits_too():
    """For a single device XLA fuses otherwise, which shows only where LLVM contracts a product and a sum."""
    out = fresh(
        """
        import numpy as np, jax, jax.numpy as jnp
        target = cm.LogDensity(lambda x: -0.5 * jnp.sum(x ** 2 * jnp.arange(1.0, 4.0)) - 0.1 * jnp.sum(x ** 4),
                               initial=lambda key: jax.random.normal(key, (3,)))
        runs = [cm.sample(target, kernel=cm.HMC(n_leapfrog=5), chains=5, devices=n, seed=1, draws=20, tune=60,
                          progress=False, reproducible=True) for n in (1, 2, 3)]
        print([bool((r.posterior["x"] == runs[0].posterior["x"]).all()) for r in runs])
        """,
        3,
        {"XLA_FLAGS": "--xla_cpu_max_isa=AVX"},
    )
    assert out.strip().endswith("[True, True, True]")


def test_data_split_over_the_second_axis():
    """Bug B15: the log density stays written for all rows; its gradient is that of all rows."""
    y = np.random.default_rng(0).normal(3.0, 1.0, size=64).astype("f4")
    target = cm.LogDensity(lambda x, y: -0.5 * jnp.sum((y - x) ** 2), initial=jnp.zeros(()))
    run = functools.partial(
        sample, target, args=(y,), kernel=cm.HMC(step_size=0.1, n_leapfrog=5), tune=100, draws=500
    )
    split = run(mesh=cm.chain_mesh(4, data=2))
    assert dict(split.mesh.shape) == {"chain": 4, "data": 2}
    assert {s.data.shape for s in split.traced[0].addressable_shards} == {(32,)}
    x = split.posterior["x"]
    assert abs(x.mean() - y.mean()) < 0.03 and abs(x.std() - 64**-0.5) < 0.02
    whole = run(devices=4)
    np.testing.assert_allclose(x[:, :5], whole.posterior["x"][:, :5], rtol=1e-3, atol=1e-3)
    odd = run(
        mesh=cm.chain_mesh(4, data=2), args=(y[:63],), draws=10, tune=0
    )  # rows that do not divide: copies
    assert {s.data.shape for s in odd.traced[0].addressable_shards} == {(63,)}


def test_one_process_gathers_without_an_extra_axis():
    """Bug B25."""
    run = sample(gauss(), kernel=RWM, chains=8, draws=7)
    placed = run.on_mesh()["x"]
    assert placed.is_fully_addressable and placed.shape == (8, 7, 2)
    np.testing.assert_array_equal(np.asarray(run.to_arviz()["posterior"]["x"]), cm.gather(placed))
    assert cm.gather(run.on_mesh(["x"])["x"]).shape == (8, 7, 2)
    with pytest.raises(cm.InputError, match="no site 'y'"):
        run.on_mesh("y")
