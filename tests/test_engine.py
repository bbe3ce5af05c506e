"""The block engine: blocks of any length cut the same chain, and nothing is counted twice or lost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo_exact import EXACT

import chainmesh as cm
from chainmesh.kernels import Batching

CHAINS, DIM, CAPACITY = 5, 3, 16
DENSITY = EXACT["log_exponential"].logdensity
# So low a threshold that some steps count as divergences.
KERNEL = cm.HMC(step_size=0.9, n_leapfrog=3, divergence_threshold=0.5)
PARAMS = KERNEL.params(DIM, np.dtype("f4"))
SHARED = frozenset(PARAMS)
KEYS = jax.random.split(jax.random.key(3), CHAINS)
X = EXACT["log_exponential"].sample(np.random.default_rng(0), CHAINS).astype(np.float32)


@functools.cache
def carry():
    values, gradients = jax.vmap(jax.value_and_grad(DENSITY))(X)
    return KERNEL.carry_init(KEYS, PARAMS, Batching(SHARED), DENSITY, jnp.asarray(X), values, gradients)


@functools.partial(jax.jit, static_argnums=(4, 5))
def _block(carry, start, n, thin, capacity, one_by_one):
    engine = Batching(SHARED, jnp.int32(CHAINS) if one_by_one else None)
    return KERNEL.draw_block(KEYS, PARAMS, engine, DENSITY, carry, start, n, thin, capacity)


def block(carry, start, n, thin=1, capacity=CAPACITY, one_by_one=False):
    return _block(carry, jnp.int32(start), jnp.int32(n), jnp.int32(thin), capacity, one_by_one)


@functools.cache
def whole():
    """Sixteen draws in one block."""
    end, rows = block(carry(), 0, 16)
    return jax.device_get((end, rows.position, rows.info, rows.totals))


@pytest.mark.parametrize("parts", [(1,) * 16, (16,), (5, 11), (1, 15), (3, 0, 6, 7)])
def test_any_partition_gives_the_same_bits(parts):
    end, position, info, totals = whole()
    state, start, x, names, sums = carry(), 0, [], [], []
    for n in parts:
        state, rows = block(state, start, n)
        x.append(np.asarray(rows.position)[:, :n])
        names.append({k: np.asarray(v)[:, :n] for k, v in rows.info.items()})
        sums.append(jax.device_get(rows.totals))
        start += n
    np.testing.assert_array_equal(np.concatenate(x, 1), position)
    for name in info:
        np.testing.assert_array_equal(np.concatenate([i[name] for i in names], 1), info[name])
    for name in totals:
        np.testing.assert_array_equal(sum(s[name] for s in sums), totals[name])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), end)


@pytest.mark.parametrize("thin", [2, 3, 5])
def test_thinning_keeps_every_kth_draw_of_the_same_chain(thin):
    _, position, info, _ = whole()
    n = 16 // thin
    first, rest = block(carry(), 0, 1, thin), None
    state, rows = first
    kept = [np.asarray(rows.position)[:, :1]]
    rate = [np.asarray(rows.info["acceptance_rate"])[:, :1]]
    state, rest = block(state, 1, n - 1, thin)
    kept.append(np.asarray(rest.position)[:, : n - 1])
    rate.append(np.asarray(rest.info["acceptance_rate"])[:, : n - 1])
    np.testing.assert_array_equal(np.concatenate(kept, 1), position[:, thin - 1 :: thin][:, :n])
    np.testing.assert_array_equal(
        np.concatenate(rate, 1), info["acceptance_rate"][:, thin - 1 :: thin][:, :n]
    )
    np.testing.assert_array_equal(
        rows.totals["n_steps"] + rest.totals["n_steps"], info["n_steps"][:, : n * thin].sum(1)
    )


def test_totals_are_sums_over_every_step():
    _, _, info, totals = whole()
    assert set(totals) == {"n_steps", "diverging"}
    for name in totals:
        np.testing.assert_array_equal(totals[name], info[name].sum(1))
        assert totals[name].dtype == np.int32 and totals[name].shape == (CHAINS,)
    assert 0 < totals["diverging"].sum() < 16 * CHAINS


def test_without_capacity_nothing_is_kept_and_everything_counted():
    end, _, _, totals = whole()
    state, rows = block(carry(), 0, 16, capacity=0)
    assert rows.position.shape == (CHAINS, 0, DIM) and all(v.shape == (CHAINS, 0) for v in rows.info.values())
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(rows.totals), totals)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), end)


def test_no_draws_leave_the_carry_as_it_is():
    state, rows = block(carry(), 7, 0)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(carry()))
    assert not rows.totals["n_steps"].any()


def test_another_start_is_another_part_of_the_random_stream():
    assert not np.allclose(block(carry(), 0, 1)[1].position[:, 0], block(carry(), 1, 1)[1].position[:, 0])


def test_one_by_one_equals_side_by_side_to_rounding():
    """The first draws agree; later ones may part, as chaos magnifies rounding."""
    _, position, info, _ = whole()
    _, rows = block(carry(), 0, 3, one_by_one=True)
    np.testing.assert_allclose(np.asarray(rows.position)[:, :3], position[:, :3], atol=1e-3)
    np.testing.assert_array_equal(np.asarray(rows.info["n_steps"])[:, :3], info["n_steps"][:, :3])


def test_one_by_one_a_chain_does_not_depend_on_its_neighbours():
    """Bit for bit: three of the chains alone, and the loop stops at the number given."""
    engine = lambda n: Batching(frozenset({"s"}), n)  # noqa: E731

    @jax.jit
    def run(n, x, y):
        return engine(n).map(lambda p, a, b: p["s"] * jnp.sin(a @ a) + b, ({"s": None}, 0, 0))(
            {"s": 2.0}, x, y
        )

    x = jax.random.normal(jax.random.key(0), (5, 40))
    y = jnp.arange(5.0)
    five, three = run(5, x, y), run(3, x[:3], y[:3])
    np.testing.assert_array_equal(five[:3], three)
    assert (run(2, x, y)[2:] == 0).all()


def test_side_by_side_maps_the_parameters_that_are_not_shared():
    params = {"step": jnp.arange(3.0), "metric": jnp.ones(2)}
    for count in (None, jnp.int32(3)):
        engine = Batching(frozenset({"metric"}), count)
        assert engine.param_axes(params) == {"step": 0, "metric": None}
        out = engine.map(lambda p, x: p["step"] * p["metric"].sum() + x, (engine.param_axes(params), 0))(
            params, jnp.zeros(3)
        )
        np.testing.assert_array_equal(out, [0.0, 2.0, 4.0])
