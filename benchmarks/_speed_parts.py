"""The parts of speed.py: each runs in a fresh process and prints what JSON can hold."""

import dataclasses
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from _common import Compilations, interleaved, median, quiet, timed


def again(quick: bool) -> list[dict[str, Any]]:
    """A second call with new data, another seed and twice the draws."""
    import chainmesh as cm

    cm.set_host_devices(2)
    from zoo_speed import SPEED

    out = []
    for name in ("eight_schools",) if quick else ("eight_schools", "radon"):
        speed = SPEED[name]
        cm.sample(speed.model, data=speed.data(0), draws=500, seed=0, progress=quiet)
        for seed in (1, 2, 3):
            settings = {"data": speed.data(seed), "draws": 1000, "seed": seed, "progress": quiet}
            with Compilations() as compiled:
                run, cost = timed(lambda model=speed.model, settings=settings: cm.sample(model, **settings))
            parts = dataclasses.asdict(run.timing)
            parts["verdict"] = cost.wall - run.timing.total
            out.append({"model": name, "compiled": compiled.count, "cost": cost, "parts": parts})
    return out


def ours(calls: int) -> dict[str, Any]:
    """Eight schools, 4 chains on 2 devices: first call and further ones, each with new data.

    The number of warm-up draws is traced, so one first call serves both numbers.
    """
    begun = time.perf_counter()
    import chainmesh as cm

    cm.set_host_devices(2)
    from zoo_speed import SPEED

    speed, imported = SPEED["eight_schools"], time.perf_counter() - begun

    def call(seed: int, tune: int | None = 1000) -> None:
        settings = {"tune": tune, "draws": 1000, "chains": 4, "seed": seed, "progress": quiet}
        cm.sample(speed.model, data=speed.data(seed), **settings)

    with Compilations() as compiled:
        first = timed(lambda: call(0))[1]
    further = [timed(lambda s=s: call(s))[1] for s in range(1, calls + 1)]
    default = [timed(lambda s=s: call(s, None))[1] for s in range(1, calls + 1)]
    found = {"first": first, "further": median(further), "default": median(default)}
    return {"import": imported, "compile": compiled.seconds, **found}


def numpyro(calls: int) -> dict[str, Any]:
    """The same with numpyro.infer.MCMC; its "parallel" wants a device a chain."""
    begun = time.perf_counter()
    import jax
    import numpyro
    from numpyro.infer import MCMC, NUTS

    numpyro.set_host_device_count(4)
    from zoo_speed import SPEED

    speed, imported = SPEED["eight_schools"], time.perf_counter() - begun

    def call(seed: int) -> None:
        mcmc = MCMC(
            NUTS(speed.model), num_warmup=1000, num_samples=1000, num_chains=4, chain_method="parallel",
            progress_bar=False,
        )  # fmt: skip
        mcmc.run(jax.random.key(seed), **speed.data(seed))
        jax.block_until_ready(mcmc.get_samples())

    with Compilations() as compiled:
        first = timed(lambda: call(0))[1]
    further = median([timed(lambda s=s: call(s))[1] for s in range(1, calls + 1)])
    found = {"first": first, "further": further, "default": further}
    return {"import": imported, "compile": compiled.seconds, **found}


def leapfrog(model: str, quick: bool) -> list[dict[str, Any]]:
    """The draw block against BlackJAX's NUTS in jit(scan(vmap)), data as arguments.

    Start, keys, step size and metric are the same, so both make the same trajectories, up to rounding.
    """
    import blackjax
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P
    from zoo_speed import SPEED

    import chainmesh as cm
    from chainmesh.sampler import _programs
    from chainmesh.sharding import put, root_key

    speed = SPEED[model]
    widest = 16 if quick else 64
    tuned = cm.sample(
        speed.model, data=speed.data(0), chains=widest, draws=50, seed=0, devices=1, progress=quiet
    )
    plan = next(reversed(_programs._cache.values()))._plan
    target, nuts = tuned.target, blackjax.nuts.build_kernel()
    metric = np.asarray(tuned.parameters["inverse_mass_matrix"])
    step = np.asarray(np.median(tuned.parameters["step_size"]), plan.dtype)
    state = jax.tree.map(np.asarray, tuned.work.carry)
    traced, consts = [np.asarray(x) for x in target.traced], [np.asarray(c) for c in target.density.consts]
    root, out = root_key(7), []

    def by_hand(keys, state, metric, step, consts, traced):
        logdensity = lambda z: jax.core.eval_jaxpr(target.density.jaxpr, consts, z, *traced)[0]  # noqa: E731

        def body(state, keys):
            state, info = jax.vmap(lambda key, s: nuts(key, s, logdensity, step, metric, 10))(keys, state)
            kept = (state.position, state.logdensity, info.num_integration_steps, info.acceptance_rate,
                    info.is_divergent, info.energy, info.num_trajectory_expansions)  # fmt: skip
            return state, kept

        return jax.lax.scan(body, state, keys)

    def everywhere(x):
        return jax.tree.map(lambda leaf: put(leaf, tuned.mesh, P()), x)

    def by_chain(x):
        return jax.tree.map(lambda leaf: put(leaf, tuned.mesh, P("chain")), x)

    def key(chain, draw):
        return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(root, chain), _programs.DRAW), draw)

    params = {"step_size": step, "max_depth": np.int32(10), "inverse_mass_matrix": metric}
    for chains in (1, 4) if quick else (1, 4, 16, 64):
        draws = min(plan.capacity, 256, 1024 // chains)
        mine = dataclasses.replace(plan, adaptation=None, chains=chains, per_device=chains, capacity=draws)
        programs = _programs.Programs(mine, target.density, target.constrain)
        start = jax.tree.map(lambda x, n=chains: x[:n], state)
        first, n, thin, count = np.int32(0), np.int32(draws), np.int32(1), np.int32(chains)
        args = (
            *everywhere((root, np.int32(_programs.DRAW), consts, traced, params)),
            by_chain(start),
            *everywhere((first, n, thin, count)),
        )
        keys = jax.vmap(jax.vmap(key, (0, None)), (None, 0))(jnp.arange(chains), jnp.arange(draws))
        theirs = (keys, start, metric, step, consts, traced)
        with ThreadPoolExecutor(2) as pool:
            compiling = pool.submit(programs.draw.lower(*args).compile)
            hand = jax.jit(by_hand).lower(*theirs).compile()
            block = compiling.result()
        steps = int(np.asarray(block(*args)[1].totals["n_steps"]).sum())
        their_steps = int(np.asarray(hand(*theirs)[1][2]).sum())
        once = timed(lambda f=block, a=args: jax.block_until_ready(f(*a)))[1].cpu
        times = max(1, int(0.05 / once))  # so that a measurement takes 50 ms or more

        def repeat(f, args, times=times):
            for _ in range(times):
                jax.block_until_ready(f(*args))

        costs = interleaved(
            5 if quick else 9,
            lambda r=repeat, a=(block, args): r(a[0], a[1]),
            lambda r=repeat, a=(hand, theirs): r(a[0], a[1]),
        )
        steps, their_steps = times * steps, times * their_steps
        per_step = {"ours": [c / steps for c in costs[0]], "peer": [c / their_steps for c in costs[1]]}
        out.append({"model": model, "chains": chains, "steps": [steps, their_steps], **per_step})
    return out


def many(quick: bool) -> dict[str, Any]:
    """64 chains of the radon-like model: whole further calls, ours and BlackJAX's window adaptation with NUTS."""
    import chainmesh as cm

    cm.set_host_devices(2)
    import blackjax
    import jax
    from zoo_speed import SPEED

    from chainmesh.sampler._verdict import judge

    speed = SPEED["radon"]
    chains, draws, tune, seeds = (8, 50, 50, 2) if quick else (64, 500, 500, 20)
    sample = lambda s: cm.sample(  # noqa: E731
        speed.model, data=speed.data(s), draws=draws, chains=chains, seed=s, progress=quiet
    )
    target = sample(0).target

    def peer(key, consts, traced):
        logdensity = lambda z: jax.core.eval_jaxpr(target.density.jaxpr, consts, z, *traced)[0]  # noqa: E731

        def one(key):
            k_start, k_warm, k_draw = jax.random.split(key, 3)
            z = jax.random.uniform(k_start, (target.dim,), target.dtype, -2.0, 2.0)
            warm = blackjax.window_adaptation(
                blackjax.nuts,
                logdensity,
                adaptation_info_fn=lambda state, info, adapted: info.num_integration_steps,
            )
            (state, params), warm_steps = warm.run(k_warm, z, tune)
            step = blackjax.nuts(logdensity, **params).step

            def body(state, key):
                state, info = step(key, state)
                return state, (state.position, info.num_integration_steps, info.is_divergent)

            _, rows = jax.lax.scan(body, state, jax.random.split(k_draw, draws))
            return rows, warm_steps

        return jax.vmap(one)(jax.random.split(key, chains))

    traced = lambda s: [np.asarray(x) for x in speed.data(s).values() if np.ndim(x)]  # noqa: E731
    consts = [np.asarray(c) for c in target.density.consts]
    program = jax.jit(peer).lower(jax.random.key(0), consts, traced(0)).compile()

    def tell(positions, diverging, steps, cost):
        judged = judge({"x": positions}, {"diverging": diverging}, divergences=diverging.sum(1))
        return {
            "cost": cost,
            "frozen": len(judged.chains_with("stuck")),
            "ess": judged.min_ess_bulk,
            "rhat": judged.max_rhat,
            "divergences": int(diverging.sum()),
            "gradients": int(steps),
        }

    mine, theirs = [], []
    for seed in range(1, seeds + 1):
        if seed in (1, seeds // 2 + 1):
            out, cost = timed(
                lambda s=seed: jax.block_until_ready(program(jax.random.key(s), consts, traced(s)))
            )
            ((z, steps, diverging), warm_steps) = jax.tree.map(np.asarray, out)
            theirs.append(tell(z, diverging, steps.sum() + warm_steps.sum(), cost))
        run, cost = timed(lambda s=seed: sample(s))
        flat = np.concatenate([_unconstrained(run.posterior[f.name], f) for f in target.free], axis=2)
        steps = run.tally.leapfrogs.sum() + run.warmup_tally.leapfrogs.sum()
        mine.append(tell(flat, run.stats["diverging"], steps, cost))
        mine[-1]["parts"] = dataclasses.asdict(run.timing)
        mine[-1]["steps"] = [int(run.warmup_tally.leapfrogs.sum()), int(run.tally.leapfrogs.sum())]
    return {"ours": mine, "peer": theirs, "tune": run.tune}


def _unconstrained(values: np.ndarray, free: Any) -> np.ndarray:
    """Draws (chain, draw, size) of a site in the space that both samplers move in; positive sites become logs."""
    flat = values.reshape(*values.shape[:2], -1)
    return np.log(flat) if free.name in ("tau", "sigma") else flat


def devices(model: str, quick: bool) -> dict[str, Any]:
    """HMC with a fixed number of leapfrogs: draws per second on two devices and on one."""
    import chainmesh as cm

    cm.set_host_devices(2)
    import jax.numpy as jnp
    from zoo_speed import SPEED

    if model == "robust":  # elementwise work: Student-t errors of 4000 rows, no matrix product
        rng = np.random.default_rng(0)
        x = rng.standard_normal(4_000).astype(np.float32)
        y = (1 + x + 0.5 * rng.standard_t(4, x.size)).astype(np.float32)

        def logdensity(z, x, y):
            scaled = (y - z[0] - z[1] * x) * jnp.exp(-z[2])
            return -2.5 * jnp.log1p(scaled**2 / 4).sum() - y.size * z[2] - 0.5 * jnp.sum((z[:3] / 5) ** 2)

        target = cm.LogDensity(logdensity, initial=np.array([1.0, 1.0, -0.7], np.float32))
        data, step = {"x": x, "y": y}, 0.004
    else:
        speed = SPEED["logistic_large" if model == "logistic" else model]
        target, data = speed.model, speed.data(0)
        step = 0.005
    kernel = cm.HMC(n_leapfrog=10, step_size=step)
    draws = {"logistic": 60, "robust": 800, "radon": 3000}[model] // (8 if quick else 1)

    def call(n: int) -> Any:
        settings = {"kernel": kernel, "tune": 0, "draws": draws, "chains": 8, "seed": 1, "progress": quiet}
        return cm.sample(target, data=data, devices=n, **settings)

    rates: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    call(1), call(2)
    for _ in range(2 if quick else 5):
        for n in (1, 2):
            run, cost = timed(lambda n=n: call(n))
            rates[n].append((run.timing.sampling, cost.cpu))
    out = {str(n): median(each) for n, each in rates.items()}
    return {"model": model, "draws": draws, **out, "accepted": float(run.stats["acceptance_rate"].mean())}


PARTS = {f.__name__: f for f in (again, ours, numpyro, leapfrog, many, devices)}


if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](**json.loads(sys.argv[2]))))
