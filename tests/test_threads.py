"""Two runs at once from two threads (contract 10)."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from runs import RWM, equal, gauss, sample

import chainmesh as cm

D = jax.devices()
Y = np.ones(3, np.float32)


def first():
    numpyro.sample("a", dist.Normal(0, 1).expand([2]).to_event(1))


def second(y):
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(0, s), obs=y)


def at_once(*runs):
    """Results of the calls, each in a thread of its own; fails where one raises or does not end."""
    out, barrier = {}, threading.Barrier(len(runs))

    def work(i, run):
        barrier.wait()
        try:
            out[i] = run()
        except BaseException as error:
            out[i] = error

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in enumerate(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert len(out) == len(runs), "a run did not end"
    for result in out.values():
        if isinstance(result, BaseException):
            raise result
    return [out[i] for i in range(len(runs))]


# Warm-ups with gathers, on sets of devices that overlap: 0-1 and 1-2.
A = functools.partial(sample, first, kernel=cm.HMC(n_leapfrog=4), tune=60, draws=40, devices=D[0:2], seed=1)
B = functools.partial(
    sample, second, data={"y": Y}, kernel=cm.HMC(n_leapfrog=4), tune=60, draws=40, devices=D[1:3], seed=2
)


def test_pooled_warm_ups_on_overlapping_devices():
    cm.clear_caches()
    cold = at_once(A, B)
    alone = [A(), B()]
    for _ in range(3):
        warm = at_once(A, B)
        assert all(map(equal, warm, alone))
    assert all(map(equal, cold, alone))
    assert numpyro.primitives._PYRO_STACK == []


def test_the_same_model_twice():
    cm.clear_caches()
    one, two, three = at_once(B, B, functools.partial(B, seed=5))
    assert equal(one, two) and not equal(one, three)
    assert equal(three, B(seed=5))


def test_data_shards_and_chains_side_by_side():
    """Programs that hold collectives in their loops do not interleave on a device."""
    target = cm.LogDensity(lambda x, y: -0.5 * jnp.sum((y - x) ** 2), initial=jnp.zeros(()))
    split = functools.partial(
        sample, target, args=(np.ones(8, np.float32),), kernel=cm.HMC(step_size=0.3, n_leapfrog=3), draws=300, chains=2,
        mesh=cm.chain_mesh(2, D[:4], data=2),
    )  # fmt: skip
    other = functools.partial(split, mesh=cm.chain_mesh(2, D[2:6], data=2))
    alone = [split(), other()]
    for _ in range(3):
        assert all(map(equal, at_once(split, other), alone))


def test_handlers_of_another_thread_do_not_reach_a_model():
    """NumPyro's stack of handlers is a global; a run traces its model alone."""
    alone = A()
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            at = functools.partial(sample, second, data={"y": Y}, kernel=RWM, draws=2, tune=0, devices=1)
            at()

    thread = threading.Thread(target=busy, daemon=True)
    thread.start()
    try:
        for seed in range(5):
            run = A(seed=seed)
            assert set(run.posterior) == {"a"}
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive() and equal(alone, A())


def test_no_thread_of_ours_is_left():
    cm.clear_caches()
    before = set(threading.enumerate())
    sample(gauss(), kernel=RWM, devices=1)
    left = [t.name for t in set(threading.enumerate()) - before if "chainmesh" in t.name]
    assert not left


def test_a_run_in_a_thread_sets_no_signal_handler():
    import signal

    before = signal.getsignal(signal.SIGINT)
    seen = []
    run = functools.partial(
        sample,
        gauss(),
        kernel=RWM,
        devices=1,
        progress=lambda s: seen.append(signal.getsignal(signal.SIGINT)),
    )
    at_once(run)
    assert set(seen) == {before} and signal.getsignal(signal.SIGINT) is before
    with pytest.raises(cm.InputError):
        at_once(functools.partial(run, draws=0))
