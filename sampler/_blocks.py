"""The block loop: start, warm-up in windows, draws in blocks; the host acts between blocks and nowhere else."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ..kernels import Window
from ..sharding import DATA, gather, place, put
from ._draws import HostDraws
from ._interrupt import Interrupt, wait
from ._programs import DRAW, WARMUP, Plan, Programs
from ._progress import Progress, Snapshot

_BLOCK_SECONDS = 0.5

# Two programs that hold collectives must not interleave on a device, so such programs run one at a time in the process.
# One lock, not one per device set: sets may overlap.
COLLECTIVES = threading.RLock()


@dataclasses.dataclass
class Chainwork:
    """Where the chains of a run are: what a checkpoint must hold, beside the draws."""

    carry: Any
    tuning: Any
    params: Any
    warmed: int = 0
    drawn: int = 0


@dataclasses.dataclass
class Tally:
    """Per-chain counts over every step, thinned ones included."""

    divergences: np.ndarray
    leapfrogs: np.ndarray | None = None

    def add(self, totals: dict[str, np.ndarray]) -> None:
        """Count one more block."""
        if "diverging" in totals:
            self.divergences = self.divergences + totals["diverging"].astype(np.int64)
        if "n_steps" in totals:
            steps = totals["n_steps"].astype(np.int64)
            self.leapfrogs = steps if self.leapfrogs is None else self.leapfrogs + steps


class Pace:
    """How many kept draws make a block of about half a second. The draws themselves do not depend on it."""

    def __init__(self, thin: int = 1) -> None:
        self._time = self._draws = 0.0
        self._last = max(1, 4 // thin)

    @property
    def known(self) -> bool:
        """Whether a block has been timed: before that, none is enqueued ahead."""
        return self._draws > 0

    def next(self, left: int) -> int:
        """Draws for the next block, at most four times the last."""
        n = self._last
        if self.known:
            n = min(4 * n, max(1, int(_BLOCK_SECONDS * self._draws / max(self._time, 1e-7))))
        if jax.process_count() > 1:  # every process must run the same blocks
            from jax.experimental import multihost_utils

            n = int(multihost_utils.broadcast_one_to_all(np.int32(n)))
        self._last = n
        return min(n, left)

    def took(self, seconds: float, n: int) -> None:
        """Learn from a block. A mean over several, because enqueueing a block may wait for it, and then the time of two
        blocks falls on one of them and none on the other."""  # fmt: skip
        self._time = 0.7 * self._time + seconds
        self._draws = 0.7 * self._draws + n


class Blocks:
    """A run's programs with their arguments on the mesh."""

    def __init__(
        self, plan: Plan, programs: Programs, mesh: Mesh, key: jax.Array, consts: Any, traced: Any
    ) -> None:
        self._plan = plan
        self._programs = programs
        self._mesh = mesh
        self._root = self._everywhere(key)
        self._consts = [self._everywhere(c) for c in consts]
        self._traced = [self._data(x) for x in traced]
        self._numbers: dict[Any, jax.Array] = {}
        self._count = self._number(plan.per_device)
        self._draws = self._window(Window(0))
        self._collective = mesh.shape[DATA] > 1

    @property
    def traced(self) -> list[jax.Array]:
        """The data on the mesh."""
        return self._traced

    def _everywhere(self, x: Any) -> jax.Array:
        return put(x, self._mesh, P())

    def _data(self, x: Any) -> jax.Array:
        # Data whose rows divide over the data axis are split there; the compiler does the rest.
        rows, ways = (np.shape(x) or (0,))[0], self._mesh.shape[DATA]
        return put(x, self._mesh, P(DATA) if ways > 1 and rows and rows % ways == 0 else P())

    def _number(self, n: int | np.floating) -> jax.Array:
        key = (type(n), n)
        if key not in self._numbers:  # placing one takes longer than many a block's dispatch
            self._numbers[key] = self._everywhere(np.int32(n) if isinstance(n, int) else n)
        return self._numbers[key]

    @contextlib.contextmanager
    def _exclusive(self, needed: bool) -> Iterator[Callable[[Any], None]]:
        """Hold the lock from dispatch to ready where the program has collectives."""
        if not needed:
            yield lambda tree: None
            return
        with COLLECTIVES:
            yield wait

    def start(
        self, params: Any, target_accept: float, values: np.ndarray, fixed: np.ndarray
    ) -> tuple[Chainwork, dict]:
        """Start the chains; the second result is what the host checks, per chain without padding."""
        target = self._everywhere(np.asarray(target_accept, self._plan.dtype))
        params = place(params, self._mesh, P())
        values, fixed = place((values, fixed), self._mesh)
        with self._exclusive(self._collective) as ready:
            carry, tuning, checks = self._programs.start(
                self._root, self._consts, self._traced, params, target, self._count, values, fixed
            )
            ready(carry)
        work = Chainwork(carry, tuning, params if tuning is None else tuning.params)
        wait(checks)
        return work, gather(checks, self._plan.chains)

    def compile_draws(self, work: Chainwork) -> None:
        """Compile the block of draws, and constrain, by running them on no draws."""
        with self._exclusive(self._collective) as ready:
            out = self._dispatch(work, DRAW, 0, 0, 1)
            ready(out)

    def _dispatch(
        self, work: Chainwork, phase: int, start: int, n: int, thin: int, constrain: bool = True
    ) -> tuple[Any, Any, Any]:
        """Enqueue a block of draws: the next carry, its rows, and its sites when wanted."""
        programs, count = self._programs, self._count
        numbers = [self._number(x) for x in (start, n, thin)]
        if programs.one_loop:
            (carry, _), rows = self._tuned(work, phase, self._draws, numbers)
        else:
            carry, rows = programs.draw(
                self._root,
                self._number(phase),
                self._consts,
                self._traced,
                work.params,
                work.carry,
                *numbers,
                count,
            )
        return carry, rows, self._constrained(rows, n) if constrain else None

    def _tuned(self, work: Chainwork, phase: int, window: dict[str, Any], numbers: list[jax.Array]) -> Any:
        return self._programs.tuned(
            self._root, self._number(phase), self._consts, self._traced, (work.carry, work.tuning), window, *numbers,
            self._count,
        )  # fmt: skip

    def _constrained(self, rows: Any, n: int) -> Any:
        return self._programs.constrain(
            self._consts_of_constrain, self._traced, rows.position, self._number(n)
        )

    def bind_constrain(self, consts: Any, names: tuple[str, ...]) -> None:
        """Constants of the constrain jaxpr, and the names of its outputs."""
        self._consts_of_constrain = [self._everywhere(c) for c in consts]
        self._names = names

    def _close(self, work: Chainwork, window: dict[str, Any]) -> None:
        wait(work.carry)  # no device may be late for the gather
        with COLLECTIVES:
            work.tuning = self._programs.close(work.tuning, window)
            wait(work.tuning)
        work.params = work.tuning.params

    def _window(self, window: Window, starts: bool = False) -> dict[str, Any]:
        dtype = self._plan.dtype
        flag = lambda b: self._number(dtype.type(b))  # noqa: E731
        return {
            "adapt": flag(window.length > 0),
            "max_depth": self._number(window.max_depth),
            "metric": flag(window.metric or starts),
            "pool": flag(window.pool),
            "hold": flag(window.hold),
            "starts": flag(starts),
        }

    def warm_up(
        self, work: Chainwork, windows: tuple[Window, ...], tally: Tally, kept: HostDraws | None,
        kept_stats: HostDraws | None, watch: "Watch", ready: Callable[[], None],
    ) -> None:  # fmt: skip
        """Run the windows of an adaptation, updating `work`; `ready` waits until the block is compiled.

        Raises:
            KeyboardInterrupt: interrupted; a warm-up has no draws to keep.
        """
        pace = Pace()
        one = self._number(1)
        self._close(work, self._window(windows[0], starts=True))
        ready()
        for window in windows:
            placed, left = self._window(window), window.length
            while left:
                n = pace.next(min(left, self._plan.capacity))
                begun = time.perf_counter()
                with self._exclusive(self._collective):
                    numbers = [self._number(work.warmed), self._number(n), one]
                    (work.carry, work.tuning), rows = self._tuned(work, WARMUP, placed, numbers)
                    wait((work.carry, rows))
                pace.took(time.perf_counter() - begun, n)
                if kept is not None and kept_stats is not None:
                    kept.append(dict(zip(self._names, self._constrained(rows, n), strict=True)), n)
                    kept_stats.append(rows.info, n)
                work.warmed += n
                left -= n
                tally.add(gather(rows.totals, self._plan.chains))
                watch.show("warm-up", work.warmed, tally, work.params)
                if watch.interrupt.heard:
                    raise KeyboardInterrupt("interrupted during warm-up: there are no draws yet")
            if window.metric or window.pool or window.restart:
                self._close(work, placed)

    def draw(
        self, work: Chainwork, phase: int, draws: int, thin: int, tally: Tally, kept: HostDraws | None,
        kept_stats: HostDraws | None, watch: "Watch",
    ) -> bool:  # fmt: skip
        """Make `draws` kept draws, the next block enqueued before the last is fetched; False when interrupted.

        After an interrupt `work` stands at the last fetched block: what ran beyond it is dropped.
        """
        pace, pending, issued = Pace(thin), None, 0
        ahead = dataclasses.replace(work)
        label = "warm-up" if phase == WARMUP else "sampling"
        first = work.warmed if phase == WARMUP else work.drawn
        last_ready = time.perf_counter()
        while issued < draws or pending is not None:
            if issued < draws and (pending is None or (pace.known and not self._collective)):
                n = min(pace.next(draws - issued), self._plan.capacity)
                with self._exclusive(self._collective) as ready:
                    out = self._dispatch(ahead, phase, first + issued, n, thin, kept is not None)
                    ready(out)
                ahead.carry, issued, block = out[0], issued + n, (out, n)
            else:
                block = None
            if pending is not None:
                (carry, rows, sites), n = pending
                wait((rows.totals, sites))
                now = time.perf_counter()
                pace.took(now - last_ready, n)
                last_ready = now
                if kept is not None and kept_stats is not None:
                    kept.append(dict(zip(self._names, sites, strict=True)), n)
                    kept_stats.append(rows.info, n)
                tally.add(gather(rows.totals, self._plan.chains))
                work.carry = carry
                if phase == WARMUP:
                    work.warmed += n
                else:
                    work.drawn += n
                watch.show(label, (work.warmed if phase == WARMUP else work.drawn) * thin, tally, work.params)
                if (block is not None or issued < draws) and watch.interrupt.heard:
                    if block is not None:
                        wait(
                            block[0][0]
                        )  # the session must not go on while the devices are busy with what is dropped
                    return False
            pending = block
        return True


class Watch:
    """What the loop shows of itself, and what stops it."""

    def __init__(
        self, progress: Progress, interrupt: Interrupt, chains: int, devices: int, totals: dict[str, int]
    ):
        self.interrupt = interrupt
        self._progress = progress
        self._chains, self._devices, self._totals = chains, devices, totals
        self._begun = time.perf_counter()
        self._phase, self._first = "", (self._begun, 0)

    def show(self, phase: str, done: int, tally: Tally, params: dict[str, Any]) -> None:
        """Report `done` draws per chain of a phase."""
        now = time.perf_counter()
        # A phase's first block may have compiled, so it says nothing of the rate.
        if self._phase != phase:
            self._phase, self._first = phase, (now, done)
        begun, before = self._first
        timed = done > before and now > begun
        rate = (done - before) / (now - begun) if timed else 0.0
        total = self._totals[phase]
        step = None
        if "step_size" in params and np.ndim(params["step_size"]) <= 1:
            sizes = gather(params["step_size"])
            sizes = sizes[: self._chains] if sizes.ndim else sizes[None]
            step = (float(sizes.min()), float(sizes.max()))
        self._progress.update(
            Snapshot(
                phase=phase,
                chains=self._chains,
                devices=self._devices,
                done=done,
                total=total,
                elapsed=now - self._begun,
                rate=rate * self._chains,
                eta=(total - done) / rate if timed else None,
                divergences=int(tally.divergences.sum()),
                step_size=step,
            )
        )
