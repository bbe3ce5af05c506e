"""`make demo`: eight chains of a hierarchical model on four host devices, from model to ArviZ file and picture."""

import pathlib
import time

import chainmesh as cm

cm.set_host_devices(4)  # before anything starts JAX

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

matplotlib.use("Agg")
OUT = pathlib.Path("demo_output")

# Eight schools (Rubin 1981): effect of coaching on test scores, and its standard error, in eight schools.
SCHOOLS = [
    "Choate",
    "Deerfield",
    "Andover",
    "Exeter",
    "Hotchkiss",
    "Lawrenceville",
    "St. Paul's",
    "Mt. Hermon",
]
DATA = {
    "effect": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    "error": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
}


def eight_schools(effect, error):
    """School effects drawn from a population whose mean and spread are unknown (non-centred)."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(SCHOOLS)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, error), obs=effect)


def main() -> None:
    """Sample, look, and write."""
    OUT.mkdir(exist_ok=True)
    settings = {
        "chains": 8,
        "target_accept": 0.95,
        "var_names": ["mu", "tau", "theta"],
        "coords": {"school": SCHOOLS},
    }
    run = cm.sample(eight_schools, data=DATA, draws=1000, seed=20, **settings)
    run.show_sharding()
    run.print_summary()
    print(run.report())

    other = DATA | {"effect": DATA["effect"] + 1}
    begun = time.perf_counter()
    cm.sample(eight_schools, data=other, draws=2000, seed=21, progress=False, **settings)
    print(f"\nAgain with new data, another seed and twice the draws: {time.perf_counter() - begun:.1f} s")

    run.to_arviz().to_netcdf(OUT / "eight_schools.nc")
    figure, axes = plt.subplots(figsize=(10, 8), layout="constrained")
    run.show_sharding(ax=axes)
    figure.savefig(OUT / "sharding.png", dpi=120)
    print(f"Wrote {OUT / 'eight_schools.nc'} (ArviZ) and {OUT / 'sharding.png'}.")


if __name__ == "__main__":
    main()
