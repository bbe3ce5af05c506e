"""Laws that every kernel obeys: it leaves its target as it is, says what it did, and survives NaN.

One program per kernel serves every law here: targets are picked by a traced number, settings are traced anyway.
Statistical tests start N chains with exact draws of the target and move them with fixed settings, so that all N are
independent and p-values are exact. Each test function keeps its false-alarm rate below ALPHA by Bonferroni's bound
(seeds are fixed). With N = 20,000 and some 30 functionals, a mean that is off by 0.055 sd is found in 99 of 100 runs.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from zoo_exact import EXACT, ks_pvalues, p_bound, z_bound, z_scores

import chainmesh as cm
from chainmesh.kernels import Kernel

ALPHA = 1e-4
N = 20_000
DIM = 9
PRODUCT, NAN_VALUE, NAN_GRADIENT = 0, 1, 2
PARTS = (("log_exponential", slice(0, 3)), ("funnel_mild", slice(3, 8)), ("beta", slice(8, 9)))
_rng = np.random.default_rng(7)
DENSE = np.cov(_rng.standard_normal((DIM, 40))) + 0.3 * np.eye(DIM)
DIAGONAL = np.linspace(0.5, 1.5, DIM)


def product(x):
    """Asymmetric, curved and skewed parts, known exactly."""
    return sum(EXACT[name].logdensity(x[part]) for name, part in PARTS)


def nan_value(x):
    """A normal that is NaN where x[0] > 1."""
    return -0.5 * jnp.dot(x, x) + jnp.where(x[0] > 1, jnp.nan, 0.0)


def nan_gradient(x):
    """A finite value everywhere, and a NaN gradient where x[0] > 1: the slope of a square root at 0."""
    return -0.5 * jnp.dot(x, x) - 0.1 * jnp.sqrt(jnp.maximum(1 - x[0], 0.0)) ** 2


def iid(n, seed):
    rng = np.random.default_rng(seed)
    return np.concatenate([EXACT[name].sample(rng, n) for name, _ in PARTS], axis=1).astype(np.float32)


def on_part(fn, part):
    return lambda x: fn(x[..., part])


FUNCTIONALS = {
    f"{name} {what}": (on_part(fn, part), mean)
    for name, part in PARTS
    for what, (fn, mean) in EXACT[name].functionals.items()
}
CDFS = {
    f"{name} {what}": (on_part(fn, part), cdf)
    for name, part in PARTS
    for what, (fn, cdf) in EXACT[name].cdfs.items()
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A kernel with settings at which it neither accepts nor rejects everything."""

    kernel: Kernel
    steps: int = 8
    prior: float = 0.0
    """Precision of the Gaussian prior that the kernel itself brings, to be taken out of the log density."""
    gradient: bool = True
    nan: bool = True
    """Whether its program can run the targets with NaN: where another case has the same kernel, one will do."""


KERNELS = {
    "nuts": Case(cm.NUTS(step_size=0.6, inverse_mass_matrix=DIAGONAL), steps=3),
    "nuts_dense": Case(cm.NUTS(step_size=0.6, inverse_mass_matrix=DENSE), steps=3, nan=False),
    "hmc": Case(cm.HMC(step_size=0.5, n_leapfrog=4, inverse_mass_matrix=DIAGONAL)),
    "hmc_dense": Case(cm.HMC(step_size=0.5, n_leapfrog=4, inverse_mass_matrix=DENSE), nan=False),
    "mala": Case(cm.from_blackjax("mala", step_size=0.12), steps=30),
    "random_walk": Case(cm.from_blackjax("random_walk", step_size=0.5), steps=30, gradient=False),
    "elliptical_slice": Case(
        cm.from_blackjax("elliptical_slice", cov_matrix=np.full(DIM, 4.0), mean=np.zeros(DIM)),
        prior=0.25,
        gradient=False,
    ),
    "barker": Case(cm.from_blackjax("barker", step_size=0.7), steps=30),
    "ghmc": Case(
        cm.from_blackjax(
            "ghmc", step_size=0.4, momentum_inverse_scale=np.sqrt(DIAGONAL), alpha=0.3, delta=0.3
        ),
        steps=30,
    ),
    # Unadjusted: its bias falls with the fourth power of the step, and at 0.3 lies below what N draws can see.
    "mclmc": Case(
        cm.from_blackjax("mclmc", step_size=0.3, L=2.0, inverse_mass_matrix=np.ones(DIM)), steps=30
    ),
}
ALL = pytest.mark.parametrize("name", KERNELS)


def target(case):
    def logdensity(which, x):
        value = jax.lax.switch(which, [product, nan_value, nan_gradient] if case.nan else [product], x)
        return value + 0.5 * case.prior * jnp.dot(x, x) if case.prior else value

    return logdensity


@functools.cache
def program(name):
    """N steps of many chains: (state, last info, per-chain record)."""
    case = KERNELS[name]
    kernel, density = case.kernel, target(case)

    @jax.jit
    def run(which, key, params, x, n):
        logdensity = functools.partial(density, which)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(x.shape[0]))
        state = jax.vmap(kernel.init, (0, None, None, 0))(keys, params, logdensity, x)

        def step(i, state):
            step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, i + 1_000_000)
            return jax.vmap(kernel.step, (0, None, None, 0))(step_keys, params, logdensity, state)

        def body(i, loop):
            state, _, record = loop
            new, info = step(i, state)
            before, x = kernel.position(state), kernel.position(new)
            record = {
                "moves": record["moves"] + jnp.any(x != before, axis=1),
                "late": record["late"] + (jnp.any(x != before, axis=1) & (2 * i >= n)),
                "diverging": record["diverging"] + info.get("diverging", jnp.zeros(x.shape[0], bool)),
                "finite": record["finite"] & jnp.isfinite(x).all(axis=1) & jnp.isfinite(info["lp"]),
                "top": jnp.maximum(record["top"], x[:, 0]),
            }
            return new, info, record

        zero = jnp.zeros(x.shape[0], jnp.int32)
        record = {"moves": zero, "late": zero, "diverging": zero, "finite": zero == 0, "top": x[:, 0]}
        info = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(step, 0, state)[1])
        return jax.lax.fori_loop(0, n, body, (state, info, record))

    return run


@functools.cache
def moved(name, steps=None, **other):
    """The exact draws after a few steps of the kernel, with other settings than the case's where given."""
    case = KERNELS[name]
    params = case.kernel.params(DIM, np.dtype(np.float32))
    params |= {k: np.asarray(v, params[k].dtype) for k, v in other.items()}
    n = case.steps if steps is None else steps
    state, info, record = program(name)(PRODUCT, jax.random.key(11), params, iid(N, 3), n)
    return state, jax.device_get(info), jax.device_get(record)


def assert_exact(x):
    z = z_scores(FUNCTIONALS, x[:, None])
    p = ks_pvalues(CDFS, x)
    tests = len(z) + len(p)
    worst = {k: round(v, 1) for k, v in z.items() if abs(v) > z_bound(tests, ALPHA)}
    worst |= {k: v for k, v in p.items() if v < p_bound(tests, ALPHA)}
    assert not worst, worst


# It leaves the target as it is -------------------------------------------------------------------


@pytest.mark.slow
@ALL
def test_exact_draws_stay_exact(name):
    state, info, record = moved(name)
    assert record["moves"].mean() > 0.15 * KERNELS[name].steps, "too few moves for a test"
    if "acceptance_rate" in info:
        assert 0.1 < info["acceptance_rate"].mean() < 0.97, "a kernel that rejects nothing is not tested"
    assert_exact(np.asarray(KERNELS[name].kernel.position(state), np.float64))


@pytest.mark.slow
def test_exact_draws_stay_exact_in_trees_cut_short():
    """Most trees end at the cap here, not at a U-turn."""
    state, info, _ = moved("nuts", max_depth=2, step_size=0.35)
    assert info["reached_max_treedepth"].mean() > 0.5
    assert_exact(np.asarray(state.position, np.float64))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hmc", "hmc_dense"])
def test_energy_errors_average_to_one(name):
    """E exp(-energy error of the proposal) = 1 at stationarity, for any step, length and metric.

    Only accepted proposals report theirs; each stands for 1 / acceptance_rate of its kind.
    """
    _, info, _ = moved(name)
    accepted = info["accepted"]
    weight = np.zeros(N)
    weight[accepted] = np.exp(-info["energy_error"][accepted]) / info["acceptance_rate"][accepted]
    z = (weight.mean() - 1) / (weight.std() / np.sqrt(N))
    assert abs(z) < z_bound(1, ALPHA)
    assert weight.std() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nuts", "nuts_dense", "hmc", "hmc_dense"])
def test_kinetic_energy_has_its_law(name):
    """energy + lp is the kinetic energy at the draw, and twice it is chi-squared with dim degrees of freedom."""
    _, info, _ = moved(name)
    kinetic = np.asarray(info["energy"], np.float64) + info["lp"]
    assert stats.kstest(2 * kinetic, stats.chi2(DIM).cdf).pvalue > ALPHA


# It says what it did ------------------------------------------------------------------------------

DTYPES = {
    "lp": np.float32,
    "acceptance_rate": np.float32,
    "step_size": np.float32,
    "energy": np.float32,
    "energy_error": np.float32,
    "max_energy_error": np.float32,
    "tree_depth": np.int32,
    "n_steps": np.int32,
    "diverging": np.bool_,
    "reached_max_treedepth": np.bool_,
    "accepted": np.bool_,
}
"""ArviZ's names for sample_stats, and PyMC's `accepted`."""


@ALL
def test_info_and_state(name):
    state, info, _ = moved(name)
    case = KERNELS[name]
    x = case.kernel.position(state)
    assert x.shape == (N, DIM) and x.dtype == np.float32
    assert {k: v.dtype for k, v in info.items()} == {k: np.dtype(DTYPES[k]) for k in info}
    assert all(v.shape == (N,) for v in info.values())
    np.testing.assert_array_equal(info["lp"], state.logdensity)
    density = jax.jit(jax.vmap(functools.partial(target(case), PRODUCT)))
    np.testing.assert_allclose(info["lp"], density(x), rtol=1e-5, atol=1e-5)
    if "acceptance_rate" in info:
        assert (info["acceptance_rate"] >= 0).all() and (info["acceptance_rate"] <= 1 + 1e-6).all()
    gradient = case.kernel.gradient(state)
    assert (gradient is not None) == case.gradient == case.kernel.needs_gradient
    if gradient is not None:
        slope = jax.jit(jax.vmap(jax.grad(functools.partial(target(case), PRODUCT))))(x)
        np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-4)


@ALL
def test_a_kernel_is_a_value(name):
    kernel = KERNELS[name].kernel
    assert hash(kernel) == hash(dataclasses.replace(kernel)) and kernel == dataclasses.replace(kernel)
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.label = kernel.max_depth = 3
    params = kernel.params(DIM, np.dtype(np.float32))
    assert all(type(v) is np.ndarray for v in params.values()), "host side, no JAX arrays"
    assert all(v.dtype in (np.float32, np.int32) for v in params.values())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (cm.NUTS(step_size=0.1), cm.NUTS(step_size=0.2), True),
        (cm.NUTS(inverse_mass_matrix=np.ones(3)), cm.NUTS(), True),
        (cm.NUTS(max_depth=9), cm.NUTS(), False),
        (cm.NUTS(divergence_threshold=10.0), cm.NUTS(), False),
        (cm.HMC(n_leapfrog=3), cm.HMC(n_leapfrog=30), True),
        (cm.HMC(), cm.NUTS(), False),
        (cm.from_blackjax("mala", step_size=0.1), cm.from_blackjax("mala", step_size=0.2), True),
        (cm.from_blackjax("mala", step_size=0.1), cm.from_blackjax("barker", step_size=0.1), False),
    ],
)
def test_traced_settings_do_not_count_as_different(one, other, same):
    assert (one == other) is same and (hash(one) == hash(other)) is same


@pytest.mark.parametrize("cap", [1, 3, 10, 24])
def test_trees_keep_to_the_traced_cap(cap):
    """B38. The cap lies in params, below or above the kernel's own limit of 10."""
    _, info, _ = moved("nuts", steps=2, max_depth=cap, step_size=0.01 if cap < 10 else 0.6)
    depth = min(cap, 10)
    assert (info["n_steps"] <= 2.0 ** info["tree_depth"] - 1).all() and (info["tree_depth"] <= depth).all()
    if cap < 10:
        assert (info["tree_depth"] == cap).all() and info["reached_max_treedepth"].all()
        assert (info["n_steps"] == 2**cap - 1).all()
    else:
        assert not info["reached_max_treedepth"].any()


# It survives NaN ----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [NAN_VALUE, NAN_GRADIENT])
@pytest.mark.parametrize("name", [name for name, case in KERNELS.items() if case.nan])
def test_nan_never_enters_the_state(name, which):
    """B34. A quarter of the chains start close to where the log density, or only its gradient, is NaN."""
    if which == NAN_GRADIENT and not KERNELS[name].gradient:
        pytest.skip("needs no gradient")
    kernel, steps = KERNELS[name].kernel, 40
    x = np.random.default_rng(5).standard_normal((400, DIM)).astype(np.float32)
    x[:, 0] = np.minimum(x[:, 0], 0.95)
    params = kernel.params(DIM, np.dtype(np.float32))
    x = np.resize(x, (N, DIM))  # the shape that is compiled already
    state, info, record = program(name)(which, jax.random.key(2), params, x, steps)
    record = jax.device_get(record)
    assert record["finite"].all() and np.isfinite(kernel.position(state)).all()
    assert (record["top"] <= 1).all()
    assert (record["late"] > 0).all(), "a chain froze after it met NaN"
    if "diverging" in info:
        assert record["diverging"].sum() > N / 10


def test_ghmc_recovers_from_an_overflowing_energy_error():
    """BlackJAX's slice variable turns NaN when a rejected proposal is worse by more than float32's exp can hold."""
    kernel = cm.from_blackjax("ghmc", step_size=1.0, momentum_inverse_scale=np.ones(1), alpha=0.5, delta=0.3)
    density = lambda x: -0.5 * x[0] ** 2 - jnp.where(x[0] > 1, 1e3, 0.0)  # noqa: E731
    params = kernel.params(1, np.dtype(np.float32))

    def step(state, key):
        state, _ = kernel.step(key, params, density, state)
        return state, state.position[0]

    state = kernel.init(jax.random.key(0), params, density, jnp.array([0.9]))
    x = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 400))[1]
    assert len(np.unique(x[200:])) > 50


# It does not care for coordinates ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "dense"),
    [(cm.NUTS, True), (cm.HMC, True), (cm.HMC, False)],
    ids=["nuts-dense", "hmc-dense", "hmc-diagonal"],
)
def test_moving_the_metric_with_the_target_changes_nothing(kernel, dense):
    """x -> L x + b with the inverse mass L L': the same random numbers give the same trajectories."""
    dim, chains = 3, 32
    kernel = kernel(step_size=0.3, **({"max_depth": 5} if kernel is cm.NUTS else {"n_leapfrog": 5}))
    base = EXACT["log_exponential"]

    @jax.jit
    def run(params, lower, shift, key, z):
        def density(x):
            return base.logdensity(jax.scipy.linalg.solve_triangular(lower, x - shift, lower=True))

        state = jax.vmap(kernel.init, (0, None, None, 0))(
            jax.random.split(key, chains), params, density, z @ lower.T + shift
        )

        def step(state, key):
            keys = jax.random.split(key, chains)
            return jax.vmap(kernel.step, (0, None, None, 0))(keys, params, density, state)

        state, info = jax.lax.scan(step, state, jax.random.split(jax.random.fold_in(key, 1), 3))
        return state.position, info

    lower = np.array([[2.0, 0, 0], [0.7, 0.5, 0], [-0.3, 0.2, 1.0]]) if dense else np.diag([2.0, 0.1, 1.0])
    inverse = lower @ lower.T if dense else np.diag(lower) ** 2
    one = dataclasses.replace(kernel, inverse_mass_matrix=np.eye(dim) if dense else np.ones(dim))
    two = dataclasses.replace(kernel, inverse_mass_matrix=inverse)
    z = base.sample(np.random.default_rng(0), chains).astype(np.float32)
    key, f32 = jax.random.key(3), np.dtype(np.float32)
    shift = np.array([1.0, -2.0, 0.5], f32)
    x, plain = run(one.params(dim, f32), np.eye(dim, dtype=f32), np.zeros(dim, f32), key, z)
    y, moved_info = run(two.params(dim, f32), lower.astype(f32), shift, key, z)
    np.testing.assert_allclose(y, x @ lower.T + shift, atol=2e-4)
    np.testing.assert_array_equal(plain["n_steps"], moved_info["n_steps"])
    np.testing.assert_allclose(plain["acceptance_rate"], moved_info["acceptance_rate"], atol=2e-4)


# Bad settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cm.NUTS(max_depth=0), "max_depth must be an integer from 1 to 24, got 0"),
        (lambda: cm.NUTS(max_depth=True), "got True"),
        (lambda: cm.NUTS(max_depth=25), "got 25"),
        (lambda: cm.NUTS(divergence_threshold=-1.0), "divergence_threshold must be a positive number"),
        (lambda: cm.HMC(n_leapfrog=0), "n_leapfrog must be a positive integer, got 0"),
        (lambda: cm.HMC(n_leapfrog=2.5), "n_leapfrog must be a positive integer, got 2.5"),
        (lambda: cm.NUTS(step_size=0.0).params(2, np.dtype(np.float32)), "step_size must be a positive"),
        (lambda: cm.NUTS(step_size="big").params(2, np.dtype(np.float32)), "got 'big'"),
        (lambda: cm.NUTS(step_size=np.ones(2)).params(2, np.dtype(np.float32)), "step_size must be"),
        (lambda: cm.HMC(step_size=np.nan).params(2, np.dtype(np.float32)), "got nan"),
        (lambda: cm.NUTS(inverse_mass_matrix=np.ones(3)).params(2, np.dtype(np.float32)), r"\(2,\)"),
        (lambda: cm.NUTS(inverse_mass_matrix=[1.0, 0.0]).params(2, np.dtype(np.float32)), "positive"),
        (lambda: cm.NUTS(inverse_mass_matrix=[[1, 2], [2, 1]]).params(2, np.dtype(np.float32)), "definite"),
        (lambda: cm.NUTS(inverse_mass_matrix=[[1, 9], [0, 1]]).params(2, np.dtype(np.float32)), "symmetric"),
        (lambda: cm.NUTS(inverse_mass_matrix=np.full((2, 2), np.nan)).params(2, np.dtype("f4")), "finite"),
        (lambda: cm.NUTS(inverse_mass_matrix="identity").params(2, np.dtype("f4")), "array of numbers"),
    ],
)
def test_bad_settings_are_named(make, words):
    with pytest.raises(cm.InputError, match=words):
        make()
