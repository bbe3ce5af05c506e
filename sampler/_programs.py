"""The compiled programs of a run, and the cache that lets a second run compile nothing.

A program runs jaxprs, never the user's Python functions; everything that varies is an argument. Programs are cached by
what they compute (the jaxprs' fingerprint, static settings, abstract mesh), not by which function object asked.
"""

import collections
import copy
import dataclasses
import functools
import threading
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from ..kernels import Adaptation, Batching, Ensemble, Kernel, Tuning, warmup_block
from ..sharding import CHAIN, chain_program, gather, place
from ._jaxprs import without_consts
from ._small_programs import clear_small_programs

START, WARMUP, DRAW, INIT = 0, 1, 2, 3
"""Phases of a chain's random stream: tags folded into its key, so that no two phases share a key."""

_RADIUS = 2.0
TRIES = 100
_CACHE_SIZE = 16


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is static about a run's programs: with the jaxprs' fingerprints it is their key in the cache."""

    kernel: Kernel
    adaptation: Adaptation | None
    mesh: AbstractMesh
    chains: int
    per_device: int
    dim: int
    dtype: np.dtype
    params: tuple[str, ...]
    capacity: int
    one_by_one: bool
    constrain_batch: int

    @property
    def shared(self) -> frozenset[str]:
        """Parameters without a chain axis: all of them when nothing is tuned."""
        return frozenset(self.params) if self.adaptation is None else self.adaptation.shared

    @property
    def param_specs(self) -> dict[str, P]:
        """How the parameters lie on the mesh."""
        return {name: P() if name in self.shared else P(CHAIN) for name in self.params}


def static_copy(kernel: Kernel) -> Kernel:
    """The kernel without the numbers that vary, so that the cache holds no arrays and traced code cannot read them."""
    new = copy.copy(kernel)
    for f in dataclasses.fields(kernel):
        if not f.compare:
            object.__setattr__(new, f.name, None)
    return new


class Programs:
    """The programs of one plan: start, block of draws, window end, constrain. Each compiles when first used.

    Built on the abstract mesh: other devices of the same shape need no new trace.
    """

    def __init__(self, plan: Plan, density: ClosedJaxpr, constrain: ClosedJaxpr) -> None:
        self.ready = False
        """Whether a run has compiled all of them."""
        self._plan = plan
        self._density = without_consts(density)
        self._constrain = without_consts(constrain)
        ch, rep = P(CHAIN), P()
        specs: Any = {"chains": ch, "params": plan.param_specs, "target_accept": rep}
        tuning = Tuning(**specs)
        run = self._build
        self.start = run(self._start, (rep,) * 6 + (ch, ch), (ch, tuning if plan.adaptation else rep, ch))
        self.constrain = run(self._constrained, (rep, rep, ch, rep), ch)
        self.one_loop = plan.adaptation is not None and type(plan.kernel).draw_block is Kernel.draw_block
        """Whether draws are made by the program of the warm-up; a kernel with a `draw_block` has one of its own."""
        if plan.adaptation is not None:
            self.tuned = run(self._tuned, (rep,) * 4 + ((ch, tuning),) + (rep,) * 5, ((ch, tuning), ch))
            self.close = self._close_on_host if plan.one_by_one else run(self._close, (tuning, rep), tuning)
        if not self.one_loop:
            self.draw = run(self._draw, (rep,) * 4 + (plan.param_specs, ch) + (rep,) * 4, (ch, ch))

    def _build(self, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        return chain_program(fn, self._plan.mesh, in_specs, out_specs)

    # What a program knows about the chains of its device.

    def _numbers(self) -> jax.Array:
        k = self._plan.per_device
        return jax.lax.axis_index(CHAIN) * k + jnp.arange(k, dtype=jnp.int32)

    def _keys(self, root: jax.Array, phase: Any) -> jax.Array:
        chain = jax.vmap(jax.random.fold_in, (None, 0))(root, self._numbers())
        return jax.vmap(jax.random.fold_in, (0, None))(chain, phase)

    def _logdensity(self, consts: Any, traced: Any) -> Callable[[jax.Array], jax.Array]:
        return lambda z: jax.core.eval_jaxpr(self._density, consts, z, *traced)[0]

    # The programs.

    def _start(
        self,
        root: Any,
        consts: Any,
        traced: Any,
        params: Any,
        target: Any,
        count: Any,
        values: Any,
        fixed: Any,
    ):
        """Start positions: what the user fixed, the rest uniform(-2, 2), tried again until density and gradient are
        finite; then the kernel's carry and the adaptation's state there."""  # fmt: skip
        plan, engine = (
            self._plan,
            Batching(frozenset(self._plan.params), count if self._plan.one_by_one else None),
        )
        keys = self._keys(root, START)
        real = self._numbers() < plan.chains
        free = ~fixed.all(axis=1)

        def evaluate(z: Any) -> Any:
            def total(z: Any) -> Any:
                first, *terms = jax.core.eval_jaxpr(self._density, consts, z, *traced)
                return first, [jnp.asarray(t, plan.dtype) for t in terms]

            if plan.kernel.needs_gradient:
                (lp, terms), gradient = jax.value_and_grad(total, has_aux=True)(z)
            else:
                (lp, terms), gradient = total(z), jnp.zeros_like(z)
            return lp, jnp.stack(terms) if terms else jnp.zeros(0, plan.dtype), gradient

        def propose(key: Any, i: Any) -> Any:
            return jax.random.uniform(jax.random.fold_in(key, i), (plan.dim,), plan.dtype, -_RADIUS, _RADIUS)

        def again(loop: Any) -> Any:
            i, found, _ = loop
            return (i == 0) | ((i < TRIES) & jnp.any(~found & free & real))

        def body(loop: Any) -> Any:
            i, found, (z, lp, terms, gradient, tries) = loop
            proposal = jnp.where(fixed, values, engine.map(propose, (0, None))(keys, i))
            new = (proposal, *engine.map(evaluate, (0,))(proposal), tries + 1)
            keep = lambda a, b: jnp.where(found.reshape(-1, *[1] * (a.ndim - 1)), a, b)  # noqa: E731
            z, lp, terms, gradient, tries = jax.tree.map(keep, (z, lp, terms, gradient, tries), new)
            return (
                i + 1,
                jnp.isfinite(lp) & jnp.isfinite(gradient).all(axis=1),
                (z, lp, terms, gradient, tries),
            )

        k, n_terms = plan.per_device, len(self._density.outvars) - 1
        zeros = lambda *shape: jnp.zeros((k, *shape), plan.dtype)  # noqa: E731
        first = (zeros(plan.dim), zeros(), zeros(n_terms), zeros(plan.dim), jnp.zeros(k, jnp.int32))
        _, _, found = jax.lax.while_loop(again, body, (jnp.int32(0), jnp.zeros(k, bool), first))
        z, lp, terms, gradient, tries = found
        carry = plan.kernel.carry_init(
            self._keys(root, INIT), params, engine, self._logdensity(consts, traced), z, lp, gradient
        )
        checks = {"position": z, "lp": lp, "terms": terms, "gradient": gradient, "tries": tries}
        if plan.adaptation is None:
            return carry, None, checks
        has_gradient = plan.kernel.gradient(carry) is not None
        return carry, plan.adaptation.start(params, target, z, gradient if has_gradient else None, lp), checks

    def _tuned(self, root: Any, phase: Any, consts: Any, traced: Any, carry: Any, window: Any, start: Any, n: Any,
               thin: Any, count: Any):  # fmt: skip
        """A block of warm-up or of draws, as the window says."""
        plan = self._plan
        adaptation = plan.adaptation
        assert adaptation is not None
        keys, (inner, tuning) = self._keys(root, phase), carry
        per_chain, shared = self._split(tuning.params)

        def block(rows: Any) -> Any:
            keys, inner, chains, params = rows
            (inner, after), rows = warmup_block(
                plan.kernel, adaptation, Batching(plan.shared), self._logdensity(consts, traced), keys,
                (inner, tuning._replace(chains=chains, params=params | shared)), window, start, n, thin, plan.capacity,
            )  # fmt: skip
            return inner, after.chains, rows

        inner, chains, rows = self._grouped(block, count)((keys, inner, tuning.chains, per_chain))
        return (inner, tuning._replace(chains=chains)), rows

    def _split(self, params: Any) -> tuple[dict, dict]:
        """The parameters with a chain axis, and those without."""
        shared = self._plan.shared
        chain = {name: value for name, value in params.items() if name not in shared}
        return chain, {name: value for name, value in params.items() if name in shared}

    def _grouped(self, block: Callable[[Any], Any], count: Any) -> Callable[[Any], Any]:
        """`block` as it is, or called for every chain by itself, so that its arithmetic does not depend on how many
        chains share the device: batched code rounds differently for other batch sizes."""  # fmt: skip
        if not self._plan.one_by_one:
            return block

        def alone(rows: Any) -> Any:
            trees = []

            def one(row: Any) -> list[jax.Array]:
                leaves, tree = jax.tree.flatten(block(jax.tree.map(lambda x: x[None], row)))
                trees.append(tree)
                return [x[0] for x in leaves]

            leaves = Batching(count=count).map(one, (0,))(rows)
            return jax.tree.unflatten(trees[-1], leaves)

        return alone

    def _close(self, tuning: Any, window: Any) -> Any:
        """A window's end: a program of its own, started when every device is done, so that none waits long in the
        gather (XLA on CPU aborts a process whose collective is not reached within 40 s)."""  # fmt: skip
        plan = self._plan
        assert plan.adaptation is not None
        collect = lambda x: jax.lax.all_gather(x, CHAIN, tiled=True)  # noqa: E731
        return plan.adaptation.close(Ensemble(plan.chains, self._numbers(), collect), tuning, window)

    def _close_on_host(self, tuning: Any, window: Any) -> Any:
        """The same of all chains in one place: a reduction fused with what is done to a device's own chains would
        round differently on other numbers of devices."""  # fmt: skip
        plan = self._plan
        assert plan.adaptation is not None
        mesh = tuning.target_accept.sharding.mesh
        host = gather(tuning)
        per_chain, shared = self._split(host.params)
        rows, per_chain = jax.tree.map(lambda x: x[: plan.chains], (host.chains, per_chain))
        tuning = self._close_together(host._replace(chains=rows, params=per_chain | shared), gather(window))
        per_chain, shared = self._split(gather(tuning.params))
        rows, per_chain = place((gather(tuning.chains), per_chain), mesh)
        shared, target = place((shared, host.target_accept), mesh, P())
        return Tuning(rows, per_chain | shared, target)

    @functools.cached_property
    def _close_together(self) -> Callable[..., Any]:
        plan = self._plan

        def together(tuning: Any, window: Any) -> Any:
            assert plan.adaptation is not None
            everyone = Ensemble(plan.chains, jnp.arange(plan.chains, dtype=jnp.int32))
            return plan.adaptation.close(everyone, tuning, window)

        return jax.jit(together)

    def _draw(self, root: Any, phase: Any, consts: Any, traced: Any, params: Any, carry: Any, start: Any, n: Any,
              thin: Any, count: Any):  # fmt: skip
        plan, keys, logdensity = self._plan, self._keys(root, phase), self._logdensity(consts, traced)
        per_chain, shared = self._split(params)

        def block(rows: Any) -> Any:
            keys, carry, params = rows
            return plan.kernel.draw_block(
                keys, params | shared, Batching(plan.shared), logdensity, carry, start, n, thin, plan.capacity
            )

        return self._grouped(block, count)((keys, carry, per_chain))

    def _constrained(self, consts: Any, traced: Any, rows: Any, n: Any) -> Any:
        """Constrained and deterministic sites of the first `n` rows, in batches of bounded memory."""
        k, capacity, dim = rows.shape
        batch = min(self._plan.constrain_batch, k * capacity)
        flat = jnp.swapaxes(rows, 0, 1).reshape(k * capacity, dim)
        one = lambda z: jax.core.eval_jaxpr(self._constrain, consts, z, *traced)  # noqa: E731
        shapes = jax.eval_shape(jax.vmap(one), flat)
        out = [jnp.zeros(s.shape, s.dtype) for s in shapes]

        def body(i: Any, out: Any) -> Any:
            first = (
                i * batch
            )  # dynamic slices stop short of the end by themselves: the last batch may overlap
            values = jax.vmap(one)(jax.lax.dynamic_slice_in_dim(flat, first, batch))
            return [
                jax.lax.dynamic_update_slice_in_dim(o, v, first, 0) for o, v in zip(out, values, strict=True)
            ]

        out = jax.lax.fori_loop(0, (n * k + batch - 1) // batch, body, out)
        return [jnp.swapaxes(o.reshape(capacity, k, *o.shape[1:]), 0, 1) for o in out]


_cache: collections.OrderedDict[Hashable, Programs] = collections.OrderedDict()
_lock = threading.Lock()


def programs_for(plan: Plan, density: ClosedJaxpr, constrain: ClosedJaxpr, fingerprint: Hashable) -> Programs:
    """The programs of `plan`, from the cache when an equal run has been made before (one of the last 16)."""
    key = (
        fingerprint,
        plan,
    )  # precision is part of the jaxprs; jit itself tells x64 and key implementations apart
    with _lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
        found = Programs(plan, density, constrain)
        _cache[key] = found
        while len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
        return found


def clear_caches() -> None:
    """Forget every compiled program of chainmesh; the next run of each kind compiles again."""
    with _lock:
        _cache.clear()
    clear_small_programs()
