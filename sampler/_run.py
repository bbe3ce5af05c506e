"""The result of a run."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree, Shaped

from chainmesh._errors import InputError

from ..kernels import Adaptation, Kernel
from ..sharding import ChainLayout, gather, place
from ._blocks import Chainwork, Tally
from ._sites import default_float, nearest
from ._target import Target

Draws = dict[str, Shaped[np.ndarray, "chain draw ..."]]
WarmupDraws = dict[str, Shaped[np.ndarray, "chain tune ..."]]


@dataclasses.dataclass(frozen=True)
class Timing:
    """Where the seconds of a run went (wall clock; compilation is in the part that waited for it)."""

    trace: float
    start: float
    warmup: float
    sampling: float

    @property
    def total(self) -> float:
        """Seconds of the whole call."""
        return self.trace + self.start + self.warmup + self.sampling


@dataclasses.dataclass(eq=False, repr=False)
class Run:
    """Draws of many chains, how they came about, and what to think of them.

    Attributes:
        posterior: draws by site, arrays (chain, draw, *event) on the host.
        stats: the kernel's statistics by ArviZ's names, arrays (chain, draw).
        warmup_posterior: warm-up draws, where `keep_warmup` asked for them; else None.
        warmup_stats: their statistics.
        draws: draws per chain after warm-up, thinned ones included.
        tune: warm-up draws per chain.
        thin: every how many draws one was kept.
        seed: the seed, drawn when none was given.
        status: "complete" or "interrupted".
        mesh: the devices.
        layout: which chain lives on which.
        kernel: what made the draws.
        adaptation: what tunes it; None for a kernel whose settings are fixed.
        tuned: whether there was a warm-up that tuned.
        target_accept: acceptance rate that was tuned for, or None.
        reproducible: whether draws are equal bit for bit on other numbers of devices.
        timing: seconds by part.
        tally: per-chain counts over every draw.
        warmup_tally: the same for the warm-up.
    """

    posterior: Draws
    stats: Draws
    warmup_posterior: WarmupDraws | None
    warmup_stats: WarmupDraws | None
    draws: int
    tune: int
    thin: int
    seed: Any
    status: str
    mesh: Mesh
    layout: ChainLayout
    kernel: Kernel
    adaptation: Adaptation | None
    tuned: bool
    target_accept: float | None
    reproducible: bool
    timing: Timing
    tally: Tally
    warmup_tally: Tally
    target: Target | None
    work: Chainwork
    traced: list[jax.Array] | None

    def __post_init__(self) -> None:
        assert self.target is not None
        self._name, self._dims, self._coords = self.target.name, self.target.dims, self.target.coords
        self._paths = self.target.paths
        self.dtype = self.target.dtype

    @property
    def chains(self) -> int:
        """Number of chains."""
        return self.layout.chains

    @property
    def state(self) -> PyTree[jax.Array]:
        """The kernel's state at the last draw, sharded on the devices, padding chains included."""
        return self.work.carry

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Tuned parameters on the host; those that chains do not share have a leading chain axis."""
        shared = set(self.work.params) if self.adaptation is None else self.adaptation.shared
        host = gather(self.work.params)
        return {name: value if name in shared else value[: self.chains] for name, value in host.items()}

    def on_mesh(self, names: Sequence[str] | str | None = None) -> dict[str, jax.Array]:
        """Draws placed back on the mesh, chains where they were made; padded with copies of the last chain.

        Args:
            names: sites; all when None.

        Raises:
            InputError: there is no such site.
        """
        names = [names] if isinstance(names, str) else list(self.posterior) if names is None else list(names)
        for name in names:
            if name not in self.posterior:
                raise InputError(f"on_mesh: there is no site {name!r}{nearest(name, self.posterior)}")
        return place({name: self.posterior[name] for name in names}, self.mesh)

    @functools.cached_property
    def verdict(self) -> Any:
        """What the diagnostics say (see `report`)."""
        from ._verdict import judge

        return judge(
            self.posterior,
            self.stats,
            divergences=self.tally.divergences if "diverging" in self.stats else None,
            max_depth=self.kernel.max_tree_depth,
            tuned=self.tuned,
            extra_findings=self._warmup_findings(),
        )

    def _warmup_findings(self) -> tuple:
        from ._verdict import Finding

        if self.work.tuning is None or not self.tuned:
            return ()
        moved = gather(self.work.tuning.chains.moved, self.chains)
        out = tuple(int(c) for c in np.flatnonzero(~moved))
        if not out:
            return ()
        text = (
            f"chain(s) {', '.join(map(str, out))} did not move like the others at the end of warm-up; they kept a step "
            "size of their own and stayed out of the pooled metric. Look at their draws before using them."
        )
        return (Finding("apart", text, out),)

    def report(self) -> "Report":
        """What ran, how it was tuned, and the verdict; `print` it."""
        return Report(self)

    def summary(self, var_names: Sequence[str] | str | None = None) -> Any:
        """A table (pandas) of mean, sd, quantiles, ESS bulk and tail, and R-hat per scalar."""
        from ._summary import summary

        return summary(self.posterior, var_names=var_names, dims=self._dims, coords=self._coords,
                       diagnostics=self.verdict.diagnostics)  # fmt: skip

    def print_summary(self, var_names: Sequence[str] | str | None = None) -> None:
        """Print `summary` as a table."""
        from ._summary import print_summary

        print_summary(self.summary(var_names))

    def to_arviz(self) -> Any:
        """The run as ArviZ has it: InferenceData with ArviZ 0.x, a DataTree with 1.x.

        Raises:
            InputError: the run's model was released.
        """
        from ._arviz import to_arviz

        target = self._target("to_arviz")
        return to_arviz(
            posterior=self.posterior,
            sample_stats=self.stats,
            observed_data=target.observed(),
            constant_data=target.constants(),
            warmup_posterior=self.warmup_posterior,
            warmup_sample_stats=self.warmup_stats,
            dims=self._dims,
            coords=self._coords,
            attrs=self._attributes(),
        )

    def _attributes(self) -> dict[str, Any]:
        from ._versions import versions

        settings = {
            "model": self._name,
            "kernel": repr(self.kernel),
            "adaptation": repr(self.adaptation) if self.tuned else None,
            "target_accept": self.target_accept,
            "draws": self.draws,
            "tune": self.tune,
            "thin": self.thin,
            "chains": self.chains,
            "reproducible": self.reproducible,
            "status": self.status,
            "x64": default_float() == np.float64,
        }
        devices = [
            {"id": d.id, "kind": d.device_kind, "process": d.process_index} for d in self.mesh.devices.flat
        ]
        mesh = {
            "shape": dict(self.mesh.shape),
            "devices": devices,
            "chains_per_device": self.layout.per_device,
        }
        return {
            "sampling_time": self.timing.warmup + self.timing.sampling,
            "tuning_steps": self.tune,
            "seed": self._seed_text(),
            "settings": json.dumps(settings),
            "versions": json.dumps(versions()),
            "mesh": json.dumps(mesh),
        }

    def _seed_text(self) -> Any:
        if isinstance(self.seed, int | np.integer):
            return int(self.seed)
        return json.dumps(gather(self.seed).tolist())

    def show_sharding(self, names: Sequence[str] | None = None, *, ax: Any = None) -> Any:
        """Where state, data and parameters live; see `chainmesh.show_sharding`.

        Args:
            names: parts to show, such as "state", "step_size" or "data['y']"; all when None.
            ax: matplotlib axes to draw on, instead of showing it here.

        Raises:
            InputError: there is no such part.
        """
        from ..sharding import show_sharding

        parts = {part.name: part for part in self.sharding_parts()}
        for name in names or ():
            if name not in parts:
                raise InputError(f"show_sharding: there is no part {name!r}{nearest(name, parts)}")
        return show_sharding([parts[name] for name in names or parts], chains=self.chains, ax=ax)

    def sharding_parts(self) -> list[Any]:
        """What `show_sharding` draws of a run."""
        from ..sharding import Part

        shared = set(self.work.params) if self.adaptation is None else self.adaptation.shared
        parts = [
            Part("state", self.work.carry, ("chain", "parameter"), "state"),
            *(
                Part(name, value, () if name in shared else ("chain",), "parameters")
                for name, value in self.work.params.items()
            ),
        ]
        for path, value in zip(self._paths, self.traced or (), strict=False):
            parts.append(Part(path, value, (), "data"))
        return parts

    def release(self) -> None:
        """Let go of the model, its data, and everything on the devices; draws stay."""
        self.target = self.traced = None

    def _target(self, what: str) -> Target:
        if self.target is None:
            raise InputError(f"{what} needs the model and its data, which release() let go.")
        return self.target

    def __repr__(self) -> str:
        kept = next(iter(self.stats.values())).shape[1] if self.stats else 0
        return (
            f"<Run of {self._name}: {self.chains} chains x {kept} draws on {self.mesh.devices.size} device(s), "
            f"{self.status}>"
        )


class Report:
    """A run in words. `str` and `print` give it; `verdict` is its last part."""

    def __init__(self, run: Run) -> None:
        self.verdict = run.verdict
        self._lines = _describe(run)

    def __str__(self) -> str:
        return "\n".join([*self._lines, str(self.verdict)])

    __repr__ = __str__

    @property
    def ok(self) -> bool:
        """Whether the verdict found nothing."""
        return self.verdict.ok


def _describe(run: Run) -> list[str]:
    mesh, timing = run.mesh, run.timing
    config: Any = jax.config
    device = mesh.devices.flat[0]
    padding = f", {run.layout.padding} padding" if run.layout.padding else ""
    if run.adaptation is None:
        tuned = "untuned: its settings are the user's"
    elif not run.tuned:
        tuned = "untuned: tune=0"
    else:
        tuned = f"tuned by {run.adaptation!r} over {run.tune} draws, target_accept {run.target_accept:g}"
    lines = [
        f"{run!r}",
        f"kernel     {run.kernel!r}, {tuned}",
        f"chains     {run.chains} on {mesh.devices.size} x {device.device_kind} ({run.layout.per_device} each"
        f"{padding})",
        f"draws      {run.draws} per chain after {run.tune} of warm-up"
        + (f", every {run.thin}th kept" if run.thin > 1 else "")
        + f", seed {run._seed_text()}",
        f"precision  {run.dtype}, matrix products at {config.jax_default_matmul_precision or 'highest'}",
        f"time       {timing.total:.2f} s: trace {timing.trace:.2f}, start {timing.start:.2f}, warm-up "
        f"{timing.warmup:.2f}, sampling {timing.sampling:.2f}",
    ]
    params = run.parameters
    if "step_size" in params:
        sizes = np.atleast_1d(params["step_size"])
        spread = f"{sizes.min():.3g}" if np.ptp(sizes) == 0 else f"{sizes.min():.3g} to {sizes.max():.3g}"
        lines.append(f"step size  {spread}")
    if run.warmup_tally.divergences.sum():
        lines.append(
            f"warm-up    {int(run.warmup_tally.divergences.sum())} divergences while tuning (not counted below)"
        )
    return lines
