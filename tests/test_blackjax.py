"""BlackJAX's algorithms as kernels: names, settings, messages, and whole runs."""

import contextlib
import logging

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainmesh as cm
from chainmesh.kernels import check_tunable

DIM = 3


def normal(x):
    return -0.5 * jnp.dot(x, x)


TARGET = cm.LogDensity(normal, initial=lambda key: jax.random.normal(key, (DIM,)))
# Elliptical slice brings a standard normal prior of its own: what is left of the target is flat.
FLAT = cm.LogDensity(lambda x: 0.0 * jnp.sum(x), initial=lambda key: jax.random.normal(key, (DIM,)))

SIX = {
    "mala": dict(step_size=0.8),
    "random_walk": dict(step_size=1.2),
    "elliptical_slice": dict(mean=np.zeros(DIM), cov_matrix=np.ones(DIM)),
    "barker": dict(step_size=1.5),
    "ghmc": dict(step_size=0.9, momentum_inverse_scale=np.ones(DIM), alpha=0.4, delta=0.3),
    "mclmc": dict(step_size=0.8, L=2.0, inverse_mass_matrix=np.ones(DIM)),
}
INFO = {
    "mala": {"lp", "acceptance_rate", "accepted", "step_size"},
    "random_walk": {"lp", "acceptance_rate", "accepted", "step_size"},
    "elliptical_slice": {"lp", "n_steps"},
    "barker": {"lp", "acceptance_rate", "accepted", "step_size"},
    "ghmc": {"lp", "acceptance_rate", "accepted", "step_size", "diverging", "n_steps"},
    "mclmc": {"lp", "energy_error", "step_size", "diverging"},
}


class Compilations(logging.Handler):
    """Counts what XLA compiles."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.names = []

    def emit(self, record):
        message = record.getMessage()
        if "Finished XLA compilation" in message:
            self.names.append(message)


@contextlib.contextmanager
def compilations():
    seen = Compilations()
    logger = logging.getLogger("jax._src.dispatch")
    logger.addHandler(seen)
    before, logger.propagate = logger.propagate, False
    jax.config.update("jax_log_compiles", True)  # in all threads, unlike jax.log_compiles()
    try:
        yield seen.names
    finally:
        jax.config.update("jax_log_compiles", False)
        logger.propagate = before
        logger.removeHandler(seen)


def tiny(name, **other):
    kernel = cm.from_blackjax(name, **{**SIX[name], **other})
    target = FLAT if name == "elliptical_slice" else TARGET
    return cm.sample(
        target, kernel=kernel, chains=6, draws=600, tune=50, devices=2, seed=4, progress=lambda s: None
    )


@pytest.mark.parametrize("name", SIX)
def test_a_whole_run_on_two_devices(name):
    run = tiny(name)
    assert set(run.stats) == INFO[name]
    assert run.mesh.devices.size == 2 and run.posterior["x"].shape == (6, 600, DIM)
    report = str(run.report())
    assert "untuned: its settings are the user's" in report and "blackjax." in run.kernel.name
    # Six independent chains: Student's t with 5 degrees of freedom passes 25 with probability 2e-6.
    for values, mean in ((run.posterior["x"], 0.0), (run.posterior["x"] ** 2, 1.0)):
        chains = values.mean(axis=(1, 2))
        assert abs(chains.mean() - mean) < 25 * chains.std(ddof=1) / np.sqrt(6)
        assert abs(chains.mean() - mean) < 0.25
    # Another value of a setting is data to the program.
    setting = {"elliptical_slice": dict(cov_matrix=np.full(DIM, 4.0))}.get(name, dict(step_size=0.1))
    with compilations() as compiled:
        other = tiny(name, **setting)
    assert not compiled
    assert not np.allclose(other.posterior["x"], run.posterior["x"])


def test_compilations_are_counted():
    cm.clear_caches()
    with compilations() as compiled:
        tiny("random_walk")
    assert len(compiled) >= 3, compiled  # start, draws, constrain


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ("mala", "mala"),
        ("random_walk", "additive_step_random_walk"),
        ("rwm", "additive_step_random_walk"),
        ("additive_step_random_walk", "additive_step_random_walk"),
        (blackjax.mala, "mala"),
        (blackjax.additive_step_random_walk, "additive_step_random_walk"),
        (blackjax.mcmc.mala, "mala"),
    ],
)
def test_names_objects_and_aliases(given, label):
    assert cm.from_blackjax(given, step_size=0.1).label == label
    assert cm.from_blackjax(given, step_size=0.1) == cm.from_blackjax(label, step_size=0.3)


def test_settings_are_split_into_traced_and_static():
    steps = cm.from_blackjax("hmc", step_size=0.1, inverse_mass_matrix=np.ones(2), num_integration_steps=3)
    assert set(steps.params(2, np.dtype("f4"))) == {"step_size", "inverse_mass_matrix"}
    assert steps.static == (("num_integration_steps", 3),)
    assert steps != cm.from_blackjax(
        "hmc", step_size=0.1, inverse_mass_matrix=np.ones(2), num_integration_steps=4
    )
    per_entry = cm.from_blackjax("random_walk", step_size=np.array([0.1, 1.0]))
    assert per_entry.params(2, np.dtype("f4"))["step_size"].shape == (2,)

    def jump(key, x):
        return jax.random.normal(key, x.shape)

    assert cm.from_blackjax("random_walk", random_step=jump).static == (("random_step", jump),)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: cm.from_blackjax("mela", step_size=0.1), cm.InputError, "Did you mean 'mala'"),
        (lambda: cm.from_blackjax("zzzzzz"), cm.InputError, "It has .*nuts"),
        (lambda: cm.from_blackjax("window_adaptation"), cm.InputError, "no algorithm"),
        (lambda: cm.from_blackjax("mala", stepsize=0.1), cm.OptionError, "needs step_size"),
        (
            lambda: cm.from_blackjax("mala", step_size=0.1, stepsiz=1.0),
            cm.OptionError,
            "Did you mean step_size",
        ),
        (lambda: cm.from_blackjax("mala", step_size=0.1, qqqq=1.0), cm.OptionError, "It takes step_size"),
        (lambda: cm.from_blackjax("mala"), cm.OptionError, "needs step_size: .*step_size=..."),
        (lambda: cm.from_blackjax("elliptical_slice", mean=np.zeros(2)), cm.OptionError, "needs cov_matrix"),
        (lambda: cm.from_blackjax("random_walk"), cm.OptionError, "needs random_step"),
        (
            lambda: cm.from_blackjax(blackjax.mala(normal, 0.1)),
            cm.InputError,
            "already bound to a log density",
        ),
        (lambda: cm.from_blackjax(42), cm.InputError, "42 is not a BlackJAX algorithm"),
        (lambda: cm.from_blackjax("mala", step_size=[{}]), cm.OptionError, "not a number"),
        (lambda: cm.from_blackjax("mala", step_size="a"), cm.OptionError, "step_size='a'"),
        (
            lambda: cm.from_blackjax("mala", step_size=0.1, noise=[1]),
            cm.OptionError,
            "noise=.* nor hashable",
        ),
    ],
)
def test_bad_input_is_named(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_an_int_for_a_step_size_works_as_a_number():
    kernel = cm.from_blackjax("mala", step_size=1)
    assert kernel.traced == ("step_size",)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), [("mala", 0.574), ("random_walk", 0.234)])
@pytest.mark.parametrize("adaptation", [cm.StanWindows(), cm.PooledWindows()], ids=["stan", "pooled"])
def test_an_adaptation_tunes_the_step_size(name, target, adaptation):
    """From far too small and far too large a step to the acceptance rate that theory recommends."""
    rates = []
    for first in (1e-3, 30.0):
        run = cm.sample(
            TARGET, kernel=cm.from_blackjax(name, step_size=first), adaptation=adaptation, chains=6, draws=600,
            tune=300, devices=2, seed=1, progress=lambda s: None,
        )  # fmt: skip
        assert "tuned by" in str(run.report()) and run.target_accept == target
        rates.append(run.stats["acceptance_rate"].mean())
        # The last search has 45 or 50 draws: rates of single chains have an sd of some 0.08, their mean 0.03.
        assert abs(rates[-1] - target) < 0.15
        assert run.parameters["step_size"].shape == (6,)
    assert abs(rates[0] - rates[1]) < 0.2


@pytest.mark.parametrize("name", ["elliptical_slice", "mclmc"])
def test_what_reports_no_acceptance_cannot_be_tuned(name):
    target = FLAT if name == "elliptical_slice" else TARGET
    with pytest.raises(cm.InputError, match=f"blackjax.{name} cannot be tuned: .*acceptance_rate"):
        cm.sample(
            target, kernel=cm.from_blackjax(name, **SIX[name]), adaptation=cm.StanWindows(), chains=2, draws=5,
            tune=20, seed=0, progress=False,
        )  # fmt: skip


def test_check_tunable_wants_a_scalar_step_size():
    info = {"acceptance_rate": 0, "lp": 0}
    check_tunable("k", {"step_size": np.float32(1)}, info)
    for params in ({}, {"step_size": np.ones(2)}):
        with pytest.raises(cm.InputError, match="k cannot be tuned"):
            check_tunable("k", params, info)
