"""Ctrl-C that ends a run at the next block end."""

import signal
import threading
import time
from types import FrameType
from typing import Any

import jax
import numpy as np


class Interrupt:
    """While entered, the first SIGINT only sets a flag; a second one raises KeyboardInterrupt at once.

    Handlers are set in the main thread only, and only over Python's own, and are put back.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._handle)
        return self

    @property
    def heard(self) -> bool:
        """Whether to stop: any process was interrupted. With several processes all must ask at the same points."""
        if jax.process_count() == 1:
            return self.requested
        from jax.experimental import multihost_utils

        return bool(multihost_utils.process_allgather(np.int32(self.requested)).any())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            self._restore()
            self._before_call(number, frame)
        self.requested = True

    def _before_call(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def __exit__(self, *error: object) -> None:
        self._restore()
        self._before = None


def wait(tree: Any) -> None:
    """Wait until every array is computed. Sleeping between looks lets signal handlers run, which a blocking wait would
    not."""  # fmt: skip
    pause = 1e-4
    for x in jax.tree.leaves(tree):
        while not x.is_ready():
            time.sleep(pause)
            pause = min(2 * pause, 0.005)
    jax.block_until_ready(tree)  # raises what the computation raised
