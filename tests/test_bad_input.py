"""Whatever is wrong gets an error of the family at once: it names the argument and says what to do. Bugs B19, B23, B42,
B46, B51."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.sharding import AbstractMesh, Mesh
from runs import HMC, RWM, SCHOOLS, compilations, gauss, sample, schools

import chainmesh as cm

D = jax.devices()
SLICE = cm.from_blackjax("elliptical_slice", mean=np.zeros(2), cov_matrix=np.eye(2))


def refused(error, *words, target=None, **options):
    """The call raises before anything compiles, and its message has the words."""
    with compilations() as compiled, pytest.raises(error) as caught:
        sample(gauss() if target is None else target, **{"kernel": RWM} | options)
    assert isinstance(caught.value, cm.ChainmeshError)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    assert not {"_draw", "_tuned"} & set(compiled)
    return str(caught.value)


@pytest.mark.parametrize("name", ["chains", "draws", "thin"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "4", np.float32(3), [4]])
def test_counts(name, value, untyped):
    """Bug B23."""
    refused(ValueError, name, "positive integer", repr(value), **{name: value})


@pytest.mark.parametrize("value", [-1, 1.5, False, "100"])
def test_tune(value, untyped):
    refused(ValueError, "tune", "at least 0", repr(value), tune=value)


def test_the_smallest_legal_counts(untyped):
    run = sample(gauss(), kernel=RWM, draws=1, tune=0, chains=1, thin=1)
    assert run.posterior["x"].shape == (1, 1, 2) and run.tune == 0
    run.to_arviz(), run.summary(), str(run.report())
    run = sample(gauss(), kernel=RWM, draws=np.int64(3), tune=np.int32(1), chains=np.int16(1))
    assert run.posterior["x"].shape == (1, 3, 2)


def test_thin_beyond_draws():
    refused(ValueError, "thin=20", "draws=10", thin=20)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"devices": 0}, ["devices", "positive", "got 0"]),
        ({"devices": 9}, ["devices=9", "set_host_devices(9)", "before JAX starts"]),
        ({"devices": []}, ["devices", "[]"]),
        ({"devices": [D[0], D[0]]}, ["twice"]),
        ({"devices": "cpu"}, ["devices", "'cpu'"]),
        ({"devices": [0, 1]}, ["devices", "jax.Device"]),
        ({"mesh": AbstractMesh((8,), ("chain",))}, ["AbstractMesh", "names no devices"]),
        ({"mesh": Mesh(np.array(D).reshape(2, 4), ("a", "b"))}, ["('a', 'b')", "'chain'"]),
        ({"mesh": Mesh(np.array(D).reshape(2, 2, 2), ("chain", "a", "b"))}, ["beside 'chain' at most one"]),
        ({"mesh": D}, ["jax.sharding.Mesh", "list"]),
        ({"mesh": Mesh(np.array(D), ("chain",)), "devices": 2}, ["mesh or devices, not both"]),
    ],
)
def test_meshes_and_devices_that_cannot_be_used(options, words, untyped):
    assert issubclass(cm.MeshError, ValueError)
    refused(cm.MeshError, *words, **options)


def test_devices_asked_for_after_jax_started():
    """Bug B46; in fresh processes: test_layout."""
    with pytest.raises(RuntimeError, match=r"already started with 8.*set_host_devices\(3\) before") as caught:
        cm.set_host_devices(3)
    assert isinstance(caught.value, cm.DeviceCountError)
    cm.set_host_devices(8)  # what there is already is no error


@pytest.mark.parametrize(
    "option, hint",
    [
        ("chian", "chains"), ("target_acept", "target_accept"), ("num_chains", "chains="), ("num_samples", "draws="),
        ("warmup", "tune="), ("cores", "devices="), ("random_seed", "seed="), ("inits", "initvals="),
        ("step_size", "kernel=cm.NUTS(step_size=...)"), ("max_treedepth", "max_depth"),
        ("xyzzy", "it takes data, args"),
    ],
)  # fmt: skip
def test_unknown_options(option, hint):
    """Bug B51."""
    refused(TypeError, f"no option {option}", hint, **{option: 2})


@pytest.mark.parametrize(
    "options, words",
    [
        ({"kernel": "nutz"}, ["'nutz'", "'nuts' and 'hmc'", "from_blackjax"]),
        ({"kernel": cm.NUTS}, ["NUTS is a class", "cm.NUTS()"]),
        ({"kernel": numpyro.infer.NUTS(schools)}, ["kernel", "numpyro"]),
        ({"adaptation": cm.StanWindows}, ["StanWindows is a class"]),
        ({"adaptation": "stan"}, ["adaptation", "cm.StanWindows()", "str"]),
        ({"adaptation": cm.StanWindows(), "kernel": SLICE}, ["cannot be tuned", "adaptation=None"]),
        ({"target_accept": 1.0, "kernel": "nuts"}, ["target_accept", "between 0 and 1"]),
        ({"target_accept": "high", "kernel": "nuts"}, ["target_accept", "'high'"]),
        ({"target_accept": 0.9}, ["target_accept=0.9 has no effect"]),
        ({"keep_warmup": "yes"}, ["keep_warmup", "True or False"]),
        ({"reproducible": 2}, ["reproducible", "True or False"]),
        ({"progress": "bar"}, ["progress"]),
        ({"seed": -1}, ["seed", "-1"]), ({"seed": "a"}, ["seed", "str"]), ({"seed": True}, ["seed", "True"]),
        ({"seed": jax.random.split(jax.random.key(0))}, ["seed", "(2,)"]),
        ({"var_names": ["y"]}, ["var_names", "'y'"]), ({"var_names": []}, ["var_names", "empty"]),
        ({"dims": {"q": ["a"]}}, ["'q'"]), ({"dims": {"x": ["a", "b"]}}, ["'x'"]),
    ],
)  # fmt: skip
def test_settings(options, words, untyped):
    refused(cm.ChainmeshError, *words, **options)


def test_a_metric_of_another_model():
    refused(ValueError, "inverse_mass_matrix", "(3,)", "2 unconstrained",
            kernel=cm.HMC(step_size=0.1, inverse_mass_matrix=np.ones(3)))  # fmt: skip


@pytest.mark.parametrize(
    "target, words",
    [
        (lambda x: -jnp.sum(x**2), ["cm.LogDensity"]),
        (3, ["NumPyro model or a cm.LogDensity", "int"]),
        (cm.LogDensity(lambda x: -(x**2), initial=jnp.zeros(2)), ["shape (2,)", "scalar", ".sum()"]),
        (cm.LogDensity(lambda x: None, initial=jnp.zeros(2)), ["None", "return"]),
        (cm.LogDensity(lambda x: (x**2).sum() > 0, initial=jnp.zeros(2)), ["bool"]),
        (lambda: numpyro.sample("z", dist.Bernoulli(0.5)), ["discrete", "'z'", "DiscreteHMCGibbs"]),
    ],
)
def test_targets(target, words, untyped):
    refused(ValueError, *words, target=target)


def test_a_subsampled_plate():
    """Bug B42."""

    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 10))
        with numpyro.plate("N", 100, subsample_size=10):
            numpyro.sample("y", dist.Normal(m, 1), obs=numpyro.subsample(y, event_dim=0))

    refused(ValueError, "subsample", "'N'", target=model, args=(np.zeros(100, "f4"),))


@pytest.mark.parametrize(
    "data, args, words",
    [
        ({"effect": SCHOOLS["effect"]}, (), ["'error'", "`data` or `args`"]),
        ({**SCHOOLS, "efect": 1.0}, (), ["'efect'", "no argument"]),
        (SCHOOLS, (SCHOOLS["effect"],), ["'effect' twice"]),
        ({}, (1.0, 2.0, 3.0), ["3 entries", "2"]),
        ([1.0], (), ["`data` must be a dict"]),
        ({**SCHOOLS, "error": np.array(["a"] * 8)}, (), ["data['error']", "integer codes"]),
    ],
)
def test_data(data, args, words, untyped):
    assert issubclass(cm.DataError, ValueError)
    refused(cm.DataError, *words, target=schools, data=data, args=args)


def test_data_outside_the_likelihoods_support():
    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        numpyro.sample("y", dist.Exponential(rate), obs=y)

    y = np.array([1.0, 2.0, -3.0, 1.0], "f4")
    refused(cm.DataError, "1 of 4", "'y'", "y[2]", "-3", target=model, data={"y": y}, kernel=HMC)


@pytest.mark.parametrize(
    "initvals, words",
    [
        ({"tua": 1.0}, ["'tua'", "'tau'"]),
        ({"z": np.zeros(3)}, ["z", "(3,)", "(8,)"]),
        ({"tau": -1.0}, ["tau = -1", "outside", "chain 0"]),
        ([{"tau": 1.0}, {"tau": 1.0}, {"tau": -2.0}, {}], ["chain 2", "tau = -2"]),
        ([{}] * 3, ["3 entries for 4 chains"]),
        ({"theta": np.zeros(8)}, ["'theta'", "computes"]),
        ({"y": np.zeros(8)}, ["'y'", "observed"]),
        ("zero", ["dict"]),
    ],
)
def test_initvals(initvals, words, untyped):
    assert issubclass(cm.StartError, ValueError)
    refused(cm.StartError, *words, target=schools, data=SCHOOLS, initvals=initvals)


def test_a_start_where_the_density_vanishes_names_its_chain():
    """Bug B19: an error before any step, not a hang in the step-size search."""
    target = cm.LogDensity(
        lambda p: jnp.where(p["s"] > 0, -p["s"], -jnp.inf) - 0.5 * p["m"] ** 2, initial={"s": 1.0, "m": 0.0}
    )
    inits = {"s": jnp.array([1.0, 2.0, -1.0, 1.0]), "m": jnp.zeros(4)}
    message = refused(cm.StartError, "chain 2", "-inf", target=target, initvals=inits, kernel=HMC)
    assert "chain 1" not in message and "chain 3" not in message


def test_a_model_that_starts_nowhere_names_the_site():
    def model():
        a = numpyro.sample("a", dist.Normal(0, 1))
        numpyro.factor("wall", jnp.where(a > 100, 0.0, -jnp.inf))

    refused(cm.StartError, "no start was found", "'wall'", "initvals", target=model, kernel=HMC)
    run = sample(model, kernel=HMC, initvals={"a": 101.0})
    assert (run.posterior["a"] > 100).all()


def test_a_gradient_that_is_not_finite_at_the_start():
    target = cm.LogDensity(lambda x: -jnp.sqrt(jnp.abs(x)).sum(), initial=jnp.zeros(2))
    refused(cm.StartError, "gradient", "chain 0", target=target, kernel=HMC)
    sample(target, kernel=RWM)  # needs none


def test_nan_in_the_middle_of_a_run_marks_the_chain():
    """The run goes on; the verdict names the chain and the site."""
    target = cm.LogDensity(
        lambda x: -0.5 * jnp.sum(x**2),
        initial=jnp.zeros(1),
        constrain=lambda x: {"x": x, "root": jnp.sqrt(9.0 - x[0])},
    )
    run = sample(target, kernel=RWM, initvals=np.array([[0.0], [40.0], [0.0], [0.0]]), tune=0, draws=120)
    assert run.status == "complete" and run.posterior["root"].shape == (4, 120)
    assert np.isnan(run.posterior["root"][1]).any() and np.isfinite(run.posterior["x"]).all()
    assert run.verdict.chains_with("nan") == [1]
    assert "root" in str(run.verdict) and "Chain 1" in str(run.verdict)
    run.to_arviz(), run.summary()


def test_everything_is_one_family():
    for error, habit in (
        (cm.InputError, ValueError), (cm.OptionError, TypeError), (cm.MeshError, ValueError),
        (cm.DataError, ValueError),
        (cm.DeviceCountError, RuntimeError), (cm.ModelError, ValueError), (cm.StartError, ValueError),
        (cm.ResultTooLargeError, MemoryError),
    ):  # fmt: skip
        assert issubclass(error, cm.ChainmeshError) and issubclass(error, habit)


def test_draws_that_do_not_fit_into_memory():
    many = {"draws": 2**31 - 1}
    refused(MemoryError, "GiB", "x (", "var_names=", "thin=", target=gauss(5000), **many)
    refused(ValueError, "draws", "2**31", draws=2**31)
