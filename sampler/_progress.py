"""What a run says while it runs: a bar in a terminal, one element in a notebook, a few lines in a log.

The run loop calls `Progress.update` on the host at block ends and nowhere else, so showing progress cannot
change a draw, and nothing in this file touches JAX. Lines and bars go to standard error; standard output
stays the user's own.
"""

import abc
import math
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chainmesh._errors import OptionError

from ._snapshot import Snapshot as Snapshot
from ._snapshot import as_html, count, facts, line, sentence, where

if TYPE_CHECKING:
    from rich.console import RenderableType

_PLAIN_INTERVAL = 10.0  # seconds between lines of a log
_TERMINAL_INTERVAL = 0.08
_NOTEBOOK_INTERVAL = 0.25

# Two live displays in one terminal overwrite each other: the first run gets it, others write plain lines.
_terminal_lock = threading.Lock()


class Progress(abc.ABC):
    """Receives the snapshots of one run; also a context manager that closes itself.

    A display that fails (a closed pipe, say) warns once and goes quiet; it never ends the run.
    """

    _interval = 0.0  # least seconds between two displays of the same phase
    _keep_after_error = False

    def __init__(self) -> None:
        self._phases: dict[str, Snapshot] = {}  # newest snapshot of each phase, in order
        self._last_shown = -math.inf
        self._failed = False
        self._closed = False

    def update(self, snapshot: Snapshot) -> None:
        """Show a snapshot, unless one was shown a moment ago. The last one of a phase is always shown."""
        if self._closed or (self._failed and not self._keep_after_error):
            return
        first = snapshot.phase not in self._phases
        self._phases[snapshot.phase] = snapshot
        now = _now()
        if first or snapshot.finished or now - self._last_shown >= self._interval:
            self._last_shown = now
            self._guard(lambda: self._show(snapshot))

    def close(self, message: str = "") -> None:
        """End the display, its last state left visible with `message` under it. Later calls do nothing."""
        if self._closed:
            return
        self._closed = True
        self._guard(lambda: self._end(message))

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        del error, traceback
        if kind is None:
            self.close()
        else:
            self.close("interrupted" if issubclass(kind, KeyboardInterrupt) else f"ended by {kind.__name__}")

    def _guard(self, show: Callable[[], None]) -> None:
        try:
            show()
        except Exception as error:
            if not self._failed:
                self._failed = True
                warnings.warn(
                    f"Progress could not be shown ({type(error).__name__}: {error}). The run goes on; "
                    "pass progress=False to switch the display off.",
                    RuntimeWarning,
                    stacklevel=4,
                )

    @abc.abstractmethod
    def _show(self, snapshot: Snapshot) -> None: ...

    def _end(self, message: str) -> None:
        del message


class _Call(Progress):
    """Hands every snapshot to the user's function, unthrottled."""

    _keep_after_error = True

    def __init__(self, function: Callable[[Snapshot], object]) -> None:
        super().__init__()
        self._function = function

    def _show(self, snapshot: Snapshot) -> None:
        self._function(snapshot)


class _Plain(Progress):
    """Lines for a log: how the run starts, the end of each phase, and one every ten seconds between."""

    _interval = _PLAIN_INTERVAL

    def __init__(self) -> None:
        super().__init__()
        self._ended: set[str] = set()
        self._written: Snapshot | None = None

    def _show(self, snapshot: Snapshot) -> None:
        if snapshot.finished:
            if snapshot.phase not in self._ended:
                self._ended.add(snapshot.phase)
                self._write(line(snapshot))
        elif self._written is None and snapshot.done == 0:
            draws = f"{snapshot.total:,} draws each"
            self._write(sentence([snapshot.phase, where(snapshot), draws, snapshot.message]))
        elif self._written is None or self._written.phase == snapshot.phase:  # else a phase has just ended
            self._write(line(snapshot))
        self._written = snapshot

    def _end(self, message: str) -> None:
        last = next(reversed(self._phases.values()), None)
        if last is not None and not last.finished:
            self._write(line(last) + (f": {message}" if message else ""))
        elif message:
            self._write(message)

    def _write(self, text: str) -> None:
        stream = sys.stderr
        if stream is not None:
            stream.write(f"chainmesh: {text}\n")
            stream.flush()


class _Terminal(Progress):
    """One bar per phase and a line of facts, redrawn in place."""

    _interval = _TERMINAL_INTERVAL

    def __init__(self, release: Callable[[], None]) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        # Also returns the terminal when a run forgot to close.
        self._release = weakref.finalize(self, release)
        self._message = ""
        self._live = Live(
            console=Console(stderr=True, highlight=False),
            auto_refresh=False,  # redrawn at block ends only: no thread beside the run
            # What is printed meanwhile goes above the bars, but output piped elsewhere is left alone.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            vertical_overflow="visible",
        )

    def _show(self, snapshot: Snapshot) -> None:
        del snapshot
        if not self._live.is_started:
            self._live.start()
        self._live.update(self._render(), refresh=True)

    def _end(self, message: str) -> None:
        self._message = message
        try:
            if self._live.is_started:
                self._live.update(self._render())  # drawn by stop()
        finally:
            try:
                self._live.stop()
            finally:
                self._release()

    def _render(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bars = Table.grid(padding=(0, 1))
        for snapshot in self._phases.values():
            bars.add_row(
                snapshot.phase.ljust(8),
                ProgressBar(
                    total=max(snapshot.total, 1),
                    completed=snapshot.done if snapshot.total else 1,
                    width=max(10, min(40, self._live.console.width - 30)),
                ),
                count(snapshot),
            )
        words = Text()
        for text, alarming in facts(*self._phases.values()):
            words.append(", " if words else "")
            words.append(text, style="bold red" if alarming else "")
        parts: list[RenderableType] = [bars, words]
        if self._message:
            parts.append(Text(self._message))
        return Group(*parts)


class _Notebook(Progress):
    """One HTML element, updated in place: a saved notebook holds its last state and needs no widget."""

    _interval = _NOTEBOOK_INTERVAL

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None

    def _show(self, snapshot: Snapshot) -> None:
        del snapshot
        self._draw("")

    def _end(self, message: str) -> None:
        if self._phases or message:
            self._draw(message)

    def _draw(self, message: str) -> None:
        from IPython.display import display

        phases = list(self._phases.values())
        text = line(phases[-1]) if phases else ""
        plain = ": ".join(part for part in (text, message) if part)
        bundle = {"text/html": as_html(phases, message), "text/plain": f"chainmesh: {plain}"}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def make_progress(progress: object = True) -> Progress:
    """The display that fits where the run is: terminal, notebook or log.

    Args:
        progress: True to show progress, False for silence, or a function called with every `Snapshot`. An
            exception in the function is warned about once and does not end the run.

    Returns:
        A `Progress`; close it, or use it as a context manager.

    Raises:
        OptionError: `progress` is anything else.
    """
    if isinstance(progress, bool):
        if not progress or sys.stderr is None:
            return _Call(lambda _: None)
        if _in_notebook():
            return _Notebook()
        if _in_terminal() and _terminal_lock.acquire(blocking=False):
            try:
                return _Terminal(_terminal_lock.release)
            except BaseException:
                _terminal_lock.release()
                raise
        return _Plain()
    if callable(progress) and not isinstance(progress, type):
        return _Call(progress)
    raise OptionError(
        f"progress must be True, False or a function that takes a Snapshot, got {progress!r} of type "
        f"{type(progress).__name__}."
    )


def _now() -> float:
    return time.monotonic()


def _in_notebook() -> bool:
    # Where IPython was never imported there is no kernel, and importing it would cost half a second.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def _in_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
