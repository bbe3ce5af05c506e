"""What the benchmarks share: clocks, counters of compilations, parts in processes of their own, tables."""

import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # the models live there


class Cost(NamedTuple):
    """Seconds of a call: on the wall, and of this process on all cores."""

    wall: float
    cpu: float


class Line(NamedTuple):
    """A row of the table: what it is, both sides, how they compare, what is asked for."""

    what: str
    ours: str
    peer: str = ""
    ratio: str = ""
    target: str = ""


def timed(fn: Callable[[], Any]) -> tuple[Any, Cost]:
    """The result of a call, and what it cost."""
    cpu, wall = time.process_time(), time.perf_counter()
    out = fn()
    return out, Cost(time.perf_counter() - wall, time.process_time() - cpu)


def interleaved(repeats: int, *fns: Callable[[], Any]) -> list[Cost]:
    """The median cost of each function, called in turn, so that a busy machine troubles all of them alike."""
    costs: list[list[Cost]] = [[] for _ in fns]
    for _ in range(repeats):
        for fn, mine in zip(fns, costs, strict=True):
            mine.append(timed(fn)[1])
    return [median(each) for each in costs]


def median(costs: Sequence[Sequence[float]]) -> Cost:
    """Medians of wall and CPU seconds, each by itself."""
    return Cost(statistics.median(c[0] for c in costs), statistics.median(c[1] for c in costs))


def quiet(snapshot: Any) -> None:
    """A progress function that shows nothing; the run does all that it does for one that looks."""


class Compilations:
    """Counts XLA compilations in a `with` block."""

    def __enter__(self) -> "Compilations":
        import jax

        self.count, self.seconds, self._on = 0, 0.0, True
        jax.monitoring.register_event_duration_secs_listener(self._hear)
        return self

    def _hear(self, event: str, seconds: float, **_: Any) -> None:
        if self._on and event.endswith("backend_compile_duration"):
            self.count, self.seconds = self.count + 1, self.seconds + seconds

    def __exit__(self, *_: object) -> None:
        self._on = False


def child(part: str, **options: Any) -> Any:
    """Run a part of _speed_parts.py in a fresh process with nothing compiled; its last line is JSON."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION_CACHE")}
    command = [sys.executable, str(ROOT / "benchmarks" / "_speed_parts.py"), part, json.dumps(options)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{part} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> str:
    """The machine, the versions and the date, in words."""
    import psutil

    from chainmesh.sampler._versions import versions

    model = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":")[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    cores = f"{psutil.cpu_count(logical=False)} cores ({psutil.cpu_count()} threads)"
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    today = datetime.datetime.now(datetime.UTC).date()
    return f"{model}, {cores}, {platform.system()}, load {load:.1f} at the start; {packages}; {today}."


def table(lines: Sequence[Line]) -> str:
    """Lines as a Markdown table."""
    head = "| what | chainmesh | peer | ratio | target |\n|---|---|---|---|---|"
    return "\n".join([head, *("| " + " | ".join(line) + " |" for line in lines)])


def pair(cost: Sequence[float]) -> str:
    """Wall and CPU seconds."""
    return f"{seconds(cost[0])} (CPU {seconds(cost[1])})"


def seconds(x: float) -> str:
    """Seconds with the digits that matter."""
    return f"{x * 1000:.0f} ms" if x < 0.9995 else f"{x:.1f} s"
