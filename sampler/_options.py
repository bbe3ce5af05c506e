"""What `sample` was asked for: checked, and defaults resolved."""

import difflib
import inspect
import math
from typing import Any

import numpy as np

from chainmesh._errors import InputError, OptionError

from ..kernels import HMC, NUTS, Adaptation, Kernel, PooledWindows, StanWindows

_ELSEWHERE = {
    "num_samples": "draws",
    "num_warmup": "tune",
    "warmup": "tune",
    "num_chains": "chains",
    "cores": "devices",
    "rng_key": "seed",
    "key": "seed",
    "random_seed": "seed",
    "init": "initvals",
    "inits": "initvals",
    "init_params": "initvals",
    "thinning": "thin",
    "progressbar": "progress",
    "progress_bar": "progress",
    "model_args": "args",
    "model_kwargs": "data",
    "kwargs": "data",
    "collect_warmup": "keep_warmup",
    "discard_tuned_samples": "keep_warmup",
}
_OF_KERNELS = {
    "step_size": "kernel=cm.NUTS(step_size=...)",
    "max_depth": "kernel=cm.NUTS(max_depth=...)",
    "max_treedepth": "kernel=cm.NUTS(max_depth=...)",
    "max_tree_depth": "kernel=cm.NUTS(max_depth=...)",
    "n_leapfrog": "kernel=cm.HMC(n_leapfrog=...)",
    "inverse_mass_matrix": "kernel=cm.NUTS(inverse_mass_matrix=...)",
    "dense": "adaptation=cm.PooledWindows(dense=True)",
    "dense_mass": "adaptation=cm.PooledWindows(dense=True)",
}


def refuse_unknown(fn: Any, unknown: dict[str, Any]) -> None:
    """Names the option meant.

    Raises:
        OptionError: there is an unknown option.
    """
    for name in unknown:
        if name in _ELSEWHERE:
            hint = f"use {_ELSEWHERE[name]}=."
        elif name in _OF_KERNELS:
            hint = f"settings of a method live on its object: {_OF_KERNELS[name]}."
        else:
            known = [p for p in inspect.signature(fn).parameters if p not in ("target", "unknown")]
            near = difflib.get_close_matches(name, [*known, *_ELSEWHERE, *_OF_KERNELS], n=1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}."
        raise OptionError(f"sample has no option {name}: {hint}")


def whole(name: str, value: Any, least: int) -> int:
    """An integer of at least `least`.

    Raises:
        InputError: it is not one.
    """
    kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} must be {kind}, got {value!r}.")
    if value >= 2**31:
        raise InputError(f"{name} must be below 2**31, got {value!r}: draws are counted in 32 bits.")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """True or False.

    Raises:
        InputError: it is neither.
    """
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def resolve_kernel(kernel: Any) -> Kernel:
    """A kernel object from what the user gave.

    Raises:
        InputError: it is not a kernel.
    """
    if kernel is None:
        return NUTS()
    if isinstance(kernel, str):
        found = {"nuts": NUTS, "hmc": HMC}.get(kernel.lower())
        if found is None:
            raise InputError(
                f"kernel={kernel!r}: by name there are 'nuts' and 'hmc'. BlackJAX's algorithms need their settings: "
                f"kernel=cm.from_blackjax({kernel!r}, step_size=...)."
            )
        return found()
    if isinstance(kernel, type) and issubclass(kernel, Kernel):
        raise InputError(
            f"kernel={kernel.__name__} is a class; pass an object: kernel=cm.{kernel.__name__}()."
        )
    if not isinstance(kernel, Kernel):
        raise InputError(
            f"kernel must be a chainmesh kernel (cm.NUTS(), cm.HMC(), cm.from_blackjax(...)) or its name, got "
            f"{type(kernel).__module__.split('.')[0]}'s {type(kernel).__name__}."
        )
    return kernel


def resolve_adaptation(adaptation: Any, kernel: Kernel, chains: int) -> Adaptation | None:
    """The adaptation to use: the user's, none for a kernel whose settings are fixed, or the default for `chains`.

    Which default is for how many chains rests on the table in docs/warmup.md.

    Raises:
        InputError: it is not an adaptation.
    """
    if adaptation is None:
        if kernel.fixed:
            return None
        return StanWindows() if chains == 1 else PooledWindows()
    if isinstance(adaptation, type) and issubclass(adaptation, Adaptation):
        raise InputError(
            f"adaptation={adaptation.__name__} is a class; pass an object: cm.{adaptation.__name__}()."
        )
    if not isinstance(adaptation, Adaptation):
        raise InputError(
            f"adaptation must be cm.PooledWindows() or cm.StanWindows(), got {type(adaptation).__name__}."
        )
    return adaptation


def resolve_target_accept(value: Any, kernel: Kernel, adaptation: Adaptation | None) -> float:
    """The acceptance rate to tune for.

    Raises:
        InputError: it is not between 0 and 1, or nothing is tuned.
    """
    default = getattr(kernel, "target_accept", kernel.target_accept_default)
    if value is None:
        return default
    number = float(value) if isinstance(value, int | float | np.number) else math.nan
    if isinstance(value, bool) or not 0 < number < 1:
        raise InputError(f"target_accept must lie between 0 and 1, got {value!r}.")
    if adaptation is None:
        raise InputError(
            f"target_accept={value} has no effect: the settings of {kernel.name} are fixed and nothing is tuned. Give "
            "an adaptation, or leave target_accept out."
        )
    return number
