"""Eight host devices for every test, asked for before JAX starts."""

import jax


jax.config.update("jax_num_cpu_devices", 8)


def pytest_configure(config):
    assert jax.device_count() == 8, "the tests need 8 CPU devices"
