"""Draws on the host, filled block by block."""

import numpy as np

from ..sharding import gather


class HostDraws:
    """Arrays (chain, draw, ...) by name, of known length, with the blocks that have arrived."""

    def __init__(self, chains: int, length: int) -> None:
        self._chains = chains
        self._length = length
        self._arrays: dict[str, np.ndarray] = {}
        self.filled = 0

    def append(self, block: dict, n: int) -> None:
        """Add the first `n` rows of a block: arrays (slots, capacity, ...) by name, on the device or the host.

        Blocks are fetched whole and trimmed here: slicing on the device would compile a program per length.
        """
        for name, rows in gather(block).items():
            rows = rows[: self._chains, :n]
            if name not in self._arrays:
                self._arrays[name] = np.empty((self._chains, self._length, *rows.shape[2:]), rows.dtype)
            self._arrays[name][:, self.filled : self.filled + n] = rows
        self.filled += n

    def arrays(self) -> dict[str, np.ndarray]:
        """What has arrived, rectangular."""
        if self.filled == self._length:
            return dict(self._arrays)
        return {name: array[:, : self.filled].copy() for name, array in self._arrays.items()}
