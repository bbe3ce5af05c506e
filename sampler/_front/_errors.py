"""The errors of chainmesh: one family, rooted in `ChainmeshError`.

Each is also the builtin that users would catch by habit (ValueError, TypeError, RuntimeError, MemoryError).
"""


class ChainmeshError(Exception):
    """Root of every error that chainmesh raises on purpose."""


class InputError(ChainmeshError, ValueError):
    """An argument has a value that cannot be used."""


class OptionError(ChainmeshError, TypeError):
    """An option does not exist, is misspelt, or does not belong where it was given."""


class MeshError(InputError):
    """A mesh or a set of devices cannot carry the chains."""


class DeviceCountError(ChainmeshError, RuntimeError):
    """The number of host devices can no longer be changed, because JAX has started."""


class DataError(InputError):
    """An entry of `data` or `args` is missing, unknown, duplicated, or cannot be represented."""


class ModelError(InputError):
    """The model or log density cannot be sampled as it is written."""


class StartError(InputError):
    """A start position is outside the support, or its log density or gradient is not finite."""


class ResultTooLargeError(ChainmeshError, MemoryError):
    """The requested draws do not fit into free memory."""
