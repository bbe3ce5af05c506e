"""Makes the README's picture: `python docs/images/make.py`."""

import pathlib

import chainmesh as cm

cm.set_host_devices(4)

import jax.numpy as jnp  # noqa: E402
import matplotlib  # noqa: E402
import numpy as np  # noqa: E402

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402


def regression(position, x, y):
    """Log density of a linear regression with unit noise."""
    return -0.5 * jnp.sum(position**2) - 0.5 * jnp.sum((y - x @ position) ** 2)


rng = np.random.default_rng(0)
x = rng.normal(size=(100, 5))
data = {"x": x, "y": x @ np.arange(5.0) + rng.normal(size=100)}
target = cm.LogDensity(regression, initial=jnp.zeros(5))
run = cm.sample(target, data=data, chains=8, draws=1000, seed=0, progress=False)
figure, axes = plt.subplots(figsize=(8.5, 6.5), layout="constrained")
run.show_sharding(ax=axes)
figure.savefig(pathlib.Path(__file__).with_name("sharding.png"), dpi=90)
