"""The one place where chainmesh calls `jax.shard_map`."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from ._mesh import CHAIN, as_chain_mesh
from ._place import place


def chain_program(
    fn: Callable[..., Any], mesh: AbstractMesh, in_specs: PyTree, out_specs: PyTree
) -> Callable[..., Any]:
    """`jit(shard_map(fn))`, manual over "chain"; a "data" axis stays with the compiler.

    The mesh is abstract: the devices come from the arguments, so one program serves every set of devices of that
    shape. check_vma is off because constants born inside a sampler's loops do not count as varying over the mesh;
    hence no `psum` may stand inside a function that is differentiated here (its gradient would be wrong).
    """
    return jax.jit(
        jax.shard_map(
            fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names={CHAIN}, check_vma=False
        )
    )


def _spec_leaves(args: tuple, in_specs: Any) -> list[tuple[Any, Any]]:
    def is_spec(s: Any) -> bool:
        return s is None or isinstance(s, P)

    if is_spec(in_specs):
        return [(arg, in_specs) for arg in args]
    return list(zip(args, in_specs, strict=True))


def over_chains(
    fn: Callable[..., Any],
    mesh: Mesh,
    in_specs: PyTree = P(CHAIN),
    out_specs: PyTree = P(CHAIN),
) -> Callable[..., Any]:
    """Run `fn` once per device, each on the chains that live there.

    Inside, arrays have this device's chains along their leading axis: `vmap` over it. What is not per chain (the
    step function, a length) is closed over. The result is compiled; arguments that are not on the mesh yet are
    placed there, and a leading axis that does not fill the mesh is padded (see `place`).

    Args:
        fn: function of one device's part of the arguments.
        mesh: see `chain_mesh`.
        in_specs: one spec for all arguments, or a tuple with one spec (or pytree of specs) for each:
            P("chain") splits the leading axis, P() gives every device the whole, and None says the same as P().
        out_specs: the same for the result.
    """
    concrete = as_chain_mesh(mesh)
    program = chain_program(fn, concrete.abstract_mesh, in_specs, out_specs)

    def is_placed(x: Any) -> bool:
        if isinstance(x, jax.core.Tracer):
            return True
        sharding = getattr(x, "sharding", None)
        return isinstance(sharding, NamedSharding) and sharding.mesh == concrete

    def put_leaf(spec: Any, part: Any) -> Any:
        if all(is_placed(x) for x in jax.tree.leaves(part)):
            return part
        return place(part, concrete, P() if spec is None else spec)

    def call(*args: Any) -> Any:
        placed = []
        for arg, spec in _spec_leaves(args, in_specs):
            if spec is None or isinstance(spec, P):
                placed.append(put_leaf(spec, arg))
            else:
                is_leaf = lambda s: s is None or isinstance(s, P)  # noqa: E731
                placed.append(jax.tree.map(put_leaf, spec, arg, is_leaf=is_leaf))
        return program(*placed)

    return call
