"""Versions of what a run depends on."""

import importlib.metadata
import platform


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result may depend on."""
    found = {"python": platform.python_version()}
    for name in ("chainmesh", "jax", "jaxlib", "numpyro", "blackjax", "arviz", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
