"""Putting pytrees and keys on the mesh, and bringing them back."""

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Key, PyTree

from chainmesh._errors import InputError, MeshError

from ._layout import ChainLayout
from ._mesh import CHAIN, as_chain_mesh


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def put(x: Any, mesh: Mesh, spec: P) -> jax.Array:
    """One array on `mesh` as `spec` says, with a strong dtype.

    An uncommitted or weakly typed argument would make a program trace again, so nothing else enters one.
    """
    sharding = NamedSharding(mesh, spec)
    if _is_key(x) and jax.process_count() > 1:
        return jax.random.wrap_key_data(
            put(np.asarray(jax.random.key_data(x)), mesh, spec), impl=jax.random.key_impl(x)
        )
    if isinstance(x, jax.Array):
        if getattr(x, "weak_type", False):
            x = jax.numpy.asarray(x, dtype=x.dtype)
        if x.is_fully_addressable and jax.process_count() > 1:
            x = np.asarray(x)
    else:
        x = np.asarray(x)
        x = x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False)
    if jax.process_count() > 1 and not isinstance(x, jax.Array):
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    return jax.device_put(x, sharding)


def _pad(x: Any, layout: ChainLayout) -> Any:
    shape = np.shape(x)
    if not shape:
        raise InputError(
            "place: every leaf needs a leading chain axis, but one is a scalar; give it spec=P()."
        )
    if shape[0] == layout.slots:
        return x
    if _is_key(x):
        impl = jax.random.key_impl(x)
        return jax.random.wrap_key_data(_pad(np.asarray(jax.random.key_data(x)), layout), impl=impl)
    x = gather(x)
    return np.concatenate([x, np.repeat(x[-1:], layout.padding, axis=0)])


def place(tree: PyTree, mesh: Mesh, spec: P | None = None) -> PyTree[Array]:
    """Put a pytree on the mesh: leading axes split over the chains (the default), or as `spec` says.

    A leading axis of `chains` entries that does not fill the mesh is filled up with copies of its last entry;
    `gather(tree, chains)` takes them off again. The caller's arrays are neither changed nor donated.

    Args:
        tree: host or device arrays. With the default spec every leaf has a leading chain axis of one length.
        mesh: see `chain_mesh`; a mesh of one axis of any name does too.
        spec: None for P("chain"); P() puts a copy on every device.

    Raises:
        InputError: leaves disagree about the number of chains.
    """
    mesh = as_chain_mesh(mesh)
    if spec is not None and (not spec or spec[0] != CHAIN):
        return jax.tree.map(lambda x: put(x, mesh, spec), tree)
    lengths = {np.shape(x)[0] if np.shape(x) else 0 for x in jax.tree.leaves(tree)}
    if len(lengths) > 1:
        raise InputError(
            f"place: leaves have {sorted(lengths)} chains along their leading axes; they must agree."
        )
    if not lengths:
        return tree
    layout = ChainLayout.on(mesh, max(lengths.pop(), 1))
    return jax.tree.map(lambda x: put(_pad(x, layout), mesh, spec or P(CHAIN)), tree)


def root_key(seed: Any) -> Key[Array, ""]:
    """A typed scalar key from an int, a typed key, or a raw key.

    Raises:
        InputError: `seed` is none of these.
    """
    if isinstance(seed, bool | np.bool_) or seed is None:
        raise InputError(f"seed must be an int or a JAX key, got {seed!r}.")
    if isinstance(seed, int | np.integer):
        if not 0 <= seed < 2**32:
            raise InputError(f"seed must be between 0 and 2**32 - 1, got {seed}.")
        return jax.random.key(int(seed))
    if _is_key(seed):
        if seed.shape != ():
            raise InputError(f"seed must be one key, got an array of keys of shape {seed.shape}.")
        return seed
    if getattr(seed, "dtype", None) == np.uint32 and getattr(seed, "ndim", 0) == 1 and len(seed) in (2, 4):
        return jax.random.wrap_key_data(
            jax.numpy.asarray(seed), impl="threefry2x32" if len(seed) == 2 else "rbg"
        )
    raise InputError(
        f"seed must be an int or a JAX key (jax.random.key or PRNGKey), got {type(seed).__name__}."
    )


@functools.cache
def _fold_program() -> Any:
    return jax.jit(jax.vmap(jax.random.fold_in, in_axes=(None, 0)))


def chain_keys(seed: Any, chains: int, mesh: Mesh | None = None) -> Key[Array, " slots"]:
    """One key per chain, made from the seed and the global chain number, so that chain 7 gets the same key anywhere.

    Args:
        seed: an int, or a JAX key, typed or raw.
        chains: number of chains.
        mesh: when given, the keys are split over its chain axis and padded to fill it.

    Raises:
        InputError: `seed` is not a seed.
        MeshError: `chains` is not a positive integer.
    """
    if isinstance(chains, bool) or not isinstance(chains, int | np.integer) or chains < 1:
        raise MeshError(f"chains must be a positive integer, got {chains!r}.")
    key = root_key(seed)
    if mesh is None:
        return _fold_program()(key, np.arange(chains, dtype=np.uint32))
    mesh = as_chain_mesh(mesh)
    slots = ChainLayout.on(mesh, int(chains)).slots
    return _fold_program()(put(key, mesh, P()), put(np.arange(slots, dtype=np.uint32), mesh, P(CHAIN)))


def _to_host(x: Any) -> np.ndarray:
    if _is_key(x):
        x = jax.random.key_data(x)
    if not isinstance(x, jax.Array):
        return np.asarray(x)
    if x.is_fully_addressable:
        return np.asarray(x)
    if x.is_fully_replicated:
        return np.asarray(x.addressable_data(0))
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(x, tiled=True))


def gather(tree: PyTree, chains: int | None = None) -> PyTree[np.ndarray]:
    """The pytree as NumPy arrays on this host, whole even when some shards live in other processes.

    Keys come back as their raw data. With several processes every one must call it.

    Args:
        tree: arrays on the mesh.
        chains: keep this many leading entries, dropping padding chains.
    """
    for x in jax.tree.leaves(tree):  # start all copies before waiting for the first
        if isinstance(x, jax.Array) and x.is_fully_addressable and not _is_key(x):
            x.copy_to_host_async()
    host = jax.tree.map(_to_host, tree)
    return host if chains is None else jax.tree.map(lambda x: x[:chains], host)
