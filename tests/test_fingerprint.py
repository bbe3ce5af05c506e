"""Keys of programs: equal for two traces of one computation, different for any other."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.ode import odeint

from chainmesh.sampler._fingerprint import program_key


def custom(backward):
    @jax.custom_vjp
    def f(x):
        return x * x

    f.defvjp(lambda x: (x * x, x), backward)
    return f


def key_of(f, n=3):
    return program_key(jax.make_jaxpr(f)(np.zeros(n, np.float32)))


def test_keys_tell_computations_apart():
    f1, f2 = custom(lambda x, g: (2 * x * g,)), custom(lambda x, g: (3 * x * g,))
    assert key_of(lambda x: f1(x).sum()) == key_of(lambda x: f1(x).sum())
    assert key_of(lambda x: f1(x).sum()) != key_of(lambda x: f2(x).sum())

    def scaled(c):
        return lambda x: (x * c).sum()

    assert key_of(scaled(1.0)) == key_of(scaled(1.0))
    # Equal when printed with six digits, and equal in Python: still other programs.
    assert key_of(scaled(1.0)) != key_of(scaled(np.nextafter(np.float32(1), 2).item()))
    assert key_of(scaled(0.0)) != key_of(scaled(-0.0))
    assert key_of(scaled(np.ones(3, np.float32))) == key_of(scaled(np.zeros(3, np.float32)))
    assert key_of(scaled(np.ones(3, np.float32))) != key_of(scaled(np.ones(1, np.float32)))

    def inside(c):
        return lambda x: jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: x * c + np.float32(c), x))(
            x
        ).sum()

    assert key_of(inside(2.0)) == key_of(inside(2.0)) != key_of(inside(2.5))


def test_keys_of_library_rules_and_callbacks_are_stable():
    def f(x):
        s = jax.scipy.special
        return (jax.nn.relu(x) + s.xlogy(x, x) + jnp.logaddexp(x, 1) + s.gammaln(x) + jax.nn.gelu(x)
                + s.log_ndtr(x) + odeint(lambda y, t: -y, x, jnp.arange(2.0))[1]).sum()  # fmt: skip

    assert key_of(lambda x: f(x)) == key_of(lambda x: f(x))

    def called(g):
        return lambda x: jax.pure_callback(g, jax.ShapeDtypeStruct((3,), np.float32), x).sum()

    def host(x):
        return np.asarray(x)

    assert key_of(called(host)) == key_of(called(host)) != key_of(called(lambda x: np.asarray(x)))


def test_keys_of_targets_are_stable_through_the_removal_of_unused_outputs():
    import chainmesh as cm
    from chainmesh.sampler._target import make_target

    def keys():
        target = cm.LogDensity(lambda x: jnp.logaddexp(-(x[0] ** 2), -2 * x[1] ** 2), initial=np.zeros(2))
        return program_key(make_target(target, (), {}).density)

    assert keys() == keys()
