"""What a run is: the model, the blocks, progress, diagnostics, ArviZ."""

from ._data import static as static
from ._logdensity import LogDensity as LogDensity
from ._programs import clear_caches as clear_caches
from ._progress import Snapshot as Snapshot
from ._run import Run as Run
from ._sample import sample as sample
from ._verdict import Finding as Finding
from ._verdict import Verdict as Verdict
