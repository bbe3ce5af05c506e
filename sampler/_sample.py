"""One call: `sample`."""

import concurrent.futures
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from chainmesh._errors import InputError, MeshError, ResultTooLargeError

from ..kernels import Adaptation, Kernel, check_tunable
from ..sharding import ChainLayout, as_chain_mesh, chain_mesh, idle_cores, root_key
from ._blocks import Blocks, Chainwork, Tally, Watch
from ._draws import HostDraws
from ._fingerprint import program_key
from ._interrupt import Interrupt
from ._logdensity import LogDensity
from ._options import flag, refuse_unknown, resolve_adaptation, resolve_kernel, resolve_target_accept, whole
from ._programs import DRAW, WARMUP, Plan, Programs, programs_for, static_copy
from ._progress import Snapshot, make_progress
from ._run import Run, Timing
from ._start import start_values
from ._start_checks import check_starts
from ._target import Target, make_target

_log = logging.getLogger("chainmesh")
_DEVICE_BUDGET = 32 * 2**20
_CONSTRAIN_BUDGET = 64 * 2**20
_UNTUNED_BURN_IN = 500
_said: set[str] = set()


def sample(
    target: Callable[..., Any] | LogDensity,
    *,
    data: Mapping[str, Any] | None = None,
    args: Sequence[Any] = (),
    draws: int = 1000,
    tune: int | None = None,
    chains: int = 4,
    kernel: Kernel | str | None = None,
    target_accept: float | None = None,
    adaptation: Adaptation | None = None,
    mesh: Mesh | None = None,
    devices: int | Sequence[jax.Device] | None = None,
    seed: Any = None,
    initvals: Any = None,
    thin: int = 1,
    keep_warmup: bool = False,
    var_names: Sequence[str] | str | None = None,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | None = None,
    reproducible: bool = False,
    progress: bool | Callable[[Snapshot], None] = True,
    **unknown: Any,
) -> Run:
    """Sample a model with many chains on a mesh of devices.

    Arrays and floats in `data` and `args` are traced: a second call with new values, another seed or more draws
    compiles nothing. Ints, bools, strings and functions are part of the program (docs/models.md).

    Args:
        target: a NumPyro model, called as `model(*args, **data)`, or a `LogDensity`.
        data: keyword arguments of the model.
        args: its positional arguments.
        draws: draws per chain after warm-up; `draws // thin` are kept.
        tune: warm-up draws per chain, thrown away; None takes the adaptation's own number, which the run shows.
        chains: number of chains, any number on any number of devices.
        kernel: `NUTS()` when None; "nuts", "hmc", or an object with settings.
        target_accept: acceptance rate that the step size is tuned for.
        adaptation: how the warm-up tunes; None takes the default for the number of chains, or tunes nothing when the
            kernel's settings are fixed.
        mesh: where the chains live; None spreads them over the devices.
        devices: which devices, or how many, when `mesh` is None.
        seed: an int or a JAX key; None draws one and records it.
        initvals: start values in constrained space, one dict or one per chain, any subset of sites; else uniform(-2, 2)
            in unconstrained space. For a LogDensity: positions in its own space.
        thin: keep the last of every `thin` draws.
        keep_warmup: keep the warm-up draws too, in groups of their own.
        var_names: sites to keep; all when None.
        coords: labels of dimensions.
        dims: names of the axes of sites, `{"theta": ["school"]}`; plates give theirs by themselves.
        reproducible: evaluate every chain by itself, so that draws do not depend on the number of devices, bit for bit
            on CPU; slower. Two devices or more: for a single one XLA compiles in other passes, which round differently.
        progress: True shows progress where one looks (terminal, notebook, log); a function gets each `Snapshot`.
        **unknown: refused by name.

    Returns:
        the run; interrupted by Ctrl-C it holds the finished blocks and says so in `status`.

    Raises:
        ChainmeshError: anything above cannot be used; the message names it.
        KeyboardInterrupt: interrupted before there were draws.
    """
    refuse_unknown(sample, unknown)
    begun = time.perf_counter()
    chains, thin = whole("chains", chains, 1), whole("thin", thin, 1)
    draws = whole("draws", draws, 1)
    if draws < thin:
        raise InputError(f"thin={thin} keeps nothing of draws={draws}: draws must be at least thin.")
    tune = None if tune is None else whole("tune", tune, 0)
    keep_warmup, reproducible = flag("keep_warmup", keep_warmup), flag("reproducible", reproducible)
    kernel = resolve_kernel(kernel)
    adaptation = resolve_adaptation(adaptation, kernel, chains)
    target_accept_given = target_accept is not None
    target_accept = resolve_target_accept(target_accept, kernel, adaptation)
    if tune is None:
        tune = _UNTUNED_BURN_IN if adaptation is None else adaptation.default_tune(chains)
    if target_accept_given and not tune:
        raise InputError("target_accept has no effect with tune=0: nothing is tuned.")
    for name, value in (("dims", dims), ("coords", coords)):
        if value is not None and not isinstance(value, Mapping):
            raise InputError(f"{name} must be a dict, got {value!r}.")
    if isinstance(target, Target | Run):
        raise InputError("target must be a NumPyro model or a cm.LogDensity.")
    if mesh is not None and devices is not None:
        raise MeshError("give mesh or devices, not both: a mesh names its devices.")
    mesh = chain_mesh(chains, devices) if mesh is None else as_chain_mesh(mesh)
    layout = ChainLayout.on(mesh, chains)
    seed = _new_seed() if seed is None else seed
    key = root_key(seed)

    spec = make_target(target, args, data, dims=dims, coords=coords, var_names=var_names, chains=chains)
    params = kernel.params(spec.dim, spec.dtype)
    plan, programs = _programs(spec, kernel, adaptation, mesh, layout, params, reproducible)
    kept = draws // thin
    _check_memory(spec, chains, kept + (tune if keep_warmup else 0))
    _mention_idle_cores(mesh)
    values, fixed = start_values(spec, initvals, None, chains, key)
    blocks = Blocks(plan, programs, mesh, key, spec.density.consts, spec.traced)
    blocks.bind_constrain(spec.constrain.consts, tuple(site.name for site in spec.sites))

    tuned = adaptation is not None and tune > 0
    tally, warm_tally = Tally(np.zeros(chains, np.int64)), Tally(np.zeros(chains, np.int64))
    main, stats = HostDraws(chains, kept), HostDraws(chains, kept)
    warm, warm_stats = (HostDraws(chains, tune), HostDraws(chains, tune)) if keep_warmup else (None, None)
    traced = time.perf_counter()
    with Interrupt() as interrupt, make_progress(progress) as display, contextlib.ExitStack() as stack:
        work, checks = blocks.start(params, target_accept, values, fixed)
        check_starts(
            spec,
            checks["position"],
            checks["lp"],
            checks["terms"],
            checks["gradient"],
            checks["tries"],
            fixed,
        )
        started = time.perf_counter()
        watch = Watch(
            display, interrupt, chains, mesh.devices.size, {"warm-up": tune, "sampling": kept * thin}
        )
        ready = _compile_beside(blocks, programs, work, stack)
        if tuned:
            assert adaptation is not None
            blocks.warm_up(work, adaptation.windows(tune), warm_tally, warm, warm_stats, watch, ready)
        else:
            ready()
            if tune and not blocks.draw(work, WARMUP, tune, 1, warm_tally, warm, warm_stats, watch):
                raise KeyboardInterrupt("interrupted during burn-in: there are no draws yet")
        warmed = time.perf_counter()
        complete = blocks.draw(work, DRAW, kept, thin, tally, main, stats, watch)
        ended = time.perf_counter()
        run = Run(
            target=spec,
            kernel=kernel,
            adaptation=adaptation,
            tuned=tuned,
            mesh=mesh,
            layout=layout,
            posterior=main.arrays(),
            stats=stats.arrays(),
            warmup_posterior=warm.arrays() if warm else None,
            warmup_stats=warm_stats.arrays() if warm_stats else None,
            work=work,
            traced=blocks.traced,
            draws=main.filled * thin,
            tune=tune,
            thin=thin,
            seed=seed,
            target_accept=target_accept if tuned else None,
            reproducible=reproducible,
            status="complete" if complete else "interrupted",
            tally=tally,
            warmup_tally=warm_tally,
            timing=Timing(traced - begun, started - traced, warmed - started, ended - warmed),
        )
        sentence = str(run.verdict).splitlines()[0].rstrip(":")
        display.close(sentence if complete else f"interrupted; {sentence}")
    if not run.verdict.ok:  # nothing is silent; the logger "chainmesh" may be
        _log.warning("%s", run.verdict)
    return run


def _new_seed() -> int:
    """A seed drawn by the first process for all."""
    seed = secrets.randbits(32)
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        seed = int(multihost_utils.broadcast_one_to_all(np.uint32(seed)))
    return seed


def _compile_beside(blocks: Blocks, programs: Programs, work: Chainwork, stack: contextlib.ExitStack) -> Any:
    """Start compiling the block of draws in a thread; the result waits for it. JAX's own lock does not keep two threads
    from compiling the same program, so nothing may run that program before."""  # fmt: skip
    if programs.ready:
        return lambda: None
    if jax.process_count() > 1:  # every process must launch its programs in the same order
        blocks.compile_draws(work)
        programs.ready = True
        return lambda: None
    pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(1, "chainmesh-compile"))
    compiling = pool.submit(blocks.compile_draws, work)

    def ready() -> None:
        compiling.result()
        programs.ready = True

    return ready


def _programs(
    spec: Target, kernel: Kernel, adaptation: Adaptation | None, mesh: Mesh, layout: ChainLayout, params: dict,
    reproducible: bool,
) -> tuple[Plan, Programs]:  # fmt: skip
    names = list(params)
    if adaptation is not None:
        check_tunable(kernel.name, params)
    if adaptation is not None and adaptation.dense and "inverse_mass_matrix" in params:
        names += ["inverse_mass_cholesky"] * ("inverse_mass_cholesky" not in params)
    row = spec.dim * spec.dtype.itemsize + 64
    row += sum(int(np.prod(site.shape)) * site.dtype.itemsize for site in spec.sites)
    capacity = min(512, max(1, _DEVICE_BUDGET // (row * layout.per_device)))
    work = sum(v.aval.size * v.aval.dtype.itemsize for e in spec.constrain.jaxpr.eqns for v in e.outvars)
    plan = Plan(
        kernel=static_copy(kernel),
        adaptation=adaptation,
        mesh=mesh.abstract_mesh,
        chains=layout.chains,
        per_device=layout.per_device,
        dim=spec.dim,
        dtype=spec.dtype,
        params=tuple(names),
        capacity=1 << (capacity.bit_length() - 1),
        one_by_one=reproducible,
        constrain_batch=1 if reproducible else min(4096, max(1, _CONSTRAIN_BUDGET // max(work, row))),
    )
    fingerprint = (program_key(spec.density), program_key(spec.constrain))
    programs = programs_for(plan, spec.density, spec.constrain, fingerprint)
    return plan, programs


def _check_memory(spec: Target, chains: int, rows: int) -> None:
    import psutil

    size = {site.name: int(np.prod(site.shape)) * site.dtype.itemsize * chains * rows for site in spec.sites}
    total, free = sum(size.values()), psutil.virtual_memory().available
    if total > 0.9 * free:
        biggest = sorted(size, key=lambda n: -size[n])[:3]
        raise ResultTooLargeError(
            f"the draws would take {total / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; the largest sites are "
            f"{', '.join(f'{n} ({size[n] / 2**30:.1f} GiB)' for n in biggest)}. Keep fewer sites (var_names=) or draws "
            "(thin=)."
        )


def _mention_idle_cores(mesh: Mesh) -> None:
    idle = idle_cores(mesh)
    if idle and mesh.devices.size == 1 and len(jax.devices()) == 1 and "idle" not in _said:
        _said.add("idle")
        _log.warning(
            "%d CPU core(s) stay idle: JAX shows one CPU device. Call chainmesh.set_host_devices(%d) before JAX starts "
            "to run chains on all of them.",
            idle,
            idle + 1,
        )
