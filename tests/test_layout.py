"""Meshes and layouts: every chain exactly once, the busiest device's load minimal."""

import math
import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from chainmesh import ChainLayout, MeshError, chain_mesh
from chainmesh.sharding import as_chain_mesh

counts = st.integers(1, 200)


@hypothesis.given(chains=counts, devices=st.integers(1, 64))
def test_every_chain_lives_exactly_once(chains, devices):
    layout = ChainLayout(chains, devices)
    held = [c for place in range(devices) for c in layout.chains_at(place)]
    assert held == list(range(chains))
    assert [layout.place_of(c) for c in range(chains)] == sorted(layout.place_of(c) for c in range(chains))
    assert all(c in layout.chains_at(layout.place_of(c)) for c in range(chains))
    assert layout.slots == chains + layout.padding and layout.slots % devices == 0


@hypothesis.given(chains=counts, devices=st.integers(1, 64))
def test_load_is_minimal(chains, devices):
    layout = ChainLayout(chains, devices)
    assert layout.per_device == math.ceil(chains / devices)
    assert max(len(layout.chains_at(p)) for p in range(devices)) == layout.per_device


@hypothesis.given(chains=counts, devices=st.integers(1, 8))
def test_our_mesh_is_the_smallest_with_minimal_load(chains, devices):
    mesh = chain_mesh(chains, devices)
    used, best = mesh.shape["chain"], math.ceil(chains / devices)
    assert math.ceil(chains / used) == best
    assert used == 1 or math.ceil(chains / (used - 1)) > best
    assert list(mesh.devices.flat) == jax.devices()[:used]


def test_out_of_range():
    layout = ChainLayout(5, 4)
    for call in (lambda: layout.place_of(5), lambda: layout.place_of(-1), lambda: layout.chains_at(4)):
        with pytest.raises(IndexError):
            call()


@pytest.mark.parametrize(
    "mesh",
    [
        lambda d: jax.make_mesh((8,), ("chain",)),
        lambda d: jax.make_mesh((8,), ("chain",), axis_types=(AxisType.Auto,)),
        lambda d: Mesh(d, ("anything",)),
        lambda d: Mesh(d.reshape(8, 1), ("chain", "data")),
        lambda d: Mesh(d.reshape(1, 8), ("data", "x")),
        lambda d: Mesh(d.reshape(1, 8, 1), ("a", "chain", "b")),
    ],
)
def test_any_axis_type_and_name(mesh):
    made = as_chain_mesh(mesh(np.array(jax.devices())))
    assert made.axis_names == ("chain", "data") and dict(made.shape) == {"chain": 8, "data": 1}
    assert made.axis_types == (AxisType.Auto, AxisType.Auto)
    assert list(made.devices.flat) == jax.devices()


def test_chain_and_data_axes_in_any_order():
    grid = np.array(jax.devices()).reshape(2, 4)
    made = as_chain_mesh(Mesh(grid, ("batch", "chain")))
    assert dict(made.shape) == {"chain": 4, "data": 2}
    assert made.devices[1, 0] == grid[0, 1]
    assert dict(chain_mesh(4, data=2).shape) == {"chain": 4, "data": 2}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: as_chain_mesh(Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))), "called 'chain'"),
        (
            lambda: as_chain_mesh(Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("chain", "a", "b"))),
            "at most one",
        ),
        (lambda: as_chain_mesh(jax.make_mesh((2,), ("chain",)).abstract_mesh), "abstract"),
        (lambda: as_chain_mesh("cpu"), "jax.sharding.Mesh"),
        (lambda: chain_mesh(0), "chains"),
        (lambda: chain_mesh(True), "chains"),
        (lambda: chain_mesh(4, 9), "set_host_devices"),
        (lambda: chain_mesh(4, []), "devices"),
        (lambda: chain_mesh(4, "cpu"), "devices"),
        (lambda: chain_mesh(4, [jax.devices()[0]] * 2), "twice"),
        (lambda: chain_mesh(4, 8, data=3), "data=3"),
        (lambda: chain_mesh(4, data=0), "data"),
    ],
)
def test_refusals(make, words, untyped):
    with pytest.raises(MeshError, match=words):
        make()


def fresh(code, **env):
    import os

    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}, timeout=120
    )


def test_set_host_devices_before_and_after_jax_starts():
    code = "import chainmesh as cm, jax; cm.set_host_devices(3); print(jax.device_count()); cm.set_host_devices(3)"
    assert fresh(code, XLA_FLAGS="").stdout.split() == ["3"]
    late = fresh(
        "import jax, jax.numpy as jnp; jnp.ones(3).block_until_ready()\n"
        "import chainmesh as cm\n"
        "try: cm.set_host_devices(8)\n"
        "except cm.DeviceCountError as e: print(isinstance(e, RuntimeError), 'before' in str(e), '1 CPU' in str(e))"
    )
    assert late.stdout.split() == ["True", "True", "True"], late.stderr
    for bad in ("0", "True", "2.5"):
        out = fresh(
            f"import chainmesh as cm\ntry: cm.set_host_devices({bad})\nexcept cm.ChainmeshError: print('no')"
        )
        assert out.stdout.split() == ["no"]
