"""What the tests of whole runs share: small targets, kernels, a count of compilations, fresh processes."""

import collections
import contextlib
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import chainmesh as cm

RWM = cm.from_blackjax("random_walk", step_size=0.5)
HMC = cm.HMC(step_size=0.5, n_leapfrog=4)
SCHOOLS = {
    "effect": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32),
    "error": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32),
}
BIG = ("_start", "_tuned", "_draw", "_constrained")
"""The programs of a run that take time to compile; `_close` (the end of a window) is small."""


def gauss(dim=2):
    """Independent standard normals."""
    return cm.LogDensity(lambda x: -0.5 * jnp.sum(x**2), initial=jnp.zeros(dim))


def scattered(dim=2):
    """The same with a start of its own for each chain number."""
    return cm.LogDensity(lambda x: -0.5 * jnp.sum(x**2), initial=lambda key: jax.random.normal(key, (dim,)))


def schools(effect, error):
    """Eight schools, non-centred."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        z = numpyro.sample("z", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, error), obs=effect)


def sample(target, **options):
    """`cm.sample`, short and quiet."""
    return cm.sample(target, **{"chains": 4, "tune": 10, "draws": 10, "seed": 0, "progress": False} | options)


def equal(a, b):
    """Whether two runs have the same draws and statistics, bit for bit."""
    return all(
        x.keys() == y.keys() and all(np.array_equal(x[n], y[n], equal_nan=x[n].dtype.kind == "f") for n in x)
        for x, y in ((a.posterior, b.posterior), (a.stats, b.stats))
    )


class Compiled(list):
    """Names of the programs that were compiled; traces and lowerings are counted."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def of(self, *names):
        return [name for name in self if name in names]


@contextlib.contextmanager
def compilations():
    """The compilations, traces and lowerings inside. A hit in the cache on disk counts as a compilation."""
    found = Compiled()

    def listen(event, duration, **more):
        found.counts[event.rsplit("/", 1)[-1]] += 1
        if event.endswith("backend_compile_duration"):
            found.append(more["fun_name"].removeprefix("jit(").removesuffix(")"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def fresh(source, devices=4, env=None, timeout=300, check=True):
    """Runs source in a process of its own with so many CPU devices; gives what it printed."""
    head = f"import chainmesh as cm\ncm.set_host_devices({devices})\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(source)],
        env={**os.environ, "PYTHONSAFEPATH": "1", "JAX_PLATFORMS": "cpu", **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if check:
        assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
