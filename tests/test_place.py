"""Placement, keys, gather, and the one shard_map."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from chainmesh import InputError, chain_keys, chain_mesh, gather, over_chains, place

MESH = lambda: chain_mesh(8, 4)  # noqa: E731


def test_place_splits_and_gather_returns():
    mesh = chain_mesh(6, 4)
    tree = {"a": np.arange(12.0).reshape(6, 2), "b": np.arange(6)}
    placed = place(tree, mesh)
    assert placed["a"].sharding == NamedSharding(mesh, P("chain"))
    assert {s.data.shape for s in placed["a"].addressable_shards} == {(2, 2)}
    back = gather(placed, 6)
    np.testing.assert_array_equal(back["a"], tree["a"])
    np.testing.assert_array_equal(back["b"], tree["b"])


def test_padding_repeats_the_last_chain():
    mesh = chain_mesh(8, 4)
    out = gather(place(np.arange(5.0), mesh))
    np.testing.assert_array_equal(out, [0, 1, 2, 3, 4, 4, 4, 4])
    assert gather(place(np.arange(5.0), mesh), 5).shape == (5,)


def test_strong_dtypes_and_untouched_inputs():
    mesh = MESH()
    x0 = jax.device_put(jnp.ones((8, 3)), NamedSharding(Mesh(np.array(jax.devices())[::-1], ("c",)), P("c")))
    placed = place(x0, mesh)
    assert not placed.weak_type and placed.dtype == jnp.float32
    assert not place(jnp.asarray(1.0) * 2, mesh, P()).weak_type
    assert place(np.arange(8, dtype=np.float64), mesh).dtype == jnp.float32
    np.testing.assert_array_equal(gather(placed), np.ones((8, 3)))
    assert float(x0.sum()) == 24.0


def test_place_refuses_what_has_no_chains():
    with pytest.raises(InputError, match="agree"):
        place({"a": np.zeros(4), "b": np.zeros(5)}, MESH())
    with pytest.raises(InputError, match="scalar"):
        place(np.float32(1.0), MESH())
    assert place({}, MESH()) == {}


def test_keys_hang_on_the_chain_number_only():
    want = [jax.random.key_data(jax.random.fold_in(jax.random.key(3), c)) for c in range(6)]
    for mesh in (None, chain_mesh(6, 1), chain_mesh(6, 4), chain_mesh(6, 8), chain_mesh(100, 8)):
        keys = chain_keys(3, 6, mesh)
        np.testing.assert_array_equal(gather(keys, 6), want)
        if mesh is not None:
            assert len(keys.sharding.device_set) == mesh.shape["chain"]
            assert len(keys) % mesh.shape["chain"] == 0
    assert len(np.unique(gather(chain_keys(0, 64, MESH())), axis=0)) == 64


def test_seed_forms_agree():
    typed, raw, number = (chain_keys(s, 2) for s in (jax.random.key(5), jax.random.PRNGKey(5), 5))
    np.testing.assert_array_equal(gather(typed), gather(raw))
    np.testing.assert_array_equal(gather(typed), gather(number))
    np.testing.assert_array_equal(gather(chain_keys(np.uint32(5), 2)), gather(number))
    assert chain_keys(jax.random.key(5, impl="rbg"), 2, MESH()).dtype == jax.random.key(0, impl="rbg").dtype


@pytest.mark.parametrize("bad", [None, True, -1, 2**32, 1.5, "0", np.zeros(3), jnp.zeros(2)])
def test_no_seed(bad, untyped):
    with pytest.raises(InputError, match="seed"):
        chain_keys(bad, 2)
    with pytest.raises(InputError, match="one key"):
        chain_keys(jax.random.split(jax.random.key(0)), 2)


def test_over_chains_runs_once_per_device_on_its_chains():
    mesh = MESH()
    shapes = []

    def fn(keys, x, shift):
        shapes.append(x.shape)
        return jax.vmap(lambda k, v: v + shift + 0 * jax.random.normal(k))(keys, x)

    run = over_chains(fn, mesh, in_specs=(P("chain"), P("chain"), None))
    out = run(chain_keys(0, 6, mesh), np.arange(6.0), 2.0)
    assert shapes == [(2,)]
    np.testing.assert_array_equal(gather(out, 6), np.arange(6.0) + 2)
    inside = jax.jit(lambda k, x: 2 * run(k, x, 1.0))(chain_keys(0, 8, mesh), place(np.arange(8.0), mesh))
    np.testing.assert_array_equal(gather(inside), 2 * (np.arange(8.0) + 1))


def test_none_as_a_spec_is_closed_over_is_replicated():
    """The three ways to hand every device the same array give one and the same compiled computation."""
    mesh = MESH()
    w = place(np.linspace(0, 1, 5, dtype=np.float32), mesh, P())
    x = place(np.arange(8.0), mesh)
    fn = lambda x, w: x[:, None] * w  # noqa: E731
    given = over_chains(fn, mesh, in_specs=(P("chain"), P()))
    none = over_chains(fn, mesh, in_specs=(P("chain"), None))
    closed = over_chains(lambda x: fn(x, w), mesh)
    programs = [
        jax.jit(given).lower(x, w).compile(),
        jax.jit(none).lower(x, w).compile(),
        jax.jit(lambda x, w: over_chains(lambda x: fn(x, w), mesh)(x)).lower(x, w).compile(),
    ]
    results = [np.asarray(p(x, w)) for p in programs] + [np.asarray(closed(x))]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    operations = [sorted(line.split(" = ")[1].split("(")[0].split()[-1] for line in p.as_text().splitlines()
                         if " = " in line) for p in programs]  # fmt: skip
    assert operations[0] == operations[1] == operations[2]
    assert all("all-gather" not in p.as_text() for p in programs)


def test_specs_may_be_trees():
    mesh = MESH()
    run = over_chains(
        lambda s: {"y": s["x"] * s["c"]},
        mesh,
        in_specs=({"x": P("chain"), "c": P()},),
        out_specs={"y": P("chain")},
    )
    np.testing.assert_array_equal(gather(run({"x": np.arange(8.0), "c": 3.0}))["y"], 3 * np.arange(8.0))


def test_gather_adds_no_axis_and_takes_anything():
    mesh = MESH()
    tree = {
        "x": place(np.ones((8, 2)), mesh),
        "n": np.arange(3),
        "k": jax.random.key(0),
        "r": place(1.5, mesh, P()),
    }
    out = gather(tree)
    assert {k: v.shape for k, v in out.items()} == {"x": (8, 2), "n": (3,), "k": (2,), "r": ()}
    assert all(isinstance(v, np.ndarray) for v in out.values())
