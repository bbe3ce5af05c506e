"""What a draw depends on, what its programs hold, and what stays the user's (contracts 1, 3, 4, 7 and 9)."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from runs import HMC, RWM, SCHOOLS, equal, gauss, sample, scattered, schools

import chainmesh as cm
from chainmesh.sampler import _blocks, _programs

D = jax.devices()
TUNED = functools.partial(
    sample, schools, data=SCHOOLS, kernel=cm.NUTS(max_depth=6), tune=60, draws=30, devices=2, keep_warmup=True
)
PLAIN = functools.partial(sample, gauss(), kernel=HMC, draws=40, thin=2, devices=4)


def in_blocks_of(monkeypatch, n):
    monkeypatch.setattr(_blocks.Pace, "next", lambda self, left: min(n, left))


@pytest.mark.parametrize("run", [TUNED, PLAIN], ids=["pooled NUTS", "HMC"])
def test_a_draw_does_not_depend_on_the_blocks(monkeypatch, run):
    free = run()
    for n in (1, 7, 1000):
        in_blocks_of(monkeypatch, n)
        cut = run()
        assert equal(free, cut), f"blocks of {n}"
        if free.warmup_posterior is not None:
            for name, draws in free.warmup_posterior.items():
                np.testing.assert_array_equal(draws, cut.warmup_posterior[name])
        np.testing.assert_array_equal(free.tally.divergences, cut.tally.divergences)


def test_a_block_never_asks_for_more_than_its_buffer_holds(monkeypatch):
    monkeypatch.setattr("chainmesh.sampler._sample._DEVICE_BUDGET", 2048)
    small = PLAIN()
    monkeypatch.undo()
    assert equal(small, PLAIN())


def test_thinning_keeps_every_kth_draw_of_the_same_chains():
    every = PLAIN(thin=1, draws=41)
    for thin in (2, 3):
        kept = PLAIN(thin=thin, draws=41)
        assert kept.posterior["x"].shape[1] == 41 // thin and kept.draws == 41 // thin * thin
        for name, draws in {**kept.posterior, **kept.stats}.items():
            whole = every.posterior.get(name, every.stats.get(name))
            np.testing.assert_array_equal(draws, whole[:, thin - 1 :: thin])


def test_a_longer_run_begins_with_the_same_draws():
    short, long = PLAIN(thin=1, draws=20), PLAIN(thin=1, draws=40)
    np.testing.assert_array_equal(short.posterior["x"], long.posterior["x"][:, :20])


def test_looking_changes_nothing(capsys):
    """Bug B22."""
    seen = []
    quiet = PLAIN()
    assert equal(quiet, PLAIN(progress=True)) and equal(quiet, PLAIN(progress=seen.append))
    assert seen[-1].done == 40 and seen[-1].total == 40


def test_a_seed_is_drawn_recorded_and_repeats_the_run():
    first = PLAIN(seed=None)
    assert isinstance(first.seed, int) and f"seed {first.seed}" in str(first.report())
    assert equal(first, PLAIN(seed=first.seed))
    assert not equal(first, PLAIN(seed=None))


def test_keys_of_every_form():
    """Bug B16."""
    typed, raw, number = (PLAIN(seed=s) for s in (jax.random.key(3), jax.random.PRNGKey(3), 3))
    assert equal(typed, raw) and equal(typed, number)
    other = PLAIN(seed=jax.random.key(3, impl="rbg"))
    assert other.posterior["x"].shape == typed.posterior["x"].shape and not equal(typed, other)
    other.to_arviz()


def test_a_chain_does_not_know_how_many_there_are():
    """Equal to rounding: batched arithmetic rounds differently for other batch sizes."""
    for kernel, adaptation in ((RWM, None), (cm.HMC(n_leapfrog=3), cm.StanWindows())):
        few, many = (
            sample(
                scattered(),
                kernel=kernel,
                adaptation=adaptation,
                chains=c,
                devices=d,
                tune=30,
                keep_warmup=True,
            )
            for c, d in ((4, 2), (64, 8))
        )
        np.testing.assert_allclose(
            few.warmup_posterior["x"], many.warmup_posterior["x"][:4], rtol=1e-3, atol=1e-3
        )
        assert not np.allclose(many.warmup_posterior["x"][:4], many.warmup_posterior["x"][4:8], atol=0.1)


def test_no_two_chains_are_alike():
    """Bug B18: a key that each shard splits in the same way makes copies of chains."""
    run = sample(gauss(1), kernel=RWM, chains=16, tune=0, draws=50)
    x = run.posterior["x"][..., 0]
    assert len(np.unique(x.round(5), axis=0)) == 16
    steps = np.corrcoef(np.diff(x, axis=1)) - np.eye(16)
    assert np.abs(steps).max() < 0.75  # 5.6 sd of a correlation of 49 steps


def test_burn_in_and_sampling_use_other_keys():
    run = sample(gauss(), kernel=RWM, tune=20, draws=20, keep_warmup=True, devices=1)
    steps = [np.diff(x["x"], axis=1) for x in (run.warmup_posterior, run.posterior)]
    assert not np.isin(steps[0][np.abs(steps[0]) > 0], steps[1]).any()


COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
    "collective-broadcast",
)


@pytest.mark.parametrize("options", [{}, {"reproducible": True}], ids=["side by side", "one by one"])
def test_chains_of_different_devices_never_wait_for_each_other(monkeypatch, options):
    """Bug B37: no collective and no host callback in a compiled program, but for the gather at a window's end."""
    hlo = {}
    real = _programs.chain_program

    def recorded(fn, *specs):
        program = real(fn, *specs)

        def call(*args):
            hlo.setdefault(fn.__name__, program.lower(*args).compile().as_text())
            return program(*args)

        return call

    cm.clear_caches()
    monkeypatch.setattr(_programs, "chain_program", recorded)
    sample(schools, data=SCHOOLS, kernel=cm.NUTS(max_depth=6), tune=60, devices=2, chains=5, **options)
    cm.clear_caches()
    programs = {"_start", "_tuned", "_constrained"} | ({"_close"} if not options else set())
    assert set(hlo) == programs
    for name, text in hlo.items():
        used = {word for word in COLLECTIVES if re.search(rf"\b{word}(-start)?\(", text)}
        assert used == ({"all-gather"} if name == "_close" else set()), name
        assert "callback" not in text, name
        assert ("while(" in text) == (name != "_close"), name
        assert "num_partitions=2" in text, name


def test_the_callers_arrays_survive():
    """Bug B09: nothing of the user's is donated or changed, and a second run may use it."""
    mesh = Mesh(np.array(D), ("chain",))
    x0 = jax.device_put(jnp.ones((8, 3)), NamedSharding(mesh, P("chain")))
    y, z = jnp.arange(3.0), np.arange(3.0, dtype=np.float32)
    target = cm.LogDensity(lambda x, y, z: -0.5 * jnp.sum((x - y * z) ** 2), initial=jnp.zeros(3))
    metric = np.ones(3)
    kernel = cm.HMC(step_size=0.2, n_leapfrog=3, inverse_mass_matrix=metric)
    data, dims = {"z": z}, {"x": ["axis"]}
    for seed in (0, 1):
        sample(target, chains=8, initvals=x0, args=(y,), data=data, dims=dims, kernel=kernel, seed=seed)
    assert float(x0.sum()) == 24.0 and float(y.sum()) == 3.0 and z.sum() == 3.0 and metric.sum() == 3.0
    assert (
        data == {"z": z}
        and data["z"] is z
        and dims == {"x": ["axis"]}
        and kernel.inverse_mass_matrix is metric
    )


def test_a_released_run_keeps_its_draws_and_lets_go_of_the_rest():
    run = PLAIN()
    draws, text = run.posterior["x"].copy(), str(run.report())
    run.release()
    np.testing.assert_array_equal(run.posterior["x"], draws)
    assert run.target is None and run.traced is None
    assert len(run.summary()) == 2 and str(run.report()) == text
    run.release()  # once more does no harm
    with pytest.raises(cm.InputError, match="release"):
        run.to_arviz()


def test_every_run_ends_with_a_verdict(caplog):
    import logging

    with caplog.at_level(logging.WARNING, "chainmesh"):
        bad = sample(gauss(), kernel=cm.from_blackjax("random_walk", step_size=1e-4), draws=300)
    assert not bad.verdict.ok and str(bad.verdict) in caplog.text
    assert str(bad.verdict) in str(bad.report()) and "untuned" in str(bad.report())
    caplog.clear()
    with caplog.at_level(logging.WARNING, "chainmesh"):
        good = sample(gauss(), kernel=cm.HMC(step_size=0.7, n_leapfrog=3), draws=2000, tune=200)
    assert good.verdict.ok and good.report().ok and not caplog.text, good.verdict
