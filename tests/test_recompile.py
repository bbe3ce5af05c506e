"""Nothing that varies is static: what compiles is counted, never timed (bugs B05, B06, B07, B10; contracts 1 and 2)."""

import functools
import gc
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from runs import BIG, HMC, RWM, SCHOOLS, compilations, equal, fresh, gauss, sample, schools

import chainmesh as cm
from chainmesh.sampler import _programs

D = jax.devices()
SCALE = 1.0
SHIFT = np.zeros(2, np.float32)


def nothing_compiles(what, run):
    with compilations() as compiled:
        result = run()
    assert not compiled, f"{what}: {compiled}"
    assert not compiled.counts["jaxpr_to_mlir_module_duration"], what
    return result


def test_a_model_compiles_four_big_programs_once():
    run = functools.partial(sample, schools, data=SCHOOLS, kernel=cm.NUTS(max_depth=6), tune=60, devices=2)
    cm.clear_caches()
    with compilations() as compiled:
        first = run()
    assert sorted(compiled.of(*BIG)) == sorted(
        {*BIG} - {"_draw"}
    )  # the block of a tuned run is warm-up and draws
    # The window's end, and the making of the seed's key, and what JAX itself needs to move that to the devices.
    assert compiled.of("_close") == ["_close"] and len(compiled) <= len(BIG) + 4, compiled
    new = {"effect": SCHOOLS["effect"][::-1].copy(), "error": SCHOOLS["error"] + 1}
    changes = {
        "nothing": {},
        "another seed": {"seed": 1},
        "a key as seed": {"seed": jax.random.key(5)},
        "more draws": {"draws": 700},
        "one draw": {"draws": 1},
        "thin": {"draws": 30, "thin": 3},
        "another warm-up": {"tune": 75},
        "another target": {"target_accept": 0.9},
        "new data": {"data": new},
        "data as JAX arrays": {"data": {k: jnp.asarray(v) for k, v in new.items()}},
        "float64 data": {"data": {k: np.arange(8.0) + 1 for k in new}},
        "progress": {"progress": lambda snapshot: None},
        "another metric": {"kernel": cm.NUTS(max_depth=6, inverse_mass_matrix=np.full(10, 0.5))},
    }
    for what, change in changes.items():
        nothing_compiles(what, functools.partial(run, **change))
    assert equal(first, run())
    with compilations() as compiled:
        run(initvals={"mu": 1.0})
    assert not compiled.of(*BIG)
    nothing_compiles("other start values", functools.partial(run, initvals={"mu": 2.0}))


def test_options_are_compared_by_value():
    def run(step, keep, seed):
        target = cm.LogDensity(
            lambda p: -0.5 * jnp.sum(p["x"] ** 2) - 0.5 * jnp.sum(p["y"] ** 2),
            initial={"x": jnp.zeros(2), "y": jnp.zeros(1)},
        )
        kernel = cm.from_blackjax("random_walk", step_size=step)
        return sample(target, kernel=kernel, var_names=keep, seed=seed)

    assert set(run(np.float64(0.3), ["x"], 0).posterior) == {"x"}
    for step in (0.3, np.float32(0.3), jnp.float32(0.7), np.array(0.3)):
        for keep in (("x",), "x"):
            nothing_compiles((step, keep), functools.partial(run, step, keep, 1))


def test_a_kernels_numbers_are_traced():
    def run(**settings):
        return sample(gauss(), kernel=cm.HMC(**{"step_size": 0.5, "n_leapfrog": 4} | settings), devices=1)

    first = run()
    for change in (
        {"step_size": np.float64(0.1)}, {"n_leapfrog": 7}, {"inverse_mass_matrix": [1.0, 2.0]}
    ):  # fmt: skip
        changed = nothing_compiles(change, functools.partial(run, **change))
        assert not equal(first, changed), f"{change} had no effect"
    with compilations() as compiled:  # the threshold is part of the program
        run(divergence_threshold=500.0)
    assert compiled


def test_a_fresh_function_with_the_same_body_reuses_its_program():
    def make(shift):
        return cm.LogDensity(lambda x, s: -0.5 * jnp.sum((x - shift - s) ** 2), initial=jnp.zeros(2))

    sample(make(np.ones(2, np.float32)), args=(1.0,), kernel=RWM)
    other = nothing_compiles(
        "a closed-over array",
        lambda: sample(make(np.full(2, 9.0, np.float32)), args=(2.0,), kernel=RWM, draws=400),
    )
    assert abs(other.posterior["x"][:, 200:].mean() - 11) < 1  # eleven is far from any stale answer
    direct = sample(make(np.full(2, 9.0, np.float32)), args=(2.0,), kernel=RWM, draws=400)
    assert equal(other, direct)


def test_what_a_function_reads_is_never_stale(monkeypatch):
    target = cm.LogDensity(lambda x: -0.5 * jnp.sum(((x - SHIFT) / SCALE) ** 2), initial=jnp.zeros(2))
    run = functools.partial(sample, target, kernel=cm.HMC(step_size=0.3, n_leapfrog=5), draws=200, tune=100)
    first = run()
    monkeypatch.setitem(globals(), "SHIFT", np.full(2, 20.0, np.float32))
    shifted = nothing_compiles("a global array", run)
    assert abs(shifted.posterior["x"].mean() - 20) < 1
    monkeypatch.setitem(globals(), "SCALE", 0.1)  # a Python number is part of the program
    narrow = run()
    assert narrow.posterior["x"].std() < 0.3 < first.posterior["x"].std()
    monkeypatch.undo()
    assert equal(nothing_compiles("back again", run), first)


def test_static_arguments_belong_to_the_program():
    def model(x, n, link="id"):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([n]).to_event(1))
        eta = b.sum() * jnp.ones(3)
        numpyro.sample("y", dist.Normal(jnp.tanh(eta) if link == "tanh" else eta, 1), obs=x)

    def run(**data):
        return sample(model, data={"x": np.ones(3, np.float32)} | data, kernel=HMC, devices=1)

    assert run(n=2).posterior["b"].shape == (4, 10, 2)
    assert run(n=3).posterior["b"].shape == (4, 10, 3)
    tanh = run(n=2, link="tanh")
    assert not equal(tanh, nothing_compiles("an int that was seen", lambda: run(n=2)))


def test_compile_time_does_not_know_the_data():
    target = cm.LogDensity(
        lambda b, X, y: -0.5 * jnp.sum((y - X @ b) ** 2) - jnp.sum(b**2), initial=jnp.zeros(5)
    )

    def run(seed):
        X = np.random.default_rng(seed).normal(size=(200_000, 5)).astype("f4")
        return sample(target, args=(X, X[:, 0]), kernel=RWM, tune=3, draws=3, devices=1)

    run(0)
    nothing_compiles("new values of the same shape", lambda: run(1))
    # What was closed over is an argument too, not a constant of the program that the compiler would fold.
    big = jnp.asarray(np.random.default_rng(2).normal(size=(500_000,)).astype("f4"))
    closed = cm.LogDensity(lambda b: -0.5 * jnp.sum((big - b) ** 2), initial=jnp.zeros(()))
    spec = cm.sampler._target.make_target(closed)
    assert any(c is big or np.shape(c) == big.shape for c in spec.density.consts)


@pytest.mark.parametrize("tuned", [False, True])
def test_a_run_moves_to_other_devices(tuned):
    kernel = cm.HMC(n_leapfrog=3) if tuned else RWM
    run = functools.partial(sample, gauss(), kernel=kernel, tune=30, seed=4)
    here = run(devices=D[:2])
    with compilations() as again:
        run(devices=D[:2])
    with compilations() as moved:
        there = run(devices=D[4:6])
    assert not again
    assert moved.counts["jaxpr_trace_duration"] == again.counts["jaxpr_trace_duration"]  # the model's own
    assert moved.counts["jaxpr_to_mlir_module_duration"] == 0
    wanted = ["_start", "_constrained"] + (["_tuned", "_close"] if tuned else ["_draw"])
    assert sorted(moved) == sorted(wanted)
    assert {d.id for d in there.state.position.sharding.device_set} == {4, 5}
    assert equal(here, there)
    nothing_compiles("home again", lambda: run(devices=D[:2]))


def test_the_cache_is_bounded_and_can_be_cleared(monkeypatch):
    monkeypatch.setattr(_programs, "_CACHE_SIZE", 2)
    run = functools.partial(sample, kernel=RWM, devices=1)
    targets = [gauss(dim) for dim in (1, 3, 4)]
    for target in targets:
        run(target)
    assert len(_programs._cache) == 2
    nothing_compiles("the last one", lambda: run(targets[2]))
    with compilations() as compiled:
        run(targets[0])
    assert sorted(compiled) == ["_constrained", "_draw", "_start"]
    cm.clear_caches()
    assert not _programs._cache
    with compilations() as compiled:
        run(targets[0])
    assert compiled


@pytest.mark.parametrize("hold", ["nothing", "a released run"])
def test_dead_functions_and_their_data_are_collected(hold):
    def start():
        inside, outside = np.ones(1000, np.float32), np.ones(1000, np.float32)
        fn = lambda x, y: -0.5 * jnp.sum((x - inside - y) ** 2)  # noqa: E731
        run = sample(cm.LogDensity(fn, initial=jnp.zeros(())), args=(outside,), kernel=RWM, devices=1)
        return run, [weakref.ref(fn), weakref.ref(inside), weakref.ref(outside)]

    cm.clear_caches()  # the run that makes the programs must not leave its data in them
    run, refs = start()
    assert refs[0]() is not None
    if hold == "nothing":
        del run
    else:
        run.release()
    for _ in range(50):  # JAX lets go of host arrays when its devices are through, in a thread of its own
        gc.collect()
        alive = [ref() for ref in refs if ref() is not None]
        if not alive:
            break
        del alive
        time.sleep(0.1)
    else:
        pytest.fail(str([gc.get_referrers(ref()) for ref in refs if ref() is not None]))


def test_a_second_process_finds_the_programs_on_disk(tmp_path):
    source = """
        import jax, jax.numpy as jnp
        misses = []
        jax.monitoring.register_event_listener(lambda k, **_: misses.append(k) if k.endswith("cache_misses") else None)
        target = cm.LogDensity(lambda x: -(x ** 2).sum(), initial=jnp.zeros(2))
        cm.sample(target, seed=0, chains=4, tune=30, draws=5, kernel="hmc", progress=False)
        print(len(misses))
    """
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    first, second = (int(fresh(source, env=env)) for _ in range(2))
    assert first > 0 and second == 0
