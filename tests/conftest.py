"""Eight host devices for every test, asked for before JAX starts."""

import jax
import jaxtyping
import pytest

jax.config.update("jax_num_cpu_devices", 8)


def pytest_configure(config):
    assert jax.device_count() == 8, "the tests need 8 CPU devices"


@pytest.fixture
def untyped():
    """Without the run-time check of annotations, so that what users get for a wrong type can be seen."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
