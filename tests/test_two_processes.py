"""Two real processes on loopback: one mesh over both, gathered whole on both."""

import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

SOURCE = """
    import faulthandler, hashlib, json, sys
    faulthandler.dump_traceback_later(800, exit=True)  # says where a process hangs
    import jax, numpy as np, jax.numpy as jnp
    import chainmesh as cm
    pid, port = int(sys.argv[1]), sys.argv[2]
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
    cm.set_host_devices(2)
    try:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, pid, initialization_timeout=300)
        jax.devices()
    except Exception as error:
        print(json.dumps({"missing": repr(error)}))
        sys.exit()
    from jax.sharding import PartitionSpec as P
    facts = {}
    mesh = cm.chain_mesh(6)
    facts["mesh"] = [d.process_index for d in mesh.devices.flat]
    x = cm.place(np.arange(12.0).reshape(6, 2), mesh)
    facts["addressable"] = x.is_fully_addressable
    facts["back"] = cm.gather(x, 6).tolist()
    step = lambda scale: lambda keys, x: jax.vmap(lambda k, x: x + scale * jax.random.normal(k, x.shape))(keys, x)
    noisy = cm.over_chains(step(2.0), mesh)(cm.chain_keys(0, 6, mesh), x)
    facts["noisy"] = cm.gather(noisy, 6).tolist()
    target = cm.LogDensity(lambda x, y: -0.5 * jnp.sum((x - y) ** 2), initial=lambda key: jax.random.normal(key, (2,)))
    def digest(run):
        arrays = [*run.posterior.values(), *run.stats.values()]
        return hashlib.sha256(b"".join(v.tobytes() for v in arrays)).hexdigest()
    plain = cm.sample(target, args=(np.ones(2),), chains=6, draws=400, tune=20, seed=1, progress=False,
                      kernel=cm.HMC(step_size=0.5, n_leapfrog=4))
    facts["first"] = plain.posterior["x"][:, :10].tolist()
    facts["shape"] = plain.posterior["x"].shape
    facts["digests"] = [digest(plain)]
    pooled = cm.sample(target, args=(np.ones(2),), chains=6, draws=50, tune=60, progress=False,
                       kernel=cm.HMC(n_leapfrog=3))
    facts["digests"].append(digest(pooled))
    facts["seed"], facts["step"] = pooled.seed, pooled.parameters["step_size"].tolist()
    seen = []
    def press(snapshot):
        seen.append(snapshot.phase)
        if pid == 1 and seen.count("sampling") == 2:
            import os, signal
            os.kill(os.getpid(), signal.SIGINT)
    cut = cm.sample(target, args=(np.ones(2),), chains=6, draws=20_000_000, thin=1000, tune=20, seed=1, progress=press,
                    kernel=cm.HMC(step_size=0.5, n_leapfrog=4))
    facts["cut"] = [cut.status, cut.draws]
    facts["digests"].append(digest(cut))
    on_mesh = cm.gather(plain.on_mesh("x"), 6)["x"]
    facts["again"] = bool((on_mesh == plain.posterior["x"]).all())
    facts["arviz"] = dict(plain.to_arviz()["posterior"].sizes)["chain"]
    print(json.dumps(facts))
    jax.distributed.shutdown()
"""


@pytest.fixture(scope="module")
def both():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "PYTHONSAFEPATH": "1", "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SOURCE), str(i), str(port)],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    try:
        outputs = [p.communicate(timeout=900) for p in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    found = []
    for process, (out, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err[-6000:]
        found.append(json.loads(out.splitlines()[-1]))
    if any("missing" in facts for facts in found):
        pytest.skip(f"this JAX cannot join two CPU processes with gloo: {found}")
    return found


def test_the_mesh_spans_both_and_arrays_come_back_whole(both):
    for facts in both:
        assert facts["mesh"] == [0, 0, 1, 1] and facts["addressable"] is False
        assert facts["back"] == [[2.0 * i, 2.0 * i + 1] for i in range(6)]
    assert both[0]["noisy"] == both[1]["noisy"]


def test_keys_and_draws_are_those_of_one_process(both):
    import jax
    import jax.numpy as jnp
    import numpy as np

    import chainmesh as cm

    x = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    noise = jax.vmap(lambda k: jax.random.normal(k, (2,)))(cm.chain_keys(0, 6))
    np.testing.assert_allclose(both[0]["noisy"], x + 2 * noise, rtol=1e-5)
    target = cm.LogDensity(
        lambda x, y: -0.5 * jnp.sum((x - y) ** 2), initial=lambda key: jax.random.normal(key, (2,))
    )
    alone = cm.sample(target, args=(np.ones(2),), chains=6, draws=10, tune=20, seed=1, progress=False,
                      kernel=cm.HMC(step_size=0.5, n_leapfrog=4))  # fmt: skip
    np.testing.assert_allclose(both[0]["first"], alone.posterior["x"], rtol=1e-4, atol=1e-4)


def test_both_processes_have_the_same_runs(both):
    zero, one = both
    assert zero["digests"] == one["digests"] and len(set(zero["digests"])) == 3
    assert zero["seed"] == one["seed"] and zero["step"] == one["step"]  # a drawn seed is drawn once for all
    assert zero["shape"] == [6, 400, 2] and zero["arviz"] == 6 and zero["again"] and one["again"]


def test_an_interrupt_of_one_process_ends_the_run_in_both(both):
    for facts in both:
        status, draws = facts["cut"]
        assert status == "interrupted" and 0 < draws < 20_000_000
    assert both[0]["cut"] == both[1]["cut"]
